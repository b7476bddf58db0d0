#include "cli/arch_list.h"
#include "cli/cache_json.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/table.h"
#include "cli/text_file.h"
#include "normjit/base/digest.h"

namespace normjit::cli {
namespace {

std::string text_of(const PackReport& report) {
  std::string text;
  for (const std::string& kernel : report.exported.missing) text += "missing: " + kernel + "\n";
  if (!report.written()) return text + report.path + ": not written\n";
  return text + report.path + ": " + counted(report.exported.entries, "entry", "entries") + ", " +
         std::to_string(report.exported.bytes) + " bytes, XXH128 " + report.digest + "\n";
}

}  // namespace

int export_pack(const ExportCommand& options) {
  if (options.pack == "-") return fail(kUsage, "a pack is a file; it cannot be written to standard output");
  ExportOptions wanted{
      .from = options.from, .specs = wanted_specs(options.manifests, options.specs), .devices = {}};
  const bool named = !options.specs.empty() || !options.manifests.empty();
  if (named && wanted.specs.empty()) return fail(kUsage, "there is nothing to export: the manifest is empty");
  if (!named && !options.archs.empty())
    return fail(kUsage, "--arch goes with specs: name some, or a --manifest that has them");

  const Options settings = service_options(options);
  if (settings.cache_directory.empty() && settings.layers.empty() && wanted.from.empty())
    return fail(kCacheIo, kNoCacheDirectory);
  Service service(settings);
  if (named) {
    wanted.devices = parse_arch_list(options.archs.empty() ? "native" : options.archs, [&](int ordinal) {
                       return service.device(ordinal);
                     }).value();
  }
  PackReport report{
      .path = options.pack, .exported = service.export_pack(options.pack, wanted).value(), .digest = {}};
  if (report.written()) report.digest = digest(read_text(options.pack).value());
  print(options.json ? json_of(report) : text_of(report));

  if (!report.exported.missing.empty()) {
    return fail(kFailed, counted(std::ssize(report.exported.missing), "kernel") +
                             " of these specs missing, and no pack written; `normjit prebuild` builds them");
  }
  if (report.exported.damaged == 0) return kDone;
  const std::string left_out = counted(report.exported.damaged, "damaged entry", "damaged entries") +
                               " left out; `normjit verify` names what is damaged";
  // None of the kernels asked for was among them.
  return fail(named ? kDone : kFailed, left_out);
}

}  // namespace normjit::cli
