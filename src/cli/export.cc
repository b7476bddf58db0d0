// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"
#include "cli/table.h"
#include "normjit/plan/arch_list.h"
#include "normjit/remote/signature.h"
#include "normjit/service/report_json.h"

namespace normjit::cli {
namespace {

struct ExportCommand : CommonOptions {
  std::string pack;
  std::vector<std::string> specs, manifests;
  std::string archs;  // empty: native, with specs
  std::vector<std::string> from;
  Uses uses;
  bool tuned = false;
  bool sign = false;
  std::string key;  // empty: NORMJIT_SIGN_KEY
};

std::string text_of(const ExportReport& report, const std::string& path) {
  std::string text;
  for (const std::string& kernel : report.missing) text += "missing: " + kernel + "\n";
  if (!report.missing.empty()) return text + path + ": not written\n";
  return text + path + ": " + counted(report.entries, "entry", "entries") + ", " +
         std::to_string(report.bytes) + " bytes, XXH128 " + report.digest + "\n";
}

int export_pack(const ExportCommand& options) {
  if (options.pack == "-") return fail(kUsage, "a pack is a file; it cannot be written to standard output");
  ExportOptions wanted{.from = options.from,
                       .specs = wanted_specs(options.manifests, options.specs),
                       .devices = {},
                       .uses = options.uses,
                       .only_tuned = options.tuned,
                       .sign_key = {}};
  const bool named = !options.specs.empty() || !options.manifests.empty();
  if (options.tuned && (options.uses.batch_invariant || options.uses.grouped_rows))
    return fail(kUsage, "--tuned takes no kernels, so --batch-invariant and --grouped-rows say nothing");
  if (named && wanted.specs.empty()) return fail(kUsage, "there is nothing to export: the manifest is empty");
  if (!named && !options.archs.empty())
    return fail(kUsage, "--arch goes with specs: name some, or a --manifest that has them");

  const Options settings = service_options(options);
  if (settings.cache_directory.empty() && settings.layers.empty() && wanted.from.empty())
    return fail(kCacheIo, kNoCacheDirectory);
  if (options.sign) {
    wanted.sign_key = options.key.empty() ? settings.sign_key : options.key;
    if (wanted.sign_key.empty()) return fail(kUsage, kNoSignKey);
    if (const std::string error = sodium_error(); !error.empty()) return fail(kEnvironment, error);
  }
  Service service(settings);
  if (named) {
    wanted.devices = parse_arch_list(options.archs.empty() ? "native" : options.archs, [&](int ordinal) {
                       return service.device(ordinal);
                     }).value();
  }
  const ExportReport report = service.export_pack(options.pack, wanted).value();
  print(options.json ? json_of(report, options.pack).text() : text_of(report, options.pack));

  if (!report.missing.empty()) {
    return fail(kFailed, counted(std::ssize(report.missing), "kernel") +
                             " of these specs missing, and no pack written; `normjit prebuild` builds them");
  }
  if (report.damaged == 0) return kDone;
  const std::string left_out = counted(report.damaged, "damaged entry", "damaged entries") +
                               " left out; `normjit verify` names what is damaged";
  // None of the kernels asked for was among them.
  return fail(named || options.tuned ? kDone : kFailed, left_out);
}

}  // namespace

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
  add_uses(command, options.uses, "With specs: ");
  command->add_flag(
      "--tuned", options.tuned,
      "Only the tuned plans that there are, without their kernels, which are compiled where they are used");
  command
      ->add_option(
          "--from", options.from,
          "Take entries from this directory or pack instead of the cache and its layers; repeatable, an "
          "earlier one goes before a later one")
      ->allow_extra_args(false);
  CLI::Option* const sign =
      command->add_flag("--sign", options.sign, "Sign the pack: writes PACK.minisig beside it");
  command->add_option("--key", options.key, "With --sign: the file of the secret key; else NORMJIT_SIGN_KEY")
      ->needs(sign);
  add_json(command, options);
  command->footer(std::string(R"(Examples:
  normjit export kernels.njp
  normjit export kernels.njp --manifest shapes.json --arch sm_80,sm_90
  normjit export both.njp --from one.njp --from other.njp
  normjit export plans.njp --tuned
  normjit export kernels.njp --sign --key release.key

Use it: NORMJIT_LAYERS=/path/to/kernels.njp, or normjit import kernels.njp. Its name ends in .njp. The same entries make
the same bytes, in whatever order and wherever they were made: compare the XXH128 that is printed. Exit status 1 if a
kernel of the specs is missing, and then nothing is written; or if damaged entries had to be left out of a pack of all.

)") + kExitCodes);
}

}  // namespace normjit::cli
