// The commands that look after the cache, as the command line has them.
#include "cli/command_line.h"

namespace normjit::cli {

void CommandLine::add_prebuild() {
  CLI::App* command = add("prebuild", "Put every kernel that specs can ask for into the cache; needs no GPU",
                          prebuild_, [this] { return prebuild(prebuild_); });
  command->add_option("SPEC", prebuild_.specs, kSpecHelp);
  command
      ->add_option("--manifest", prebuild_.manifests,
                   "A file of specs: JSON, JSON lines, or a spec a line; repeatable; - is stdin")
      ->allow_extra_args(false);
  command
      ->add_option("--arch", prebuild_.archs,
                   "Comma-separated: sm_90 and the like, native (the GPUs here), all-major, all")
      ->capture_default_str();
  command->add_option("-j,--jobs", prebuild_.jobs, "Compile so many kernels at once; 0 is one per core")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_flag("--dry-run", prebuild_.dry_run,
                    "Say what is cached and what is missing; compile nothing");
  command->add_flag("--check", prebuild_.check, "As --dry-run, with exit status 1 if anything is missing");
  add_json(command, prebuild_);
  command->footer(std::string(R"(Examples:
  normjit prebuild layernorm/cols=64/f32/wb/gelu --arch sm_80,sm_90
  normjit prebuild --manifest cache/manifests/reference.json --arch all-major -j 8
  normjit prebuild --manifest shapes.json --arch sm_90 --check

)") + kExitCodes);
}

void CommandLine::add_list() {
  CLI::App* command = add("list", "List what the cache holds, damaged entries included", list_,
                          [this] { return list(list_); });
  command
      ->add_option("--sort", list_.sort,
                   "id, spec, size (the largest first) or age (the oldest first, with its date)")
      ->check(CLI::IsMember({"id", "spec", "size", "age"}))
      ->capture_default_str();
  command->add_flag("--layers", list_.layers, "Also what the layers hold");
  add_json(command, list_);
  command->footer(std::string(R"(Examples:
  normjit list --cache-dir /opt/kernels
  normjit list --sort size --layers

Exit status 1 if an entry is damaged, or with --layers a layer cannot be read.

)") + kExitCodes);
}

void CommandLine::add_why() {
  CLI::App* command = add("why", "Say where the kernels of a spec are, or why they would be compiled", why_,
                          [this] { return why(why_); });
  command->add_option("SPEC", why_.spec, kSpecHelp)->required();
  command->add_option("--arch", why_.arch, "One architecture, or native; else the GPU here, else sm_90");
  command->add_option("--rows", why_.rows,
                      "Only the kernel for so many rows of contiguous, aligned tensors; else all");
  add_json(command, why_);
  command->footer(std::string(R"(Examples:
  normjit why layernorm/cols=4096/bf16/wb --arch sm_90
  normjit why layernorm/cols=4096/bf16/wb --rows 16384

Compiles and writes nothing. A kernel that is nowhere is compared with the entry that is most like it. Exit status 1
if a kernel would be compiled.

)") + kExitCodes);
}

void CommandLine::add_verify() {
  CLI::App* command = add("verify", "Read and check every entry of the cache and of its layers", verify_,
                          [this] { return verify(verify_); });
  command->add_flag("--quarantine", verify_.quarantine,
                    "Move damaged entries of the directory aside, to *.damaged");
  add_json(command, verify_);
  command->footer(std::string(R"(Examples:
  normjit verify
  normjit verify --cache-dir /opt/kernels --quarantine

Damage found is exit status 1, whether it is moved aside or not.

)") + kExitCodes);
}

void CommandLine::add_prune() {
  CLI::App* command = add("prune", "Remove the oldest entries of the cache, and what killed processes left",
                          prune_, [this] { return prune(prune_); });
  CLI::Option* bound = command->add_option(
      "--max-bytes", prune_.max_bytes,
      "What the entries may take, as 4096, 512K, 256M or 2G; else NORMJIT_CACHE_MAX_BYTES, 256M");
  command->add_flag("--all", prune_.all, "Remove all entries, tuned plans included")->excludes(bound);
  command
      ->add_option("--stale", prune_.stale_seconds,
                   "Seconds after which a temporary belongs to a process that was killed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_flag("--dry-run", prune_.dry_run, "Say what would be removed; remove nothing");
  add_json(command, prune_);
  command->footer(std::string(R"(Examples:
  normjit prune
  normjit prune --max-bytes 1G --dry-run
  normjit prune --all --cache-dir /opt/kernels

If the entries take more than they may, the oldest go until 90 % of it is left. Removing is safe while kernels run: the
worst is one more compile. Layers are never touched.

)") + kExitCodes);
}

void CommandLine::add_export() {
  CLI::App* command = add("export", "Write entries of the cache into one file, to be a layer elsewhere",
                          export_, [this] { return export_pack(export_); });
  command->add_option("PACK", export_.pack, "The file to write, NAME.njp")->required();
  command->add_option("SPEC", export_.specs,
                      "Only the kernels and tuned plans of these specs; else all. " + std::string(kSpecHelp));
  command
      ->add_option(
          "--manifest", export_.manifests,
          "Only those of a file of specs: JSON, JSON lines, or a spec a line; repeatable; - is stdin")
      ->allow_extra_args(false);
  command->add_option("--arch", export_.archs,
                      "With specs, as for prebuild: sm_90 and the like, native, all-major, all; else native");
  command
      ->add_option(
          "--from", export_.from,
          "Take entries from this directory or pack instead of the cache and its layers; repeatable, an "
          "earlier one goes before a later one")
      ->allow_extra_args(false);
  add_json(command, export_);
  command->footer(std::string(R"(Examples:
  normjit export kernels.njp
  normjit export kernels.njp --manifest shapes.json --arch sm_80,sm_90
  normjit export both.njp --from one.njp --from other.njp

Use it: NORMJIT_LAYERS=/path/to/kernels.njp, or normjit import kernels.njp. Its name ends in .njp. The same entries make
the same bytes, in whatever order and wherever they were made: compare the XXH128 that is printed. Exit status 1 if a
kernel of the specs is missing, and then nothing is written; or if damaged entries had to be left out of a pack of all.

)") + kExitCodes);
}

void CommandLine::add_import() {
  CLI::App* command = add("import", "Copy the entries of directories and packs to the cache", import_,
                          [this] { return import_from(import_); });
  command->add_option("SOURCE", import_.sources, "A directory of entries, or a pack that export wrote")
      ->required();
  add_json(command, import_);
  command->footer(std::string(R"(Examples:
  normjit import kernels.njp
  normjit import /mnt/build/cache old.njp --cache-dir /opt/kernels

What the cache has stays. Every entry is checked. Exit status 1 if one was unsound; 2 if a source cannot be read, is no
pack or is not to be trusted, and then nothing is copied; 4 if the directory did not take an entry.

)") + kExitCodes);
}

}  // namespace normjit::cli
