#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/table.h"
#include "normjit/base/text.h"
#include "normjit/service/report_json.h"

namespace normjit::cli {
namespace {

// What to do, or nothing if --max-bytes is no number of bytes.
std::optional<PruneOptions> prune_options(const PruneCommand& command) {
  PruneOptions options{.stale_seconds = command.stale_seconds, .dry_run = command.dry_run};
  if (command.all) {
    options.max_bytes = 0;
  } else if (!command.max_bytes.empty()) {
    const std::optional<std::int64_t> bytes = bytes_from(command.max_bytes);
    // NORMJIT_CACHE_MAX_BYTES=0 bounds nothing, so that 0 means "all" here is too easily got wrong.
    if (!bytes || *bytes == 0) return std::nullopt;
    options.max_bytes = *bytes;
  }
  return options;
}

std::string text_of(const PruneReport& report, const std::string& cache_directory, bool dry_run) {
  if (report.busy) return "another process is trimming " + cache_directory + ": nothing was done\n";
  return std::string(dry_run ? "would remove " : "removed ") + counted(report.entries, "entry", "entries") +
         ", " + counted(report.damaged, "damaged file") + " and " +
         counted(report.temporaries, "temporary", "temporaries") + ": " + std::to_string(report.bytes) +
         " bytes\n" + (dry_run ? "would keep " : "kept ") + counted(report.kept, "entry", "entries") + ", " +
         std::to_string(report.kept_bytes) + " bytes in " + cache_directory + "\n";
}

}  // namespace

int prune(const PruneCommand& options) {
  const std::optional<PruneOptions> wanted = prune_options(options);
  if (!wanted) {
    return fail(kUsage, "--max-bytes is '" + options.max_bytes +
                            "'; it takes a number of bytes above 0, as 4096, 512K, 256M or 2G. To remove all "
                            "entries say --all");
  }
  const Options settings = service_options(options);
  if (settings.cache_directory.empty()) return fail(kCacheIo, kNoCacheDirectory);
  const PruneReport report = Service(settings).prune(*wanted).value();
  print(options.json ? json_of(report, settings.cache_directory, options.dry_run).text()
                     : text_of(report, settings.cache_directory, options.dry_run));
  if (report.refused == 0) return kDone;
  return fail(kCacheIo, counted(report.refused, "file") +
                            " could not be removed. Check who owns them and whether " +
                            settings.cache_directory + " can be written");
}

}  // namespace normjit::cli
