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

constexpr std::int64_t kBatch = 1024;     // values compared at a time; whole blocks
constexpr std::int64_t kPiece = 1 << 15;  // elements a thread takes at a time, in whole rows

bool before(const Deviation& a, const Deviation& b) {
  return a.row != b.row ? a.row < b.row : a.column < b.column;
}

void count(Comparison& comparison, const Deviation& value) {
  ++comparison.values;
  if (value.error > comparison.largest.error) comparison.largest = value;
  // A tolerance that is not finite bounds nothing: then only what error_of() calls right is right.
  if (value.error == 0 || (std::isfinite(value.tolerance) && value.error <= value.tolerance)) return;
  if (comparison.wrong++ == 0) comparison.first_wrong = value;
}

void count(Comparison& comparison, DType dtype, Deviation value) {
  value.error = error_of(dtype, value.got, value.expected);
  count(comparison, value);
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

Deviation deviation(const NormSpec& spec, Operand output, std::int64_t row, std::int64_t column, double got,
                    const Expected& expected) {
  return {.row = row,
          .column = column,
          .got = got,
          .expected = expected.value,
          .error = error_of(row_of(output).dtype(spec), got, expected.value),
          .tolerance = expected.tolerance};
}

// An element of an operand that the spec has.
double element_of(const Problem& problem, Operand operand, std::int64_t at) {
  double value;
  load(problem[operand].dtype(), problem[operand].data(), at, 1, &value);
  return value;
}
double stored_scale(const Problem& problem, std::int64_t row, std::int64_t block) {
  return element_of(problem, Operand::block_scale, scale_place(problem.spec, problem.rows, row, block));
}

// Of a value between `low` and `high` that is stored by a function that rises, or falls: on each side of what
// it becomes `got` may be as far off as what the end there becomes.
template <class Becomes>
Expected expected_between(double low, double exact, double high, double got, Becomes becomes) {
  const double value = becomes(exact);
  if (got == value) return {value, 0};
  const auto [below, above] = std::minmax({becomes(low), becomes(high)});
  return {value, got > value ? above - value : value - below};
}
// Of one that is known up to an error. An error that is not finite bounds nothing.
template <class Becomes>
Expected expected_about(double exact, double error, double got, Becomes becomes) {
  const double by = std::isfinite(error) ? error : 0;
  return expected_between(exact - by, exact, exact + by, got, becomes);
}
template <class Becomes>
Expected expected_of(const Largest& largest, double got, Becomes becomes) {
  return expected_between(largest.least, largest.exact, largest.most, got, becomes);
}

void check_results(const Problem& problem, std::int64_t row, const RowInputs& inputs,
                   const RowStatistics& statistics, PerOperand<Comparison>& outputs, Largest& largest) {
  const NormSpec& spec = problem.spec;
  ReferenceValue expected[kBatch];
  double exact[kBatch], errors[kBatch];
  ResultsOfRow results(problem, row,
                       [&](Operand output, const Deviation& value) { count(outputs[output], value); });
  for (std::int64_t first = 0; first < spec.columns; first += kBatch) {
    const std::int64_t batch = std::min(kBatch, spec.columns - first);
    reference_values(spec, inputs, statistics, first, batch, expected);
    for (std::int64_t i = 0; i < batch; ++i) {
      exact[i] = expected[i].value;
      errors[i] = tolerance(spec, expected[i]);
    }
    results.add(first, batch, exact, errors);
  }
  results.finish(largest);
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

// What a common offset of a row leaves behind where it cancels, as a share of it: the compute type's
// roundings.
double relative_cancelled(const NormSpec& spec) { return compute_type(spec) == DType::f64 ? 4e-16 : 2e-7; }

// What the rounding of a sum may change its rstd by: the mean of the row's elements cancels, their roundings
// stay.
double error_of_rstd(const NormSpec& spec, const RowStatistics& statistics) {
  if (!has_prologue(spec) || rounds_sum(spec)) return 0;
  return relative_cancelled(spec) * std::fabs(statistics.mean) * statistics.rstd * statistics.rstd;
}

void check_statistic(const Matrix& column, std::int64_t row, double expected, double error,
                     Comparison& result) {
  if (column.empty()) return;
  double got;
  load(column.dtype(), column.data(), row, 1, &got);
  // By definition the mean of a row with an infinity is infinite; merging parts of the row gives NaN.
  if (std::isinf(expected) && std::isnan(got)) expected = got;
  const double allowed =
      (column.dtype() == DType::f64 ? 1e-12 : 1e-5) * std::max(1.0, std::fabs(expected)) + error;
  count(result, column.dtype(),
        {.row = row, .column = 0, .got = got, .expected = expected, .tolerance = allowed});
}

// Of a gradient that may be `allowed` off.
Deviation gradient_deviation(const NormSpec& spec, Operand output, std::int64_t row, std::int64_t column,
                             double got, const GradientValue& expected, double allowed) {
  const DType dtype = row_of(output).dtype(spec);
  const bool finite = std::isfinite(expected.value);
  Deviation value = deviation(spec, output, row, column, got, {expected.value, finite ? allowed : 0});
  if (std::isfinite(got)) return value;
  if (!finite) {
    value.error = 0;
    return value;
  }
  const auto reaches = [&](double by) { return got == rounded(dtype, expected.value + by); };
  if (std::isinf(got) && (reaches(allowed) || reaches(-allowed))) value.error = 0;
  return value;
}

void check_row(const Problem& problem, std::int64_t row, PerOperand<Comparison>& to, Largest& largest) {
  if (problem.spec.backward) {
    compare_row_gradients(problem, row, 0,
                          [&](Operand output, const Deviation& value) { count(to[output], value); });
    return;
  }
  const RowInputs inputs = inputs_of(problem, row);
  const RowStatistics statistics = row_statistics(problem.spec, inputs);
  check_results(problem, row, inputs, statistics, to, largest);
  check_sum(problem, row, inputs, to[Operand::sum]);
  check_statistic(problem[Operand::mean], row, statistics.mean, 0, to[Operand::mean]);
  check_statistic(problem[Operand::rstd], row, statistics.rstd, error_of_rstd(problem.spec, statistics),
                  to[Operand::rstd]);
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

// The gradients of a modulation where groups of rows share them.
void compare_group_gradients(const Problem& problem, std::span<const double> rstd_shares,
                             const Compared& compared) {
  const NormSpec& spec = problem.spec;
  if (!writes_dmod(spec) || !problem[Operand::dmod_scale].shares_rows()) return;
  const std::int64_t n = problem[Operand::dmod_scale].layout().n;
  std::vector<double> got(static_cast<std::size_t>(spec.columns));
  for (std::int64_t row = 0; row < problem.rows; row += n) {
    const std::vector<ModulationGradient> expected = group_gradients(problem, row, n, rstd_shares);
    const auto compare = [&](Operand output, GradientValue ModulationGradient::*member) {
      load(spec.modulation_type, problem.row(output, row), 0, spec.columns, problem.step(), got.data());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const GradientValue& value = expected[i].*member;
        compared(output, gradient_deviation(spec, output, row, static_cast<std::int64_t>(i), got[i], value,
                                            tolerance(spec, spec.modulation_type, value) + value.share));
      }
    };
    compare(Operand::dmod_scale, &ModulationGradient::scale);
    if (spec.modulation == Modulation::scale_shift) compare(Operand::dmod_shift, &ModulationGradient::shift);
  }
}

}  // namespace

double error_of(DType dtype, double got, double expected) noexcept {
  if (std::isnan(got) && std::isnan(expected)) return 0;
  if (std::isinf(got) && got == rounded(dtype, expected)) return 0;
  const double error = std::fabs(got - expected);
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

double tolerance(const NormSpec& spec, const ReferenceValue& expected) noexcept {
  const double cancelled = expected.offset * relative_cancelled(spec);
  const double step = expected.margin <= 1e-6 ? expected.unit : 0;  // rounded to the other side
  switch (spec.output) {
    case DType::f64:
      return 1e-12 * expected.magnitude + cancelled + step;
    case DType::f32:  // what is below half of its smallest number becomes 0
      return 1e-5 * expected.magnitude + cancelled + step + 0x1p-150;
    case DType::e4m3:
    case DType::e5m2:
    case DType::s8:
    case DType::e2m1:
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

Expected expected_quantized(const NormSpec& spec, double exact, double error, double scale,
                            double got) noexcept {
  return expected_about(exact, error, got, [&](double y) { return quantized(spec, y, scale); });
}

double written_scale(const Problem& problem, std::int64_t row, std::int64_t column) noexcept {
  const NormSpec& spec = problem.spec;
  if (spec.quantization == Quantization::tensor) return element_of(problem, Operand::tensor_scale, 0);
  if (scales_rows(spec)) return element_of(problem, Operand::row_scale, row);
  if (!scales_blocks(spec)) return 1;
  const double scale = stored_scale(problem, row, column / block_columns(spec));
  return spec.scale_format == ScaleFormat::e4m3
             ? factor_of(scale, element_of(problem, Operand::global_scale, 0))
             : scale;
}

void ResultsOfRow::add(std::int64_t first, std::int64_t count, const double* exact, const double* errors) {
  const std::int64_t whole = scales_blocks(problem_.spec) ? block_columns(problem_.spec) : kBatch;
  for (std::int64_t done = 0; done < count; done += whole)
    add_piece(first + done, std::min(whole, count - done), exact + done, errors + done);
}

void ResultsOfRow::add_piece(std::int64_t first, std::int64_t count, const double* exact,
                             const double* errors) {
  const NormSpec& spec = problem_.spec;
  const bool narrow = is_narrow(spec.output), has_also = spec.also != Also::none;
  const double scale = narrow ? written_scale(problem_, row_, first) : 1;
  double y[kBatch], also[kBatch];
  load(spec.output, problem_.row(Operand::y, row_), first, count, problem_.step(), y);
  if (has_also) load(also_type(spec), problem_.row(Operand::also, row_), first, count, problem_.step(), also);
  Largest largest;
  for (std::int64_t i = 0; i < count; ++i) {
    compare(
        Operand::y, first + i, y[i],
        narrow ? expected_quantized(spec, exact[i], errors[i], scale, y[i]) : Expected{exact[i], errors[i]});
    if (has_also)
      compare(Operand::also, first + i, also[i],
              expected_about(exact[i], errors[i], also[i], [&](double value) {
                return rounded(also_type(spec), before_quantization(spec, value));
              }));
    largest.add(narrow ? exact[i] : y[i], narrow ? errors[i] : 0);
  }
  largest_.add(largest);
  if (!scales_blocks(spec)) return;
  const std::int64_t block = first / block_columns(spec);
  compare_scale(Operand::block_scale, block, stored_scale(problem_, row_, block), largest);
}

void ResultsOfRow::compare(Operand output, std::int64_t column, double got, const Expected& expected) {
  compared_(output, deviation(problem_.spec, output, row_, column, got, expected));
}

void ResultsOfRow::compare_scale(Operand scale, std::int64_t number, double got, const Largest& largest) {
  const NormSpec& spec = problem_.spec;
  const Operand input = scales_rows(spec) ? Operand::upper_bound : Operand::global_scale;
  const double given = row_of(input).present(spec) ? element_of(problem_, input, 0) : 1;
  compare(scale, number, got,
          expected_of(largest, got, [&](double value) { return scale_for(spec, value, given); }));
}

void ResultsOfRow::finish(Largest& of_all) {
  if (scales_rows(problem_.spec))
    compare_scale(Operand::row_scale, 0, element_of(problem_, Operand::row_scale, row_), largest_);
  of_all.add(largest_);
}

void compare_beyond_rows(const Problem& problem, const Largest& largest, bool of_all_rows,
                         const Compared& compared) {
  const NormSpec& spec = problem.spec;
  if (spec.amax && problem.rows > 0) {
    const double got = element_of(problem, Operand::amax, 0);
    Expected expected =
        expected_of(largest, got, [&](double value) { return before_quantization(spec, value); });
    if (!of_all_rows && !std::isnan(expected.value) && !(got < expected.value)) expected = {got, 0};
    compared(Operand::amax, deviation(spec, Operand::amax, 0, 0, got, expected));
  }
  if (!scales_blocks(spec)) return;
  const ScaleShape shape = scale_shape(spec, problem.rows);
  const std::int64_t blocks = spec.columns / block_columns(spec), bytes = size_of(block_scale_type(spec));
  for (std::int64_t row = 0; row < shape.rows; ++row)
    for (std::int64_t block = row < problem.rows ? blocks : 0; block < shape.blocks; ++block) {
      const std::byte* scale =
          problem[Operand::block_scale].data() + scale_place(spec, problem.rows, row, block) * bytes;
      int got = 0;
      for (std::int64_t i = 0; i < bytes; ++i) got = std::max(got, std::to_integer<int>(scale[i]));
      compared(Operand::block_scale, {.row = row, .column = block, .got = 1.0 * got, .error = 1.0 * got});
    }
}

void compare_row_gradients(const Problem& problem, std::int64_t row, double rstd_share,
                           const Compared& compared) {
  const NormSpec& spec = problem.spec;
  if (!writes_dx(spec)) return;
  const RowInputs inputs = inputs_of(problem, row);
  const RowGradients of_row = row_gradients(spec, inputs);
  GradientValue dx[kBatch], dgate[kBatch], of_operand[kBatch];
  ModulationGradient of_modulation[kBatch];
  double got[kBatch];
  const bool has_dgate = row_of(Operand::dgate).present(spec);
  const bool modulates = writes_dmod(spec) && !problem[Operand::dmod_scale].shares_rows();
  const auto compare = [&](Operand output, std::int64_t first, std::int64_t count,
                           const GradientValue* expected) {
    const DType dtype = row_of(output).dtype(spec);
    load(dtype, problem.row(output, row), first, count, problem.step(), got);
    for (std::int64_t i = 0; i < count; ++i) {
      const double uncertain = rstd_share > 0 ? rstd_share * expected[i].share : 0;
      compared(output, gradient_deviation(spec, output, row, first + i, got[i], expected[i],
                                          tolerance(spec, dtype, expected[i]) + uncertain));
    }
  };
  for (std::int64_t first = 0; first < spec.columns; first += kBatch) {
    const std::int64_t batch = std::min(kBatch, spec.columns - first);
    reference_dx(spec, inputs, of_row, first, batch, dx, has_dgate ? dgate : nullptr,
                 modulates ? of_modulation : nullptr);
    compare(Operand::dx, first, batch, dx);
    if (has_dgate) compare(Operand::dgate, first, batch, dgate);
    if (!modulates) continue;
    std::ranges::transform(of_modulation, of_operand, &ModulationGradient::scale);
    compare(Operand::dmod_scale, first, batch, of_operand);
    std::ranges::transform(of_modulation, of_operand, &ModulationGradient::shift);
    if (spec.modulation == Modulation::scale_shift) compare(Operand::dmod_shift, first, batch, of_operand);
  }
}

void compare_column_gradients(const Problem& problem, std::span<const double> rstd_shares,
                              const Compared& compared) {
  const NormSpec& spec = problem.spec;
  if (problem.rows == 0) return;
  const ColumnGradients expected = column_gradients(problem, rstd_shares);
  const auto compare = [&](Operand output, const std::vector<GradientValue>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto column = static_cast<std::int64_t>(i);
      const double allowed = tolerance(spec, spec.gradient_type, values[i]) + values[i].share;
      compared(output, gradient_deviation(spec, output, 0, column, element_of(problem, output, column),
                                          values[i], allowed));
    }
  };
  compare(Operand::dweight, expected.weight);
  compare(Operand::dbias, expected.bias);
  compare_group_gradients(problem, rstd_shares, compared);
}

CheckReport check(const Problem& problem, std::int64_t rows) {
  CheckReport report;
  report.rows = std::clamp<std::int64_t>(rows, 0, problem.rows);
  std::mutex mutex;
  Largest largest;
  const std::int64_t piece = std::max<std::int64_t>(1, kPiece / problem.spec.columns);
  parallel_for(report.rows, piece, [&](std::int64_t begin, std::int64_t end) {
    CheckReport part;
    Largest of_part;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t last = std::max<std::int64_t>(1, report.rows - 1);
      const auto row = static_cast<std::int64_t>(static_cast<__int128>(i) * (problem.rows - 1) / last);
      check_row(problem, row, part.outputs, of_part);
      for (std::size_t each = 0; each < kOperandCount; ++each)
        if (is_matrix(kOperands[each], problem.spec) && kOperands[each].output &&
            (row + 1) % problem.step() == 0)
          part.overwritten += overwritten_after(problem, each, row / problem.step());
    }
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < kOperandCount; ++i) merge(report.outputs.of[i], part.outputs.of[i]);
    report.overwritten += part.overwritten;
    largest.add(of_part);
  });
  const Compared counted = [&](Operand output, const Deviation& value) {
    count(report.outputs[output], value);
  };
  compare_beyond_rows(problem, largest, report.rows == problem.rows, counted);
  if (problem.spec.backward) compare_column_gradients(problem, {}, counted);
  return report;
}

}  // namespace normjit::oracle
