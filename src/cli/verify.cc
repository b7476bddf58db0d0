// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cli/command_line.h"
#include "cli/table.h"
#include "normjit/service/report_json.h"

namespace normjit::cli {
namespace {

struct VerifyCommand : CommonOptions {
  bool quarantine = false;
};

std::string text_of(const VerifyReport& report, const Options& settings) {
  std::string text;
  for (const VerifyReport::Flaw& flaw : report.flaws)
    text += flaw.path + (flaw.quarantined ? " (moved aside)" : "") + "\n  " + flaw.reason + "\n";
  return text + counted(report.entries, "sound entry", "sound entries") + ", " +
         std::to_string(report.bytes) + " bytes, and " + counted(std::ssize(report.flaws), "flaw") + " in " +
         places(settings) + "\n";
}

int verify(const VerifyCommand& options) {
  const Options settings = service_options(options);
  if (settings.cache_directory.empty() && settings.layers.empty()) return fail(kCacheIo, kNoCacheDirectory);
  const VerifyReport report = Service(settings).verify(options.quarantine).value();
  print(options.json ? json_of(report, settings).text() : text_of(report, settings));
  if (report.flaws.empty()) return kDone;

  const auto moved = std::count_if(report.flaws.begin(), report.flaws.end(),
                                   [](const VerifyReport::Flaw& flaw) { return flaw.quarantined; });
  const auto left = std::ssize(report.flaws) - moved;
  std::string advice = counted(std::ssize(report.flaws), "flaw") + ". What is flawed is never used: ";
  advice += "the next request compiles anew";
  if (moved > 0) advice += "; " + std::to_string(moved) + " moved aside, which `normjit prune` clears away";
  if (left > 0 && !options.quarantine)
    advice += "; --quarantine moves aside what is in the directory. A flawed layer has to be made again";
  if (left > 0 && options.quarantine)
    advice += "; " + std::to_string(left) +
              " stay: a flawed layer has to be made again, and others' files are theirs to remove";
  return fail(kFailed, advice);
}

}  // namespace

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

}  // namespace normjit::cli
