#include <algorithm>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/json_reports.h"
#include "cli/table.h"

namespace normjit::cli {
namespace {

// The planner's choice and the best plans that it beat.
std::vector<Candidate> weighed(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                               Alignment alignment) {
  constexpr std::size_t kAlternatives = 4;
  std::vector<Candidate> all = candidates(spec, device, regime, alignment);
  all.resize(std::min(all.size(), 1 + kAlternatives));
  return all;
}

ShowReport look_up(Service& service, const NormSpec& spec, const DeviceProfile& device, std::int64_t rows) {
  ShowReport report{.spec = spec, .device = device, .rows = rows, .uses = {}, .weighed = {}, .generic = {}};
  if (rows > 0) {
    report.contiguous = contiguous_alignment(spec);
    report.weighed = weighed(spec, device, regime_of(rows, device), report.contiguous);
  }
  const PrebuildReport kernels =
      service.prebuild({&spec, 1}, {&device, 1}, {.jobs = 1, .dry_run = true, .progress = {}}).value();
  for (const RowsRegime regime : kRowsRegimes) {
    for (const Alignment alignment : kAlignments) {
      const std::optional<Plan> tuned = service.tuned(spec, device, regime, alignment).value();
      const Plan plan = tuned.value_or(choose(spec, device, regime, alignment));
      ShowReport::Use use{
          .regime = regime, .alignment = alignment, .plan = plan, .tuned = tuned.has_value(), .id = {}};
      use.workspace_bytes = workspace_bytes(plan, spec, device);
      if (rows > 0) use.blocks = grid_blocks(plan, spec, device, rows);
      const auto kernel = std::find_if(kernels.results.begin(), kernels.results.end(),
                                       [&](const KernelReport& candidate) { return candidate.plan == plan; });
      if (kernel != kernels.results.end()) {
        use.id = kernel->id;
        use.cached = kernel->outcome == KernelReport::Outcome::cached;
      }
      report.uses.push_back(std::move(use));
    }
  }
  report.generic = service.why(spec, device, generic_plan()).value();
  return report;
}

std::string explanation_of(const ShowReport& report) {
  Table table({"", ">cost", "why", "plan"});
  for (const Candidate& candidate : report.weighed)
    table.add({&candidate == &report.weighed.front() ? "chosen" : "beaten", fixed(candidate.cost, 3),
               candidate.why, to_text(candidate.plan)});
  return "The planner's rules for contiguous tensors (align " +
         std::to_string(static_cast<int>(report.contiguous)) +
         "); cost is the estimated time of a typical launch over that of a copy:\n" + table.text();
}

std::string text_of(const ShowReport& report) {
  const NormSpec& spec = report.spec;
  std::string text = "spec       " + to_text(spec) + "\n";
  text += "columns    " + std::to_string(spec.columns) + "\n";
  text += "row bytes  " + std::to_string(spec.columns * size_of(spec.input)) + " in, " +
          std::to_string(spec.columns * size_of(spec.output)) + " out\n";
  text += "device     " + report.device.text() + "\n";
  text += "generic    " + generic_text(report.generic) + "\n";
  if (report.rows > 0) {
    text += "rows       " + std::to_string(report.rows) + ", regime " +
            std::string(name(regime_of(report.rows, report.device))) + "\n";
  }
  std::vector<std::string> headings = {"rows", ">align", ">workspace", "cached", "tuned", "id", "plan"};
  if (report.rows > 0) headings.push_back(">blocks");
  Table table(std::move(headings));
  for (const ShowReport::Use& use : report.uses) {
    table.add({std::string(name(use.regime)), std::to_string(static_cast<int>(use.alignment)),
               std::to_string(use.workspace_bytes), use.cached ? "yes" : "no", use.tuned ? "yes" : "no",
               use.id, to_text(use.plan), std::to_string(use.blocks)});
  }
  text += "\n" + table.text();
  if (report.rows > 0) text += "\n" + explanation_of(report);
  return text;
}

}  // namespace

int show(const ShowCommand& options) {
  if (options.rows < 0) return fail(kUsage, "--rows must be 0 or more");
  const NormSpec spec = spec_from(options.spec).value();
  Options settings = service_options(options);
  drop_unreadable_layers(settings);
  Service service(settings);
  const ShowReport report = look_up(service, spec, one_device(service, options.arch), options.rows);
  print(options.json ? json_of(report) : text_of(report));
  return kDone;
}

}  // namespace normjit::cli
