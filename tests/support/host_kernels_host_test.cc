// SPDX-License-Identifier: Apache-2.0
// That run_case notices what it says it notices.
#include "tests/support/host_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "normjit/base/text.h"
#include "tests/support/guarded_memory.h"
#include "tests/support/test_seed.h"
#include "verify/check.h"
#include "verify/element.h"

namespace normjit::testing {
namespace {

using ::testing::HasSubstr;

KernelCase plain_case() {
  KernelCase c;
  c.spec = {.columns = 96, .affine = Affine::weight_bias, .scale = 0.5, .statistics = true};
  c.device = *DeviceProfile::of(Arch{90});
  c.device.sm_count = 2;
  c.plan = {Strategy::split_row, 32, 32, 1, 2, 1, 1};
  c.rows = 5;
  c.runs = 2;
  return c;
}

TEST(RunCase, NoticesTheKernelOfAnotherSpec) {
  const KernelCase c = plain_case();
  std::vector<KernelCase> others(9, c);
  others[0].spec.columns = 95;
  others[0].plan.vector = 1;
  others[1].spec.epsilon = 1e-3;
  others[2].spec.affine = Affine::weight;
  others[3].spec.affine = Affine::none;
  others[4].spec.activation = Activation::gelu;
  others[5].spec.scale = -0.5;
  others[6].spec.statistics = false;
  others[7].spec.output = DType::bf16;
  others[8].spec.input = DType::bf16;
  others.push_back(c);
  const auto kernels = compile_batch(others);
  ASSERT_TRUE(kernels) << kernels.error().message;
  EXPECT_EQ(run_case(c, kernels->back(), 3), std::nullopt);
  for (std::size_t i = 0; i + 1 < others.size(); ++i)
    EXPECT_TRUE(run_case(c, (*kernels)[i], 3)) << to_text(others[i]);
}

// Of random gradients, NaN and infinities among their inputs: where a number is expected, the distance from
// it that is allowed is one, too. Nothing would be wrong within NaN but by luck.
TEST(Comparison, EveryNumberHasATolerance) {
  constexpr Strategy kStrategies[] = {Strategy::gradient_rows, Strategy::gradient_columns};
  std::int64_t numbers = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const KernelCase c = random_case(test_seed() * 1'000'003 + seed, kStrategies[seed % 2]);
    const auto problem = make_problem(c);
    ASSERT_TRUE(problem) << problem.error().message;
    std::string wrong;
    const auto compared = [&](Operand output, const oracle::Deviation& found) {
      if (!std::isfinite(found.expected)) return;
      ++numbers;
      if (!std::isnan(found.tolerance) || !wrong.empty()) return;
      wrong = concat({name(output), "[", shortest(found.row), ", ", shortest(found.column), "]"});
    };
    for (std::int64_t row = 0; row < problem->rows; ++row)
      oracle::compare_row_gradients(*problem, row, /*rstd_share=*/1e-6, compared);
    const std::vector<double> shares(static_cast<std::size_t>(problem->rows), 1e-6);
    oracle::compare_column_gradients(*problem, shares, compared);
    ASSERT_EQ(wrong, "") << to_text(c);
  }
  EXPECT_GT(numbers, 300'000);
}

TEST(RunCase, NoticesTheKernelOfAnotherNorm) {
  KernelCase c = plain_case();
  c.spec.residual = Residual::before;
  c.spec.sum = true;
  c.spec.statistics = false;
  c.plan = {Strategy::block_row, 32, 32, 1, 3};
  std::vector<KernelCase> others(3, c);
  others[0].spec.norm = Norm::rms;
  others[1].spec.sum = false;
  const auto kernels = compile_batch(others);
  ASSERT_TRUE(kernels) << kernels.error().message;
  EXPECT_EQ(run_case(c, kernels->back(), 3), std::nullopt);
  for (const std::size_t i : {0, 1}) EXPECT_TRUE(run_case(c, (*kernels)[i], 3)) << to_text(others[i]);
}

// gelu for gelu_tanh, the closest of all activations: 5e-4 apart at most.
TEST(RunCase, TellsTheTwoGelusApart) {
  KernelCase c = plain_case(), other = c;
  c.spec.activation = Activation::gelu;
  other.spec.activation = Activation::gelu_tanh;
  const auto kernels = compile_batch(std::vector{c, other});
  ASSERT_TRUE(kernels) << kernels.error().message;
  EXPECT_FALSE(run_case(c, (*kernels)[0], 0));
  const auto wrong = run_case(c, (*kernels)[1], 0);
  ASSERT_TRUE(wrong);
  EXPECT_THAT(*wrong, HasSubstr("y["));
}

TEST(RunCase, KernelsOfOneTextAreOne) {
  std::vector<KernelCase> cases(3, plain_case());
  cases[1].rows = 17;
  cases[2].spec.columns = 64;
  const auto kernels = compile_batch(cases);
  ASSERT_TRUE(kernels) << kernels.error().message;
  EXPECT_EQ((*kernels)[0].index, (*kernels)[1].index);
  EXPECT_NE((*kernels)[0].index, (*kernels)[2].index);
}

// How the first row of a case with these inputs looks.
struct Row {
  double mean = 0, deviation = 0;
  int not_finite = 0;
};
Row first_row(InputKind inputs, DType dtype) {
  KernelCase c = plain_case();
  c.spec.input = dtype;
  c.rows = 1;
  c.inputs = inputs;
  oracle::Problem problem = make_problem(c).value();
  std::vector<double> x(static_cast<std::size_t>(c.spec.columns));
  oracle::load(dtype, problem[Operand::x].data(), 0, c.spec.columns, x.data());
  Row row;
  for (const double value : x) row.mean += value / static_cast<double>(x.size());
  for (const double value : x) {
    row.deviation += (value - row.mean) * (value - row.mean) / static_cast<double>(x.size());
    row.not_finite += !std::isfinite(value);
  }
  row.deviation = std::sqrt(row.deviation);
  return row;
}

TEST(MakeProblem, InputsAreWhatTheirNamesSay) {
  // A trend of 4 deviations may be added.
  EXPECT_NEAR(first_row(InputKind::unit, DType::f32).mean, 1.25, 1.5);
  EXPECT_NEAR(first_row(InputKind::unit, DType::f32).deviation, 1.4, 0.7);
  EXPECT_NEAR(first_row(InputKind::near_epsilon, DType::f32).deviation, std::sqrt(1e-5), 1e-3);
  EXPECT_NEAR(std::fabs(first_row(InputKind::large_mean, DType::f32).mean), 1e4, 1);
  EXPECT_NEAR(first_row(InputKind::constant_rows, DType::f32).deviation, 0, 1e-9);
  EXPECT_LT(first_row(InputKind::subnormal, DType::f16).deviation, 0x1p-13);
  EXPECT_GT(first_row(InputKind::subnormal, DType::f16).deviation, 0x1p-16);
  EXPECT_EQ(first_row(InputKind::unit, DType::f16).not_finite, 0);
  EXPECT_EQ(first_row(InputKind::nan_row, DType::f16).not_finite, 1);
  EXPECT_EQ(first_row(InputKind::inf_row, DType::f16).not_finite, 1);
}

// As x; what is not finite is in one of them.
TEST(MakeProblem, TheResidualIsLikeX) {
  KernelCase c = plain_case();
  c.spec.residual = Residual::before;
  c.plan = {Strategy::block_row, 32, 32, 1, 3};
  const auto nans = [&](Operand operand) {
    oracle::Problem problem = make_problem(c).value();
    std::vector<double> values(static_cast<std::size_t>(c.rows * c.spec.columns));
    oracle::load(DType::f32, problem[operand].data(), 0, c.rows * c.spec.columns, values.data());
    return std::count_if(values.begin(), values.end(), [](double value) { return std::isnan(value); });
  };
  EXPECT_EQ(nans(Operand::residual), 0);
  c.inputs = InputKind::nan_row;
  EXPECT_EQ(nans(Operand::x), 1);
  EXPECT_EQ(nans(Operand::residual), 0);
  c.seed = 4;
  EXPECT_EQ(nans(Operand::x), 0);
  EXPECT_EQ(nans(Operand::residual), 1);
  c.inputs = InputKind::large_mean;
  oracle::Problem problem = make_problem(c).value();
  double first[2];
  oracle::load(DType::f32, problem[Operand::x].data(), 0, 1, &first[0]);
  oracle::load(DType::f32, problem[Operand::residual].data(), 0, 1, &first[1]);
  EXPECT_NEAR(std::fabs(first[1]), 1e4, 5);
  EXPECT_NE(first[0], first[1]);
}

TEST(MakeProblem, ExtremeAffineHasInfiniteBiases) {
  KernelCase c = plain_case();
  c.inputs = InputKind::extreme_affine;
  oracle::Problem problem = make_problem(c).value();
  std::vector<double> weight(96), bias(96);
  oracle::load(c.spec.weight, problem[Operand::weight].data(), 0, 96, weight.data());
  oracle::load(c.spec.weight, problem[Operand::bias].data(), 0, 96, bias.data());
  EXPECT_THAT(weight, ::testing::Contains(0.0));
  EXPECT_THAT(weight, ::testing::Contains(-1e4));
  EXPECT_THAT(bias, ::testing::Contains(std::numeric_limits<double>::infinity()));
  EXPECT_THAT(bias, ::testing::Contains(-std::numeric_limits<double>::infinity()));
}

TEST(GuardedMemory, EndsWhereItSays) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{5000}}) {
    const GuardedMemory in_front(bytes, GuardedMemory::Side::before_guard);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(in_front.data() + bytes) % 4096, 0u);
    in_front.data()[0] = in_front.data()[bytes - 1] = std::byte{1};
    const GuardedMemory behind(bytes, GuardedMemory::Side::behind_guard, 8);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(behind.data()) % 4096, 8u);
    behind.data()[0] = behind.data()[bytes - 1] = std::byte{1};
  }
}

TEST(GuardedMemoryDeathTest, NobodyMayTouchThePageBeside) {
  const GuardedMemory in_front(100, GuardedMemory::Side::before_guard);
  const GuardedMemory behind(100, GuardedMemory::Side::behind_guard);
  EXPECT_DEATH({ *static_cast<volatile std::byte*>(in_front.data() + 100) = std::byte{1}; }, "");
  EXPECT_DEATH({ *static_cast<volatile std::byte*>(behind.data() - 1) = std::byte{1}; }, "");
}

}  // namespace
}  // namespace normjit::testing
