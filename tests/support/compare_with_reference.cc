// SPDX-License-Identifier: Apache-2.0
#include "tests/support/compare_with_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string_view>
#include <vector>

#include "normjit/base/text.h"
#include "verify/check.h"
#include "verify/element.h"
#include "verify/reference.h"

namespace normjit::testing {
namespace {

// Roundings that add up, at most: the longest chain of additions in a thread, and the tree of lanes and
// warps.
constexpr double kSteps = 64;

double unit_roundoff(const NormSpec& spec) { return compute_type(spec) == DType::f64 ? 0x1p-53 : 0x1p-24; }

// Whether the row holds one number, and so often the same that all its sums are exact in the compute type.
bool sums_are_exact(const NormSpec& spec, const std::vector<double>& x) {
  if (std::any_of(x.begin(), x.end(), [&](double value) { return value != x[0]; })) return false;
  if (!std::isfinite(x[0])) return false;
  int exponent = 0;
  double digits = std::fabs(std::frexp(x[0], &exponent));
  while (digits != std::floor(digits)) digits *= 2;
  return digits * static_cast<double>(x.size()) <= 1 / unit_roundoff(spec);
}

// How far one element of a rounded sum may lie from the reference: a gate's function is approximated, and a
// sum between two numbers of the dtype is then rounded to the other one.
double rounded_to_the_other(const NormSpec& spec, double largest) {
  if (!rounds_sum(spec) || spec.gate != Gate::before || spec.gate_function == GateFunction::none) return 0;
  return (sum_type(spec) == DType::bf16 ? 0x1p-7 : 0x1p-10) * largest;
}

// How far rounding in the compute type may move the statistics of a row.
struct Uncertainty {
  double mean = 0, rstd_share = 0;
};

Uncertainty uncertainty_of(const NormSpec& spec, const std::vector<double>& x,
                           const oracle::RowStatistics& statistics) {
  if (sums_are_exact(spec, x)) return {};
  const double rounding = kSteps * unit_roundoff(spec);
  double largest = 0;
  for (const double value : x) largest = std::max(largest, std::fabs(value));
  const double other = rounded_to_the_other(spec, largest) / static_cast<double>(x.size());
  // That moves the mean of squares by up to twice its product with the element; the root halves it. An
  // infinite element makes the rms infinite, whatever the others are.
  const double other_share = std::isfinite(largest) ? other * largest * statistics.rstd * statistics.rstd : 0;
  // The squares are all positive: nothing cancels in their sum, and the root halves what it lost.
  if (spec.norm == Norm::rms) return {0, rounding / 2 + other_share};
  const double mean = rounding * largest;
  // The sum of (x - mean)^2 has the square of that in every element. It cancels against the sum of (x -
  // mean), but for its own roundings. The root halves what is left.
  const double centred = rounding * mean * mean * statistics.rstd * statistics.rstd / 2;
  // x + residual is rounded before it is centred. The root halves that, and its square doubles it.
  const bool sums = has_prologue(spec) && !rounds_sum(spec);
  const double summed = sums ? unit_roundoff(spec) * largest * statistics.rstd : 0;
  return {mean + other, centred + summed + 2 * other_share};
}

// Beyond a tenth of rstd the bound of first order says nothing any more.
constexpr double kMostUncertain = 0.1;

// What a weight makes of the roundings of a sum of distances from the mean, each about a deviation. The
// tolerance of cli/check.h has room for weights up to 2.
double magnified_rounding(const NormSpec& spec, double weight) {
  constexpr double kOrdinary = 2;
  return kSteps * unit_roundoff(spec) * std::fabs(spec.scale) * std::max(0.0, std::fabs(weight) - kOrdinary);
}

std::string message(const char* what, std::int64_t row, std::int64_t column, double got, double expected,
                    double tolerance) {
  char text[200];
  std::snprintf(text, sizeof text, "%s[%lld, %lld] is %.9g, expected %.9g within %.3g", what,
                static_cast<long long>(row), static_cast<long long>(column), got, expected, tolerance);
  return text;
}

std::optional<std::string> wrong_statistic(const char* what, const oracle::Matrix& column, std::int64_t row,
                                           double expected, double uncertainty) {
  if (column.empty()) return {};
  double got;
  oracle::load(column.dtype(), column.data(), row, 1, &got);
  if (!std::isfinite(expected)) {  // which of them is the business of the order of additions
    if (!std::isfinite(got)) return {};
    return message(what, row, 0, got, expected, 0);
  }
  const double size = std::max(1.0, std::fabs(expected));
  const double allowed = (column.dtype() == DType::f64 ? 1e-12 : 1e-5) * size + uncertainty;
  if (oracle::error_of(column.dtype(), got, expected) <= allowed) return {};
  return message(what, row, 0, got, expected, allowed);
}

// `exact` is the sum before it is rounded to the dtype, by way of the compute type.
std::optional<std::string> wrong_sum(const oracle::Problem& problem, std::int64_t row,
                                     const std::vector<double>& exact) {
  const oracle::Matrix& sum = problem[Operand::sum];
  if (sum.empty()) return {};
  std::vector<double> got(exact.size()), errors(exact.size());
  const std::int64_t columns = problem.spec.columns;
  oracle::reference_sum_errors(problem.spec, oracle::inputs_of(problem, row), 0, columns, exact.data(),
                               errors.data());
  oracle::load(sum.dtype(), problem.row(Operand::sum, row), 0, columns, problem.step(), got.data());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = oracle::error_of(sum.dtype(), got[i], exact[i]);
    if (error == 0) continue;
    // What a gate has made inexact may be rounded to the other side.
    const double units = errors[i] > 0 ? 1 : 0.501;
    const double allowed =
        std::isfinite(exact[i]) ? units * oracle::unit_in_last_place(sum.dtype(), exact[i]) + errors[i] : 0;
    if (!(error <= allowed))
      return message("sum", row, static_cast<std::int64_t>(i), got[i], exact[i], allowed);
  }
  return {};
}

// Of a value that is compared with what it may be.
std::optional<std::string> wrong_value(Operand output, const oracle::Deviation& found) {
  if (found.error == 0 || found.error <= found.tolerance) return {};
  return message(std::string(name(output)).c_str(), found.row, found.column, found.got, found.expected,
                 found.tolerance);
}

// Joins the largest result with those of other rows. Clears `bounded` where the row may have any results.
std::optional<std::string> wrong_in_row(const oracle::Problem& problem, std::int64_t row,
                                        oracle::Largest& largest, bool& bounded) {
  const NormSpec& spec = problem.spec;
  const auto columns = static_cast<std::size_t>(spec.columns);
  std::vector<double> x(columns), weight(columns, 1);
  std::vector<oracle::ReferenceValue> expected(columns);
  oracle::reference_sums(spec, oracle::inputs_of(problem, row), 0, spec.columns, x.data());
  if (!problem[Operand::weight].empty())
    oracle::load(spec.weight, oracle::inputs_of(problem, row)[Operand::weight], 0, spec.columns,
                 weight.data());
  const oracle::RowInputs inputs = oracle::inputs_of(problem, row);
  const oracle::RowStatistics statistics = oracle::row_statistics(spec, inputs);
  oracle::reference_values(spec, inputs, statistics, 0, spec.columns, expected.data());

  if (auto wrong = wrong_sum(problem, row, x)) return wrong;
  const Uncertainty uncertainty = uncertainty_of(spec, x, statistics);
  if (auto wrong = wrong_statistic("mean", problem[Operand::mean], row, statistics.mean, uncertainty.mean))
    return wrong;
  if (uncertainty.rstd_share > kMostUncertain) {
    bounded = false;
    return {};
  }
  if (auto wrong = wrong_statistic("rstd", problem[Operand::rstd], row, statistics.rstd,
                                   uncertainty.rstd_share * statistics.rstd))
    return wrong;
  std::optional<std::string> wrong;
  oracle::ResultsOfRow results(problem, row, [&](Operand output, const oracle::Deviation& found) {
    if (!wrong) wrong = wrong_value(output, found);
  });
  std::vector<double> exact(columns), errors(columns);
  for (std::size_t i = 0; i < columns; ++i) {
    exact[i] = expected[i].value;
    errors[i] =
        oracle::tolerance(spec, expected[i]) + uncertainty.rstd_share * expected[i].magnitude +
        magnified_rounding(spec, weight[i]) +
        (expected[i].margin <= uncertainty.rstd_share + uncertainty.mean * statistics.rstd ? expected[i].unit
                                                                                           : 0);
  }
  results.add(0, spec.columns, exact.data(), errors.data());
  results.finish(largest);
  return wrong;
}

// Likewise of dx. Adds to `rstd_shares` by how much rstd of the row is uncertain.
std::optional<std::string> wrong_gradient_in_row(const oracle::Problem& problem, std::int64_t row,
                                                 std::vector<double>& rstd_shares, bool& bounded) {
  const NormSpec& spec = problem.spec;
  const oracle::RowInputs inputs = oracle::inputs_of(problem, row);
  std::vector<double> x(static_cast<std::size_t>(spec.columns));
  oracle::reference_sums(spec, inputs, 0, spec.columns, x.data());
  const double share = uncertainty_of(spec, x, oracle::row_statistics(spec, inputs)).rstd_share;
  rstd_shares.push_back(share);
  if (share > kMostUncertain) {
    bounded = false;
    return {};
  }
  std::optional<std::string> wrong;
  oracle::compare_row_gradients(problem, row, share, [&](Operand output, const oracle::Deviation& found) {
    if (!wrong) wrong = wrong_value(output, found);
  });
  return wrong;
}

}  // namespace

std::optional<std::string> first_wrong(const oracle::Problem& problem) {
  oracle::Largest largest;
  bool bounded = true;
  std::vector<double> rstd_shares;
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    auto wrong = problem.spec.backward ? wrong_gradient_in_row(problem, row, rstd_shares, bounded)
                                       : wrong_in_row(problem, row, largest, bounded);
    if (wrong) return wrong;
    if (row + 1 == problem.rows) break;
    if ((row + 1) % problem.step() != 0) continue;  // its sample has another position
    const std::int64_t sample = row / problem.step();
    for (const OperandRow& output : kOperands) {
      const oracle::Matrix& matrix = problem[output.operand];
      if (!output.output || !is_matrix(output, problem.spec) || matrix.empty()) continue;
      if (matrix.shares_rows() && (row + 1) % matrix.layout().n != 0) continue;
      const std::byte* const gap = matrix.row(sample) + matrix.row_bytes();
      if (std::any_of(gap, matrix.row(sample + 1), [](std::byte byte) { return byte != std::byte{0xff}; }))
        return concat({"the gap behind row ", shortest(sample), " of ", output.name, " was written to"});
    }
  }
  std::optional<std::string> wrong;
  if (problem.rows > 0)
    oracle::compare_beyond_rows(problem, largest, /*of_all_rows=*/bounded,
                                [&](Operand output, const oracle::Deviation& found) {
                                  if (!wrong) wrong = wrong_value(output, found);
                                });
  if (!wrong && problem.spec.backward)
    oracle::compare_column_gradients(problem, rstd_shares,
                                     [&](Operand output, const oracle::Deviation& found) {
                                       // Nothing is known of n in a row without bounds, but of its dy.
                                       if (!bounded && output != Operand::dbias) return;
                                       if (!wrong) wrong = wrong_value(output, found);
                                     });
  return wrong;
}

}  // namespace normjit::testing
