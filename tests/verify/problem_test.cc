// SPDX-License-Identifier: Apache-2.0
#include "verify/problem.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "normjit/base/run_on_threads.h"
#include "normjit/base/text.h"
#include "verify/element.h"

namespace normjit::oracle {
namespace {

TEST(ParallelFor, CoversEveryIndexOnce) {
  for (const std::int64_t count : {0, 1, 9, 10, 11, 1000}) {
    std::vector<int> seen(static_cast<std::size_t>(count), 0);
    parallel_for(count, 10, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
    });
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << count;
  }
}

TEST(Element, UnitsInTheLastPlace) {
  EXPECT_EQ(unit_in_last_place(DType::f16, 1.0), 0x1p-10);
  EXPECT_EQ(unit_in_last_place(DType::f16, -0.99), 0x1p-11);
  EXPECT_EQ(unit_in_last_place(DType::f16, 0), 0x1p-24);
  EXPECT_EQ(unit_in_last_place(DType::bf16, 3), 0x1p-6);
  EXPECT_EQ(unit_in_last_place(DType::f32, 1.5), 0x1p-23);
  EXPECT_EQ(unit_in_last_place(DType::f64, 1.5), 0x1p-52);
}

TEST(RandomData, IsBellShapedAroundItsMean) {
  Matrix matrix(DType::f64, 1, 100000);
  fill_random(matrix, 3, {1, 0.25, 2});
  std::vector<double> values(100000);
  load(DType::f64, matrix.data(), 0, 100000, values.data());
  double mean = 0, variance = 0;
  for (const double value : values) mean += value / 1e5;
  for (const double value : values) variance += (value - mean) * (value - mean) / 1e5;
  EXPECT_NEAR(mean, 0.25, 0.03);
  EXPECT_NEAR(variance, 4, 0.1);
}

// Fixed numbers: data made by seed must be the same on every machine and in every version.
TEST(RandomData, IsTheSameEverywhere) {
  Matrix matrix(DType::f64, 1, 3);
  fill_random(matrix, 1, {1, 0, 1});
  double values[3];
  load(DType::f64, matrix.data(), 0, 3, values);
  EXPECT_DOUBLE_EQ(values[0], 1.0884782792621492);
  EXPECT_DOUBLE_EQ(values[1], -0.88180351554161973);
  EXPECT_DOUBLE_EQ(values[2], 1.6818885695200838);
}

// A slope moves the second half of a row by half of the trend, a step its last eighth by all of it.
TEST(RandomData, ATrendIsInHalfOfTheRows) {
  constexpr int kRows = 400, kColumns = 1600;
  Matrix matrix(DType::f64, kRows, kColumns, kColumns + 3);
  fill_random(matrix, 5, {.stream = 1, .mean = 7, .deviation = 0.5, .trend = 4});
  int plain = 0, slopes = 0, steps = 0;
  for (int row = 0; row < kRows; ++row) {
    std::vector<double> values(kColumns);
    load(DType::f64, matrix.row(row), 0, kColumns, values.data());
    const auto mean = [&](int begin, int end) {
      return std::accumulate(values.begin() + begin, values.begin() + end, 0.0) / (end - begin);
    };
    const double first = mean(0, kColumns / 8) - 7, before = mean(kColumns * 3 / 4, kColumns * 7 / 8) - 7,
                 last = mean(kColumns * 7 / 8, kColumns) - 7;
    EXPECT_NEAR(first, 0.06, 0.25);
    plain += std::fabs(before) < 0.25 && std::fabs(last) < 0.25;
    steps += std::fabs(before) < 0.25 && std::fabs(last - 2) < 0.25;
    slopes += std::fabs(before - 1.625) < 0.25 && std::fabs(last - 1.875) < 0.25;
  }
  EXPECT_EQ(plain + slopes + steps, kRows);
  EXPECT_NEAR(plain, kRows / 2, 40);
  EXPECT_NEAR(slopes, kRows / 4, 40);
  EXPECT_NEAR(steps, kRows / 4, 40);
}

TEST(RandomData, DependsOnSeedStreamAndPosition) {
  Matrix a(DType::f32, 4, 300), b(DType::f32, 4, 300);
  fill_random(a, 1, {1, 0, 1});
  fill_random(b, 1, {1, 0, 1});
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0);
  fill_random(b, 2, {1, 0, 1});
  EXPECT_NE(std::memcmp(a.data(), b.data(), a.bytes()), 0);
  fill_random(b, 1, {2, 0, 1});
  EXPECT_NE(std::memcmp(a.data(), b.data(), a.bytes()), 0);
  EXPECT_NE(std::memcmp(a.row(0), a.row(1), a.row_bytes()), 0);
}

TEST(RandomData, LeavesPoisonBetweenRows) {
  Matrix matrix(DType::f32, 3, 5, 8);
  fill_random(matrix, 1, {1, 0, 1});
  for (int row = 0; row < 3; ++row) {
    double values[5];
    load(DType::f32, matrix.row(row), 0, 5, values);
    for (const double value : values) EXPECT_TRUE(std::isfinite(value));
    double gap[3];
    if (row == 2) continue;
    load(DType::f32, matrix.row(row), 5, 3, gap);
    for (const double value : gap) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(RandomData, FillsOverlappingRows) {
  Matrix matrix(DType::f32, 4, 6, 2);
  EXPECT_EQ(matrix.elements(), 12);
  matrix.poison();
  fill_random(matrix, 1, {1, 0, 1});
  double values[12];
  load(DType::f32, matrix.data(), 0, 12, values);
  for (const double value : values) EXPECT_TRUE(std::isfinite(value));
}

// The offsets of all rows, and the rows in the order of row_behind().
void expect_rows(const Matrix& matrix, const std::vector<std::int64_t>& offsets,
                 const std::vector<std::int64_t>& in_memory) {
  for (std::int64_t i = 0; i < matrix.rows(); ++i) {
    EXPECT_EQ(matrix.offset(i), offsets[static_cast<std::size_t>(i)]) << i;
  }
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < matrix.rows(); i = matrix.row_behind(i)) order.push_back(i);
  EXPECT_EQ(order, in_memory);
}

TEST(Matrix, RowsComeInGroups) {
  const Matrix heads(DType::f16, 6, 4, {3, 20, 5});
  expect_rows(heads, {0, 5, 10, 20, 25, 30}, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(heads.elements(), 34);
  EXPECT_FALSE(heads.rows_overlap());
  const Matrix interleaved(DType::f16, 6, 4, {2, 4, 30});
  expect_rows(interleaved, {0, 30, 4, 34, 8, 38}, {0, 2, 4, 1, 3, 5});
  EXPECT_EQ(interleaved.elements(), 42);
  EXPECT_FALSE(interleaved.rows_overlap());
  const Matrix one_group(DType::f32, 3, 4, {3, 0, 7});
  expect_rows(one_group, {0, 7, 14}, {0, 1, 2});
  EXPECT_FALSE(one_group.rows_overlap());
  const Matrix same(DType::f32, 6, 4, {3, 0, 4});
  EXPECT_EQ(same.elements(), 12);
  EXPECT_TRUE(same.rows_overlap());
  EXPECT_EQ(Matrix(DType::f32, 2, 4, {1, 8, 0, 100}).bytes(), 400u) << "a buffer";
}

TEST(RandomData, LeavesPoisonBetweenGroups) {
  Matrix matrix(DType::f32, 4, 2, {2, 9, 3, 20});
  fill_random(matrix, 1, {1, 0, 1});
  double values[20];
  load(DType::f32, matrix.data(), 0, 20, values);
  std::vector<int> filled;
  for (int i = 0; i < 20; ++i)
    if (!std::isnan(values[i])) filled.push_back(i);
  EXPECT_EQ(filled, (std::vector<int>{0, 1, 3, 4, 9, 10, 12, 13}));
}

TEST(Problem, OutputsInPlaceAreCopiesOfTheirInputs) {
  const NormSpec spec{.columns = 3, .residual = Residual::before, .sum = true};
  const OperandSet both = set_of(Operand::y) | set_of(Operand::sum);
  Problem problem = make_problem(spec, 2, {{Operand::x, 5}, {Operand::residual, {2, 0, 4}}}, both).value();
  fill(problem, 1);
  for (const auto& [output, input] : {std::pair{Operand::y, Operand::x}, {Operand::sum, Operand::residual}}) {
    ASSERT_EQ(problem[output].bytes(), problem[input].bytes());
    EXPECT_EQ(std::memcmp(problem[output].data(), problem[input].data(), problem[input].bytes()), 0);
  }
  const Tensors tensors = tensors_of(problem);
  EXPECT_EQ(tensors.x.pointer, problem[Operand::y].data());
  EXPECT_EQ(tensors.y.pointer, problem[Operand::y].data());
  EXPECT_EQ(tensors.y.outer, 5);
  EXPECT_EQ(tensors.residual.pointer, tensors.sum.pointer);
  EXPECT_EQ(tensors.sum.n, 2);
  EXPECT_EQ(tensors.sum.inner, 4);
}

TEST(Problem, HasWhatTheSpecHas) {
  const Problem bare = make_problem({.columns = 3}, 2).value();
  EXPECT_TRUE(bare[Operand::weight].empty() && bare[Operand::bias].empty() && bare[Operand::mean].empty() &&
              bare[Operand::rstd].empty());
  const NormSpec spec{.columns = 3,
                      .input = DType::f16,
                      .output = DType::f64,
                      .weight = DType::f32,
                      .affine = Affine::weight_bias,
                      .statistics = true};
  const Problem full = make_problem(spec, 2, {{Operand::x, 7}, {Operand::y, 5}}).value();
  EXPECT_EQ(full[Operand::x].bytes(), 10u * 2);
  EXPECT_EQ(full[Operand::y].bytes(), 8u * 8);
  EXPECT_EQ(full[Operand::weight].bytes(), 12u);
  EXPECT_EQ(full[Operand::bias].bytes(), 12u);
  EXPECT_EQ(full[Operand::mean].dtype(), DType::f64);
  EXPECT_EQ(full[Operand::rstd].bytes(), 16u);
}

TEST(Problem, GivenStatisticsAreThoseOfTheOtherInputs) {
  for (const Norm norm : {Norm::layer, Norm::rms})
    for (const DType dtype : {DType::f32, DType::f64}) {
      const NormSpec spec{.norm = norm, .backward = true, .columns = 70, .input = dtype, .statistics = true};
      NormSpec measured = spec;
      measured.statistics = false;
      Problem problem = make_problem(spec, 3, {{Operand::x, 80}}).value();
      fill(problem, 5);
      const auto kept = [&](Operand operand, std::int64_t row) {
        double value;
        load(dtype, problem[operand].data(), row, 1, &value);
        return value;
      };
      for (std::int64_t row = 0; row < 3; ++row) {
        const RowStatistics of_row = row_statistics(measured, inputs_of(problem, row));
        EXPECT_EQ(kept(Operand::saved_rstd, row), rounded(dtype, of_row.rstd));
        if (norm == Norm::layer) EXPECT_EQ(kept(Operand::saved_mean, row), rounded(dtype, of_row.mean));
        EXPECT_EQ(row_statistics(spec, inputs_of(problem, row)).rstd, kept(Operand::saved_rstd, row));
      }
      EXPECT_EQ(problem[Operand::saved_mean].empty(), norm == Norm::rms);
      const double before = kept(Operand::saved_rstd, 1), other = 7;
      store(dtype, problem[Operand::saved_rstd].data(), 1, 1, &other);
      fill_statistics(problem, set_of(Operand::saved_rstd));
      EXPECT_EQ(kept(Operand::saved_rstd, 1), other) << "it comes from elsewhere";
      fill_statistics(problem);
      EXPECT_EQ(kept(Operand::saved_rstd, 1), before);
    }
}

TEST(Problem, HasTheScalesOfAQuantization) {
  for (const DType output : {DType::e4m3, DType::e5m2, DType::s8})
    for (const bool inverse : {false, true}) {
      const NormSpec spec{
          .columns = 3, .output = output, .quantization = Quantization::tensor, .inverse_scale = inverse};
      Problem problem = make_problem(spec, 5).value();
      EXPECT_EQ(problem[Operand::y].bytes(), 15u);
      EXPECT_EQ(problem[Operand::tensor_scale].bytes(), 4u);
      EXPECT_TRUE(problem[Operand::row_scale].empty());
      fill(problem, 3);
      double scale, again;
      load(DType::f32, problem[Operand::tensor_scale].data(), 0, 1, &scale);
      if (inverse) scale = 1 / scale;
      const double largest = rounded(output, 1e300);
      EXPECT_GT(scale * largest, 2) << "most results are within the range";
      EXPECT_LT(scale * largest, 6) << "some are not";
      fill(problem, 3);
      load(DType::f32, problem[Operand::tensor_scale].data(), 0, 1, &again);
      EXPECT_EQ(inverse ? 1 / again : again, scale) << "of the seed alone";
      EXPECT_EQ(tensors_of(problem).tensor_scale, problem[Operand::tensor_scale].data());
      EXPECT_EQ(inputs_of(problem, 4)[Operand::tensor_scale], problem[Operand::tensor_scale].data());
    }
  const NormSpec rows{.columns = 3, .output = DType::s8, .quantization = Quantization::row};
  Problem problem = make_problem(rows, 5).value();
  EXPECT_EQ(problem[Operand::row_scale].rows(), 5);
  EXPECT_EQ(problem[Operand::row_scale].bytes(), 20u);
  EXPECT_TRUE(problem[Operand::tensor_scale].empty());
  fill(problem, 3);
  double scale;
  load(DType::f32, problem[Operand::row_scale].data(), 4, 1, &scale);
  EXPECT_TRUE(std::isnan(scale)) << "poisoned";
}

double element(const Matrix& matrix) {
  double value;
  load(matrix.dtype(), matrix.data(), 0, 1, &value);
  return value;
}

TEST(Problem, HasTheScalesOfBlocksAsTheyAreLaidOut) {
  using Shape = std::vector<std::int64_t>;
  const struct {
    const char* quantization;
    std::int64_t rows;
    Shape shape;
  } cases[] = {{"q=64", 6, {6, 5}},
               {"q=64:cols", 6, {5, 8}},
               {"q=64:p2:cols", 8, {5, 8}},
               {"q=64:e8m0:cols4", 6, {2, 8, 4}},
               {"q=64:e8m0:sw", 6, {1, 2, 512}},
               {"q=32:e8m0:sw", 129, {2, 3, 512}},
               {"q=16:e4m3:cols", 1, {20, 4}},
               {"q=64", 0, {0, 5}},
               {"q=64:cols", 0, {5, 0}},
               {"q=64:e8m0:cols4", 0, {2, 0, 4}},
               {"q=64:e8m0:sw", 0, {0, 2, 512}}};
  for (const auto& [quantization, rows, shape] : cases) {
    SCOPED_TRACE(quantization);
    const NormSpec spec = parse_spec(concat({"rmsnorm/cols=320/bf16/out=e4m3/", quantization})).value();
    EXPECT_EQ(block_scale_shape(spec, rows).value(), shape);
    Problem problem = make_problem(spec, rows).value();
    fill(problem, 1);
    const Matrix& scales = problem[Operand::block_scale];
    EXPECT_EQ(scales.rows(), shape[0]);
    EXPECT_EQ(scales.elements(), elements_of(row_of(Operand::block_scale), spec, rows));
    EXPECT_EQ(scales.rows() * scales.columns(), scales.elements());
    EXPECT_EQ(tensors_of(problem).block_scale, scales.data());
    EXPECT_NE(scales.data(), nullptr) << "also of no rows";
    EXPECT_TRUE(scales.empty() || std::isnan(element(scales))) << "poisoned";
  }
}

TEST(Problem, HasTheOtherOperandsOfAQuantization) {
  const NormSpec bounded = parse_spec("rmsnorm/cols=96/f16/out=e4m3/q=row:ub/also=f32").value();
  Problem problem = make_problem(bounded, 5, {{Operand::also, 100}}).value();
  fill(problem, 3);
  EXPECT_EQ(problem[Operand::also].bytes(), (4 * 100 + 96) * 4u);
  EXPECT_EQ(tensors_of(problem).also.outer, 100);
  EXPECT_EQ(problem[Operand::upper_bound].bytes(), 4u);
  EXPECT_EQ(inputs_of(problem, 4)[Operand::upper_bound], problem[Operand::upper_bound].data());
  const NormSpec amax = parse_spec("rmsnorm/cols=96/f16/amax").value();
  problem = make_problem(amax, 5).value();
  fill(problem, 3);
  EXPECT_EQ(problem[Operand::amax].bytes(), 4u);
  EXPECT_TRUE(std::isnan(element(problem[Operand::amax]))) << "poisoned";
  EXPECT_TRUE(problem[Operand::global_scale].empty());
}

TEST(Problem, DrawsWhatScalesAreMadeOf) {
  double bounds = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Problem problem = make_problem(parse_spec("rmsnorm/cols=96/out=e4m3/q=row:ub").value(), 1).value();
    fill(problem, seed);
    bounds += element(problem[Operand::upper_bound]) / 100;
    for (const double range : {448.0, 57344.0, 127.0}) {
      const char* output = range == 448 ? "e4m3" : range == 127 ? "s8" : "e5m2";
      problem =
          make_problem(parse_spec(concat({"rmsnorm/cols=96/out=", output, "/q=16:e4m3"})).value(), 1).value();
      fill(problem, seed);
      const double stored = element(problem[Operand::global_scale]) * 3 / range;
      EXPECT_GT(stored, 70);
      EXPECT_LT(stored, 130);
    }
  }
  EXPECT_NEAR(bounds, 3, 0.2);
}

TEST(Problem, RejectsWhatCannotBe) {
  EXPECT_EQ(make_problem({.columns = 3}, -1).code(), Code::BadRows);
  EXPECT_EQ(make_problem({.columns = 3}, 2, {{Operand::x, -7}}).code(), Code::BadStride);
  EXPECT_EQ(make_problem({.columns = 3}, 2, {{Operand::y, 2}}).code(), Code::BadStride);
  EXPECT_EQ(make_problem({.columns = 3}, INT64_MAX).code(), Code::BadStride);
  using Layout = RowLayout;
  const struct {
    Operand operand;
    std::int64_t rows;
    Layout layout;
  } mistakes[] = {
      {Operand::x, 7, {2, 8, 4}},  {Operand::x, 8, {-1, 8, 4}},    {Operand::x, 8, {2, -8, 4}},
      {Operand::x, 8, {2, 8, -4}}, {Operand::y, 8, {2, 5, 3}},     {Operand::y, 8, {2, 8, 2}},
      {Operand::y, 8, {2, 3, 11}}, {Operand::x, 8, {2, 8, 4, 30}}, {Operand::x, 8, {2, INT64_MAX / 2, 4}}};
  for (const auto& [operand, rows, layout] : mistakes) {
    const auto made = make_problem({.columns = 3}, rows, {{operand, layout}});
    EXPECT_EQ(made.code(), Code::BadStride) << rows << " " << layout.n << " " << layout.outer;
  }
  for (const Layout& layout : {Layout{2, 6, 3}, {2, 3, 12}, {8, 0, 3}, {2, 8, 4, 31}})
    EXPECT_TRUE(make_problem({.columns = 3}, 8, {{Operand::y, layout}}).ok()) << layout.inner;
  const OperandSet y = set_of(Operand::y), sum = set_of(Operand::sum);
  EXPECT_EQ(make_problem({.columns = 3, .output = DType::f64}, 2, {}, y).code(), Code::Overlap);
  EXPECT_EQ(make_problem({.columns = 3}, 2, {}, sum).code(), Code::Overlap);
  EXPECT_EQ(
      make_problem({.columns = 3, .in_bias = true, .residual = Residual::after, .sum = true}, 2, {}, sum)
          .code(),
      Code::Overlap);
}

}  // namespace
}  // namespace normjit::oracle
