// SPDX-License-Identifier: Apache-2.0
#include "bench/suite.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "cli/measure.h"
#include "cli/table.h"
#include "normjit/base/text.h"

namespace normjit::bench {

using namespace cli;

namespace {

// The time of the same case without activation and scale, in microseconds.
std::optional<double> plain_microseconds(const SuiteCase& what, const std::vector<SuiteResult>& results) {
  for (const SuiteResult& other : results) {
    if (other.bench && other.what.rows == what.rows && other.what.spec == plain(what.spec))
      return other.bench->kernel.median;
  }
  return {};
}

std::optional<double> value_of(const SuiteResult& result, const std::vector<SuiteResult>& results) {
  if (!result.bench) return {};
  const double kernel = result.bench->kernel.median;
  switch (result.what.target().kind) {
    case Target::Kind::microseconds:
      return kernel;
    case Target::Kind::of_copy:
      return result.bench->fraction_of_copy();
    case Target::Kind::of_split_row:
      return split_row_microseconds(*result.bench) / kernel;
    case Target::Kind::of_plain:
      if (const auto plain = plain_microseconds(result.what, results)) return kernel / *plain;
      return {};
    case Target::Kind::of_peers:
    case Target::Kind::none:
      break;
  }
  return {};
}

bool reaches(double value, const Target& target) {
  const bool at_least = target.kind == Target::Kind::of_copy || target.kind == Target::Kind::of_split_row;
  return at_least ? value >= target.bound : value <= target.bound;
}

std::string met_of(const SuiteResult& result) {
  if (result.met) return *result.met ? "yes" : "NO";
  return result.what.target().kind == Target::Kind::none ? "-" : "?";
}

// The two that are bounds on a ratio to something other than the copy show that ratio.
std::string value_text(const SuiteResult& result) {
  const Target::Kind kind = result.what.target().kind;
  const bool other = kind == Target::Kind::of_split_row || kind == Target::Kind::of_plain;
  return other && result.value ? fixed(*result.value, 3) : "";
}

// How it is launched, behind the name of a case.
std::string text_of(const MeasuredUse& use) {
  std::string text = use.sample > 1  ? ", samples of " + std::to_string(use.sample) + " rows"
                     : use.plane > 0 ? ", planes of " + std::to_string(use.plane)
                                     : "";
  return use.overlap ? text + ", overlapped" : text;
}

std::string case_text(const SuiteCase& what) {
  return std::to_string(what.rows) + " x " + to_text(what.spec) + text_of(what.use);
}

// The spec without columns, input type and epsilon: "rmsnorm/add/sum/w".
std::string form_of(const SuiteCase& what) {
  const std::string text = to_text(what.spec);
  std::string form;
  for (const std::string_view field : split(text, '/'))
    if (!field.starts_with("cols=") && !field.starts_with("eps=") && field != name(what.spec.input))
      form += (form.empty() ? "" : "/") + std::string(field);
  return form + text_of(what.use);
}

Json case_json(const SuiteCase& one) {
  return {{"spec", to_text(one.spec)},      {"rows", one.rows},
          {"regime", name(one.regime())},   {"drawn", one.drawn},
          {"overlap", one.use.overlap},     {"sample_rows", one.use.sample},
          {"plane", one.use.plane},         {"bytes", bytes_moved(one.spec, one.rows, one.use.sample)},
          {"target", to_text(one.target())}};
}

Json result_json(const SuiteResult& result) {
  Json json = case_json(result.what);
  if (result.bench) {
    const BenchReport& bench = *result.bench;
    json.add("plan", to_text(bench.plan))
        .add("kernel", json_of(bench.kernel))
        .add("copy", json_of(bench.copy))
        .add("copy_shape", to_text(bench.copy_shape))
        .add("fraction_of_copy", bench.fraction_of_copy());
  } else {
    json.add("error", result.error);
  }
  if (result.value) json.add("value", *result.value);
  if (result.met) json.add("met", *result.met);
  return json;
}

Json summary_json(const RegimeSummary& summary) {
  return {{"regime", name(summary.regime)},
          {"cases", summary.cases},
          {"failed", summary.failed},
          {"judged", summary.judged},
          {"met", summary.met},
          {"geometric_mean", summary.mean},
          {"worst", summary.worst},
          {"worst_case", summary.worst_case}};
}

}  // namespace

double split_row_microseconds(const BenchReport& report) noexcept {
  const std::int64_t x = report.rows * report.spec.columns * size_of(report.spec.input);
  return report.copy.median * static_cast<double>(report.bytes + x) / static_cast<double>(report.bytes);
}

void judge(std::vector<SuiteResult>& results) {
  for (SuiteResult& result : results) {
    result.value = value_of(result, results);
    result.met.reset();
    if (result.value) result.met = reaches(*result.value, result.what.target());
  }
}

std::vector<RegimeSummary> summarize(const std::vector<SuiteResult>& results) {
  std::vector<RegimeSummary> summaries;
  for (const Regime regime : kRegimes) {
    RegimeSummary summary{.regime = regime, .worst_case = {}};
    double logarithms = 0;
    for (const SuiteResult& result : results) {
      if (result.what.regime() != regime) continue;
      ++summary.cases;
      summary.failed += !result.bench;
      summary.judged += result.met.has_value();
      summary.met += result.met.value_or(false);
      if (!result.bench) continue;
      const double fraction = result.bench->fraction_of_copy();
      logarithms += std::log(fraction);
      if (summary.worst_case.empty() || fraction < summary.worst) {
        summary.worst = fraction;
        summary.worst_case = case_text(result.what);
      }
    }
    const int measured = summary.cases - summary.failed;
    if (measured > 0) summary.mean = std::exp(logarithms / measured);
    if (summary.cases > 0) summaries.push_back(std::move(summary));
  }
  return summaries;
}

std::string regime_text(const SuiteCase& what) {
  return std::string(name(what.regime())) + (what.use.overlap ? " +" : "") + (what.drawn ? " *" : "");
}

std::string table_of(const SuiteReport& report) {
  Table table({"regime", "spec", ">rows", ">us", ">copy us", ">of copy", ">ratio", "target", "met", "plan"});
  for (const SuiteResult& result : report.results) {
    const SuiteCase& what = result.what;
    std::vector<std::string> cells = {regime_text(what), to_text(what.spec), std::to_string(what.rows)};
    if (result.bench) {
      const BenchReport& bench = *result.bench;
      cells.insert(cells.end(), {fixed(bench.kernel.median, 2), fixed(bench.copy.median, 2),
                                 fixed(bench.fraction_of_copy(), 3), value_text(result),
                                 to_text(what.target()), met_of(result), to_text(bench.plan)});
    } else {
      cells.insert(cells.end(), {"-", "-", "-", "", to_text(what.target()), "-", "FAILED: " + result.error});
    }
    table.add(std::move(cells));
  }

  Table sums({"regime", ">cases", ">failed", ">judged", ">met", ">mean", ">worst", "worst case"});
  for (const RegimeSummary& sum : summarize(report.results)) {
    sums.add({std::string(name(sum.regime)), std::to_string(sum.cases), std::to_string(sum.failed),
              std::to_string(sum.judged), std::to_string(sum.met), fixed(sum.mean, 3), fixed(sum.worst, 3),
              sum.worst_case});
  }
  return report.device + ", driver " + report.driver + ", " + report.date + " UTC, seed " +
         std::to_string(report.seed) + "\n\n" + table.text() +
         "\n* drawn by the seed. + launches overlap. of copy: the time of a copy of the same bytes over the "
         "kernel's. ratio: "
         "what a "
         "target that is not of copy bounds.\n? needs scripts/bench_peers.py.\n\n" +
         sums.text();
}

std::string compact_table_of(const SuiteReport& report) {
  using Size = std::pair<std::int64_t, std::int64_t>;  // rows and columns
  std::vector<std::string> forms;
  for (const SuiteResult& result : report.results)
    if (const std::string form = form_of(result.what); std::ranges::count(forms, form) == 0)
      forms.push_back(form);
  std::string text = report.device + ", " + report.date + " UTC, seed " + std::to_string(report.seed) +
                     "; us, and the copy's time over it\n";
  for (const std::string& form : forms) {
    std::vector<DType> dtypes;
    std::vector<Size> sizes;
    std::map<std::pair<Size, DType>, const SuiteResult*> found;
    for (const SuiteResult& result : report.results) {
      if (form_of(result.what) != form) continue;
      const Size size = {result.what.rows, result.what.spec.columns};
      const DType dtype = result.what.spec.input;
      if (std::ranges::count(sizes, size) == 0) sizes.push_back(size);
      if (std::ranges::count(dtypes, dtype) == 0) dtypes.push_back(dtype);
      found[{size, dtype}] = &result;
    }
    std::vector<std::string> columns = {form};
    for (const DType dtype : dtypes) columns.insert(columns.end(), {">" + std::string(name(dtype)), ">"});
    Table table(columns);
    for (const Size& size : sizes) {
      std::vector<std::string> cells = {std::to_string(size.first) + " x " + std::to_string(size.second)};
      for (const DType dtype : dtypes) {
        const auto at = found.find({size, dtype});
        const bool absent = at == found.end();
        if (absent || !at->second->bench) {
          cells.insert(cells.end(), {absent ? "" : "FAILED", ""});
          continue;
        }
        const BenchReport& bench = *at->second->bench;
        cells.insert(cells.end(), {fixed(bench.kernel.median, bench.kernel.median < 10 ? 2 : 1),
                                   fixed(bench.fraction_of_copy(), 2)});
      }
      table.add(std::move(cells));
    }
    text += "\n" + table.text();
  }
  return text;
}

std::string json_of(const std::vector<SuiteCase>& cases, std::uint64_t seed) {
  return Json({{"seed", seed}, {"cases", Json::array(cases, case_json)}}).text();
}

std::string json_of(const SuiteReport& report) {
  return Json({{"device", report.device},
               {"driver", report.driver},
               {"date", report.date},
               {"seed", report.seed},
               {"cases", Json::array(report.results, result_json)},
               {"summary", Json::array(summarize(report.results), summary_json)}})
      .text();
}

}  // namespace normjit::bench
