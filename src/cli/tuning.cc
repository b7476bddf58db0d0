// SPDX-License-Identifier: Apache-2.0
#include "cli/tuning.h"

#include <algorithm>

#include "cli/table.h"

namespace normjit::cli {
namespace {

using Trial = TuneReport::Trial;

// By how much medians of one plan differ between two measurements.
constexpr double kNoise = 0.01;

// The indices of those that ran, the fastest first.
template <class Wanted>
std::vector<std::size_t> fastest(const std::vector<Trial>& trials, const Wanted& wanted) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < trials.size(); ++i)
    if (trials[i].replays > 0 && wanted(trials[i])) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return trials[a].kernel.median < trials[b].kernel.median;
  });
  return order;
}

Json trial_json(const Trial& trial) {
  Json json = {{"plan", to_text(trial.plan)},
               {"estimated_cost", trial.cost},
               {"why", trial.why},
               {"replays", trial.replays}};
  if (trial.replays > 0) {
    json.add("finalist", trial.finalist)
        .add("kernel", json_of(trial.kernel))
        .add("copy", json_of(trial.copy))
        .add("fraction_of_copy", trial.fraction_of_copy());
  }
  if (!trial.error.empty()) json.add("error", trial.error);
  return json;
}

}  // namespace

std::vector<std::size_t> finalists(const std::vector<Trial>& trials, std::size_t most) {
  std::vector<std::size_t> order = fastest(trials, [](const Trial&) { return true; });
  const bool rules_ran = !trials.empty() && trials.front().replays > 0;
  order.resize(std::min(order.size(), most));
  if (rules_ran && std::find(order.begin(), order.end(), 0u) == order.end()) order.push_back(0);
  return order;
}

std::vector<std::size_t> ranking(const std::vector<Trial>& trials) {
  return fastest(trials, [](const Trial& trial) { return trial.finalist; });
}

std::optional<std::size_t> winner_of(const std::vector<Trial>& trials) {
  const std::vector<std::size_t> order = ranking(trials);
  if (order.empty()) return {};
  const Trial &rules = trials.front(), &best = trials[order.front()];
  const bool rules_hold =
      rules.finalist && rules.replays > 0 && rules.kernel.median <= best.kernel.median * (1 + kNoise);
  return rules_hold ? std::size_t{0} : order.front();
}

std::string verdict(const TuneReport& report) {
  if (!report.error.empty()) return report.error;
  if (!report.winner) return "no plan could be measured";
  if (*report.winner == 0) return "the rules chose the best plan";
  const Trial &rules = report.trials.front(), &best = report.trials[*report.winner];
  const auto told = [](const Trial& trial) {
    return "'" + to_text(trial.plan) + "' (" + fixed(trial.fraction_of_copy(), 3) + " of copy)";
  };
  if (rules.replays == 0)
    return "the rules chose '" + to_text(rules.plan) + "', which did not run; " + told(best) + " does";
  const double gain = rules.kernel.median / best.kernel.median - 1;
  return "the rules chose " + told(rules) + ", " + told(best) + " is better by " + fixed(100 * gain, 1) +
         " %";
}

std::string json_of(const std::vector<TuneReport>& reports, const std::string& cache_directory) {
  const auto one = [](const TuneReport& report) -> Json {
    return {{"spec", to_text(report.spec)},
            {"rows", report.rows},
            {"device", report.device},
            {"regime", name(report.regime)},
            {"served_rows", report.served_rows},
            {"alignment", static_cast<int>(report.alignment)},
            {"rules", report.trials.empty() ? Json() : Json(to_text(report.trials.front().plan))},
            {"best", report.winner ? Json(to_text(report.trials[*report.winner].plan)) : Json()},
            {"verdict", verdict(report)},
            {"error", report.error},
            {"stored", report.stored},
            {"trials", Json::array(report.trials, trial_json)}};
  };
  return Json({{"cache_directory", cache_directory}, {"results", Json::array(reports, one)}}).text();
}

}  // namespace normjit::cli
