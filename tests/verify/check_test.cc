// SPDX-License-Identifier: Apache-2.0
#include "verify/check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/spec/valid.h"
#include "verify/element.h"

namespace normjit::oracle {
namespace {

constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

// A problem with the right outputs, as a perfect kernel leaves them.
Problem solved(const NormSpec& spec, std::int64_t rows, std::int64_t y_stride = kContiguous) {
  Problem problem = make_problem(spec, rows, {{Operand::y, y_stride}}).value();
  fill(problem, 1);
  std::vector<ReferenceValue> expected(static_cast<std::size_t>(spec.columns));
  std::vector<double> values(expected.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    const RowInputs inputs = inputs_of(problem, row);
    const RowStatistics statistics = row_statistics(spec, inputs);
    reference_values(spec, inputs, statistics, 0, spec.columns, expected.data());
    if (scales_rows(spec)) {
      RowScale scale(spec);
      for (const ReferenceValue& value : expected) scale.add(value);
      const double value = scale.expected().value;
      store(DType::f32, problem[Operand::row_scale].data(), row, 1, &value);
    }
    const double scale = scale_of(problem, row);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = expected_result(spec, expected[i], scale).value;
    store(spec.output, problem[Operand::y].row(row), 0, spec.columns, values.data());
    if (spec.sum) {
      reference_sums(spec, inputs, 0, spec.columns, values.data());
      store(spec.input, problem[Operand::sum].row(row), 0, spec.columns, values.data());
    }
    const std::pair<Operand, double> written[] = {{Operand::mean, statistics.mean},
                                                  {Operand::rstd, statistics.rstd}};
    for (const auto& [operand, value] : written) {
      Matrix& column = problem[operand];
      if (!column.empty()) store(column.dtype(), column.data(), row, 1, &value);
    }
  }
  return problem;
}

void set(Matrix& matrix, std::int64_t row, std::int64_t column, double value) {
  store(matrix.dtype(), matrix.row(row), column, 1, &value);
}
double get(const Matrix& matrix, std::int64_t row, std::int64_t column) {
  double value;
  load(matrix.dtype(), matrix.row(row), column, 1, &value);
  return value;
}

TEST(Check, ComparesTheOutputsThatTheSpecHas) {
  const NormSpec spec{.norm = Norm::rms,
                      .columns = 40,
                      .input = DType::bf16,
                      .residual = Residual::before,
                      .sum = true,
                      .statistics = true};
  Problem problem = solved(spec, 6);
  CheckReport report = check(problem, kAll);
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report[Operand::sum].values, 6 * 40);
  EXPECT_EQ(report[Operand::rstd].values, 6);
  EXPECT_EQ(report[Operand::mean].values, 0) << "rms has none";

  Matrix& sum = problem[Operand::sum];
  const double right = get(sum, 2, 7);
  set(sum, 2, 7, right + 3 * unit_in_last_place(DType::bf16, right));
  report = check(problem, kAll);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report[Operand::sum].wrong, 1);
  EXPECT_EQ(report[Operand::sum].first_wrong.row, 2);
  EXPECT_EQ(report[Operand::sum].first_wrong.column, 7);
  EXPECT_EQ(report[Operand::y].wrong, 0);
}

TEST(Check, AcceptsRightOutputsOfEveryDType) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    const NormSpec spec{.columns = 33,
                        .input = dtype,
                        .affine = Affine::weight_bias,
                        .activation = Activation::gelu,
                        .scale = 3,
                        .statistics = true};
    const CheckReport report = check(solved(spec, 50), kAll);
    EXPECT_TRUE(report.ok()) << name(dtype);
    EXPECT_EQ(report.rows, 50);
    EXPECT_EQ(report[Operand::y].values, 50 * 33);
    EXPECT_EQ(report[Operand::mean].values, 50);
    EXPECT_EQ(report[Operand::rstd].values, 50);
    EXPECT_LE(report[Operand::y].largest.error, report[Operand::y].largest.tolerance);
  }
}

// Whole steps of the type are wrong, and so is a scale that is off by more than rounding.
TEST(Check, ResultsOf8BitsAreRightToHalfAStep) {
  for (const DType output : {DType::e4m3, DType::e5m2, DType::s8})
    for (const Quantization quantization : {Quantization::row, Quantization::tensor}) {
      SCOPED_TRACE(concat({name(output), " by ", name(quantization)}));
      Problem problem = solved({.columns = 100,
                                .input = DType::bf16,
                                .output = output,
                                .rounding = Rounding::y,
                                .affine = Affine::weight,
                                .quantization = quantization},
                               20);
      CheckReport report = check(problem, kAll);
      EXPECT_TRUE(report.ok());
      EXPECT_EQ(report[Operand::row_scale].values, quantization == Quantization::row ? 20 : 0);
      Matrix& y = problem[Operand::y];
      const double right = get(y, 3, 9);
      const double wrong = right + (right > 0 ? -2 : 2) * unit_in_last_place(output, right);
      set(y, 3, 9, wrong);
      report = check(problem, kAll);
      EXPECT_EQ(report[Operand::y].wrong, 1);
      EXPECT_EQ(report[Operand::y].first_wrong.row, 3);
      EXPECT_EQ(report[Operand::y].first_wrong.column, 9);
      if (quantization != Quantization::row) continue;
      set(y, 3, 9, right);
      set(problem[Operand::row_scale], 7, 0, 1.01 * get(problem[Operand::row_scale], 7, 0));
      EXPECT_EQ(check(problem, kAll)[Operand::row_scale].wrong, 1);
    }
}

TEST(Check, FindsTheLargestAndTheFirstError) {
  Problem problem = solved({.columns = 2000}, 40);
  set(problem[Operand::y], 7, 1999, get(problem[Operand::y], 7, 1999) + 0.25);
  set(problem[Operand::y], 31, 1024, get(problem[Operand::y], 31, 1024) - 8);
  const CheckReport report = check(problem, kAll);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report[Operand::y].wrong, 2);
  EXPECT_EQ(report[Operand::y].largest.row, 31);
  EXPECT_EQ(report[Operand::y].largest.column, 1024);
  EXPECT_NEAR(report[Operand::y].largest.error, 8, 1e-5);
  EXPECT_EQ(report[Operand::y].first_wrong.row, 7);
  EXPECT_EQ(report[Operand::y].first_wrong.column, 1999);
}

TEST(Check, UntouchedOutputsAreWrong) {
  Problem problem = make_problem({.columns = 8, .statistics = true}, 3).value();
  fill(problem, 1);
  const CheckReport report = check(problem, kAll);
  EXPECT_EQ(report[Operand::y].wrong, 24);
  EXPECT_EQ(report[Operand::mean].wrong, 3);
  EXPECT_EQ(report[Operand::rstd].wrong, 3);
}

TEST(Check, WrongStatisticsAreFound) {
  Problem problem = solved({.columns = 64, .statistics = true}, 5);
  set(problem[Operand::rstd], 4, 0, get(problem[Operand::rstd], 4, 0) * 1.001);
  const CheckReport report = check(problem, kAll);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report[Operand::y].wrong + report[Operand::mean].wrong, 0);
  EXPECT_EQ(report[Operand::rstd].first_wrong.row, 4);
}

TEST(Check, NaNWhereItBelongsIsRight) {
  Problem problem = solved({.columns = 4}, 2);
  set(problem[Operand::x], 1, 2, std::nan(""));
  for (int column = 0; column < 4; ++column) set(problem[Operand::y], 1, column, std::nan(""));
  EXPECT_TRUE(check(problem, kAll).ok());
  set(problem[Operand::y], 1, 3, 0.5);
  EXPECT_EQ(check(problem, kAll)[Operand::y].wrong, 1);
  EXPECT_EQ(check(problem, kAll)[Operand::y].first_wrong.column, 3);
}

TEST(Check, OverflowToInfinityIsRight) {
  Problem problem = solved({.columns = 4, .input = DType::f32, .output = DType::f16, .scale = 1e6}, 1);
  EXPECT_TRUE(std::isinf(get(problem[Operand::y], 0, 0)));
  EXPECT_TRUE(check(problem, kAll).ok());
  set(problem[Operand::y], 0, 0, -get(problem[Operand::y], 0, 0));
  EXPECT_FALSE(check(problem, kAll).ok());
}

TEST(Check, WritesBetweenRowsAreFound) {
  Problem problem = solved({.columns = 5}, 3, /*y_stride=*/9);
  EXPECT_TRUE(check(problem, kAll).ok());
  set(problem[Operand::y], 1, 5, 0.0);
  EXPECT_EQ(check(problem, kAll).overwritten, 4);
  EXPECT_FALSE(check(problem, kAll).ok());
}

TEST(Check, SamplesAreSpreadFromFirstToLast) {
  Problem problem = solved({.columns = 16}, 100);
  set(problem[Operand::y], 0, 0, 50);
  set(problem[Operand::y], 99, 3, 60);
  set(problem[Operand::y], 1, 0, 70);
  const CheckReport report = check(problem, 10);
  EXPECT_EQ(report.rows, 10);
  EXPECT_EQ(report[Operand::y].values, 160);
  EXPECT_EQ(report[Operand::y].wrong, 2);
  EXPECT_EQ(report[Operand::y].largest.row, 99);
}

TEST(Check, NoRowsAreRight) {
  const CheckReport report = check(solved({.columns = 16}, 0), kAll);
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.rows, 0);
}

TEST(Tolerance, IsTheDocumentedOneForUnitScaleData) {
  const ReferenceValue unit{.value = 0.7, .magnitude = 1, .offset = 0};
  EXPECT_DOUBLE_EQ(tolerance({.columns = 1, .input = DType::f32}, unit), 1e-5);
  EXPECT_DOUBLE_EQ(tolerance({.columns = 1, .input = DType::f64}, unit), 1e-12);
  EXPECT_DOUBLE_EQ(tolerance({.columns = 1, .input = DType::f16}, unit), 0x1p-11);
  EXPECT_DOUBLE_EQ(tolerance({.columns = 1, .input = DType::bf16}, unit), 0x1p-8);
  EXPECT_DOUBLE_EQ(tolerance({.columns = 1, .input = DType::f16}, {.value = 0, .magnitude = 1, .offset = 0}),
                   2e-6);
  // A row at mean 1e4 and deviation 1.
  EXPECT_NEAR(tolerance({.columns = 1, .input = DType::f32}, {.value = 1, .magnitude = 1, .offset = 1e4}),
              2e-3, 2e-5);
}

// Of one row an element behind it, and of one group.
TEST(Check, CountsWhatIsOverwrittenBetweenGroupsAndInPlace) {
  const OperandSet y = 1u << static_cast<int>(Operand::y);
  for (const OperandSet in_place : {OperandSet{0}, y}) {
    const Operand laid = in_place != 0 ? Operand::x : Operand::y;
    Problem problem = make_problem({.columns = 4}, 4, {{laid, {2, 20, 6, 50}}}, in_place).value();
    fill(problem, 1);
    const double zero[3] = {0, 0, 0};
    store(DType::f32, problem[Operand::y].data(), 4, 1, zero);
    store(DType::f32, problem[Operand::y].data(), 12, 1, zero);
    store(DType::f32, problem[Operand::y].data(), 49, 1, zero);
    EXPECT_EQ(check(problem, 4).overwritten, 12) << in_place;
  }
}

}  // namespace
}  // namespace normjit::oracle
