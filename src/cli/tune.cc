// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "cli/command_line.h"
#include "cli/dice.h"
#include "cli/layers.h"
#include "cli/measure.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/tuning.h"
#include "normjit/base/stopwatch.h"
#include "normjit/plan/cost.h"
#include "normjit/plan/footprint.h"
#include "normjit/service/default_compiler.h"
#include "normjit/service/prepared.h"
#include "verify/text_file.h"

namespace normjit::cli {
namespace {

struct TuneCommand : CommonOptions {
  std::vector<std::string> specs, manifests;
  std::string rows;  // comma-separated; empty: as many as make x 256 MiB
  int repeat = 30;
  std::optional<int> top;  // measure only so many plans; 0: all
  int device = 0;
  MeasuredUse use;
  bool dry_run = false;
  // Of layers drawn at random.
  int random = 0;  // how many; 0: SPEC is tuned
  std::uint64_t seed = 1;
  int every = 0;     // of so many of them every legal plan is measured
  std::string data;  // the file that keeps the times
};

using Trial = TuneReport::Trial;

constexpr int kFirstReplays = 5;       // enough to tell a good plan from a bad one
constexpr std::size_t kFinalists = 5;  // that are measured again, and shown
constexpr int kTopOfModel = 6;         // plans of each case of a manifest

// One spec with one number of rows, and the kernels of its trials; empty where one cannot be had.
struct Case {
  TuneReport report;
  MeasuredUse use;
  std::vector<Kernel> kernels;
  std::size_t prepared = 0;  // kernels that were had, or could not be
};

// A service whose compiles go to other processes too, which keep all cores busy.
struct HelpedService {
  explicit HelpedService(const Options& settings)
      : driver(make_cuda_driver()),
        compiler(make_default_compiler(settings, driver)),
        helpers(compiler->helpers()),
        service(std::make_unique<Service>(settings,
                                          Seams{.compiler = compiler, .driver = driver, .files = nullptr})) {}

  const std::shared_ptr<Driver> driver;
  const std::shared_ptr<Compiler> compiler;
  const std::shared_ptr<void> helpers;
  const std::unique_ptr<Service> service;
};

// Which plans are tried.
struct Trials {
  int top = 0;             // so many that the model ranks first; 0: all
  int drawn = 0;           // and so many others of all legal ones
  std::uint64_t seed = 0;  // that these are drawn with
  bool every = false;      // all legal ones
};

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
  report.device = gpu.name() + " (" + profile.text() + ")";
  report.regime = regime_of(spec, rows, profile);
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

// Finds or compiles, and loads, the kernels of all cases on all cores but one, case by case, while the
// calling thread measures those that are ready.
class Preparation {
 public:
  // `shows`: prints each kernel.
  Preparation(Service& service, int device, const DeviceProfile& profile, std::vector<Case>& cases,
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
  ~Preparation() {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    changed_.notify_all();
  }

  // Waits for the kernels of a case. Cases are asked for in their order.
  void await(std::size_t at) {
    std::unique_lock lock(mutex_);
    measured_ = at;
    changed_.notify_all();
    changed_.wait(lock, [&] { return cases_[at].prepared == cases_[at].kernels.size(); });
  }

 private:
  // A loaded kernel takes memory, so that no more cases are made ready ahead.
  static constexpr std::size_t kAhead = 64;

  struct Place {
    std::size_t at, i;  // of the case, and of the trial in it
  };

  void work() {
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
  // The next kernel to prepare; nothing once there is none.
  std::optional<Place> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [&] { return stops_ || next_ == all_.size() || all_[next_].at <= measured_ + kAhead; });
    if (stops_ || next_ == all_.size()) return {};
    return all_[next_++];
  }

  Service& service_;
  const int device_;
  const DeviceProfile& profile_;
  std::vector<Case>& cases_;
  const bool shows_;
  std::vector<Place> all_;
  std::mutex mutex_;  // guards what follows, and `prepared` of the cases
  std::condition_variable changed_;
  Progress progress_;
  std::size_t next_ = 0, measured_ = 0;
  int done_ = 0;
  bool stops_ = false;
  std::vector<std::jthread> threads_;  // joined first
};

// Measures all plans shortly. One that does not run says why, and the others go on.
void measure_shortly(Workbench& bench, Case& of, bool shows) {
  Progress progress(isatty(STDERR_FILENO) != 0);
  std::vector<Trial>& trials = of.report.trials;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (!of.kernels[i]) continue;
    Trial& trial = trials[i];
    std::string said;
    try {
      const double time = bench.time(of.kernels[i], kFirstReplays);
      trial.kernel = {time, time, time};
      trial.copy.median = bench.copy_microseconds();
      trial.replays = kFirstReplays;
      said = fixed(time, 2) + " us  " + fixed(trial.fraction_of_copy(), 3) + " of copy";
    } catch (const Exception& error) {
      trial.error = said = error.what();
    }
    if (shows)
      progress.show(static_cast<int>(i) + 1, static_cast<int>(trials.size()), "plans measured",
                    said + "  " + to_text(of.report.spec) + "  " + to_text(trial.plan));
  }
}

// Each spec with a number of rows of each kind: as one token has, a small batch, and a large one.
std::vector<MeasuredCase> one_of_each_kind(const std::vector<NormSpec>& specs, const DeviceProfile& profile,
                                           const MeasuredUse& use) {
  std::vector<MeasuredCase> cases;
  const auto add = [&](const NormSpec& spec, std::int64_t rows) {
    cases.push_back({spec, ceil_div(rows, use.sample) * use.sample});
  };
  for (const NormSpec& spec : specs) {
    if (spec.channels_first) {
      cases.push_back({spec, default_rows(spec, use.plane)});
    } else {
      add(spec, 1);
      add(spec, profile.sm_count / 2);
      add(spec, default_rows(spec));
    }
  }
  return cases;
}

// Two rounds: all plans shortly, then the best of them, and the rules' choice, in turn for `repeat` replays.
void measure(Workbench& bench, Case& of, int repeat, bool shows) {
  measure_shortly(bench, of, shows);
  const std::vector<std::size_t> last = finalists(of.report.trials, kFinalists);
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
    table.add({fixed(trial.kernel.median, 2), fixed(trial.fraction_of_copy(), 3), fixed(trial.cost, 3),
               i == 0 ? "rules" : "", to_text(trial.plan)});
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

// ---- Layers drawn at random ----

// What the file has of this seed, by index; ends it behind its last whole layer.
std::set<int> measured_before(const std::string& path, std::uint64_t seed) {
  if (access(path.c_str(), F_OK) != 0) return {};
  std::string text = oracle::read_text(path).value();
  const std::size_t end = text.rfind("\nend\n");
  const std::size_t whole = end == std::string::npos ? 0 : end + 5;
  if (whole < text.size()) {
    text.resize(whole);
    oracle::write_text(path, text).value();
  }
  std::set<int> known;
  for (const MeasuredLayer& layer : parse_layers(text).value())
    if (layer.seed == seed) known.insert(layer.index);
  return known;
}

// Adds what ptxas said of the kernels, as far as the cache knows it.
void add_ptxas_reports(const std::string& path, Service& service) {
  std::map<std::pair<std::string, std::string>, const EntryReport*> kernels;
  const auto entries = service.entries();
  if (!entries) return;
  for (const EntryReport& entry : *entries) kernels[{entry.spec, entry.plan}] = &entry;
  std::vector<MeasuredLayer> layers = parse_layers(oracle::read_text(path).value()).value();
  for (MeasuredLayer& layer : layers)
    for (MeasuredPlan& measured : layer.plans) {
      const auto found =
          kernels.find({to_text(source_spec(measured.plan, layer.layer.spec)),
                        to_text(in_groups(measured.plan, layer.layer.spec, layer.layer.use.sample > 1))});
      if (found == kernels.end() || measured.registers >= 0) continue;
      measured.registers = found->second->registers;
      measured.spill_bytes = found->second->spill_bytes;
    }
  oracle::write_text(path, text_of(layers)).value();
}

MeasuredLayer measured(const Case& of, const Layer& layer, std::uint64_t seed, int index) {
  MeasuredLayer made;
  made.gpu = of.report.device;
  made.seed = seed;
  made.index = index;
  made.layer = layer;
  made.alignment = of.report.alignment;
  for (const Trial& trial : of.report.trials) {
    if (trial.replays == 0) continue;
    made.plans.push_back({.plan = trial.plan, .microseconds = trial.kernel.median});
    if (trial.finalist) made.copy_microseconds = trial.copy.median;
  }
  return made;
}

int tune_random(const TuneCommand& options) {
  constexpr int kTop = 8, kDrawn = 6, kRepeat = 7;
  if (options.data.empty())
    return fail(kUsage, "--random needs --data, the file that keeps what is measured");
  const std::set<int> known = measured_before(options.data, options.seed);
  const Gpu gpu(options.device);
  const Options settings = service_options(options);
  const HelpedService helped(settings);
  Service& service = *helped.service;
  const DeviceProfile profile = service.device(options.device).value();
  Copies copies(settings, gpu, profile);
  const std::vector<Layer> layers = random_layers(options.seed, options.random);
  std::vector<int> wanted;
  std::vector<Case> cases;
  for (int i = 0; i < options.random; ++i) {
    if (known.contains(i)) continue;
    const Layer& layer = layers[static_cast<std::size_t>(i)];
    const Trials trials{.top = options.top.value_or(kTop),
                        .drawn = kDrawn,
                        .seed = options.seed * 1'000'003 + static_cast<std::uint64_t>(i),
                        .every = i < options.every};
    cases.push_back(make_case(layer.spec, layer.rows, layer.use, gpu, profile, trials));
    wanted.push_back(i);
  }
  std::ofstream file(options.data, std::ios::binary | std::ios::app);
  if (!file) return fail(kCacheIo, "cannot write to " + options.data);
  if (!cases.empty())
    file << "gpu " << cases.front().report.device << "\nseed " << options.seed << "\n" << std::flush;
  double waited = 0;  // seconds
  const Stopwatch watch;
  {
    Preparation preparation(service, options.device, profile, cases, /*shows=*/false);
    Progress progress(isatty(STDERR_FILENO) != 0);
    for (std::size_t at = 0; at < cases.size(); ++at) {
      Case& of = cases[at];
      const Stopwatch waiting;
      preparation.await(at);
      waited += waiting.seconds();
      std::string said;
      try {
        Workbench bench(gpu, profile, copies, of.report.spec, of.report.rows, of.use);
        measure(bench, of, kRepeat, /*shows=*/false);
        MeasuredLayer layer =
            measured(of, layers[static_cast<std::size_t>(wanted[at])], options.seed, wanted[at]);
        said = of.report.winner ? verdict(of.report) : "no plan could be measured";
        if (!layer.plans.empty()) file << lines_of(layer) << std::flush;
      } catch (const Exception& error) {
        said = error.what();
      }
      of.kernels.clear();
      of.prepared = 0;
      progress.show(static_cast<int>(at) + 1, static_cast<int>(cases.size()), "layers measured",
                    to_text(of.report.spec) + "  " + said);
    }
  }
  file.close();
  if (!file) return fail(kCacheIo, "cannot write to " + options.data);
  add_ptxas_reports(options.data, service);
  print(concat({shortest(cases.size()), " layers in ", fixed(watch.seconds(), 0), " s, of which ",
                fixed(waited, 0), " s waiting for kernels\n"}));
  return kDone;
}

int tune(const TuneCommand& options) {
  if (options.repeat < 1) return fail(kUsage, "--repeat must be 1 or more");
  if (options.use.sample < 1) return fail(kUsage, "--sample-rows must be 1 or more");
  if (options.top && *options.top < 0) return fail(kUsage, "--top must be 0, which is all, or more");
  const bool named = !options.specs.empty() || !options.manifests.empty();
  if ((options.random > 0) == named || options.random < 0)
    return fail(kUsage, "tune needs SPECs or a --manifest, or layers that are drawn, --random N");
  if (options.random > 0) return tune_random(options);
  const std::vector<NormSpec> specs = wanted_specs(options.manifests, options.specs);
  if (specs.empty()) return fail(kUsage, "there is nothing to tune: the manifest is empty");
  const bool model = !options.manifests.empty(), all_kinds = model && options.rows.empty();
  std::vector<MeasuredCase> measured;
  if (!all_kinds) measured = measured_cases(specs, options.rows, options.use.plane);
  const Options settings = service_options(options);
  if (settings.cache_directory.empty() && !options.dry_run) {
    return fail(kCacheIo,
                "there is no cache directory to keep the plans in: set --cache-dir, NORMJIT_CACHE_DIR or "
                "HOME, or only look with --dry-run");
  }

  const Gpu gpu(options.device);
  const HelpedService helped(settings);
  Service& service = *helped.service;
  const DeviceProfile profile = service.device(options.device).value();
  Copies copies(settings, gpu, profile);
  if (all_kinds) measured = one_of_each_kind(specs, profile, options.use);
  const Trials trials{.top = options.top.value_or(model ? kTopOfModel : 0)};
  std::vector<Case> cases;
  for (const auto& [spec, rows] : measured) {
    MeasuredUse use = options.use;
    if (model && !spec.channels_first) use.plane = 0;  // that of the other specs
    cases.push_back(make_case(spec, rows, use, gpu, profile, trials));
  }
  Preparation preparation(service, options.device, profile, cases, /*shows=*/true);

  std::vector<TuneReport> reports;
  bool complete = true;
  Result<void> kept;
  for (std::size_t at = 0; at < cases.size(); ++at) {
    Case& each = cases[at];
    preparation.await(at);
    Workbench bench(gpu, profile, copies, each.report.spec, each.report.rows, options.use);
    measure(bench, each, options.repeat, /*shows=*/true);
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
  command->add_option("SPEC", options.specs, kSpecHelp);
  command
      ->add_option(
          "--manifest", options.manifests,
          "The specs of a file, as of a model: JSON, JSON lines, or a spec a line; repeatable; - is stdin")
      ->allow_extra_args(false);
  command->add_option(
      "--rows", options.rows,
      "Comma-separated numbers of rows; else as many as make x 256 MiB, and with --manifest also 1, "
      "and half as many as the GPU has multiprocessors");
  command->add_option("--sample-rows", options.use.sample, kSampleRowsHelp);
  command->add_option("--plane", options.use.plane, kPlaneHelp);
  command->add_option("--repeat", options.repeat, "Replays of the best plans that their median is of")
      ->capture_default_str();
  command->add_option(
      "--top", options.top,
      "Measure only so many plans, those the model ranks first; 0 is all. Else all, 6 with --manifest, and "
      "8 with --random");
  command->add_option("--device", options.device, "CUDA ordinal of the GPU")->capture_default_str();
  command->add_flag("--dry-run", options.dry_run, "Measure and print; keep nothing");
  command->add_option(
      "--random", options.random,
      "Measure so many layers that are drawn at random, for the planner's model, and keep no plan");
  command->add_option("--seed", options.seed, "Of --random: other layers for each seed")
      ->capture_default_str();
  command->add_option("--data", options.data,
                      "Of --random: the file to add the times to; layers that it has are not measured again");
  command->add_option("--every", options.every,
                      "Of --random: of so many of the layers every legal plan is measured, not 8 and 6");
  add_json(command, options);
  command->footer(std::string(R"(Examples:
  normjit tune layernorm/cols=4096/bf16/wb --rows 1,128,16384
  normjit tune layernorm/cols=1023/f16/wb --dry-run
  normjit tune --manifest cache/manifests/llama.json && normjit export plans.njp --tuned
  normjit tune --random 100 --seed 7 --data layers.txt

All plans are measured as bench does; then the best five, and the one that the planner's rules choose, once more. A plan
that is more than 1 % faster than theirs is kept in the cache directory: later processes on GPUs with exactly this
profile take it for this spec, alignment and kind of row count (lone, few or many), and prebuild builds it. Of several
--rows of one kind the last one decides. "model" is the time that the planner expects over that of its choice.

With --random the layers are drawn, other ones for each seed: all dtypes, widths and operations, of one row to 256 MB.
Of each the 8 plans that the model ranks first and 6 others are timed, and the times are added to a file. It shows how
good the model's choices are, and scripts/fit_plans.py fits the model to it. An interrupted run goes on where it was.

)") + kExitCodes);
}

}  // namespace normjit::cli
