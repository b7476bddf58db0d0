// SPDX-License-Identifier: Apache-2.0
#include "verify/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "normjit/spec/valid.h"
#include "tests/support/matrix_elements.h"
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

double element(const Problem& problem, Operand operand) {
  return problem[operand].empty() ? 0 : get(problem[operand], 0, 0);
}
void set_element(Problem& problem, Operand operand, std::int64_t at, double value) {
  store(problem[operand].dtype(), problem[operand].data(), at, 1, &value);
}

// The scales of rows and blocks, and what becomes of a result, by the words of spec.h.
float scale_of_row(const NormSpec& spec, float largest, float bound) {
  const float range = largest_of(spec.output),
              least = spec.output == DType::s8 ? 0x1p-23f : 1 / (512 * range);
  if (spec.upper_bound && largest > bound) largest = bound;
  return largest / range < least ? least : largest / range;
}
float scale_of_block(const NormSpec& spec, float largest, float global) {
  const float range = largest_of(spec.output);
  if (spec.scale_format == ScaleFormat::e4m3) {
    const float inverse = 1 / range, of_one = largest * inverse, scale = global * of_one;
    return std::isnan(scale) ? scale : std::min(448.0f, static_cast<float>(rounded(DType::e4m3, scale)));
  }
  const float scale = (largest < 1e-10f ? 1e-10f : largest) / range;
  if (spec.scale_format == ScaleFormat::f32 || std::isnan(scale)) return scale;
  if (std::isinf(scale)) return spec.scale_format == ScaleFormat::e8m0 ? 0x1p127f : scale;
  float power = 0x1p-100f;
  while (power < scale) power *= 2;
  return power;
}
double by_row(const NormSpec& spec, float y, float scale) {
  return spec.output == DType::s8 ? y * (1 / scale) : y / scale;
}
double by_block(const NormSpec& spec, float y, float scale, float global) {
  if (spec.scale_format == ScaleFormat::f32) return by_row(spec, y, scale);
  if (spec.scale_format != ScaleFormat::e4m3) return y * (1 / scale);
  const float factor = scale == 0 ? 0 : global / scale;
  return y * factor;
}
float largest_in(const float* y, std::size_t count) {
  float largest = 0;
  for (std::size_t i = 0; i < count; ++i)
    if (std::fabs(y[i]) > largest || std::isnan(y[i])) largest = std::fabs(y[i]);
  return std::any_of(y, y + count, [](float value) { return std::isnan(value); }) ? std::nanf("") : largest;
}

// Writes what a kernel writes that is as good as f32 can be, moved by `errors` of that.
void solve(Problem& problem, double errors = 0) {
  const NormSpec& spec = problem.spec;
  const auto columns = static_cast<std::size_t>(spec.columns);
  std::vector<ReferenceValue> exact(columns);
  std::vector<float> y(columns), largest_of_rows;
  std::vector<double> results(columns), all(columns);
  reset_outputs(problem);
  std::fill_n(problem[Operand::block_scale].data(), problem[Operand::block_scale].bytes(), std::byte{0});
  const auto given = static_cast<float>(element(problem, Operand::tensor_scale)),
             bound = static_cast<float>(element(problem, Operand::upper_bound)),
             global = static_cast<float>(element(problem, Operand::global_scale));
  const auto block = static_cast<std::size_t>(std::max(1, block_columns(spec)));
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    const RowInputs inputs = inputs_of(problem, row);
    reference_values(spec, inputs, row_statistics(spec, inputs), 0, spec.columns, exact.data());
    for (std::size_t i = 0; i < columns; ++i) {
      const double value = exact[i].value * (1 + errors * 0x1p-22);
      results[i] = all[i] = y[i] = static_cast<float>(rounds_y(spec) ? rounded(spec.input, value) : value);
    }
    const float largest = largest_in(y.data(), columns), scale = scale_of_row(spec, largest, bound);
    largest_of_rows.push_back(largest);
    if (scales_rows(spec)) set_element(problem, Operand::row_scale, row, scale);
    for (std::size_t i = 0; i < columns; ++i) {
      if (spec.quantization == Quantization::tensor)
        results[i] = y[i] * (spec.inverse_scale ? given : 1 / given);
      else if (scales_rows(spec))
        results[i] = by_row(spec, y[i], scale);
    }
    for (std::size_t first = 0; scales_blocks(spec) && first < columns; first += block) {
      const float own = scale_of_block(spec, largest_in(&y[first], block), global);
      const auto number = static_cast<std::int64_t>(first / block);
      set_element(problem, Operand::block_scale, scale_place(spec, problem.rows, row, number), own);
      for (std::size_t i = first; i < first + block; ++i) results[i] = by_block(spec, y[i], own, global);
    }
    store(spec.output, problem[Operand::y].row(row), 0, spec.columns, results.data());
    if (spec.also != Also::none)
      store(also_type(spec), problem[Operand::also].row(row), 0, spec.columns, all.data());
  }
  if (!spec.amax || problem.rows == 0) return;
  const double largest = largest_in(largest_of_rows.data(), largest_of_rows.size());
  set_element(problem, Operand::amax, 0, is_narrow(spec.output) ? largest : rounded(spec.output, largest));
}

Problem quantized(const NormSpec& spec, std::int64_t rows, double errors = 0) {
  Problem problem = make_problem(spec, rows).value();
  fill(problem, 1);
  solve(problem, errors);
  return problem;
}
Problem quantized(const char* text, std::int64_t rows, double errors = 0) {
  return quantized(parse_spec(text).value(), rows, errors);
}

constexpr std::int64_t kRows = 38;

// Of nine blocks of 128 columns, which are more than are compared at a time.
std::vector<NormSpec> quantized_specs() {
  std::vector<NormSpec> specs;
  for (const char* const text : {"out=e4m3",
                                 "out=e5m2",
                                 "out=e4m3/q=tensor",
                                 "out=e5m2/q=tensor:inv",
                                 "out=s8/q=tensor",
                                 "out=s8/q=tensor:inv",
                                 "out=e4m3/q=row",
                                 "out=e5m2/q=row",
                                 "out=s8/q=row",
                                 "out=e4m3/q=row/round=y",
                                 "out=s8/q=tensor/round=y",
                                 "out=s8/q=row/round=norm+y",
                                 "out=e4m3/q=row:ub",
                                 "out=e4m3/q=row:ub/round=y/also=bf16",
                                 "out=e4m3/q=128",
                                 "out=e5m2/q=64:cols/also=f32",
                                 "out=s8/q=128:cols",
                                 "out=s8/q=64/round=y",
                                 "out=e4m3/q=128:p2",
                                 "out=s8/q=64:p2:cols/round=y",
                                 "out=e4m3/q=32:e8m0",
                                 "out=e4m3/q=128:e8m0:cols4",
                                 "out=e5m2/q=16:e8m0:cols",
                                 "out=s8/q=64:e8m0:sw/also=f16",
                                 "out=e4m3/q=32:e8m0:sw/round=y",
                                 "out=e4m3/q=16:e4m3",
                                 "out=e5m2/q=16:e4m3:cols/round=y",
                                 "out=s8/q=16:e4m3:sw/also=bf16",
                                 "out=e2m1/q=16:e4m3:sw/also=bf16",
                                 "out=e2m1/q=16:e8m0",
                                 "out=e2m1/q=32:e8m0:cols/round=y",
                                 "out=e4m3/amax",
                                 "out=s8/q=tensor/also=f16/amax",
                                 "out=e4m3/q=tensor/round=y/also=f32/amax"})
    specs.push_back(parse_spec("rmsnorm/cols=1152/bf16/w/" + std::string(text)).value());
  return specs;
}

std::int64_t wrong_in_all(const CheckReport& report) {
  std::int64_t wrong = 0;
  for (const Comparison& each : report.outputs.of) wrong += each.wrong;
  return wrong;
}

TEST(Check, AcceptsRightResultsOf8Bits) {
  for (const NormSpec& spec : quantized_specs())
    for (const double errors : {0.0, 1.0, -1.0}) {
      const CheckReport report = check(quantized(spec, kRows, errors), kAll);
      EXPECT_TRUE(report.ok()) << to_text(spec) << " " << errors;
      for (const OperandRow& row : kOperands) {
        if (!row.output) continue;
        EXPECT_EQ(report[row.operand].wrong, 0) << row.name << " of " << to_text(spec) << " " << errors;
        EXPECT_EQ(report[row.operand].values,
                  row.present(spec) ? elements_of(row, spec, kRows) * columns_in(row.dtype(spec)) : 0)
            << row.name << " of " << to_text(spec);
      }
    }
}

// Another neighbour is right for few results, those beside the middle of two.
TEST(Check, NoticesAStepOfResultsOf8Bits) {
  for (const NormSpec& spec : quantized_specs()) {
    if (rounds_y(spec)) continue;
    Problem problem = quantized(spec, kRows);
    Matrix& y = problem[Operand::y];
    std::vector<std::int64_t> rows;
    for (std::int64_t row = 0; row < kRows; ++row) {
      const double value = get(y, row, 5), step = unit_in_last_place(spec.output, value);
      if (std::fabs(value) < largest_of(spec.output) - step) rows.push_back(row);
      set(y, row, 5, value + (rows.size() % 2 == 0 ? step : -step));
    }
    const CheckReport report = check(problem, kAll);
    EXPECT_GT(report[Operand::y].wrong, static_cast<std::int64_t>(rows.size()) - 3) << to_text(spec);
    EXPECT_EQ(report[Operand::y].wrong, wrong_in_all(report)) << to_text(spec);
  }
}

TEST(Check, NoticesWrongScalesOfBlocks) {
  for (const NormSpec& spec : quantized_specs()) {
    if (!scales_blocks(spec)) continue;
    Problem problem = quantized(spec, kRows);
    const std::int64_t place = scale_place(spec, kRows, 30, 7);
    const auto stored = [&] {
      double value;
      load(problem[Operand::block_scale].dtype(), problem[Operand::block_scale].data(), place, 1, &value);
      return value;
    };
    const double right = stored();
    const bool is_power =
        spec.scale_format == ScaleFormat::power_of_two || spec.scale_format == ScaleFormat::e8m0;
    const double step = is_power                                ? right
                        : spec.scale_format == ScaleFormat::f32 ? right / 100
                                                                : unit_in_last_place(DType::e4m3, right);
    for (const double wrong : {right + step, is_power ? right / 2 : right - step}) {
      set_element(problem, Operand::block_scale, place, wrong);
      const Comparison result = check(problem, kAll)[Operand::block_scale];
      EXPECT_EQ(result.wrong, 1) << to_text(spec) << " " << wrong << " " << right;
      EXPECT_EQ(result.first_wrong.row, 30);
      EXPECT_EQ(result.first_wrong.column, 7);
      EXPECT_EQ(result.first_wrong.got, stored());
      EXPECT_EQ(result.first_wrong.expected, right);
    }
    reset_outputs(problem);
    const Comparison nothing = check(problem, kAll)[Operand::block_scale];
    EXPECT_EQ(nothing.wrong, nothing.values)
        << "nothing was written, not even the padding: " << to_text(spec);
  }
}

// What is no scale is padding, each byte of it.
TEST(Check, NoticesWhatIsNotZeroInThePadding) {
  for (const char* const text : {"q=64:cols", "q=64:e8m0:cols4", "q=64:e8m0:sw", "q=16:e4m3:cols"}) {
    const NormSpec spec = parse_spec("rmsnorm/cols=320/f32/out=e4m3/" + std::string(text)).value();
    Problem problem = quantized(spec, 2);
    Matrix& scales = problem[Operand::block_scale];
    std::vector<bool> is_scale(static_cast<std::size_t>(scales.elements()));
    for (std::int64_t row = 0; row < 2; ++row)
      for (std::int64_t block = 0; block < spec.columns / block_columns(spec); ++block)
        is_scale[static_cast<std::size_t>(scale_place(spec, 2, row, block))] = true;
    std::int64_t padding = 0;
    for (std::size_t i = 0; i < scales.bytes(); ++i) {
      if (is_scale[i / static_cast<std::size_t>(size_of(scales.dtype()))]) continue;
      scales.data()[i] = std::byte{0x80};
      const CheckReport report = check(problem, 1);
      EXPECT_FALSE(report.ok());
      EXPECT_EQ(wrong_in_all(report), 1) << text << " " << i;
      EXPECT_EQ(report[Operand::block_scale].first_wrong.got, 0x80);
      scales.data()[i] = std::byte{0};
      ++padding;
    }
    EXPECT_GT(padding, 0) << text;
    EXPECT_TRUE(check(problem, 1).ok());
  }
  Problem problem = quantized("rmsnorm/cols=320/f32/out=e4m3/q=64:e8m0:sw", 2);
  set_element(problem, Operand::block_scale, 4, 1);  // of row 32
  const Deviation wrong = check(problem, kAll)[Operand::block_scale].first_wrong;
  EXPECT_EQ(wrong.row, 32);
  EXPECT_EQ(wrong.column, 0);
}

// The first block is of zeros, the second has a NaN, the third infinities beside numbers; the others are as
// ever.
TEST(Check, BlocksOfZerosNaNAndInfinitiesHaveTheirScale) {
  for (const char* const quantization : {"128", "128:p2", "128:e8m0", "16:e8m0", "16:e4m3"})
    for (const char* const output : {"e4m3", "e5m2", "s8"}) {
      const std::string text = std::string("out=") + output + "/q=" + quantization;
      const NormSpec spec = parse_spec("rmsnorm/cols=1152/f32/w/" + text).value();
      const std::int64_t block = block_columns(spec);
      Problem problem = make_problem(spec, 3).value();
      fill(problem, 1);
      Matrix& weight = problem[Operand::weight];
      for (std::int64_t column = 0; column < block; ++column) set(weight, 0, column, 0);
      set(weight, 0, block + 3, std::nan(""));
      set(weight, 0, 2 * block + 5, std::numeric_limits<double>::infinity());
      solve(problem);
      CheckReport report = check(problem, kAll);
      EXPECT_EQ(report[Operand::block_scale].wrong, 0) << text;
      EXPECT_EQ(report[Operand::y].wrong, 0) << text;
      const auto scale = [&](std::int64_t number) { return get(problem[Operand::block_scale], 1, number); };
      const auto y = [&](std::int64_t column) { return get(problem[Operand::y], 1, column); };
      EXPECT_EQ(scale(0) == 0, spec.scale_format == ScaleFormat::e4m3) << text;
      EXPECT_TRUE(std::isnan(scale(1))) << text;
      EXPECT_EQ(y(1), 0) << text;
      EXPECT_TRUE(std::isnan(y(block)) || spec.output == DType::s8) << text;

      for (const std::int64_t number : {0, 1, 2}) {
        const double right = scale(number);
        set_element(problem, Operand::block_scale, scale_place(spec, 3, 1, number), 2);
        report = check(problem, kAll);
        EXPECT_EQ(report[Operand::block_scale].wrong, 1) << text << " " << number;
        EXPECT_EQ(report[Operand::block_scale].first_wrong.column, number) << text;
        set_element(problem, Operand::block_scale, scale_place(spec, 3, 1, number), right);
      }
    }
}

TEST(Check, HoldsScalesOfRowsAgainstTheUpperBound) {
  Problem problem = make_problem(parse_spec("rmsnorm/cols=256/f32/out=e4m3/q=row:ub").value(), 20).value();
  fill(problem, 1);
  int reached = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    fill(problem, seed);
    solve(problem);
    const auto bound = static_cast<float>(element(problem, Operand::upper_bound));
    for (std::int64_t row = 0; row < 20; ++row)
      reached += get(problem[Operand::row_scale], row, 0) == bound / 448;
  }
  EXPECT_GT(reached, 200) << "random bounds are reached by some rows of 1,000";
  EXPECT_LT(reached, 800);
  for (const double bound : {1.0, 0.0}) {
    set_element(problem, Operand::upper_bound, 0, bound);
    solve(problem);
    EXPECT_TRUE(check(problem, kAll).ok()) << bound;
    set_element(problem, Operand::upper_bound, 0, 100);
    EXPECT_EQ(check(problem, kAll)[Operand::row_scale].wrong, 20) << "it counts";
  }
}

TEST(Check, ComparesTheSecondResult) {
  for (const char* const also : {"bf16", "f16", "f32"})
    for (const char* const rounding : {"", "/round=y"}) {
      const std::string text = std::string("rmsnorm/cols=64/bf16/out=e4m3/q=row/also=") + also + rounding;
      Problem problem = make_problem(parse_spec(text).value(), 20, {{Operand::also, 70}}).value();
      fill(problem, 1);
      solve(problem);
      EXPECT_TRUE(check(problem, kAll).ok()) << text;
      Matrix& results = problem[Operand::also];
      for (std::int64_t row = 0; row < 20; ++row) {
        const double value = get(results, row, 9), step = unit_in_last_place(results.dtype(), value);
        set(results, row, 9, value + (results.dtype() == DType::f32 ? 1e-4 * std::fabs(value) : step));
      }
      const CheckReport report = check(problem, kAll);
      EXPECT_GT(report[Operand::also].wrong, 16) << text;
      EXPECT_EQ(report[Operand::also].first_wrong.column, 9);
      EXPECT_EQ(wrong_in_all(report), report[Operand::also].wrong) << text;
      set(results, 3, 65, 1);
      EXPECT_EQ(check(problem, kAll).overwritten, size_of(results.dtype())) << "between rows";
    }
}

// Of results of a float type it is the largest that was written, to the bit.
TEST(Check, ComparesTheLargestResultOfAll) {
  for (const char* const text : {"bf16", "f16", "f32", "bf16/out=f32", "f32/out=bf16", "f32/out=e4m3",
                                 "f32/out=s8/q=tensor", "bf16/out=e5m2/q=tensor/round=y"}) {
    const NormSpec spec = parse_spec("rmsnorm/cols=64/amax/w/" + std::string(text)).value();
    Problem problem = quantized(spec, 20);
    CheckReport report = check(problem, kAll);
    EXPECT_TRUE(report.ok()) << text;
    EXPECT_EQ(report[Operand::amax].values, 1);
    const double right = element(problem, Operand::amax);
    const double step = is_narrow(spec.output) ? right / 1000 : unit_in_last_place(DType::f32, right);
    for (const double wrong : {right + step, right - step, 0.0, -right, std::nan("")}) {
      set_element(problem, Operand::amax, 0, wrong);
      report = check(problem, kAll);
      EXPECT_EQ(report[Operand::amax].wrong, 1) << text << " " << wrong;
      EXPECT_EQ(wrong_in_all(report), 1) << text;
    }
    for (const double special : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      set_element(problem, Operand::weight, 7, special);
      solve(problem);
      EXPECT_EQ(std::isnan(element(problem, Operand::amax)), std::isnan(special)) << text;
      EXPECT_EQ(check(problem, kAll)[Operand::amax].wrong, 0) << text;
      set_element(problem, Operand::amax, 0, right);
      EXPECT_EQ(check(problem, kAll)[Operand::amax].wrong, 1) << text;
    }
  }
  EXPECT_TRUE(check(quantized("rmsnorm/cols=64/f32/amax", 0), kAll).ok()) << "of no rows nothing is written";
}

// Of a tenth of the rows it is only known what it is at least.
TEST(Check, TheLargestOfSomeRowsMayBeExceeded) {
  Problem problem = quantized("rmsnorm/cols=64/f32/amax", 100);
  set(problem[Operand::y], 0, 0, 50);  // seen
  set(problem[Operand::y], 1, 0, 70);  // not seen
  for (const double amax : {50.0, 70.0, std::nan("")}) {
    set_element(problem, Operand::amax, 0, amax);
    EXPECT_EQ(check(problem, 10)[Operand::amax].wrong, 0) << amax;
    EXPECT_EQ(check(problem, 100)[Operand::amax].wrong, amax == 70 ? 0 : 1) << amax;
  }
  set_element(problem, Operand::amax, 0, 49);
  EXPECT_EQ(check(problem, 10)[Operand::amax].wrong, 1);
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

TEST(Check, RstdOfASumThatIsRoundedMayBeOffWhereTheMeanCancels) {
  constexpr float kTwo[] = {0.75f, 0.7578125f};
  for (const Residual residual : {Residual::none, Residual::before}) {
    const NormSpec spec{.columns = 2, .residual = residual, .statistics = true};
    Problem problem = solved(spec, 1);
    for (int column = 0; column < 2; ++column) {
      set(problem[Operand::x], 0, column, kTwo[column]);
      if (residual == Residual::before) set(problem[Operand::residual], 0, column, 0);
    }
    const RowStatistics statistics = row_statistics(spec, inputs_of(problem, 0));
    set(problem[Operand::rstd], 0, 0, statistics.rstd * (1 + 2e-5));
    EXPECT_EQ(check(problem, kAll)[Operand::rstd].wrong, residual == Residual::none ? 1 : 0);
    set(problem[Operand::rstd], 0, 0, statistics.rstd * (1 + 2e-4));
    EXPECT_EQ(check(problem, kAll)[Operand::rstd].wrong, 1);
  }
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
  const OperandSet y = set_of(Operand::y);
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
