// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include "cli/command_line.h"
#include "cli/table.h"
#include "normjit/service/report_json.h"
#include "normjit/service/use.h"
#include "normjit/spec/operands.h"

namespace normjit::cli {
namespace {

struct ShowCommand : CommonOptions {
  std::string spec;
  std::string arch;  // empty: this machine's GPU, else sm_90
  std::int64_t rows = 0;
  Uses uses;
};

// A spec on a device: the plan for each use, with its cache entry.
struct ShowReport {
  NormSpec spec;
  DeviceProfile device;
  std::int64_t rows = 0;  // 0: not asked for
  bool batch_invariant = false;
  struct Use {
    RowsRegime regime;
    Alignment alignment;
    Plan plan;
    std::size_t workspace_bytes = 0;
    std::int64_t blocks = 0;  // for `rows`
    bool tuned = false;       // kept by tune, not the planner's choice
    std::string id;           // of the cache entry
    bool cached = false;

    // Whether another regime is served in the same way.
    bool is_served_as(const Use& other) const {
      return alignment == other.alignment && plan == other.plan && tuned == other.tuned;
    }
  };
  std::vector<Use> uses;
  // With `rows`: what the planner weighs for them where the tensors are contiguous, the best first, which is
  // its choice.
  Alignment contiguous = Alignment::eight;
  std::vector<Candidate> weighed;
  WhyReport generic;  // the kernel that serves where these cannot
};

// The planner's choice and the best plans that it beat.
std::vector<Candidate> weighed(const NormSpec& spec, const DeviceProfile& device, std::int64_t rows,
                               Alignment alignment, bool batch_invariant) {
  constexpr std::size_t kAlternatives = 4;
  std::vector<Candidate> all = candidates(spec, device, Use::regime_for(spec, rows, device, batch_invariant),
                                          alignment, batch_invariant);
  all.resize(std::min(all.size(), 1 + kAlternatives));
  return all;
}

ShowReport look_up(Service& service, const NormSpec& spec, const DeviceProfile& device, std::int64_t rows,
                   const Uses& uses) {
  ShowReport report{.spec = spec,
                    .device = device,
                    .rows = rows,
                    .batch_invariant = uses.batch_invariant,
                    .uses = {},
                    .weighed = {},
                    .generic = {}};
  if (rows > 0) {
    report.contiguous = contiguous_alignment(spec);
    report.weighed = weighed(spec, device, rows, report.contiguous, uses.batch_invariant);
  }
  const PrebuildReport kernels =
      service.prebuild({&spec, 1}, {&device, 1}, {.jobs = 1, .uses = uses, .dry_run = true, .progress = {}})
          .value();
  for (const Alignment alignment : kAlignments) {
    for (const RowsRegime regime : kRowsRegimes) {
      if (uses.batch_invariant && regime != RowsRegime::many) continue;
      const auto [plan, tuned] = plan_of_use(service, spec, device, regime, alignment, uses);
      ShowReport::Use use{.regime = regime, .alignment = alignment, .plan = plan, .tuned = tuned, .id = {}};
      use.workspace_bytes = workspace_bytes(use.plan, spec, device);
      if (rows > 0) use.blocks = grid_blocks(use.plan, spec, device, rows);
      const auto kernel =
          std::find_if(kernels.results.begin(), kernels.results.end(),
                       [&](const KernelReport& candidate) { return candidate.plan == use.plan; });
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
               std::string(candidate.why), to_text(candidate.plan)});
  return "The planner's rules for contiguous tensors (align " +
         std::to_string(static_cast<int>(report.contiguous)) +
         "); cost is the estimated time of a typical launch over that of the chosen plan:\n" + table.text();
}

// Bytes of a row of a matrix; of one that the spec does not have none.
std::int64_t row_bytes(Operand operand, const NormSpec& spec) {
  const OperandRow& row = row_of(operand);
  return row.present(spec) ? row_elements(row, spec) * size_of(row.dtype(spec)) : 0;
}

std::string text_of(const ShowReport& report) {
  const NormSpec& spec = report.spec;
  std::string text = "spec       " + to_text(spec) + "\n";
  text += "columns    " + std::to_string(spec.columns) + "\n";
  text += "row bytes  " + std::to_string(row_bytes(Operand::x, spec)) + " in, " +
          (spec.backward ? std::to_string(row_bytes(Operand::dy, spec)) + " of dy, " +
                               std::to_string(row_bytes(Operand::dx, spec))
                         : std::to_string(row_bytes(Operand::y, spec))) +
          " out\n";
  text += "device     " + report.device.text() + "\n";
  text += "generic    " + generic_text(report.generic) + "\n";
  if (report.rows > 0) {
    const RowsRegime regime = regime_of(report.spec, report.rows, report.device);
    text += "rows       " + std::to_string(report.rows) + "; its plan is for " +
            (report.batch_invariant ? "all" : rows_text(regime, regime, report.spec, report.device)) + "\n";
  }
  std::vector<std::string> headings = {"rows", ">align", ">workspace", "cached", "tuned", "id", "plan"};
  if (report.rows > 0) headings.push_back(">blocks");
  Table table(std::move(headings));
  for (auto use = report.uses.begin(); use != report.uses.end();) {
    const auto next = std::find_if_not(
        use, report.uses.end(), [&](const ShowReport::Use& other) { return other.is_served_as(*use); });
    const RowsRegime first = report.batch_invariant ? RowsRegime::lone : use->regime;
    table.add({rows_text(first, std::prev(next)->regime, spec, report.device),
               std::to_string(static_cast<int>(use->alignment)), std::to_string(use->workspace_bytes),
               use->cached ? "yes" : "no", use->tuned ? "yes" : "no", use->id, to_text(use->plan),
               std::to_string(use->blocks)});
    use = next;
  }
  text += "\n" + table.text();
  if (report.rows > 0) text += "\n" + explanation_of(report);
  return text;
}

Json candidate_json(const Candidate& candidate) {
  return {{"plan", to_text(candidate.plan)}, {"cost", candidate.cost}, {"why", candidate.why}};
}

std::string json_of(const ShowReport& report) {
  const auto use_json = [&](const ShowReport::Use& use) {
    Json item = {{"regime", name(use.regime)},
                 {"alignment", static_cast<int>(use.alignment)},
                 {"plan", to_text(use.plan)},
                 {"tuned", use.tuned},
                 {"workspace_bytes", use.workspace_bytes},
                 {"id", use.id},
                 {"cached", use.cached}};
    if (report.rows > 0) item.add("blocks", use.blocks);
    return item;
  };
  const NormSpec& spec = report.spec;
  Json json = {
      {"spec", to_text(spec)}, {"columns", spec.columns}, {"x_row_bytes", row_bytes(Operand::x, spec)}};
  if (spec.backward)
    json.add("dy_row_bytes", row_bytes(Operand::dy, spec)).add("dx_row_bytes", row_bytes(Operand::dx, spec));
  else
    json.add("y_row_bytes", row_bytes(Operand::y, spec));
  json.add("device", normjit::json_of(report.device))
      .add("generic", {{"tier", report.generic.tier}, {"id", report.generic.id}})
      .add("uses", Json::array(report.uses, use_json));
  if (report.rows > 0) {
    json.add("rows", report.rows)
        .add("regime",
             name(Use::regime_for(report.spec, report.rows, report.device, report.batch_invariant)))
        .add("contiguous_alignment", static_cast<int>(report.contiguous))
        .add("choice", candidate_json(report.weighed.front()))
        .add("alternatives", Json::array(std::span(report.weighed).subspan(1), candidate_json));
  }
  return json.text();
}

int show(const ShowCommand& options) {
  if (options.rows < 0) return fail(kUsage, "--rows must be 0 or more");
  const NormSpec spec = spec_from(options.spec).value();
  Options settings = service_options(options);
  drop_unreadable_layers(settings);
  Service service(settings);
  const Uses uses = uses_in(options.uses, settings.batch_invariant);
  const ShowReport report = look_up(service, spec, one_device(service, options.arch), options.rows, uses);
  print(options.json ? json_of(report) : text_of(report));
  return kDone;
}

}  // namespace

void add_show(CommandLine& line) {
  auto [command, options] = line.add("show", "Show the plans of a spec and whether they are cached", show);
  command->add_option("SPEC", options.spec, kSpecHelp)->required();
  command->add_option("--arch", options.arch, "One architecture, or native; else the GPU here, else sm_90");
  command->add_option(
      "--rows", options.rows,
      "Also show the blocks of a launch with so many rows, what its plan is estimated to cost, and "
      "the best plans that it beat");
  add_uses(command, options.uses);
  add_json(command, options);
  command->footer(
      std::string("Example:\n  normjit show layernorm/cols=4096/bf16/wb --arch sm_90 --rows 8192\n\n") +
      kExitCodes);
}

}  // namespace normjit::cli
