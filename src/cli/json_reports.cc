#include "cli/json_reports.h"

#include <cmath>

#include "cli/measure.h"
#include "cli/tuning.h"

namespace normjit::cli {
namespace {

// JSON has no NaN and no infinity: null and "inf" stand for them.
Json json_of(double value) {
  if (std::isnan(value)) return nullptr;
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

Json json_of(const oracle::Deviation& deviation) {
  return {{"row", deviation.row},
          {"column", deviation.column},
          {"got", json_of(deviation.got)},
          {"expected", json_of(deviation.expected)},
          {"error", json_of(deviation.error)},
          {"tolerance", json_of(deviation.tolerance)}};
}

Json json_of(const oracle::Comparison& comparison) {
  Json json = {{"values", comparison.values}, {"wrong", comparison.wrong}};
  if (comparison.values > 0) json["largest_error"] = json_of(comparison.largest);
  if (comparison.wrong > 0) json["first_wrong"] = json_of(comparison.first_wrong);
  return json;
}

Json json_of(const oracle::CheckReport& check) {
  Json json = {{"ok", check.ok()}, {"rows", check.rows}};
  for (const OperandRow& row : kOperands)
    if (row.operand == Operand::y || check[row.operand].values > 0)
      json[std::string(row.name)] = json_of(check[row.operand]);
  json["overwritten_gap_bytes"] = check.overwritten;
  return json;
}

Json json_of(const Emulation& emulation) {
  Json launches = Json::array();
  for (const Emulation::Launch& launch : emulation.launches)
    launches.push_back(
        {{"seed", launch.seed}, {"schedule", launch.schedule}, {"run_ms", launch.milliseconds}});
  Json json = {
      {"checks", emulation.checks}, {"compiler", emulation.compiler}, {"launches", std::move(launches)}};
  if (!emulation.keep_directory.empty()) json["kept_in"] = emulation.keep_directory;
  return json;
}

Json json_of(const Candidate& candidate) {
  return {{"plan", to_text(candidate.plan)}, {"cost", candidate.cost}, {"why", candidate.why}};
}

Json json_of(const TuneReport::Trial& trial) {
  Json json = {{"plan", to_text(trial.plan)},
               {"estimated_fraction_of_copy", json_of(trial.estimated_fraction())},
               {"why", trial.why},
               {"replays", trial.replays}};
  if (trial.replays > 0) {
    json["finalist"] = trial.finalist;
    json["kernel"] = json_of(trial.kernel);
    json["copy"] = json_of(trial.copy);
    json["fraction_of_copy"] = trial.fraction_of_copy();
  }
  if (!trial.error.empty()) json["error"] = trial.error;
  return json;
}

}  // namespace

Json json_of(const Timing& timing) {
  return {{"median_us", timing.median}, {"min_us", timing.min}, {"max_us", timing.max}};
}

std::string json_of(const ShowReport& report) {
  Json uses = Json::array();
  for (const ShowReport::Use& use : report.uses) {
    Json item = {{"regime", name(use.regime)},
                 {"alignment", static_cast<int>(use.alignment)},
                 {"plan", to_text(use.plan)},
                 {"tuned", use.tuned},
                 {"workspace_bytes", use.workspace_bytes},
                 {"id", use.id},
                 {"cached", use.cached}};
    if (report.rows > 0) item["blocks"] = use.blocks;
    uses.push_back(std::move(item));
  }
  const NormSpec& spec = report.spec;
  Json json = {{"spec", to_text(spec)},
               {"columns", spec.columns},
               {"x_row_bytes", spec.columns * size_of(spec.input)},
               {"y_row_bytes", spec.columns * size_of(spec.output)},
               {"device", device_json(report.device)},
               {"generic", {{"tier", report.generic.tier}, {"id", report.generic.id}}},
               {"uses", std::move(uses)}};
  if (report.rows > 0) {
    json["rows"] = report.rows;
    json["regime"] = name(regime_of(report.rows, report.device));
    json["contiguous_alignment"] = static_cast<int>(report.contiguous);
    json["choice"] = json_of(report.weighed.front());
    Json& alternatives = json["alternatives"] = Json::array();
    for (std::size_t i = 1; i < report.weighed.size(); ++i)
      alternatives.push_back(json_of(report.weighed[i]));
  }
  return text_of(json);
}

std::string json_of(const RunReport& report) {
  const Execution& execution = report.execution;
  Json json = {{"spec", to_text(report.spec)},
               {"rows", report.rows},
               {"device", execution.device},
               {"emulated", execution.emulation.has_value()},
               {"plan", to_text(execution.plan)},
               {"kernel_from", execution.origin},
               {"workspace_bytes", execution.workspace_bytes},
               {"prepare_ms", execution.prepare_milliseconds}};
  if (execution.emulation) {
    json.update(json_of(*execution.emulation));
  } else {
    json.update(Json{{"first_launch_us", execution.first_launch_microseconds},
                     {"first_result_us", execution.first_result_microseconds},
                     {"second_call_us", execution.second_call_microseconds},
                     {"steady_call_us", execution.steady_call_microseconds}});
  }
  if (report.check) json["check"] = json_of(*report.check);
  return text_of(json);
}

std::string json_of(const std::vector<BenchReport>& reports) {
  Json list = Json::array();
  for (const BenchReport& report : reports) {
    list.push_back({{"spec", to_text(report.spec)},
                    {"rows", report.rows},
                    {"device", report.device},
                    {"plan", to_text(report.plan)},
                    {"bytes", report.bytes},
                    {"buffer_sets", report.buffer_sets},
                    {"launches_per_graph", report.launches},
                    {"replays", report.replays},
                    {"kernel", json_of(report.kernel)},
                    {"copy", json_of(report.copy)},
                    {"gb_per_s", report.gigabytes_per_second()},
                    {"copy_gb_per_s", report.copy_gigabytes_per_second()},
                    {"fraction_of_copy", report.fraction_of_copy()}});
  }
  return text_of({{"results", std::move(list)}});
}

std::string json_of(const std::vector<TuneReport>& reports, const std::string& cache_directory) {
  Json list = Json::array();
  for (const TuneReport& report : reports) {
    Json trials = Json::array();
    for (const TuneReport::Trial& trial : report.trials) trials.push_back(json_of(trial));
    list.push_back({{"spec", to_text(report.spec)},
                    {"rows", report.rows},
                    {"device", report.device},
                    {"regime", name(report.regime)},
                    {"alignment", static_cast<int>(report.alignment)},
                    {"rules", to_text(report.trials.front().plan)},
                    {"best", report.winner ? Json(to_text(report.trials[*report.winner].plan)) : Json()},
                    {"verdict", verdict(report)},
                    {"stored", report.stored},
                    {"trials", std::move(trials)}});
  }
  return text_of({{"cache_directory", cache_directory}, {"results", std::move(list)}});
}

}  // namespace normjit::cli
