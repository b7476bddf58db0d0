// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"
#include "cli/table.h"
#include "normjit/remote/signature.h"
#include "normjit/service/report_json.h"

namespace normjit::cli {
namespace {

struct ImportCommand : CommonOptions {
  std::vector<std::string> sources;
};

std::string text_of(const ImportReport& report, const std::string& cache_directory) {
  std::string text;
  for (const std::string& error : report.errors) text += "left out: " + error + "\n";
  return text + std::to_string(report.imported) + " imported, " + std::to_string(report.present) +
         " already there, " + std::to_string(report.refused) + " refused, " +
         std::to_string(report.unstored) + " not stored; cache " + cache_directory + "\n";
}

int import_from(const ImportCommand& options) {
  const Options settings = service_options(options);
  if (settings.cache_directory.empty()) return fail(kCacheIo, kNoCacheDirectory);
  if (!settings.trust.empty())
    if (const std::string error = sodium_error(); !error.empty()) return fail(kEnvironment, error);
  for (const std::string& source : options.sources)
    if (const std::string error = source_error(source, settings); !error.empty()) return fail(kUsage, error);
  Service service(settings);
  const ImportReport report = service.import_from(options.sources).value();
  print(options.json ? json_of(report, settings.cache_directory).text()
                     : text_of(report, settings.cache_directory));
  if (report.unstored > 0) {
    return fail(kCacheIo,
                counted(report.unstored, "entry", "entries") +
                    " could not be stored. Check the free space and permissions of the cache directory, "
                    "or name another with --cache-dir");
  }
  if (report.refused == 0) return kDone;
  return fail(kFailed, counted(report.refused, "entry", "entries") +
                           " refused: they are damaged, or not to be trusted. Make their source again");
}

}  // namespace

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
pack or is not to be trusted, and then nothing is copied; 4 if the directory did not take an entry. With NORMJIT_TRUST,
a pack needs the signature of one of these keys, in a file beside it, NAME.njp.minisig; else 5, and nothing is copied.

)") + kExitCodes);
}

}  // namespace normjit::cli
