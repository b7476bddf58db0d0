// The kernels at their edges: a fixed list, under three schedules each.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "tests/support/host_kernels.h"

namespace normjit {

// As gtest shall name a parameter.
static void PrintTo(Strategy strategy, std::ostream* to) { *to << name(strategy); }

namespace testing {
namespace {

constexpr DType kDTypes[] = {DType::f16, DType::bf16, DType::f32, DType::f64};
constexpr Activation kActivations[] = {Activation::none, Activation::relu, Activation::gelu,
                                       Activation::gelu_tanh, Activation::silu};
constexpr Strategy kStrategies[] = {Strategy::packed_rows, Strategy::resident_row, Strategy::two_reads};

#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSchedules[] = {13};  // every launch takes many times as long
#else
// In order, one block after the other; one warp ahead, 4 blocks; any lane, 3 blocks, the last one first.
constexpr std::uint64_t kSchedules[] = {0, 13, 10};
#endif

// A small plan: rows of a hundred columns have many lanes, warps or chunks.
Plan small_plan(Strategy strategy, const LayerNormSpec& spec, int vector) {
  const auto each = [&](int lanes) { return static_cast<int>((spec.columns - 1) / (lanes * vector)) + 1; };
  const int lanes = spec.columns / vector > 64 ? 32 : 8;  // of packed_rows
  switch (strategy) {
    case Strategy::packed_rows:
      return {strategy, 64, lanes, vector, each(lanes)};
    case Strategy::resident_row:
      return {strategy, 64, 64, vector, each(64)};
    case Strategy::two_reads:
      return {strategy, 32, 32, vector, 2};
  }
  return {};
}

KernelCase corner(Strategy strategy, const LayerNormSpec& spec, int vector = 1, std::int64_t rows = 5) {
  KernelCase c;
  c.spec = canonical(spec);
  c.device = *DeviceProfile::of(Arch{90});
  c.device.sm_count = 3;
  c.plan = small_plan(strategy, spec, vector);
  c.rows = rows;
  return c;
}

void expect_right(const std::vector<KernelCase>& cases) {
  ASSERT_FALSE(cases.empty());
  for (const KernelCase& c : cases) ASSERT_TRUE(legal(c)) << to_text(c);
  const auto kernels = compile_batch(cases);
  ASSERT_TRUE(kernels) << kernels.error().message;
  for (std::size_t i = 0; i < cases.size(); ++i)
    for (const std::uint64_t schedule : kSchedules)
      if (const auto wrong = run_case(cases[i], (*kernels)[i], schedule))
        ADD_FAILURE() << to_text(cases[i]) << "\n  schedule " << schedule << ": " << *wrong;
}

class HostCorners : public ::testing::TestWithParam<Strategy> {};

// One column, which is its own mean, to a column more than the lanes, the warps and the chunks end with.
TEST_P(HostCorners, Widths) {
  std::vector<KernelCase> cases;
  for (const std::int64_t columns : {1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 193})
    cases.push_back(
        corner(GetParam(), {.columns = columns, .affine = Affine::weight_bias, .statistics = true}));
  expect_right(cases);
}

// A vector less and more than the lanes hold, for accesses of 2 to 64 bytes.
TEST_P(HostCorners, VectorBoundaries) {
  std::vector<KernelCase> cases;
  for (const DType dtype : {DType::f16, DType::f32, DType::f64})
    for (const int vector : {2, 4, 8})
      for (const int vectors : {1, 31, 32, 33}) {
        KernelCase c = corner(
            GetParam(), {.columns = vector * vectors, .input = dtype, .affine = Affine::weight}, vector);
        c.guard = vectors % 2 == 0 ? Guard::before : Guard::behind;
        if (legal(c)) cases.push_back(c);
      }
  EXPECT_GT(cases.size(), 20u);
  expect_right(cases);
}

// From no row to several more than blocks, groups and ring rows there are.
TEST_P(HostCorners, EveryFewRows) {
  std::vector<KernelCase> cases;
  for (std::int64_t rows = 0; rows <= 40; ++rows)
    for (const std::int64_t blocks : {0, 1}) {
      KernelCase c =
          corner(GetParam(), {.columns = 70, .affine = Affine::weight, .statistics = true}, 2, rows);
      c.blocks = rows == 0 ? 0 : blocks;
      c.runs = 2;
      cases.push_back(c);
    }
  expect_right(cases);
}

TEST_P(HostCorners, Distances) {
  std::vector<KernelCase> cases;
  const KernelCase plain = corner(GetParam(), {.columns = 100, .affine = Affine::weight_bias}, 2, 8);
  for (const Guard guard : {Guard::before, Guard::behind})
    for (const int shift : {0, 2, 14})
      for (const std::int64_t x_gap : {-100, -98, -50, 0, 2, 100})
        for (const std::int64_t y_gap : {0, 2, 64}) {
          KernelCase c = plain;
          c.guard = guard;
          c.shift = shift;
          c.x_gap = x_gap;
          c.y_gap = y_gap;
          cases.push_back(c);
        }
  expect_right(cases);
}

// 13 rows, so that a block of packed_rows has lanes without a row.
TEST_P(HostCorners, InPlace) {
  std::vector<KernelCase> cases;
  for (const DType dtype : kDTypes)
    for (const std::int64_t gap : {0, 4})
      for (const std::int64_t columns : {4, 60, 180}) {
        KernelCase c =
            corner(GetParam(), {.columns = columns, .input = dtype, .affine = Affine::weight}, 2, 13);
        c.in_place = true;
        c.x_gap = gap;
        c.runs = 2;
        cases.push_back(c);
      }
  // Other numbers in the same bytes.
  cases.push_back(corner(GetParam(), {.columns = 90, .input = DType::f16, .output = DType::bf16}, 1, 13));
  cases.back().in_place = true;
  expect_right(cases);
}

TEST_P(HostCorners, EveryMixOfDtypes) {
  std::vector<KernelCase> cases;
  for (const DType input : kDTypes)
    for (const DType output : kDTypes)
      for (const DType weight : kDTypes)
        cases.push_back(corner(GetParam(),
                               {.columns = 72,
                                .input = input,
                                .output = output,
                                .weight = weight,
                                .affine = Affine::weight_bias,
                                .statistics = true},
                               2));
  expect_right(cases);
}

TEST_P(HostCorners, Epsilons) {
  std::vector<KernelCase> cases;
  for (const DType dtype : {DType::f32, DType::f64})
    for (const double epsilon : {0.0, 1e-12, 0.5, 1e30})
      for (const InputKind inputs : {InputKind::unit, InputKind::constant_rows, InputKind::near_epsilon,
                                     InputKind::subnormal, InputKind::large_mean}) {
        KernelCase c = corner(
            GetParam(), {.columns = 100, .input = dtype, .epsilon = epsilon, .statistics = true}, 2, 12);
        c.inputs = inputs;
        if (legal(c)) cases.push_back(c);
      }
  expect_right(cases);
}

TEST_P(HostCorners, Scales) {
  std::vector<KernelCase> cases;
  for (const double scale : {0.0, -0.0, -2.0, 1e-30, 1e30})
    for (const DType dtype : {DType::f32, DType::f64})
      cases.push_back(corner(
          GetParam(), {.columns = 40, .input = dtype, .activation = Activation::gelu, .scale = scale}));
  expect_right(cases);
}

// All activations where they saturate, and of infinities.
TEST_P(HostCorners, ExtremeValuesOfActivations) {
  std::vector<KernelCase> cases;
  for (const Activation activation : kActivations)
    for (const DType dtype : kDTypes) {
      KernelCase c =
          corner(GetParam(),
                 {.columns = 96, .input = dtype, .affine = Affine::weight_bias, .activation = activation});
      c.inputs = InputKind::extreme_affine;
      cases.push_back(c);
    }
  expect_right(cases);
}

TEST_P(HostCorners, NanAndInfinityStayInTheirRow) {
  std::vector<KernelCase> cases;
  for (const Activation activation : kActivations)
    for (const InputKind inputs : {InputKind::nan_row, InputKind::inf_row})
      for (const std::uint64_t seed : {0, 7, 1001}) {
        KernelCase c = corner(
            GetParam(),
            {.columns = 80, .affine = Affine::weight, .activation = activation, .statistics = true}, 1, 11);
        c.inputs = inputs;
        c.seed = seed;
        cases.push_back(c);
      }
  expect_right(cases);
}

INSTANTIATE_TEST_SUITE_P(HostCorners, HostCorners, ::testing::ValuesIn(kStrategies),
                         [](const auto& info) { return std::string(normjit::name(info.param)); });

// Rows in groups, with a whole last group and without, batches of 1 to 4 rows, and more groups than the ring
// has room for.
TEST(HostCornersOfTwoReads, Groups) {
  std::vector<KernelCase> cases;
  for (const int group : {2, 3, 4, 8, 12, 16})
    for (const std::int64_t columns : {1, 64, 200}) {
      for (const std::int64_t rows : {1, group - 1, group, group + 1, 3 * group + 2, 70}) {
        KernelCase c =
            corner(Strategy::two_reads, {.columns = columns, .affine = Affine::weight_bias}, 1, rows);
        c.plan.group_rows = group;
        cases.push_back(c);
      }
    }
  expect_right(cases);
}

// From one block, which does all items itself, to more blocks than items.
TEST(HostCornersOfTwoReads, Blocks) {
  std::vector<KernelCase> cases;
  for (const int sms : {1, 2, 5, 8})
    for (const int blocks_per_sm : {1, 4})
      for (const std::int64_t rows : {1, 7, 50}) {
        KernelCase c = corner(Strategy::two_reads, {.columns = 150, .statistics = true}, 1, rows);
        c.device.sm_count = sms;
        c.plan.blocks_per_sm = blocks_per_sm;
        c.runs = 2;
        cases.push_back(c);
      }
  expect_right(cases);
}

// More chunks than a block has threads, so that complete() loops.
TEST(HostCornersOfTwoReads, ManyChunks) {
  std::vector<KernelCase> cases;
  for (const std::int64_t columns : {31 * 32, 32 * 32, 32 * 32 + 1, 70 * 32 + 5})
    for (const InputKind inputs : {InputKind::unit, InputKind::large_mean}) {
      KernelCase c = corner(Strategy::two_reads, {.columns = columns, .statistics = true}, 1, 3);
      c.plan.per_thread = 1;
      c.inputs = inputs;
      cases.push_back(c);
    }
  expect_right(cases);
}

// What users get for rows that no block holds.
TEST(HostCornersOfTwoReads, HugeRows) {
  std::vector<KernelCase> cases;
  for (const LayerNormSpec& spec :
       {LayerNormSpec{.columns = 300'001}, LayerNormSpec{.columns = 262'144, .input = DType::bf16},
        LayerNormSpec{.columns = 200'000, .affine = Affine::weight_bias}}) {
    KernelCase c;
    c.spec = spec;
    c.device = *DeviceProfile::of(Arch{75});
    c.device.sm_count = 4;
    c.plan = choose(spec, c.device, RowsRegime::many, Alignment::eight);
    cases.push_back(c);
  }
  EXPECT_EQ(cases.back().plan.group_rows, 16);
  cases.back().rows = 2;
  expect_right(cases);
}

}  // namespace
}  // namespace testing
}  // namespace normjit
