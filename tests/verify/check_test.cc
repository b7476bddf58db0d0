// SPDX-License-Identifier: Apache-2.0
#include "verify/check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

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
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = expected[i].value;
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

// ---- Results of 8 bits ----

float largest_of(DType output) { return static_cast<float>(rounded(output, 1e300)); }

// What a kernel writes that is as good as f32 can be, moved by `errors` of that. The arithmetic is spec.h's.
Problem quantized(const NormSpec& spec, std::int64_t rows, double errors = 0) {
  Problem problem = make_problem(spec, rows).value();
  fill(problem, 1);
  const auto columns = static_cast<std::size_t>(spec.columns);
  std::vector<ReferenceValue> exact(columns);
  std::vector<float> y(columns);
  for (std::int64_t row = 0; row < rows; ++row) {
    const RowInputs inputs = inputs_of(problem, row);
    reference_values(spec, inputs, row_statistics(spec, inputs), 0, spec.columns, exact.data());
    float largest = 0;
    for (std::size_t i = 0; i < columns; ++i) {
      const double value = exact[i].value * (1 + errors * 0x1p-22);
      y[i] = static_cast<float>(rounds_y(spec) ? rounded(spec.input, value) : value);
      if (!(std::fabs(y[i]) <= largest)) largest = std::fabs(y[i]);
    }
    const float range = largest_of(spec.output);
    const float least = spec.output == DType::s8 ? 0x1p-23f : 1 / (512 * range);
    float scale = largest / range < least ? least : largest / range;
    if (scales_rows(spec)) {
      const double written = scale;
      store(DType::f32, problem[Operand::row_scale].data(), row, 1, &written);
    } else if (spec.quantization == Quantization::tensor) {
      double given;
      load(DType::f32, problem[Operand::tensor_scale].data(), 0, 1, &given);
      scale = static_cast<float>(given);
    }
    for (std::size_t i = 0; i < columns; ++i) {
      double result = y[i];
      if (spec.quantization == Quantization::tensor)
        result = y[i] * (spec.inverse_scale ? scale : 1 / scale);
      else if (scales_rows(spec))
        result = spec.output == DType::s8 ? y[i] * (1 / scale) : y[i] / scale;
      store(spec.output, problem[Operand::y].row(row), static_cast<std::int64_t>(i), 1, &result);
    }
  }
  return problem;
}

std::vector<NormSpec> quantized_specs() {
  std::vector<NormSpec> specs;
  for (const char* const text :
       {"out=e4m3", "out=e5m2", "out=e4m3/q=tensor", "out=e5m2/q=tensor:inv", "out=s8/q=tensor",
        "out=s8/q=tensor:inv", "out=e4m3/q=row", "out=e5m2/q=row", "out=s8/q=row", "out=e4m3/q=row/round=y",
        "out=s8/q=tensor/round=y", "out=s8/q=row/round=norm+y"})
    specs.push_back(parse_spec("rmsnorm/cols=700/bf16/w/" + std::string(text)).value());
  return specs;
}

TEST(Check, AcceptsRightResultsOf8Bits) {
  for (const NormSpec& spec : quantized_specs())
    for (const double errors : {0.0, 1.0, -1.0}) {
      const CheckReport report = check(quantized(spec, 40, errors), kAll);
      EXPECT_TRUE(report.ok()) << to_text(spec) << " " << errors << ": " << report[Operand::y].wrong << ", "
                               << report[Operand::row_scale].wrong;
      EXPECT_EQ(report[Operand::y].values, 40 * 700);
      EXPECT_EQ(report[Operand::row_scale].values, scales_rows(spec) ? 40 : 0);
    }
}

// Another neighbour is right for few results, those beside the middle of two.
TEST(Check, NoticesAStepOfResultsOf8Bits) {
  for (const NormSpec& spec : quantized_specs()) {
    if (rounds_y(spec)) continue;
    Problem problem = quantized(spec, 40);
    Matrix& y = problem[Operand::y];
    std::vector<std::int64_t> rows;
    for (std::int64_t row = 0; row < 40; ++row) {
      const double value = get(y, row, 5), step = unit_in_last_place(spec.output, value);
      if (std::fabs(value) < largest_of(spec.output) - step) rows.push_back(row);
      set(y, row, 5, value + (rows.size() % 2 == 0 ? step : -step));
    }
    const CheckReport report = check(problem, kAll);
    EXPECT_GT(report[Operand::y].wrong, static_cast<std::int64_t>(rows.size()) - 3) << to_text(spec);
    EXPECT_EQ(report[Operand::row_scale].wrong, 0);
  }
}

// Beside a tie both neighbours are right, and nothing beyond them.
TEST(Tolerance, OfResultsOf8BitsIsWhatTheyMayBecome) {
  const NormSpec spec{.columns = 1, .output = DType::s8, .quantization = Quantization::tensor};
  const auto expected = [&](double exact, double scale, double got) {
    return expected_quantized(spec, exact, 0.01, scale, got);
  };
  EXPECT_EQ(expected(3.4, 1, 4).value, 3);
  EXPECT_EQ(expected(3.4, 1, 4).tolerance, 0);
  EXPECT_EQ(expected(3.495, 1, 4).value, 3);
  EXPECT_EQ(expected(3.495, 1, 4).tolerance, 1);
  EXPECT_EQ(expected(3.495, 1, 2).tolerance, 0) << "on the other side";
  EXPECT_EQ(expected(3.495, -1, -4).tolerance, 1);
  EXPECT_EQ(expected(3.495, -1, -2).tolerance, 0);
  EXPECT_EQ(expected(1000, 1, 126).value, 127);
  EXPECT_EQ(expected(1000, 1, 126).tolerance, 0) << "beyond the largest number";
}

TEST(Check, NoticesWrongScalesOfRows) {
  const NormSpec spec = parse_spec("layernorm/cols=64/f32/out=e4m3/q=row").value();
  Problem problem = quantized(spec, 5);
  Matrix& scale = problem[Operand::row_scale];
  set(scale, 3, 0, get(scale, 3, 0) * 1.001);
  CheckReport report = check(problem, kAll);
  EXPECT_EQ(report[Operand::row_scale].wrong, 1);
  EXPECT_EQ(report[Operand::row_scale].first_wrong.row, 3);
  problem = quantized(spec, 5);
  reset_outputs(problem);
  EXPECT_EQ(check(problem, kAll)[Operand::row_scale].wrong, 5) << "nothing was written";
}

TEST(Check, RowsOfZerosNaNAndInfinitiesHaveTheirScale) {
  for (const DType output : {DType::e4m3, DType::e5m2, DType::s8}) {
    const NormSpec spec{.norm = Norm::rms, .columns = 4, .output = output, .quantization = Quantization::row};
    Problem problem = quantized(spec, 3);
    for (int column = 0; column < 4; ++column) set(problem[Operand::x], 0, column, 0);
    set(problem[Operand::x], 1, 2, std::nan(""));
    const float least = output == DType::s8 ? 0x1p-23f : 1 / (512 * largest_of(output));
    for (int column = 0; column < 4; ++column) {
      set(problem[Operand::y], 0, column, 0);
      set(problem[Operand::y], 1, column, std::nan(""));
    }
    set(problem[Operand::row_scale], 0, 0, least);
    set(problem[Operand::row_scale], 1, 0, std::nan(""));
    const CheckReport report = check(problem, kAll);
    EXPECT_EQ(report[Operand::row_scale].wrong, 0) << name(output);
    EXPECT_EQ(report[Operand::y].wrong, 0) << name(output);
    set(problem[Operand::row_scale], 0, 0, 0);
    EXPECT_FALSE(check(problem, kAll).ok());
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
