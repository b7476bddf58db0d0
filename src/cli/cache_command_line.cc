// The commands that look after the cache, as the command line has them.
#include "cli/command_line.h"

namespace normjit::cli {

void add_prebuild(CommandLine& line) {
  auto [command, options] =
      line.add("prebuild", "Put every kernel that specs can ask for into the cache; needs no GPU", prebuild);
  command->add_option("SPEC", options.specs, kSpecHelp);
  command
      ->add_option("--manifest", options.manifests,
                   "A file of specs: JSON, JSON lines, or a spec a line; repeatable; - is stdin")
      ->allow_extra_args(false);
  command
      ->add_option("--arch", options.archs,
                   "Comma-separated: sm_90 and the like, native (the GPUs here), all-major, all")
      ->capture_default_str();
  command->add_option("-j,--jobs", options.jobs, "Compile so many kernels at once; 0 is one per core")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_flag("--dry-run", options.dry_run, "Say what is cached and what is missing; compile nothing");
  command->add_flag("--check", options.check, "As --dry-run, with exit status 1 if anything is missing");
  add_json(command, options);
  command->footer(std::string(R"(Examples:
  normjit prebuild layernorm/cols=64/f32/wb/gelu --arch sm_80,sm_90
  normjit prebuild --manifest cache/manifests/reference.json --arch all-major -j 8
  normjit prebuild --manifest shapes.json --arch sm_90 --check

)") + kExitCodes);
}

void add_list(CommandLine& line) {
  auto [command, options] = line.add("list", "List what the cache holds, damaged entries included", list);
  command
      ->add_option("--sort", options.sort,
                   "id, spec, size (the largest first) or age (the oldest first, with its date)")
      ->check(CLI::IsMember({"id", "spec", "size", "age"}))
      ->capture_default_str();
  command->add_flag("--layers", options.layers, "Also what the layers hold");
  add_json(command, options);
  command->footer(std::string(R"(Examples:
  normjit list --cache-dir /opt/kernels
  normjit list --sort size --layers

Exit status 1 if an entry is damaged, or with --layers a layer cannot be read.

)") + kExitCodes);
}

void add_why(CommandLine& line) {
  auto [command, options] =
      line.add("why", "Say where the kernels of a spec are, or why they would be compiled", why);
  command->add_option("SPEC", options.spec, kSpecHelp)->required();
  command->add_option("--arch", options.arch, "One architecture, or native; else the GPU here, else sm_90");
  command->add_option("--rows", options.rows,
                      "Only the kernel for so many rows of contiguous, aligned tensors; else all");
  add_json(command, options);
  command->footer(std::string(R"(Examples:
  normjit why layernorm/cols=4096/bf16/wb --arch sm_90
  normjit why layernorm/cols=4096/bf16/wb --rows 16384

Compiles and writes nothing. A kernel that is nowhere is compared with the entry that is most like it. Exit status 1
if a kernel would be compiled.

)") + kExitCodes);
}

void add_verify(CommandLine& line) {
  auto [command, options] =
      line.add("verify", "Read and check every entry of the cache and of its layers", verify);
  command->add_flag("--quarantine", options.quarantine,
                    "Move damaged entries of the directory aside, to *.damaged");
  add_json(command, options);
  command->footer(std::string(R"(Examples:
  normjit verify
  normjit verify --cache-dir /opt/kernels --quarantine

Damage found is exit status 1, whether it is moved aside or not.

)") + kExitCodes);
}

void add_prune(CommandLine& line) {
  auto [command, options] =
      line.add("prune", "Remove the oldest entries of the cache, and what killed processes left", prune);
  CLI::Option* bound = command->add_option(
      "--max-bytes", options.max_bytes,
      "What the entries may take, as 4096, 512K, 256M or 2G; else NORMJIT_CACHE_MAX_BYTES, 256M");
  command->add_flag("--all", options.all, "Remove all entries, tuned plans included")->excludes(bound);
  command
      ->add_option("--stale", options.stale_seconds,
                   "Seconds after which a temporary belongs to a process that was killed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_flag("--dry-run", options.dry_run, "Say what would be removed; remove nothing");
  add_json(command, options);
  command->footer(std::string(R"(Examples:
  normjit prune
  normjit prune --max-bytes 1G --dry-run
  normjit prune --all --cache-dir /opt/kernels

If the entries take more than they may, the oldest go until 90 % of it is left. Removing is safe while kernels run: the
worst is one more compile. Layers are never touched.

)") + kExitCodes);
}

void add_export(CommandLine& line) {
  auto [command, options] =
      line.add("export", "Write entries of the cache into one file, to be a layer elsewhere", export_pack);
  command->add_option("PACK", options.pack, "The file to write, NAME.njp")->required();
  command->add_option("SPEC", options.specs,
                      "Only the kernels and tuned plans of these specs; else all. " + std::string(kSpecHelp));
  command
      ->add_option(
          "--manifest", options.manifests,
          "Only those of a file of specs: JSON, JSON lines, or a spec a line; repeatable; - is stdin")
      ->allow_extra_args(false);
  command->add_option("--arch", options.archs,
                      "With specs, as for prebuild: sm_90 and the like, native, all-major, all; else native");
  command
      ->add_option(
          "--from", options.from,
          "Take entries from this directory or pack instead of the cache and its layers; repeatable, an "
          "earlier one goes before a later one")
      ->allow_extra_args(false);
  add_json(command, options);
  command->footer(std::string(R"(Examples:
  normjit export kernels.njp
  normjit export kernels.njp --manifest shapes.json --arch sm_80,sm_90
  normjit export both.njp --from one.njp --from other.njp

Use it: NORMJIT_LAYERS=/path/to/kernels.njp, or normjit import kernels.njp. Its name ends in .njp. The same entries make
the same bytes, in whatever order and wherever they were made: compare the XXH128 that is printed. Exit status 1 if a
kernel of the specs is missing, and then nothing is written; or if damaged entries had to be left out of a pack of all.

)") + kExitCodes);
}

void add_import(CommandLine& line) {
  auto [command, options] =
      line.add("import", "Copy the entries of directories and packs to the cache", import_from);
  command->add_option("SOURCE", options.sources, "A directory of entries, or a pack that export wrote")
      ->required();
  add_json(command, options);
  command->footer(std::string(R"(Examples:
  normjit import kernels.njp
  normjit import /mnt/build/cache old.njp --cache-dir /opt/kernels

What the cache has stays. Every entry is checked. Exit status 1 if one was unsound; 2 if a source cannot be read, is no
pack or is not to be trusted, and then nothing is copied; 4 if the directory did not take an entry.

)") + kExitCodes);
}

}  // namespace normjit::cli
