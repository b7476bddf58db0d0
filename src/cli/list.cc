#include <algorithm>
#include <tuple>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/json_reports.h"
#include "cli/table.h"

namespace normjit::cli {
namespace {

std::string known(int value) { return value < 0 ? "?" : std::to_string(value); }

// By what they are; the damaged ones, of which that is unknown, first.
std::string text_of(std::vector<EntryReport> entries, const std::string& cache_directory) {
  std::stable_sort(entries.begin(), entries.end(), [](const EntryReport& a, const EntryReport& b) {
    return std::tie(a.spec, a.arch, a.plan) < std::tie(b.spec, b.arch, b.plan);
  });
  Table table({"id", "arch", ">regs", ">spill", ">bytes", "toolchain", "spec", "plan"});
  std::int64_t bytes = 0;
  for (const EntryReport& entry : entries) {
    bytes += entry.bytes;
    if (entry.damaged) {
      table.add({entry.id, "-", "-", "-", std::to_string(entry.bytes), "DAMAGED", entry.error});
    } else if (entry.code == "plan") {
      table.add({entry.id, entry.arch, "-", "-", std::to_string(entry.bytes), "tuned", entry.spec,
                 entry.plan + " for " + entry.regime + " rows, alignment " + entry.alignment + " on " +
                     entry.device});
    } else {
      table.add({entry.id, entry.arch, known(entry.registers), known(entry.spill_bytes),
                 std::to_string(entry.bytes), entry.toolchain, entry.spec, entry.plan});
    }
  }
  const std::string sum = std::to_string(entries.size()) + " entries, " + std::to_string(bytes) +
                          " bytes in " + cache_directory + "\n";
  return entries.empty() ? sum : table.text() + sum;
}

}  // namespace

int list(const CommonOptions& options) {
  const Options settings = service_options(options);
  if (settings.cache_directory.empty()) {
    return fail(kCacheIo, "there is no cache directory: set --cache-dir, NORMJIT_CACHE_DIR or HOME");
  }
  const std::vector<EntryReport> entries = Service(settings).entries().value();
  print(options.json ? json_of(entries, settings.cache_directory)
                     : text_of(entries, settings.cache_directory));

  const auto damaged =
      std::count_if(entries.begin(), entries.end(), [](const EntryReport& e) { return e.damaged; });
  if (damaged == 0) return kDone;
  return fail(kFailed, std::to_string(damaged) +
                           " damaged entries. They are never used: the next request compiles them anew");
}

}  // namespace normjit::cli
