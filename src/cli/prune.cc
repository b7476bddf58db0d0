// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"
#include "cli/table.h"
#include "normjit/base/text.h"
#include "normjit/service/report_json.h"

namespace normjit::cli {
namespace {

struct PruneCommand : CommonOptions {
  std::string max_bytes;  // "256M"; empty: as the environment says
  bool all = false;
  std::int64_t stale_seconds = PruneOptions{}.stale_seconds;
  bool dry_run = false;
};

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

}  // namespace

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

}  // namespace normjit::cli
