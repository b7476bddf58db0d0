// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <tuple>

#include "cli/command_line.h"
#include "cli/table.h"
#include "normjit/base/text.h"
#include "normjit/service/report_json.h"

namespace normjit::cli {
namespace {

struct ListCommand : CommonOptions {
  std::string sort = "spec";  // id, spec, size or age
  bool layers = false;
};

// Entries that are alike stay in the order of the library, which is by tier and id.
void sort_by(const std::string& order, std::vector<EntryReport>& entries) {
  const auto sort = [&](const auto& key) {
    std::stable_sort(entries.begin(), entries.end(),
                     [&](const EntryReport& a, const EntryReport& b) { return key(a) < key(b); });
  };
  if (order == "id") {
    sort([](const EntryReport& e) { return std::tie(e.id); });
  } else if (order == "size") {
    sort([](const EntryReport& e) { return -e.bytes; });
  } else if (order == "age") {
    sort([](const EntryReport& e) { return e.modified; });
  } else {  // spec; the damaged ones, of which that is unknown, first
    sort([](const EntryReport& e) { return std::tie(e.spec, e.arch, e.plan); });
  }
}

std::string known(int value) { return value < 0 ? "?" : std::to_string(value); }

std::string text_of(const std::vector<EntryReport>& entries, const Options& settings,
                    const ListCommand& options) {
  const bool dates = options.sort == "age";
  std::vector<std::string> headings = {"id", "arch", ">regs", ">spill", ">bytes"};
  if (dates) headings.push_back("modified");
  headings.insert(headings.end(), {"toolchain", "spec", "plan"});
  if (options.layers) headings.push_back("tier");
  Table table(std::move(headings));

  std::int64_t bytes = 0;
  for (const EntryReport& entry : entries) {
    bytes += entry.bytes;
    std::vector<std::string> cells = {entry.id, "-", "-", "-", std::to_string(entry.bytes)};
    if (dates) cells.push_back(timestamp(entry.modified));
    if (entry.damaged) {
      cells.insert(cells.end(), {"DAMAGED", entry.error, ""});
    } else if (entry.code == "plan") {
      cells[1] = entry.arch;
      cells.insert(cells.end(), {"tuned", entry.spec,
                                 entry.plan + " for the row regime " + entry.regime + ", alignment " + entry.alignment +
                                     " on " + entry.device});
    } else {
      cells[1] = entry.arch;
      cells[2] = known(entry.registers);
      cells[3] = known(entry.spill_bytes);
      cells.insert(cells.end(), {entry.toolchain, entry.spec, entry.plan});
    }
    if (options.layers) cells.push_back(entry.tier);
    table.add(std::move(cells));
  }
  const std::string sum = counted(std::ssize(entries), "entry", "entries") + ", " + std::to_string(bytes) +
                          " bytes in " + places(settings) + "\n";
  return entries.empty() ? sum : table.text() + sum;
}

int list(const ListCommand& options) {
  Options settings = service_options(options);
  if (!options.layers) settings.layers.clear();
  if (settings.cache_directory.empty() && settings.layers.empty()) return fail(kCacheIo, kNoCacheDirectory);
  Options readable = settings;  // the report names all layers
  const int unreadable = drop_unreadable_layers(readable);
  std::vector<EntryReport> entries = Service(readable).entries().value();
  sort_by(options.sort, entries);
  print(options.json ? json_of(entries, settings).text() : text_of(entries, settings, options));

  const auto damaged =
      std::count_if(entries.begin(), entries.end(), [](const EntryReport& e) { return e.damaged; });
  if (damaged == 0) return unreadable == 0 ? kDone : kFailed;
  return fail(kFailed,
              counted(damaged, "damaged entry", "damaged entries") +
                  ", never used: the next request compiles anew. `normjit verify --quarantine` moves "
                  "aside what is damaged in the directory");
}

}  // namespace

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

}  // namespace normjit::cli
