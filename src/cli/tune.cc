// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "cli/command_line.h"
#include "cli/measure.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/tuning.h"
#include "normjit/base/run_on_threads.h"
#include "normjit/base/stopwatch.h"
#include "normjit/plan/footprint.h"
#include "normjit/service/prepared.h"

namespace normjit::cli {
namespace {

struct TuneCommand : CommonOptions {
  std::vector<std::string> specs;
  std::string rows;  // comma-separated; empty: as many as make x 256 MiB
  int repeat = 30;
  int top = 0;  // measure only so many plans; 0: all
  int device = 0;
  MeasuredUse use;
  bool dry_run = false;
};

using Trial = TuneReport::Trial;

constexpr int kFirstReplays = 7;       // enough to tell a good plan from a bad one
constexpr std::size_t kFinalists = 5;  // that are measured again, and shown

// One spec with one number of rows, and the kernels of its trials; empty where one cannot be had.
struct Case {
  TuneReport report;
  std::vector<Kernel> kernels;
};

Case make_case(const NormSpec& spec, std::int64_t rows, const MeasuredUse& use, const Gpu& gpu,
               const DeviceProfile& profile, int top) {
  check_use(spec, rows, use);
  // The tensors of the measurement, but for where their memory begins.
  const Tensors tensors = tensors_of(spec, layout_of(spec, rows, use.sample), rows,
                                     reinterpret_cast<std::byte*>(256), use.sample, use.plane);
  Case made;
  TuneReport& report = made.report;
  report.spec = spec;
  report.rows = rows;
  report.device = gpu.name() + " (" + profile.text() + ")";
  report.regime = regime_of(spec, rows, profile);
  report.alignment = pack(spec, tensors).alignment;
  for (Candidate& candidate : candidates(spec, profile, report.regime, report.alignment)) {
    if (top > 0 && report.trials.size() == static_cast<std::size_t>(top)) break;
    report.trials.push_back({.plan = in_groups(candidate.plan, spec, use.sample > 1),
                             .cost = candidate.cost,
                             .why = std::string(candidate.why)});
  }
  made.kernels.resize(report.trials.size());
  return made;
}

// Finds or compiles, and loads, the kernels of all trials, on all cores.
void prepare(Service& service, int device, const DeviceProfile& profile, std::vector<Case>& cases) {
  std::vector<std::pair<Case*, std::size_t>> all;
  for (Case& each : cases)
    for (std::size_t i = 0; i < each.kernels.size(); ++i) all.emplace_back(&each, i);
  Progress progress(isatty(STDERR_FILENO) != 0);
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;            // guards what follows, and the progress
  std::set<std::string> seen;  // cases share plans
  int done = 0;
  const auto work = [&] {
    for (std::size_t at; (at = next.fetch_add(1)) < all.size();) {
      auto& [of, i] = all[at];
      Trial& trial = of->report.trials[i];
      KernelReport step;  // failed, until there is a kernel
      step.spec = of->report.spec;
      step.arch = profile.arch;
      step.plan = trial.plan;
      const Stopwatch watch;
      if (const auto kernel = service.prepare(step.spec, {.device = device, .plan = trial.plan})) {
        of->kernels[i] = *kernel;
        step.outcome = KernelReport::Outcome::cached;
      } else {
        trial.error = kernel.error().message;
      }
      step.milliseconds = watch.milliseconds();
      const std::lock_guard lock(mutex);
      if (seen.insert(to_text(step.spec) + to_text(step.plan)).second &&
          of->kernels[i].origin() == Origin::compiled)
        step.outcome = KernelReport::Outcome::compiled;
      progress.show(step, ++done, static_cast<int>(all.size()));
    }
  };
  const auto cores = std::max<std::size_t>(1, std::thread::hardware_concurrency());
  run_on_threads(static_cast<int>(std::min(cores, all.size())), work);
}

// Measures these trials one by one. One that does not run says why, and the others go on.
void measure(Workbench& bench, Case& of, const std::vector<std::size_t>& trials, int replays) {
  Progress progress(isatty(STDERR_FILENO) != 0);
  int done = 0;
  for (const std::size_t i : trials) {
    Trial& trial = of.report.trials[i];
    std::string said;
    try {
      const BenchReport measured = bench.measure(of.kernels[i], replays);
      trial.kernel = measured.kernel;
      trial.copy = measured.copy;
      trial.replays = replays;
      said = fixed(trial.kernel.median, 2) + " us  " + fixed(trial.fraction_of_copy(), 3) + " of copy";
    } catch (const Exception& error) {
      trial.error = said = error.what();
      trial.replays = 0;
    }
    progress.show(++done, static_cast<int>(trials.size()), "plans measured",
                  said + "  " + to_text(of.report.spec) + "  " + to_text(trial.plan));
  }
}

// Two rounds: all plans shortly, then the best of them, and the rules' choice, for `repeat` replays.
void measure(Workbench& bench, Case& of, int repeat) {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < of.kernels.size(); ++i)
    if (of.kernels[i]) all.push_back(i);
  measure(bench, of, all, kFirstReplays);
  const std::vector<std::size_t> last = finalists(of.report.trials, kFinalists);
  for (const std::size_t i : last) of.report.trials[i].finalist = true;
  measure(bench, of, last, repeat);
  of.report.winner = winner_of(of.report.trials);
}

// Keeps the winner. Where the rules are as good they are left to decide, unless an older plan must give way:
// one that the service knows, or one of the reports before this.
Result<void> store(Service& service, const DeviceProfile& profile, const std::vector<TuneReport>& before,
                   TuneReport& report) {
  if (!report.winner) return {};
  const bool older =
      service.tuned(report.spec, profile, report.regime, report.alignment).value().has_value() ||
      std::any_of(before.begin(), before.end(), [&](const TuneReport& other) {
        return other.stored && other.spec == report.spec && other.regime == report.regime &&
               other.alignment == report.alignment;
      });
  if (*report.winner == 0 && !older) return {};
  const Trial& best = report.trials[*report.winner];
  auto kept = service.remember({.spec = report.spec,
                                .device = profile,
                                .regime = report.regime,
                                .alignment = report.alignment,
                                .plan = best.plan,
                                .rows = report.rows,
                                .fraction_of_copy = best.fraction_of_copy()});
  report.stored = kept.ok();
  return kept;
}

std::string text_of(const TuneReport& report) {
  std::string text = to_text(report.spec) + ", " + std::to_string(report.rows) + " rows (" +
                     std::string(name(report.regime)) + "), alignment " +
                     std::to_string(static_cast<int>(report.alignment)) + ": " +
                     std::to_string(report.trials.size()) + " plans\n";
  Table table({">us", ">of copy", ">model", "", "plan"});
  for (const std::size_t i : ranking(report.trials)) {
    const Trial& trial = report.trials[i];
    table.add({fixed(trial.kernel.median, 2), fixed(trial.fraction_of_copy(), 3),
               fixed(trial.estimated_fraction(), 3), i == 0 ? "rules" : "", to_text(trial.plan)});
  }
  text += table.text();
  for (const Trial& trial : report.trials)
    if (!trial.error.empty())
      text += "did not run: " + to_text(trial.plan) + "\n  " + trial.error.substr(0, trial.error.find('\n')) +
              "\n";
  return text + verdict(report) + (report.stored ? "; stored\n" : "\n");
}

std::string text_of(const std::vector<TuneReport>& reports) {
  std::string text = reports.front().device + "\n";
  for (const TuneReport& report : reports) text += "\n" + text_of(report);
  if (reports.size() == 1) return text;
  const auto right = std::count_if(reports.begin(), reports.end(),
                                   [](const TuneReport& report) { return report.winner == std::size_t{0}; });
  return text + "\nthe rules chose the best plan in " + std::to_string(right) + " of " +
         std::to_string(reports.size()) + " cases\n";
}

int tune(const TuneCommand& options) {
  if (options.repeat < 1) return fail(kUsage, "--repeat must be 1 or more");
  if (options.top < 0) return fail(kUsage, "--top must be 0, which is all, or more");
  const std::vector<MeasuredCase> measured = measured_cases(options.specs, options.rows, options.use.plane);
  const Options settings = service_options(options);
  if (settings.cache_directory.empty() && !options.dry_run) {
    return fail(kCacheIo,
                "there is no cache directory to keep the plans in: set --cache-dir, NORMJIT_CACHE_DIR or "
                "HOME, or only look with --dry-run");
  }

  const Gpu gpu(options.device);
  Service service(settings);
  const DeviceProfile profile = service.device(options.device).value();
  Copies copies(settings, gpu, profile);
  std::vector<Case> cases;
  for (const auto& [spec, rows] : measured)
    cases.push_back(make_case(spec, rows, options.use, gpu, profile, options.top));
  prepare(service, options.device, profile, cases);

  std::vector<TuneReport> reports;
  bool complete = true;
  Result<void> kept;
  for (Case& each : cases) {
    Workbench bench(gpu, profile, copies, each.report.spec, each.report.rows, options.use);
    measure(bench, each, options.repeat);
    if (!options.dry_run)
      if (auto stored = store(service, profile, reports, each.report); !stored) kept = stored;
    complete = complete && each.report.winner;
    reports.push_back(std::move(each.report));
  }
  print(options.json ? json_of(reports, settings.cache_directory) : text_of(reports));
  if (!kept) return fail(exit_code(kept.code()), kept.error().message);
  return complete ? kDone : fail(kFailed, "for some specs no plan could be measured");
}

}  // namespace

void add_tune(CommandLine& line) {
  auto [command, options] =
      line.add("tune", "Measure every legal plan on a GPU and keep the best beside the cache", tune);
  command->add_option("SPEC", options.specs, kSpecHelp)->required();
  command->add_option("--rows", options.rows,
                      "Comma-separated numbers of rows; else as many as make x 256 MiB");
  command->add_option("--sample-rows", options.use.sample, kSampleRowsHelp);
  command->add_option("--plane", options.use.plane, kPlaneHelp);
  command->add_option("--repeat", options.repeat, "Replays of the best plans that their median is of")
      ->capture_default_str();
  command
      ->add_option("--top", options.top, "Measure only so many plans, those the model ranks first; 0 is all")
      ->capture_default_str();
  command->add_option("--device", options.device, "CUDA ordinal of the GPU")->capture_default_str();
  command->add_flag("--dry-run", options.dry_run, "Measure and print; keep nothing");
  add_json(command, options);
  command->footer(std::string(R"(Examples:
  normjit tune layernorm/cols=4096/bf16/wb --rows 1,128,16384
  normjit tune layernorm/cols=1023/f16/wb --dry-run

All plans are measured as bench does; then the best five, and the one that the planner's rules choose, once more. A plan
that is more than 1 % faster than theirs is kept in the cache directory: later processes on GPUs with exactly this
profile take it for this spec, alignment and kind of row count (lone, few or many), and prebuild builds it. Of several
--rows of one kind the last one decides. "model" is the fraction of a copy's speed that the planner expects.

)") + kExitCodes);
}

}  // namespace normjit::cli
