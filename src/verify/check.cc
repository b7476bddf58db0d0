// SPDX-License-Identifier: Apache-2.0
#include "verify/check.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>

#include "normjit/base/run_on_threads.h"
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
             const RowStatistics& statistics, Comparison& result) {
  const NormSpec& spec = problem.spec;
  double got[kBatch];
  ReferenceValue expected[kBatch];
  for (std::int64_t first = 0; first < spec.columns; first += kBatch) {
    const std::int64_t batch = std::min(kBatch, spec.columns - first);
    load(spec.output, problem[Operand::y].row(row), first, batch, got);
    reference_values(spec, inputs, statistics, first, batch, expected);
    for (std::int64_t i = 0; i < batch; ++i) {
      count(result, spec.output,
            {.row = row,
             .column = first + i,
             .got = got[i],
             .expected = expected[i].value,
             .tolerance = tolerance(spec, expected[i])});
    }
  }
}

void check_sum(const Problem& problem, std::int64_t row, const RowInputs& inputs, Comparison& result) {
  const NormSpec& spec = problem.spec;
  const Matrix& sum = problem[Operand::sum];
  if (sum.empty()) return;
  double got[kBatch], expected[kBatch];
  for (std::int64_t first = 0; first < spec.columns; first += kBatch) {
    const std::int64_t batch = std::min(kBatch, spec.columns - first);
    load(sum.dtype(), sum.row(row), first, batch, got);
    reference_sums(spec, inputs, first, batch, expected);
    for (std::int64_t i = 0; i < batch; ++i) {
      const bool finite = std::isfinite(expected[i]);
      count(result, sum.dtype(),
            {.row = row,
             .column = first + i,
             .got = got[i],
             .expected = expected[i],
             .tolerance = finite ? unit_in_last_place(sum.dtype(), expected[i]) : 0});
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

// Bytes of the gap after this row that are no longer poisoned.
std::int64_t overwritten_after(const Matrix& output, std::int64_t row) {
  if (row + 1 >= output.rows()) return 0;
  const std::byte* gap = output.row(row) + output.row_bytes();
  return (output.row(row + 1) - gap) - std::count(gap, output.row(row + 1), std::byte{0xff});
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
  switch (spec.output) {
    case DType::f64:
      return 1e-12 * expected.magnitude + cancelled;
    case DType::f32:
      return 1e-5 * expected.magnitude + cancelled;
    default:
      return std::max(2e-6 * expected.magnitude + cancelled,
                      std::isfinite(expected.value) ? unit_in_last_place(spec.output, expected.value) : 0);
  }
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
      check_y(problem, row, inputs, statistics, to[Operand::y]);
      check_sum(problem, row, inputs, to[Operand::sum]);
      check_statistic(problem[Operand::mean], row, statistics.mean, to[Operand::mean]);
      check_statistic(problem[Operand::rstd], row, statistics.rstd, to[Operand::rstd]);
      for (const OperandRow& each : kOperands)
        if (each.output) part.overwritten += overwritten_after(problem[each.operand], row);
    }
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < kOperandCount; ++i) merge(report.outputs.of[i], part.outputs.of[i]);
    report.overwritten += part.overwritten;
  });
  return report;
}

}  // namespace normjit::oracle
