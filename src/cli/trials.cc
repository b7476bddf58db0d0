// SPDX-License-Identifier: Apache-2.0
#include "cli/trials.h"

#include <unistd.h>

#include <algorithm>
#include <limits>

#include "cli/dice.h"
#include "cli/table.h"
#include "normjit/base/stopwatch.h"
#include "normjit/plan/cost.h"
#include "normjit/service/default_compiler.h"
#include "normjit/service/prepared.h"

namespace normjit::cli {
namespace {

using Trial = TuneReport::Trial;

constexpr int kFirstReplays = 5;       // enough to tell a good plan from a bad one,
constexpr double kHopeless = 4;        // but for one that takes so many times as long as the best
constexpr std::size_t kFinalists = 5;  // that are measured again, and shown

void add_other_trials(TuneReport& report, const DeviceProfile& profile, bool grouped, const Trials& trials) {
  std::vector<Plan> others = every_plan(report.spec, profile, report.regime, report.alignment);
  for (Plan& plan : others) plan = in_groups(plan, report.spec, grouped);
  std::erase_if(others, [&](const Plan& plan) {
    return std::ranges::any_of(report.trials, [&](const Trial& trial) { return trial.plan == plan; });
  });
  Dice dice(trials.seed);
  for (int drawn = 0; (trials.every || drawn < trials.drawn) && !others.empty(); ++drawn) {
    const auto at = others.begin() + dice.roll(std::ssize(others));
    report.trials.push_back({.plan = *at, .why = {}});
    others.erase(at);
  }
}

// Measures all plans shortly. One that does not run says why, and the others go on.
void measure_shortly(Workbench& bench, Case& of, bool shows) {
  Progress progress(isatty(STDERR_FILENO) != 0);
  std::vector<Trial>& trials = of.report.trials;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (!of.kernels[i]) continue;
    Trial& trial = trials[i];
    std::string said;
    try {
      const std::vector<double> times = bench.times(of.kernels[i], kFirstReplays, kHopeless * least);
      const double time = timing_of(times).median;
      least = std::min(least, time);
      trial.kernel = {time, time, time};
      trial.copy.median = bench.copy_microseconds();
      trial.replays = static_cast<int>(times.size());
      said = fixed(time, 2) + " us  " + fixed(trial.fraction_of_copy(), 3) + " of copy";
    } catch (const Exception& error) {
      trial.error = said = error.what();
    }
    if (shows)
      progress.show(static_cast<int>(i) + 1, static_cast<int>(trials.size()), "plans measured",
                    said + "  " + to_text(of.report.spec) + "  " + to_text(trial.plan));
  }
}

}  // namespace

HelpedService::HelpedService(const Options& settings)
    : driver(make_cuda_driver()),
      compiler(make_default_compiler(settings, driver)),
      helpers(compiler->helpers()),
      service(std::make_unique<Service>(settings,
                                        Seams{.compiler = compiler, .driver = driver, .files = nullptr})) {}

std::string device_text(const Gpu& gpu, const DeviceProfile& profile) {
  return gpu.name() + " (" + profile.text() + ")";
}

Case make_case(const NormSpec& spec, std::int64_t rows, const MeasuredUse& use, const Gpu& gpu,
               const DeviceProfile& profile, const Trials& trials) {
  check_use(spec, rows, use);
  // The tensors of the measurement, but for where their memory begins.
  const Tensors tensors = tensors_of(spec, layout_of(spec, rows, use.sample), rows,
                                     reinterpret_cast<std::byte*>(256), use.sample, use.plane);
  Case made;
  made.use = use;
  TuneReport& report = made.report;
  report.spec = spec;
  report.rows = rows;
  report.device = device_text(gpu, profile);
  report.regime = regime_of(spec, rows, profile);
  report.served_rows = rows_text(report.regime, report.regime, spec, profile);
  report.alignment = pack(spec, tensors).alignment;
  const bool grouped = use.sample > 1;
  for (Candidate& candidate : candidates(spec, profile, report.regime, report.alignment)) {
    if (trials.top > 0 && report.trials.size() == static_cast<std::size_t>(trials.top)) break;
    report.trials.push_back({.plan = in_groups(candidate.plan, spec, grouped),
                             .cost = candidate.cost,
                             .why = std::string(candidate.why)});
  }
  if (trials.drawn > 0 || trials.every) add_other_trials(report, profile, grouped, trials);
  made.kernels.resize(report.trials.size());
  return made;
}

Preparation::Preparation(Service& service, int device, const DeviceProfile& profile, std::vector<Case>& cases,
                         bool shows)
    : service_(service),
      device_(device),
      profile_(profile),
      cases_(cases),
      shows_(shows),
      progress_(isatty(STDERR_FILENO) != 0) {
  for (std::size_t at = 0; at < cases_.size(); ++at)
    for (std::size_t i = 0; i < cases_[at].kernels.size(); ++i) all_.push_back({at, i});
  const auto cores = std::max(2u, std::thread::hardware_concurrency());
  for (unsigned i = 1; i < cores; ++i) threads_.emplace_back([this] { work(); });
}

Preparation::~Preparation() {
  const std::lock_guard lock(mutex_);
  stops_ = true;
  changed_.notify_all();
}

void Preparation::await(std::size_t at) {
  std::unique_lock lock(mutex_);
  measured_ = at;
  changed_.notify_all();
  changed_.wait(lock, [&] { return cases_[at].prepared == cases_[at].kernels.size(); });
}

void Preparation::work() {
  while (const std::optional<Place> place = next()) {
    const std::size_t i = place->i;
    Case& of = cases_[place->at];
    Trial& trial = of.report.trials[i];
    KernelReport step;  // failed, until there is a kernel
    step.spec = of.report.spec;
    step.arch = profile_.arch;
    step.plan = trial.plan;
    const Stopwatch watch;
    if (const auto kernel = service_.prepare(step.spec, {.device = device_, .plan = trial.plan})) {
      of.kernels[i] = *kernel;
      step.outcome = kernel->origin() == Origin::compiled ? KernelReport::Outcome::compiled
                                                          : KernelReport::Outcome::cached;
    } else {
      trial.error = kernel.error().message;
    }
    step.milliseconds = watch.milliseconds();
    const std::lock_guard lock(mutex_);
    ++of.prepared;
    if (shows_) progress_.show(step, ++done_, static_cast<int>(all_.size()));
    changed_.notify_all();
  }
}

std::optional<Preparation::Place> Preparation::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stops_ || next_ == all_.size() || all_[next_].at <= measured_ + kAhead; });
  if (stops_ || next_ == all_.size()) return {};
  return all_[next_++];
}

void measure(Workbench& bench, Case& of, int repeat, bool shows) {
  measure_shortly(bench, of, shows);
  std::vector<std::size_t> last = finalists(of.report.trials, kFinalists);
  if (!last.empty()) {  // the fastest first; hopeless ones are none, but for the planner's choice
    const double hopeless = kHopeless * of.report.trials[last.front()].kernel.median;
    std::erase_if(last,
                  [&](std::size_t i) { return i != 0 && of.report.trials[i].kernel.median > hopeless; });
  }
  std::vector<Kernel> kernels;
  for (const std::size_t i : last) kernels.push_back(of.kernels[i]);
  if (!kernels.empty()) {
    const std::vector<BenchReport> reports = bench.measure_in_turn(kernels, repeat);
    for (std::size_t i = 0; i < last.size(); ++i) {
      Trial& trial = of.report.trials[last[i]];
      trial.finalist = true;
      trial.kernel = reports[i].kernel;
      trial.copy = reports[i].copy;
      trial.replays = repeat;
    }
  }
  of.report.winner = winner_of(of.report.trials);
}

}  // namespace normjit::cli
