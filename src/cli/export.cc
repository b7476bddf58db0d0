#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/table.h"
#include "normjit/plan/arch_list.h"
#include "normjit/service/report_json.h"

namespace normjit::cli {
namespace {

std::string text_of(const ExportReport& report, const std::string& path) {
  std::string text;
  for (const std::string& kernel : report.missing) text += "missing: " + kernel + "\n";
  if (!report.missing.empty()) return text + path + ": not written\n";
  return text + path + ": " + counted(report.entries, "entry", "entries") + ", " +
         std::to_string(report.bytes) + " bytes, XXH128 " + report.digest + "\n";
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
  return fail(named ? kDone : kFailed, left_out);
}

}  // namespace normjit::cli
