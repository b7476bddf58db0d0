// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "cli/table.h"
#include "cli/trials.h"
#include "normjit/plan/footprint.h"

namespace normjit::cli {
namespace {

using Trial = TuneReport::Trial;

constexpr int kTopOfModel = 6;  // plans of each case of a manifest

struct WantedCase {
  NormSpec spec;
  std::int64_t rows;
  MeasuredUse use;
};

// How the rows of a spec lie that is one of many: samples and planes are for the specs that have them.
MeasuredUse use_of_model(const NormSpec& spec, MeasuredUse use) {
  constexpr std::int64_t kPlane = 56 * 56;  // of the first stage of ConvNeXt
  if (!spec.channels_first) return {.sample = use.sample};
  return {.sample = 1, .plane = use.plane > 0 ? use.plane : kPlane};
}

// Each spec with rows as one token has, a small batch, and a large one; at most one of each regime.
std::vector<WantedCase> typical_cases(const std::vector<NormSpec>& specs, const DeviceProfile& profile,
                                      const MeasuredUse& given) {
  std::vector<WantedCase> cases;
  for (const NormSpec& spec : specs) {
    const MeasuredUse use = use_of_model(spec, given);
    const std::int64_t together = spec.channels_first ? use.plane : use.sample;
    std::set<RowsRegime> regimes;
    for (const std::int64_t least :
         {std::int64_t{1}, std::int64_t{std::max(1, profile.sm_count / 2)},
          std::max<std::int64_t>(profile.sm_count, default_rows(spec, use.plane))}) {
      const std::int64_t rows = ceil_div(least, together) * together;
      if (regimes.insert(regime_of(spec, rows, profile)).second) cases.push_back({spec, rows, use});
    }
  }
  return cases;
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
  std::string text = to_text(report.spec) + ", " + std::to_string(report.rows) + " rows (for " +
                     report.served_rows + "), alignment " +
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

int tune(const TuneCommand& options) {
  if (options.repeat && *options.repeat < 1) return fail(kUsage, "--repeat must be 1 or more");
  if (options.use.sample < 1) return fail(kUsage, "--sample-rows must be 1 or more");
  if (options.top && *options.top < 0) return fail(kUsage, "--top must be 0, which is all, or more");
  const bool named = !options.specs.empty() || !options.manifests.empty();
  if ((options.random > 0) == named || options.random < 0)
    return fail(kUsage, "tune needs SPECs or a --manifest, or layers that are drawn, --random N");
  if (options.random > 0) return tune_random(options);
  const std::vector<NormSpec> specs = wanted_specs(options.manifests, options.specs);
  if (specs.empty()) return fail(kUsage, "there is nothing to tune: the manifest is empty");
  const bool model = !options.manifests.empty(), all_typical = model && options.rows.empty();
  std::vector<WantedCase> wanted;
  if (!all_typical)
    for (const auto& [spec, rows] : measured_cases(specs, options.rows, options.use.plane))
      wanted.push_back({spec, rows, model ? use_of_model(spec, options.use) : options.use});
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
  if (all_typical) wanted = typical_cases(specs, profile, options.use);
  const Trials trials{.top = options.top.value_or(model ? kTopOfModel : 0)};
  std::vector<Case> cases;
  for (const auto& [spec, rows, use] : wanted) {
    try {
      cases.push_back(make_case(spec, rows, use, gpu, profile, trials));
    } catch (const Exception& error) {
      if (!model) throw;
      Case& refused = cases.emplace_back();
      refused.report.spec = spec, refused.report.rows = rows, refused.report.error = error.what();
      refused.report.device = device_text(gpu, profile);
    }
  }
  Preparation preparation(service, options.device, profile, cases, /*shows=*/true);

  std::vector<TuneReport> reports;
  bool complete = true;
  Result<void> kept;
  for (std::size_t at = 0; at < cases.size(); ++at) {
    Case& each = cases[at];
    preparation.await(at);
    try {
      if (each.report.error.empty()) {
        Workbench bench(gpu, profile, copies, each.report.spec, each.report.rows, each.use);
        measure(bench, each, options.repeat.value_or(model ? kRepeatOfMany : kRepeat), /*shows=*/true);
      }
    } catch (const Exception& error) {
      if (cases.size() == 1) throw;
      each.report.error = error.what();  // the other cases go on
    }
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
      line.add("tune", "Measure plans of specs on a GPU and keep the best beside the cache", tune);
  command->add_option("SPEC", options.specs, kSpecHelp);
  command
      ->add_option(
          "--manifest", options.manifests,
          "The specs of a file, as of a model: JSON, JSON lines, or a spec a line; repeatable; - is stdin")
      ->allow_extra_args(false);
  command->add_option(
      "--rows", options.rows,
      "Comma-separated numbers of rows; else as many as make x 256 MiB, and with --manifest also 1, "
      "and half as many as the GPU has multiprocessors. Of --random: the least and the most, as in 17-132");
  command->add_option("--sample-rows", options.use.sample, kSampleRowsHelp);
  command->add_option("--plane", options.use.plane, kPlaneHelp);
  command->add_option(
      "--repeat", options.repeat,
      "Replays of the best plans that their median is of; else 30, and 7 with --manifest and --random");
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
  command
      ->add_option("--only", options.only,
                   "Of --random: pass over layers whose spec does not have this text in it, such as _bwd; "
                   "repeatable")
      ->allow_extra_args(false);
  command->add_option(
      "--columns", options.columns,
      "Of --random: pass over layers with fewer or more columns than these, as in 16384-65536, or 64");
  command->add_flag("--odd", options.odd, "Of --random: pass over layers whose columns are a multiple of 8");
  add_json(command, options);
  command->footer(std::string(R"(Examples:
  normjit tune layernorm/cols=4096/bf16/wb --rows 1,128,16384
  normjit tune layernorm/cols=1023/f16/wb --dry-run
  normjit tune --manifest cache/manifests/llama.json && normjit export plans.njp --tuned
  normjit tune --random 100 --seed 7 --data layers.txt

All plans, or so many of them, are measured in five replays, or in two where a plan takes more than four times as long as
the best before it; then the best five, and the one that the planner's rules choose, as bench does. A plan that is more than
1 % faster than theirs is kept in the cache directory: later processes on GPUs with exactly this profile take it for this spec and alignment and the regime of the rows, which the output names, and prebuild builds it.
Of several --rows of one regime the last one decides. "model" is the time that the planner expects over that of its choice.

With --random the layers are drawn, other ones for each seed: all dtypes, widths and operations, of one row to 256 MB.
Of each the 8 plans that the model ranks first and 6 others are timed, and the times are added to a file. It shows how
good the model's choices are, and scripts/fit_plans.py fits the model to it. An interrupted run goes on where it was.

)") + kExitCodes);
}

}  // namespace normjit::cli
