// SPDX-License-Identifier: Apache-2.0
#include "verify/check.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>

#include "normjit/base/run_on_threads.h"
#include "normjit/spec/valid.h"
#include "verify/element.h"

namespace normjit::oracle {
namespace {

constexpr std::int64_t kBatch = 1024;     // values compared at a time
constexpr std::int64_t kPiece = 1 << 15;  // elements a thread takes at a time, in whole rows

bool before(const Deviation& a, const Deviation& b) {
  return a.row != b.row ? a.row < b.row : a.column < b.column;
}

void count(Comparison& comparison, DType dtype, Deviation value) {
  value.error = error_of(dtype, value.got, value.expected);
  ++comparison.values;
  if (value.error > comparison.largest.error) comparison.largest = value;
  // A tolerance that is not finite bounds nothing: then only what error_of() calls right is right.
  if (value.error == 0 || (std::isfinite(value.tolerance) && value.error <= value.tolerance)) return;
  if (comparison.wrong++ == 0) comparison.first_wrong = value;
}

void merge(Comparison& into, const Comparison& from) {
  into.values += from.values;
  const bool larger = from.largest.error > into.largest.error;
  if (larger || (from.largest.error == into.largest.error && before(from.largest, into.largest))) {
    into.largest = from.largest;
  }
  if (from.wrong > 0 && (into.wrong == 0 || before(from.first_wrong, into.first_wrong))) {
    into.first_wrong = from.first_wrong;
  }
  into.wrong += from.wrong;
}

void check_y(const Problem& problem, std::int64_t row, const RowInputs& inputs,
             const RowStatistics& statistics, PerOperand<Comparison>& results) {
  const NormSpec& spec = problem.spec;
  const bool in_8_bits = has_8_bits(spec.output);
  const double scale = in_8_bits ? written_scale(problem, row) : 1;
  double got[kBatch];
  ReferenceValue expected[kBatch];
  RowScale row_scale(spec);
  for (std::int64_t first = 0; first < spec.columns; first += kBatch) {
    const std::int64_t batch = std::min(kBatch, spec.columns - first);
    load(spec.output, problem.row(Operand::y, row), first, batch, problem.step(), got);
    reference_values(spec, inputs, statistics, first, batch, expected);
    for (std::int64_t i = 0; i < batch; ++i) {
      const double exact = expected[i].value, allowed = tolerance(spec, expected[i]);
      if (scales_rows(spec)) row_scale.add(exact, std::isfinite(allowed) ? allowed : 0);
      const ExpectedQuantized stored = in_8_bits ? expected_quantized(spec, exact, allowed, scale, got[i])
                                                 : ExpectedQuantized{exact, allowed};
      count(results[Operand::y], spec.output,
            {.row = row,
             .column = first + i,
             .got = got[i],
             .expected = stored.value,
             .tolerance = stored.tolerance});
    }
  }
  if (!scales_rows(spec)) return;
  const double found = row_scale.expected();
  count(results[Operand::row_scale], DType::f32,
        {.row = row,
         .column = 0,
         .got = scale,
         .expected = found,
         .tolerance = scale > found ? row_scale.most() - found : found - row_scale.least()});
}

void check_sum(const Problem& problem, std::int64_t row, const RowInputs& inputs, Comparison& result) {
  const NormSpec& spec = problem.spec;
  const Matrix& sum = problem[Operand::sum];
  if (sum.empty()) return;
  double got[kBatch], expected[kBatch], errors[kBatch];
  for (std::int64_t first = 0; first < spec.columns; first += kBatch) {
    const std::int64_t batch = std::min(kBatch, spec.columns - first);
    load(sum.dtype(), problem.row(Operand::sum, row), first, batch, problem.step(), got);
    reference_sums(spec, inputs, first, batch, expected);
    reference_sum_errors(spec, inputs, first, batch, expected, errors);
    for (std::int64_t i = 0; i < batch; ++i) {
      // A sum that is rounded has one right answer, unless a gate has made it inexact.
      const bool inexact = std::isfinite(expected[i]) && (spec.gate == Gate::before || !rounds_sum(spec));
      count(result, sum.dtype(),
            {.row = row,
             .column = first + i,
             .got = got[i],
             .expected = expected[i],
             .tolerance = inexact ? unit_in_last_place(sum.dtype(), expected[i]) + errors[i] : 0});
    }
  }
}

void check_statistic(const Matrix& column, std::int64_t row, double expected, Comparison& result) {
  if (column.empty()) return;
  double got;
  load(column.dtype(), column.data(), row, 1, &got);
  // By definition the mean of a row with an infinity is infinite; merging parts of the row gives NaN.
  if (std::isinf(expected) && std::isnan(got)) expected = got;
  const double allowed = (column.dtype() == DType::f64 ? 1e-12 : 1e-5) * std::max(1.0, std::fabs(expected));
  count(result, column.dtype(),
        {.row = row, .column = 0, .got = got, .expected = expected, .tolerance = allowed});
}

// Bytes of the gap after this row of a matrix that are no longer as reset_outputs() has left them.
std::int64_t overwritten_after(const Problem& problem, std::size_t operand, std::int64_t row) {
  const Matrix& output = problem.operands.of[operand];
  if (output.empty()) return 0;
  const std::int64_t behind = output.row_behind(row);
  const std::byte* gap = output.row(row) + output.row_bytes();
  const std::byte* end = behind < output.rows() ? output.row(behind) : output.data() + output.bytes();
  if (!has(problem.in_place, operand)) return end - gap - std::count(gap, end, std::byte{0xff});
  const std::byte* before = problem[kOperands[operand].in_place].row(row) + output.row_bytes();
  return std::inner_product(gap, end, before, std::int64_t{0}, std::plus<>(), std::not_equal_to<>());
}

}  // namespace

double error_of(DType dtype, double got, double expected) noexcept {
  if (std::isnan(got) && std::isnan(expected)) return 0;
  if (std::isinf(got) && got == rounded(dtype, expected)) return 0;
  const double error = std::fabs(got - expected);
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

double tolerance(const NormSpec& spec, const ReferenceValue& expected) noexcept {
  const bool wide = compute_type(spec) == DType::f64;
  const double cancelled = expected.offset * (wide ? 4e-16 : 2e-7);
  const double step = expected.margin <= 1e-6 ? expected.unit : 0;  // rounded to the other side
  switch (spec.output) {
    case DType::f64:
      return 1e-12 * expected.magnitude + cancelled + step;
    case DType::f32:
    case DType::e4m3:
    case DType::e5m2:
    case DType::s8:
      return 1e-5 * expected.magnitude + cancelled + step;
    default: {
      const double unit = std::isfinite(expected.value) ? unit_in_last_place(spec.output, expected.value) : 0;
      const double computed = 2e-6 * expected.magnitude + cancelled;
      // A residual may cancel most of the result. What shows then is the last rounding on top of the error of
      // the activation, which is as exact as 16 bits need.
      return std::max(unit, spec.residual == Residual::after ? 2 * computed + unit / 2 : computed) + step;
    }
  }
}

ExpectedQuantized expected_quantized(const NormSpec& spec, double exact, double error, double scale,
                                     double got) noexcept {
  const double value = quantized(spec, exact, scale);
  if (!std::isfinite(error)) return {value, 0};
  const bool above = (got > value) == (scale >= 0);  // of a result that is above the exact one
  return {value, std::fabs(quantized(spec, above ? exact + error : exact - error, scale) - value)};
}

double written_scale(const Problem& problem, std::int64_t row) noexcept {
  double scale = 1;
  if (problem.spec.quantization == Quantization::tensor)
    load(DType::f32, problem[Operand::tensor_scale].data(), 0, 1, &scale);
  else if (scales_rows(problem.spec))
    load(DType::f32, problem[Operand::row_scale].data(), row, 1, &scale);
  return scale;
}

CheckReport check(const Problem& problem, std::int64_t rows) {
  CheckReport report;
  report.rows = std::clamp<std::int64_t>(rows, 0, problem.rows);
  std::mutex mutex;
  const std::int64_t piece = std::max<std::int64_t>(1, kPiece / problem.spec.columns);
  parallel_for(report.rows, piece, [&](std::int64_t begin, std::int64_t end) {
    CheckReport part;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t last = std::max<std::int64_t>(1, report.rows - 1);
      const auto row = static_cast<std::int64_t>(static_cast<__int128>(i) * (problem.rows - 1) / last);
      const RowInputs inputs = inputs_of(problem, row);
      const RowStatistics statistics = row_statistics(problem.spec, inputs);
      PerOperand<Comparison>& to = part.outputs;
      check_y(problem, row, inputs, statistics, to);
      check_sum(problem, row, inputs, to[Operand::sum]);
      check_statistic(problem[Operand::mean], row, statistics.mean, to[Operand::mean]);
      check_statistic(problem[Operand::rstd], row, statistics.rstd, to[Operand::rstd]);
      for (std::size_t each = 0; each < kOperandCount; ++each)
        if (is_matrix(kOperands[each], problem.spec) && kOperands[each].output &&
            (row + 1) % problem.step() == 0)
          part.overwritten += overwritten_after(problem, each, row / problem.step());
    }
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < kOperandCount; ++i) merge(report.outputs.of[i], part.outputs.of[i]);
    report.overwritten += part.overwritten;
  });
  return report;
}

}  // namespace normjit::oracle
