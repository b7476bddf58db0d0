// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <random>

#include "bench/suite.h"
#include "cli/command_line.h"
#include "cli/measure.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "normjit/base/run_on_threads.h"
#include "normjit/base/text.h"
#include "verify/text_file.h"

namespace normjit::bench {

using namespace cli;

namespace {

constexpr int kRandomCases = 40;

struct SuiteCommand : CommonOptions {
  int repeat = 30;
  int device = 0;
  bool list = false;                  // only the cases; needs no GPU
  std::optional<std::uint64_t> seed;  // of the random cases; none: another one each time
  std::string regime;                 // empty: all
  bool compact = false;               // the table
  std::string output = "suite.json";  // a file or a directory
};

std::vector<SuiteCase> cases_of(const SuiteCommand& options, std::uint64_t seed) {
  std::vector<SuiteCase> cases = fixed_cases();
  for (const std::vector<SuiteCase>& more :
       {random_cases(seed, kRandomCases), fused_cases(seed), channels_first_cases(), quantized_cases(seed)})
    cases.insert(cases.end(), more.begin(), more.end());
  if (options.regime.empty()) return cases;
  const Regime regime = parse_regime(options.regime).value();
  std::vector<SuiteCase> chosen = only(regime, cases);
  if (chosen.empty())
    throw Exception({Code::BadArgument, "the suite has no case of the regime " + options.regime});
  return chosen;
}

std::string text_of(const std::vector<SuiteCase>& cases, std::uint64_t seed) {
  Table table({"regime", "spec", ">rows", ">MB", "target"});
  for (const SuiteCase& one : cases) {
    const double megabytes = static_cast<double>(bytes_moved(one.spec, one.rows, one.use.sample)) / 1e6;
    table.add({regime_text(one), to_text(one.spec), std::to_string(one.rows),
               fixed(megabytes, megabytes < 10 ? 2 : 0), to_text(one.target())});
  }
  return table.text() + "* drawn by the seed " + std::to_string(seed) + "\n";
}

// Compiles and loads every kernel that the cases need, on all cores. What fails is reported by its case.
void prepare_all(Service& service, int device, const std::vector<SuiteCase>& cases) {
  parallel_for(std::ssize(cases), 1, [&](std::int64_t i, std::int64_t) {
    const SuiteCase& one = cases[static_cast<std::size_t>(i)];
    (void)service.prepare(one.spec, {.device = device, .rows_hint = one.rows});
  });
}

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &parts));
}

// The version of the kernel module, where the system shows it, and of the CUDA that the driver serves.
std::string driver_text(Service& service) {
  const std::string cuda = "CUDA " + service.environment().driver_version;
  const Result<std::string> module = oracle::read_text("/sys/module/nvidia/version");
  if (!module) return cuda;
  return module->substr(0, module->find('\n')) + ", " + cuda;
}

SuiteReport run_suite(const SuiteCommand& options, const std::vector<SuiteCase>& cases, std::uint64_t seed) {
  const Options settings = service_options(options);
  const Gpu gpu(options.device);
  Service service(settings);
  const DeviceProfile profile = service.device(options.device).value();
  Copies copies(settings, gpu, profile);
  SuiteReport report{.device = gpu.name() + " (" + profile.text() + ")",
                     .driver = driver_text(service),
                     .date = now(),
                     .seed = seed,
                     .results = {}};
  prepare_all(service, options.device, cases);
  Progress progress(isatty(STDERR_FILENO) != 0);
  for (const SuiteCase& one : cases) {
    SuiteResult result{.what = one, .bench = {}, .error = {}, .value = {}, .met = {}};
    std::string outcome;
    try {
      result.bench = measure(service, gpu, copies, one.spec, one.rows, options.repeat, one.use);
      outcome = fixed(result.bench->fraction_of_copy(), 3) + " of copy";
    } catch (const std::exception& error) {
      result.error = error.what();
      outcome = "failed: " + result.error;
    }
    report.results.push_back(std::move(result));
    progress.show(static_cast<int>(report.results.size()), static_cast<int>(cases.size()), "cases",
                  std::to_string(one.rows) + " x " + to_text(one.spec) + "  " + outcome);
  }
  judge(report.results);
  return report;
}

std::string output_file(const std::string& output) {
  std::error_code ignored;
  return std::filesystem::is_directory(output, ignored) ? output + "/suite.json" : output;
}

int suite(const SuiteCommand& options) {
  if (options.repeat < 1) return fail(kUsage, "--repeat must be 1 or more");
  const std::uint64_t seed = options.seed ? *options.seed : std::random_device{}();
  const std::vector<SuiteCase> cases = cases_of(options, seed);
  if (options.list) {
    print(options.json ? json_of(cases, seed) : text_of(cases, seed));
    return kDone;
  }
  const SuiteReport report = run_suite(options, cases, seed);
  const std::string stored = json_of(report);
  oracle::write_text(output_file(options.output), stored).value();
  print(options.json ? stored : options.compact ? compact_table_of(report) : table_of(report));
  for (const SuiteResult& result : report.results)
    if (!result.bench) return fail(kFailed, "some cases failed");
  return kDone;
}

}  // namespace

void add_suite(CommandLine& line) {
  auto [command, options] =
      line.add("suite", "Time cases of every regime and random ones against their targets", suite);
  command->add_option("--repeat", options.repeat, "Replays that the median of a case is of")
      ->capture_default_str();
  command->add_option("--device", options.device, "CUDA ordinal of the GPU")->capture_default_str();
  add_json(command, options);
  command->add_flag("--list", options.list, "Print the cases only; needs no GPU");
  command
      ->add_option("--seed", options.seed,
                   "Of the random cases; else another one each time, which is printed")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--regime", options.regime, "Only the cases of one: " + regime_names());
  command->add_flag("--compact", options.compact,
                    "Print microseconds and fraction of the copy only, a line for each size of a norm");
  command
      ->add_option("--output", options.output,
                   "Store the results in this file, or in suite.json in this directory")
      ->capture_default_str();
  command->footer(std::string(R"(Examples:
  normjit-bench suite --seed 1 --output suite.json
  normjit-bench suite --list --regime decode
  normjit-bench suite --seed 1 --regime fused --compact

Cases are timed as `normjit bench` does. A target that is not reached does not change the exit status.
scripts/plot_suite.py draws what is stored.

)") + kExitCodes);
}

}  // namespace normjit::bench
