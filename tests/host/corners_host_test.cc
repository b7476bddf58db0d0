// SPDX-License-Identifier: Apache-2.0
// The kernels at their edges: a fixed list, under three schedules each. What is known from earlier runs is
// believed (see tests/support/verdict_cache.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/plan/footprint.h"
#include "normjit/spec/tables.h"
#include "normjit/spec/valid.h"
#include "tests/support/compare_with_reference.h"
#include "tests/support/host_kernels.h"
#include "tests/support/random_spec.h"
#include "tests/support/sanitizers.h"
#include "tests/support/verdict_cache.h"
#include "verify/element.h"

namespace normjit {

// As gtest shall name a parameter.
static void PrintTo(Strategy strategy, std::ostream* to) { *to << name(strategy); }

namespace testing {
namespace {

constexpr DType kDTypes[] = {DType::f16, DType::bf16, DType::f32, DType::f64};
// Those of forward specs.
constexpr Strategy kForwardStrategies[] = {
    Strategy::warp_rows, Strategy::staged_rows,    Strategy::block_row, Strategy::persistent_row,
    Strategy::split_row, Strategy::channels_first, Strategy::generic};
constexpr Strategy kGradientStrategies[] = {Strategy::gradient_rows, Strategy::gradient_ring,
                                            Strategy::gradient_columns, Strategy::generic};
static_assert(std::size(kForwardStrategies) + std::size(kGradientStrategies) == std::size(kAllStrategies) + 1,
              "generic is of both");
constexpr Activation kActivations[] = {Activation::none, Activation::relu, Activation::gelu,
                                       Activation::gelu_tanh, Activation::silu};

#ifdef NORMJIT_THREAD_SANITIZER
constexpr std::uint64_t kSchedules[] = {13};  // every launch takes many times as long
#else
// In order, one block after the other; one warp ahead, 4 blocks; any lane, 3 blocks, the last one first.
constexpr std::uint64_t kSchedules[] = {0, 13, 10};
#endif

// A small plan: rows of a hundred columns have many lanes, warps or chunks. Those of persistent rows are
// larger, and so are its rows.
Plan small_plan(Strategy strategy, const NormSpec& spec, int vector) {
  // Lanes take no more than 16 bytes of a tile at a time.
  if (strategy == Strategy::staged_rows)
    vector = std::min(vector, 16 / std::max(size_of(spec.input), size_of(spec.output)));
  const auto each = [&](int lanes) { return static_cast<int>((spec.columns - 1) / (lanes * vector)) + 1; };
  const int lanes = spec.columns / vector > 64 ? 32 : 8;  // of packed and staged rows
  switch (strategy) {
    case Strategy::warp_rows:
      return {strategy, 64, lanes, vector, each(lanes)};
    case Strategy::staged_rows:
      return {strategy, 64, lanes, vector, each(lanes), 2};
    case Strategy::block_row:
      return {strategy, 64, 64, vector, each(64)};
    case Strategy::persistent_row:
      return {.strategy = strategy,
              .threads = 512,
              .threads_per_row = 256,
              .vector = vector,
              .per_thread = 1,
              .stages = 3};
    case Strategy::split_row:
      return {strategy, 32, 32, vector, 2};
    case Strategy::channels_first:  // 8 threads side by side
      return {strategy, 64, 8, vector, static_cast<int>((spec.columns - 1) / 8) + 1};
    case Strategy::gradient_rows:
      return {.strategy = strategy,
              .threads = 64,
              .threads_per_row = lanes,
              .vector = vector,
              .per_thread = each(lanes)};
    case Strategy::gradient_ring:  // of which copies move whole 16 bytes
      return {.strategy = strategy,
              .threads = 64,
              .threads_per_row = 64,
              .vector = vector,
              .per_thread = each(64),
              .stages = fewest_stages(spec)};
    case Strategy::gradient_columns:  // chunks of 64 columns
      return {.strategy = strategy,
              .threads = 32,
              .threads_per_row = 32,
              .vector = vector,
              .per_thread = std::max(1, 2 / vector),
              .group_rows = 3,
              .exchange = Exchange::grid};
    case Strategy::generic:  // a warp has rows of up to 64 columns
      return {strategy, 64, 32, 1, 2};
  }
  return {};
}

KernelCase corner(Strategy strategy, const NormSpec& spec, int vector = 1, std::int64_t rows = 5) {
  KernelCase c;
  c.spec = canonical(spec);
  if (strategy == Strategy::persistent_row) {
    vector = 16 / size_of(spec.input);
    c.spec.columns = (8 * spec.columns + vector - 1) / vector * vector;
  }
  if (strategy == Strategy::gradient_ring)
    c.spec.columns =
        (spec.columns + bulk_elements(c.spec) - 1) / bulk_elements(c.spec) * bulk_elements(c.spec);
  if (strategy == Strategy::channels_first) {  // a row stands for a sample of a few positions
    make_channels_first(c.spec);
    c.spec = canonical(c.spec);
    vector = std::min(vector, 16 / widest_element(c.spec));
    c.plane = 3 * vector;
    rows *= c.plane;
  }
  c.device = *DeviceProfile::of(Arch{90});
  c.device.sm_count = 3;
  c.plan = small_plan(strategy, c.spec, vector);
  c.rows = rows;
  return c;
}

void expect_right(std::vector<KernelCase> cases) {
  // Streamed rows have neither in_bias nor a gate before the norm, and beside other rows they are aligned.
  std::erase_if(cases, [](const KernelCase& c) {
    return c.plan.strategy == Strategy::persistent_row && !legal(c) && moves_other_rows(c.spec);
  });
  ASSERT_FALSE(cases.empty());
  for (const KernelCase& c : cases) ASSERT_TRUE(legal(c)) << to_text(c);
  const auto texts = sources(cases);
  ASSERT_TRUE(texts) << texts.error().message;
  const auto compiler = simt::HostCompiler::find();
  ASSERT_TRUE(compiler) << compiler.error().message;
  const auto version = version_of(*compiler);
  ASSERT_TRUE(version) << version.error().message;
  std::string schedules;
  for (const std::uint64_t schedule : kSchedules) schedules += concat({shortest(schedule), " "});

  const VerdictCache known("corners", NORMJIT_TEST_CODE);
  std::vector<KernelCase> tried;
  std::vector<std::string> keys;
  std::size_t left_out = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    std::string key = known.key({*version, (*texts)[i].text, to_text(cases[i]), schedules});
    const bool was_right = known.has(key);
    if (was_right && !known.is_due(key)) continue;
    if (!was_right && !known.is_in_part(key)) {
      ++left_out;
      continue;
    }
    tried.push_back(cases[i]);
    keys.push_back(std::move(key));
  }
  std::printf("%zu cases: %zu known, %zu run\n", cases.size() - left_out,
              cases.size() - left_out - tried.size(), tried.size());
  if (tried.empty()) return;

  const auto kernels = compile_batch(tried);
  ASSERT_TRUE(kernels) << kernels.error().message;
  for (std::size_t i = 0; i < tried.size(); ++i) {
    bool right = true;
    for (const std::uint64_t schedule : kSchedules)
      if (const auto wrong = run_case(tried[i], (*kernels)[i], schedule)) {
        right = false;
        ADD_FAILURE() << to_text(tried[i]) << "\n  schedule " << schedule << ": " << *wrong;
      }
    if (right) {
      known.keep(keys[i]);
    } else if (known.has(keys[i])) {
      ADD_FAILURE() << "was right in an earlier run, which was kept in " << verdict_folder()
                    << ", whose keys of corners are discarded now: " << to_text(tried[i]);
      known.discard();
    }
  }
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
  const int unit = plain.plan.vector;
  for (const Guard guard : {Guard::before, Guard::behind})
    for (const int shift : {0, 1, 7})
      for (const std::int64_t x_gap : {-plain.spec.columns / unit, -plain.spec.columns / unit + 1,
                                       std::int64_t{-25}, std::int64_t{0}, std::int64_t{1}, std::int64_t{50}})
        for (const std::int64_t y_gap : {0, 1, 32}) {
          KernelCase c = plain;
          c.guard = guard;
          c.x_shift = c.y_shift = c.weight_shift = c.bias_shift = shift * unit;
          c.x_gap = x_gap * unit;
          c.y_gap = y_gap * unit;
          cases.push_back(c);
        }
  expect_right(cases);
}

// 13 rows, so that a block of warp_rows has lanes without a row.
TEST_P(HostCorners, InPlace) {
  std::vector<KernelCase> cases;
  for (const DType dtype : kDTypes)
    for (const std::int64_t gap : {0, 2})
      for (const std::int64_t columns : {4, 60, 180}) {
        KernelCase c =
            corner(GetParam(), {.columns = columns, .input = dtype, .affine = Affine::weight}, 2, 13);
        c.in_place = true;
        c.x_gap = gap * c.plan.vector;
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

// Nothing but weights is touched before the launch in front is done.
TEST_P(HostCorners, Overlaps) {
  std::vector<KernelCase> cases;
  for (const DType dtype : {DType::bf16, DType::f32}) {
    cases.push_back(corner(
        GetParam(), {.columns = 96, .input = dtype, .affine = Affine::weight_bias, .statistics = true}, 2));
    cases.back().overlaps = true;
    cases.back().runs = 2;
  }
  expect_right(cases);
}

INSTANTIATE_TEST_SUITE_P(HostCorners, HostCorners, ::testing::ValuesIn(kForwardStrategies),
                         [](const auto& info) { return std::string(normjit::name(info.param)); });

// Rows in groups, with a whole last group and without, batches of 1 to 4 rows, and more groups than the ring
// has room for.
TEST(HostCornersOfSplitRow, Groups) {
  std::vector<KernelCase> cases;
  for (const int group : {2, 3, 4, 8, 12, 16})
    for (const std::int64_t columns : {1, 64, 200}) {
      for (const std::int64_t rows : {1, group - 1, group, group + 1, 3 * group + 2, 70}) {
        KernelCase c =
            corner(Strategy::split_row, {.columns = columns, .affine = Affine::weight_bias}, 1, rows);
        c.plan.group_rows = group;
        cases.push_back(c);
      }
    }
  expect_right(cases);
}

// From one block, which does all items itself, to more blocks than items.
TEST(HostCornersOfSplitRow, Blocks) {
  std::vector<KernelCase> cases;
  for (const int sms : {1, 2, 5, 8})
    for (const int blocks_per_sm : {1, 4})
      for (const std::int64_t rows : {1, 7, 50}) {
        KernelCase c = corner(Strategy::split_row, {.columns = 150, .statistics = true}, 1, rows);
        c.device.sm_count = sms;
        c.plan.blocks_per_sm = blocks_per_sm;
        c.runs = 2;
        cases.push_back(c);
      }
  expect_right(cases);
}

// Three reads, in one turn of the ring and in several; a row of which all results are 0, and one with NaN.
TEST(HostCornersOfSplitRow, ScalesOfRows) {
  std::vector<KernelCase> cases;
  for (const int group : {1, 2, 8, 16})
    for (const int sms : {1, 8})
      for (const std::int64_t rows : {1, 7, 50})
        for (const InputKind inputs : {InputKind::unit, InputKind::constant_rows, InputKind::nan_row}) {
          KernelCase c = corner(Strategy::split_row,
                                {.columns = 201,
                                 .output = group > 2 ? DType::s8 : DType::e4m3,
                                 .residual = group > 1 ? Residual::before : Residual::none,
                                 .sum = group == 8,
                                 .affine = Affine::weight_bias,
                                 .quantization = Quantization::row,
                                 .also = group == 2 ? Also::bf16 : Also::none,
                                 .statistics = true},
                                1, rows);
          c.plan.group_rows = group;
          c.device.sm_count = sms;
          c.inputs = inputs;
          c.runs = rows == 7 ? 2 : 1;
          cases.push_back(c);
        }
  expect_right(cases);
}

// More chunks than a block has threads, so that complete() loops.
TEST(HostCornersOfSplitRow, ManyChunks) {
  std::vector<KernelCase> cases;
  for (const std::int64_t columns : {31 * 32, 32 * 32, 32 * 32 + 1, 70 * 32 + 5})
    for (const InputKind inputs : {InputKind::unit, InputKind::large_mean}) {
      KernelCase c = corner(Strategy::split_row, {.columns = columns, .statistics = true}, 1, 3);
      c.plan.per_thread = 1;
      c.inputs = inputs;
      cases.push_back(c);
    }
  expect_right(cases);
}

// What users get for rows that no block holds.
TEST(HostCornersOfSplitRow, HugeRows) {
  std::vector<KernelCase> cases;
  for (const NormSpec& spec :
       {NormSpec{.columns = 300'001}, NormSpec{.columns = 262'144, .input = DType::bf16},
        NormSpec{.columns = 200'000, .affine = Affine::weight_bias}}) {
    KernelCase c;
    c.spec = spec;
    c.device = *DeviceProfile::of(Arch{75});
    c.device.sm_count = 4;
    c.plan = fallback(spec, c.device, RowsRegime::many, Alignment::eight);
    cases.push_back(c);
  }
  cases.back().plan.group_rows = 16;  // more than there are rows
  cases.back().rows = 2;
  expect_right(cases);
}

// ---- Rows shared by blocks ----

struct Sharing {
  Exchange exchange;
  int blocks_per_row;
};
constexpr Sharing kSharings[] = {{Exchange::cluster, 2}, {Exchange::cluster, 4}, {Exchange::cluster, 8},
                                 {Exchange::grid, 2},    {Exchange::grid, 3},    {Exchange::grid, 10}};
constexpr int kSpanOfSlice = 128;  // of the plans below

// On ten resident blocks.
KernelCase shared(const Sharing& sharing, const NormSpec& spec, std::int64_t rows) {
  KernelCase c = corner(Strategy::block_row, spec, 1, rows);
  c.device.sm_count = 5;
  c.plan = {.strategy = Strategy::block_row,
            .threads = 64,
            .threads_per_row = 64,
            .vector = 1,
            .per_thread = 2,
            .blocks_per_sm = 2,
            .blocks_per_row = sharing.blocks_per_row,
            .exchange = sharing.exchange};
  return c;
}

// On two resident blocks a multiprocessor, of which there are as many as blocks share a row.
KernelCase shared_by_all(const Sharing& sharing, const NormSpec& spec, std::int64_t rows) {
  KernelCase c = corner(Strategy::block_row, spec, 1, rows);
  c.device = *DeviceProfile::of(Arch{sharing.exchange == Exchange::grid ? 80 : 90});
  c.device.sm_count = sharing.blocks_per_row;
  c.plan.per_thread = 2;
  c.plan.blocks_per_sm = 2;
  c.plan.blocks_per_row = sharing.blocks_per_row;
  c.plan.exchange = sharing.exchange;
  return c;
}

// The last slice empty, with one column, with all but one, whole; and slices in front of it that are empty.
TEST(HostCornersOfSharedRows, Widths) {
  std::vector<KernelCase> cases;
  for (const Sharing& sharing : kSharings) {
    const std::int64_t whole = sharing.blocks_per_row * kSpanOfSlice, front = whole - kSpanOfSlice;
    for (const std::int64_t columns :
         {std::int64_t{1}, front - 1, front, front + 1, front + 65, whole - 1, whole})
      for (const DType dtype : {DType::f32, DType::f64}) {
        if (dtype == DType::f64 && sharing.blocks_per_row != 2) continue;
        cases.push_back(shared(
            sharing, {.columns = columns, .input = dtype, .affine = Affine::weight_bias, .statistics = true},
            7));
        cases.back().inputs = InputKind::large_mean;
      }
  }
  expect_right(cases);
}

// A row less and more than teams, fewer teams than fit, in place, and again with the same workspace.
TEST(HostCornersOfSharedRows, Rows) {
  std::vector<KernelCase> cases;
  for (const Sharing& sharing : kSharings) {
    const std::int64_t teams = 10 / sharing.blocks_per_row;
    for (const std::int64_t rows : {std::int64_t{1}, teams - 1, teams, teams + 1, 6 * teams + 1})
      for (const std::int64_t blocks : {0, sharing.blocks_per_row}) {
        KernelCase c = shared(sharing,
                              {.columns = sharing.blocks_per_row * kSpanOfSlice - 5,
                               .affine = Affine::weight,
                               .statistics = true},
                              rows);
        if (rows == 0) continue;  // one team has no row less
        c.blocks = blocks;
        c.in_place = blocks == 0;
        c.overlaps = rows == teams;
        c.runs = 3;
        cases.push_back(c);
      }
  }
  expect_right(cases);
}

TEST(HostCornersOfSharedRows, NanAndInfinityStayInTheirRow) {
  std::vector<KernelCase> cases;
  for (const Sharing& sharing : kSharings)
    for (const InputKind inputs : {InputKind::nan_row, InputKind::inf_row})
      for (const std::uint64_t seed : {0, 7, 1001}) {
        KernelCase c =
            shared(sharing, {.columns = sharing.blocks_per_row * kSpanOfSlice - 70, .statistics = true}, 11);
        c.inputs = inputs;
        c.seed = seed;
        cases.push_back(c);
      }
  expect_right(cases);
}

// ---- The root mean square, residuals and sums ----

// Each norm with what it may have in front of it.
constexpr NormSpec kOperations[] = {
    {.norm = Norm::rms},
    {.norm = Norm::rms, .residual = Residual::before},
    {.norm = Norm::rms, .residual = Residual::before, .sum = true},
    {.norm = Norm::layer, .residual = Residual::before},
    {.norm = Norm::layer, .residual = Residual::before, .sum = true},
    {.norm = Norm::rms, .residual = Residual::after},
    {.norm = Norm::layer, .in_bias = true, .residual = Residual::before, .sum = true},
    {.norm = Norm::layer, .in_bias = true, .sum = true},
    {.norm = Norm::layer, .modulation = Modulation::scale_shift, .modulation_table = true},
    {.norm = Norm::layer,
     .gate = Gate::before,
     .gate_table = true,
     .residual = Residual::before,
     .sum = true,
     .modulation = Modulation::scale_shift},
    {.norm = Norm::rms, .gate = Gate::after, .gate_function = GateFunction::silu},
};

// The other members of a spec with one of these.
NormSpec with_operation(NormSpec spec, const NormSpec& operation) {
  spec.norm = operation.norm;
  spec.in_bias = operation.in_bias;
  spec.gate = operation.gate;
  spec.gate_function = operation.gate_function;
  spec.gate_table = operation.gate_table;
  spec.modulation = operation.modulation;
  spec.modulation_table = operation.modulation_table;
  if (spec.gate == Gate::after) spec.activation = Activation::none;  // not both
  spec.residual = operation.residual;
  spec.sum = operation.sum;
  return spec;
}

// Whether the sum may stand where the residual did.
bool has_sum_for_residual(const NormSpec& spec) { return spec.sum && spec.residual == Residual::before; }

class HostCornersOfNorms : public ::testing::TestWithParam<Strategy> {};

// f32 weights beside bf16; rms writes rstd alone.
TEST_P(HostCornersOfNorms, Widths) {
  std::vector<KernelCase> cases;
  for (const NormSpec& operation : kOperations)
    for (const std::int64_t columns : {1, 2, 3, 31, 32, 33, 63, 64, 65, 129, 193})
      for (const std::int64_t rows : {1, 5})
        cases.push_back(corner(GetParam(),
                               with_operation({.columns = columns,
                                               .input = DType::bf16,
                                               .output = DType::bf16,
                                               .weight = DType::f32,
                                               .affine = Affine::weight_bias,
                                               .statistics = true},
                                              operation),
                               1, rows));
  expect_right(cases);
}

// A vector less and more than the lanes hold.
TEST_P(HostCornersOfNorms, VectorBoundaries) {
  std::vector<KernelCase> cases;
  for (const DType dtype : {DType::f16, DType::f32, DType::f64})
    for (const int vector : {2, 4, 8})
      for (const int vectors : {1, 31, 32, 33})
        for (const NormSpec& operation : {kOperations[0], kOperations[2]}) {
          KernelCase c = corner(GetParam(),
                                with_operation({.columns = vector * vectors,
                                                .input = dtype,
                                                .output = dtype,
                                                .weight = dtype,
                                                .affine = Affine::weight},
                                               operation),
                                vector);
          c.guard = vectors % 2 == 0 ? Guard::before : Guard::behind;
          if (legal(c)) cases.push_back(c);
        }
  EXPECT_GT(cases.size(), 40u);
  expect_right(cases);
}

// From no row to several more than blocks have.
TEST_P(HostCornersOfNorms, EveryFewRows) {
  std::vector<KernelCase> cases;
  for (const NormSpec& operation : kOperations)
    for (const std::int64_t rows : {0, 1, 2, 7, 8, 9, 16, 17, 40})
      for (const std::int64_t blocks : {0, 1}) {
        KernelCase c =
            corner(GetParam(),
                   with_operation({.columns = 70, .affine = Affine::weight, .statistics = true}, operation),
                   2, rows);
        c.blocks = rows == 0 ? 0 : blocks;
        c.sum_in_place = has_sum_for_residual(c.spec) && blocks == 1;
        c.runs = 2;
        cases.push_back(c);
      }
  expect_right(cases);
}

// All rows of x or of the residual one, rows that overlap, and a distance of its own for each matrix.
TEST_P(HostCornersOfNorms, Distances) {
  std::vector<KernelCase> cases;
  const NormSpec spec{.columns = 100,
                      .residual = Residual::before,
                      .sum = true,
                      .affine = Affine::weight_bias,
                      .statistics = true};
  for (const Guard guard : {Guard::before, Guard::behind})
    for (const int shift : {0, 1, 7})
      for (const std::int64_t x_gap : {-50, 0, 50})
        for (const std::int64_t residual_gap : {-50, -25, 0, 3})
          for (const std::int64_t sum_gap : {0, 1, 32}) {
            KernelCase c = corner(GetParam(), spec, 2, 8);
            c.guard = guard;
            c.x_shift = c.y_shift = c.weight_shift = c.bias_shift = shift * 2;
            c.x_gap = x_gap * 2;
            c.residual_gap = residual_gap * 2;
            c.y_gap = 2 * 2;
            c.sum_gap = sum_gap * 2;
            cases.push_back(c);
          }
  expect_right(cases);
}

// 13 rows, so that a block of warp_rows has lanes without a row.
TEST_P(HostCornersOfNorms, InPlace) {
  std::vector<KernelCase> cases;
  for (const Norm norm : {Norm::layer, Norm::rms})
    for (const DType dtype : kDTypes)
      for (const bool y : {false, true})
        for (const bool sum : {false, true})
          for (const std::int64_t columns : {4, 60, 180}) {
            KernelCase c = corner(GetParam(),
                                  {.norm = norm,
                                   .columns = columns,
                                   .input = dtype,
                                   .output = dtype,
                                   .weight = dtype,
                                   .residual = Residual::before,
                                   .sum = true,
                                   .affine = Affine::weight},
                                  2, 13);
            c.in_place = y;
            c.sum_in_place = sum;
            c.x_gap = 8;
            c.residual_gap = 16;
            c.runs = 2;
            cases.push_back(c);
          }
  // y in place without a sum.
  cases.push_back(corner(GetParam(), {.columns = 90, .residual = Residual::before}, 2, 13));
  cases.back().in_place = true;
  expect_right(cases);
}

TEST_P(HostCornersOfNorms, EveryMixOfDtypes) {
  std::vector<KernelCase> cases;
  for (const DType input : kDTypes)
    for (const DType output : kDTypes)
      for (const DType weight : kDTypes)
        cases.push_back(corner(GetParam(),
                               with_operation({.columns = 72,
                                               .input = input,
                                               .output = output,
                                               .weight = weight,
                                               .affine = Affine::weight_bias,
                                               .statistics = true},
                                              kOperations[cases.size() % std::size(kOperations)]),
                               2));
  expect_right(cases);
}

// Without epsilon, rows of zeros have no root mean square, and become NaN as in the formula.
TEST_P(HostCornersOfNorms, Epsilons) {
  std::vector<KernelCase> cases;
  for (const NormSpec& operation : kOperations)
    for (const DType dtype : {DType::f16, DType::f32, DType::f64})
      for (const double epsilon : {0.0, 1e-12, 0.5, 1e30})
        for (const InputKind inputs : {InputKind::unit, InputKind::constant_rows, InputKind::near_epsilon,
                                       InputKind::subnormal, InputKind::large_mean}) {
          KernelCase c = corner(
              GetParam(),
              with_operation(
                  {.columns = 100, .input = dtype, .output = dtype, .epsilon = epsilon, .statistics = true},
                  operation),
              2, 12);
          c.inputs = inputs;
          if (legal(c)) cases.push_back(c);
        }
  expect_right(cases);
}

// Where activations saturate, and of infinities; with a scale behind them.
TEST_P(HostCornersOfNorms, ActivationsAndScales) {
  std::vector<KernelCase> cases;
  for (const NormSpec& operation : kOperations)
    for (const Activation activation : kActivations)
      for (const double scale : {1.0, -2.0, 0.0, 1e30}) {
        KernelCase c = corner(
            GetParam(),
            with_operation(
                {.columns = 96, .affine = Affine::weight_bias, .activation = activation, .scale = scale},
                operation));
        c.inputs = scale == 1 ? InputKind::extreme_affine : InputKind::unit;
        cases.push_back(c);
      }
  expect_right(cases);
}

// Of x, or of the residual.
TEST_P(HostCornersOfNorms, NanAndInfinityStayInTheirRow) {
  std::vector<KernelCase> cases;
  for (const NormSpec& operation : kOperations)
    for (const InputKind inputs : {InputKind::nan_row, InputKind::inf_row})
      for (const std::uint64_t seed : {0, 4, 7, 1001}) {
        KernelCase c =
            corner(GetParam(), with_operation({.columns = 80, .statistics = true}, operation), 1, 11);
        c.inputs = inputs;
        c.seed = seed;
        cases.push_back(c);
      }
  expect_right(cases);
}

// A result of 8 bits with each kind of scale.
struct Quantized {
  DType output;
  Quantization quantization;
  bool inverse_scale = false;
};
constexpr Quantized kQuantized[] = {{DType::e4m3, Quantization::row},
                                    {DType::e5m2, Quantization::row},
                                    {DType::s8, Quantization::row},
                                    {DType::e4m3, Quantization::tensor},
                                    {DType::e5m2, Quantization::tensor, true},
                                    {DType::s8, Quantization::tensor},
                                    {DType::s8, Quantization::tensor, true},
                                    {DType::e4m3, Quantization::none},
                                    {DType::e5m2, Quantization::none}};
NormSpec with_quantization(NormSpec spec, const Quantized& quantized) {
  spec.output = quantized.output;
  spec.quantization = quantized.quantization;
  spec.inverse_scale = quantized.inverse_scale;
  return spec;
}

// By instruction and without; rows of zeros, with a NaN, with infinities; beyond the largest number.
TEST_P(HostCornersOfNorms, ResultsOf8Bits) {
  std::vector<KernelCase> cases;
  std::size_t turn = 0;
  for (const Quantized& quantized : kQuantized)
    for (const InputKind inputs : {InputKind::unit, InputKind::constant_rows, InputKind::nan_row,
                                   InputKind::inf_row, InputKind::extreme_affine})
      for (const int arch : {75, 90}) {
        ++turn;
        NormSpec spec = with_operation(
            with_quantization(
                {.columns = 100,
                 .input = turn % 3 == 0 ? DType::f32 : DType::bf16,
                 .epsilon = 1e-5,
                 .affine = inputs == InputKind::constant_rows ? Affine::none : Affine::weight_bias,
                 .scale = turn % 7 == 0 ? 1e30 : 1},
                quantized),
            kOperations[turn % std::size(kOperations)]);
        spec.weight = spec.residual_type = spec.modulation_type = spec.input;
        if (quantized.quantization != Quantization::none && turn % 2 == 0) spec.rounding = Rounding::y;
        KernelCase c = corner(GetParam(), spec, turn % 5 == 0 ? 1 : 2, 11);
        if (GetParam() != Strategy::persistent_row) c.device = *DeviceProfile::of(Arch{arch});
        c.device.sm_count = 3;
        c.inputs = inputs;
        c.seed = turn;
        if (legal(c)) cases.push_back(c);
      }
  EXPECT_GT(cases.size(), 10u);
  expect_right(cases);
}

// In clusters and over the grid, in turns; slices that hold less than others, and nothing.
TEST(HostCornersOfScaledRows, BlocksShareThem) {
  std::vector<KernelCase> cases;
  for (const Exchange exchange : {Exchange::cluster, Exchange::grid})
    for (const int blocks : {2, 4, 5})
      for (const std::int64_t rows : {1, 2, 9})
        for (const int missing : {0, 5, 70}) {
          if (exchange == Exchange::cluster && blocks == 5) continue;
          const std::size_t turn = cases.size();
          KernelCase c = shared_by_all(
              {exchange, blocks},
              with_operation(with_quantization({.columns = 128 * blocks - missing, .affine = Affine::weight},
                                               kQuantized[turn % 3]),
                             kOperations[turn % std::size(kOperations)]),
              rows);
          c.runs = 2;
          c.inputs = turn % 4 == 0 ? InputKind::nan_row : InputKind::mixed;
          cases.push_back(c);
        }
  expect_right(cases);
}

// Nothing but weights is touched before the launch in front is done.
TEST_P(HostCornersOfNorms, Overlaps) {
  std::vector<KernelCase> cases;
  for (const NormSpec& operation : kOperations) {
    cases.push_back(
        corner(GetParam(), with_operation({.columns = 96, .affine = Affine::weight_bias}, operation), 2));
    cases.back().overlaps = true;
    cases.back().sum_in_place = has_sum_for_residual(cases.back().spec);
    cases.back().runs = 2;
  }
  expect_right(cases);
}

// Two f16 numbers whose sum f16 does not have: the written sum is infinite, and the norm is of the sum before
// it is rounded.
TEST_P(HostCornersOfNorms, AWrittenSumMayOverflow) {
  std::vector<KernelCase> cases;
  for (const Norm norm : {Norm::layer, Norm::rms})
    for (const bool in_place : {false, true}) {
      cases.push_back(corner(GetParam(),
                             {.norm = norm,
                              .columns = 100,
                              .input = DType::f16,
                              .output = DType::f16,
                              .residual = Residual::before,
                              .sum = true,
                              .statistics = true},
                             2));
      cases.back().in_place = cases.back().sum_in_place = in_place;
    }
  const auto kernels = compile_batch(cases);
  ASSERT_TRUE(kernels) << kernels.error().message;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    oracle::Problem problem = make_problem(cases[i]).value();
    oracle::fill_random(problem[Operand::x], 1, {.stream = 1, .mean = 40'000, .deviation = 5000});
    oracle::fill_random(problem[Operand::residual], 1, {.stream = 2, .mean = 26'000, .deviation = 5000});
    for (const std::uint64_t schedule : kSchedules) {
      auto wrong = run_once(cases[i], problem, (*kernels)[i], schedule);
      if (!wrong) wrong = first_wrong(problem);
      EXPECT_FALSE(wrong) << to_text(cases[i]) << ": " << *wrong;
    }
    std::vector<double> sum(100);
    oracle::load(DType::f16, problem[Operand::sum].data(), 0, 100, sum.data());
    const auto infinite = std::count_if(sum.begin(), sum.end(), [](double v) { return std::isinf(v); });
    EXPECT_GT(infinite, 10);
    EXPECT_LT(infinite, 90);
  }
}

INSTANTIATE_TEST_SUITE_P(HostCorners, HostCornersOfNorms, ::testing::ValuesIn(kForwardStrategies),
                         [](const auto& info) { return std::string(normjit::name(info.param)); });

// ---- Scales of blocks, second results, the largest result ----

class HostCornersOfResults : public ::testing::TestWithParam<Strategy> {};
INSTANTIATE_TEST_SUITE_P(HostCorners, HostCornersOfResults,
                         ::testing::Values(Strategy::warp_rows, Strategy::block_row, Strategy::split_row,
                                           Strategy::generic),
                         [](const auto& info) { return std::string(normjit::name(info.param)); });

// Every block, format and layout that go together.
std::vector<NormSpec> kinds_of_blocks() {
  std::vector<NormSpec> all;
  for (const Quantization blocks :
       {Quantization::block_16, Quantization::block_32, Quantization::block_64, Quantization::block_128})
    for (const auto& format : kScaleFormats)
      for (const auto& layout : kScaleLayouts) {
        const NormSpec kind{.columns = 128,
                            .output = DType::e4m3,
                            .quantization = blocks,
                            .scale_format = format.value,
                            .scale_layout = layout.value};
        if (validate(kind)) all.push_back(kind);
      }
  return all;
}

// Of K blocks; lanes have four columns at a time.
KernelCase corner_of_blocks(Strategy strategy, NormSpec spec, int blocks, std::int64_t rows) {
  const int columns = block_columns(spec);
  spec.columns = std::int64_t{columns} * blocks;
  KernelCase c = corner(strategy, spec, 4, rows);
  if (strategy == Strategy::warp_rows) {
    c.plan.threads_per_row = std::max(8, columns / 4);
    c.plan.per_thread = static_cast<int>((spec.columns - 1) / (c.plan.threads_per_row * 4)) + 1;
  }
  return c;
}

// K that is a multiple of 4 and not, by each type of 8 and 4 bits.
TEST_P(HostCornersOfResults, EveryFormatAndLayoutOfBlocks) {
  std::vector<KernelCase> cases;
  for (const NormSpec& kind : kinds_of_blocks())
    for (const int blocks : {1, 4, 5}) {
      const std::size_t turn = cases.size();
      NormSpec spec = with_operation(kind, kOperations[turn % std::size(kOperations)]);
      spec.input = turn % 2 == 0 ? DType::bf16 : DType::f32;
      spec.weight = spec.residual_type = spec.modulation_type = spec.input;
      spec.output = std::vector{DType::e4m3, DType::e5m2, DType::s8}[turn % 3];
      if (block_columns(spec) <= 32 && turn % 2 == 0) spec.output = DType::e2m1;
      spec.affine = Affine::weight;
      if (turn % 4 == 0) spec.also = kAlsos[1 + turn / 4 % 3].value;
      cases.push_back(corner_of_blocks(GetParam(), spec, blocks, 5));
      cases.back().y_gap = 4;
      cases.back().seed = turn;
    }
  expect_right(cases);
}

// Tiles and words whose last rows are missing.
TEST_P(HostCornersOfResults, RowsOfPaddedScales) {
  std::vector<KernelCase> cases;
  for (NormSpec spec : kinds_of_blocks()) {
    if (spec.scale_layout == ScaleLayout::rows || block_columns(spec) > 32) continue;
    for (const std::int64_t rows : {0, 1, 3, 4, 128, 129})
      for (const int blocks : {3, 8}) {
        if (rows > 4 && spec.scale_layout != ScaleLayout::swizzled) continue;
        cases.push_back(corner_of_blocks(GetParam(), spec, blocks, rows));
        if (GetParam() == Strategy::generic) cases.back().y_shift = static_cast<int>(rows % 2);
      }
  }
  expect_right(cases);
}

// Vectors of one byte, of two and of four.
TEST_P(HostCornersOfResults, Of4Bits) {
  std::vector<KernelCase> cases;
  for (const int vector : {2, 4, 8})
    for (const DType input : {DType::bf16, DType::f32}) {
      if (vector * (input == DType::bf16 ? 2 : 4) > 16) continue;
      NormSpec spec{.columns = 16 * (vector + 3),
                    .input = input,
                    .output = DType::e2m1,
                    .affine = Affine::weight,
                    .quantization = Quantization::block_16,
                    .scale_format = ScaleFormat::e4m3,
                    .also = Also::bf16};
      KernelCase c = corner(GetParam(), spec, vector, 7);
      if (GetParam() == Strategy::warp_rows) {
        c.plan.threads_per_row = 8;
        c.plan.per_thread = static_cast<int>((spec.columns - 1) / (8 * vector)) + 1;
      }
      c.y_gap = vector;
      cases.push_back(c);
    }
  expect_right(cases);
}

// A block of zeros, one with a NaN and one with an infinity, in rows whose other blocks have neither.
TEST_P(HostCornersOfResults, BlocksOfZerosNanAndInfinity) {
  std::vector<KernelCase> cases;
  for (NormSpec spec : kinds_of_blocks()) {
    if (spec.scale_layout > ScaleLayout::columns) continue;
    spec.norm = Norm::rms;
    spec.residual = Residual::after;
    cases.push_back(corner_of_blocks(GetParam(), spec, 5, 3));
    for (const DType output : {DType::e5m2, DType::s8, DType::e2m1}) {
      if (output == DType::e2m1 && block_columns(spec) > 32) continue;
      cases.push_back(cases.back());
      cases.back().spec.output = output;
    }
  }
  const auto kernels = compile_batch(cases);
  ASSERT_TRUE(kernels) << kernels.error().message;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    oracle::Problem problem = make_problem(cases[i]).value();
    const int block = block_columns(cases[i].spec);
    const std::vector<double> zeros(static_cast<std::size_t>(block));
    for (const Operand operand : {Operand::x, Operand::residual})
      oracle::store(DType::f32, problem.row(operand, 1), block, block, zeros.data());
    oracle::store(DType::f32, problem.row(Operand::residual, 1), 2 * block + 3, 1, &kNan);
    oracle::store(DType::f32, problem.row(Operand::residual, 1), 4 * block + 7, 1, &kInfinity);
    for (const std::uint64_t schedule : kSchedules) {
      auto wrong = run_once(cases[i], problem, (*kernels)[i], schedule);
      if (!wrong) wrong = first_wrong(problem);
      EXPECT_FALSE(wrong) << to_text(cases[i]) << ": " << *wrong;
    }
  }
}

// Beside each kind of scale, and of each type; rows of it lie otherwise than those of y.
TEST_P(HostCornersOfResults, SecondResults) {
  std::vector<KernelCase> cases;
  for (const auto& also : kAlsos)
    for (const Quantized& quantized : kQuantized)
      for (const NormSpec& operation : {kOperations[0], kOperations[4], kOperations[5]}) {
        if (also.value == Also::none || quantized.quantization == Quantization::none) continue;
        if (GetParam() == Strategy::split_row && quantized.quantization == Quantization::row) continue;
        const std::size_t turn = cases.size();
        NormSpec spec = with_operation(
            with_quantization({.columns = 100, .affine = Affine::weight_bias}, quantized), operation);
        spec.input = spec.weight = spec.residual_type = turn % 2 == 0 ? DType::f32 : DType::f16;
        spec.also = also.value;
        spec.amax = spec.quantization == Quantization::tensor && turn % 3 == 0;
        if (turn % 2 == 1) spec.rounding = Rounding::y;
        cases.push_back(corner(GetParam(), spec, 2, 5));
        cases.back().y_gap = 2 * static_cast<std::int64_t>(turn % 3);
        cases.back().seed = turn;
      }
  expect_right(cases);
}

// Of zeros it is 0, and NaN of a NaN; launches follow each other on one workspace.
TEST_P(HostCornersOfResults, LargestResults) {
  std::vector<KernelCase> cases;
  for (const DType output : {DType::f16, DType::bf16, DType::f32})
    for (const InputKind inputs : {InputKind::unit, InputKind::constant_rows, InputKind::nan_row,
                                   InputKind::inf_row, InputKind::extreme_affine})
      for (const std::int64_t rows : {0, 1, 5, 40}) {
        NormSpec spec{.columns = 100, .input = DType::f32, .output = output, .amax = true};
        if (inputs != InputKind::constant_rows) spec.affine = Affine::weight_bias;
        cases.push_back(corner(GetParam(), spec, 2, rows));
        cases.back().inputs = inputs;
        cases.back().runs = 2;
        cases.back().seed = cases.size();
      }
  expect_right(cases);
}

// Bounds below and above the largest results, which are 3 or so.
TEST_P(HostCornersOfResults, BoundedRows) {
  std::vector<KernelCase> cases;
  for (const InputKind inputs : {InputKind::unit, InputKind::constant_rows, InputKind::nan_row,
                                 InputKind::inf_row, InputKind::extreme_affine})
    for (const Also also : {Also::none, Also::f32}) {
      NormSpec spec{.columns = 100,
                    .input = DType::f32,
                    .output = DType::e4m3,
                    .affine = Affine::weight,
                    .quantization = Quantization::row,
                    .upper_bound = true,
                    .also = also};
      cases.push_back(corner(GetParam(), spec, 2, 11));
      cases.back().inputs = inputs;
    }
  expect_right(cases);
}

// In clusters and over the grid, whose slices begin with a block.
TEST(HostCornersOfSharedResults, BlocksShareThem) {
  std::vector<KernelCase> cases;
  for (const Exchange exchange : {Exchange::cluster, Exchange::grid})
    for (const int blocks : {2, 4})
      for (const int missing : {0, 32, 128}) {
        NormSpec with_blocks{.columns = 128 * blocks - missing,
                             .output = DType::e4m3,
                             .quantization = Quantization::block_32,
                             .scale_format = ScaleFormat::e8m0,
                             .scale_layout = kScaleLayouts[cases.size() % 4].value,
                             .also = Also::bf16};
        NormSpec with_amax{.columns = 128 * blocks - missing, .output = DType::bf16, .amax = true};
        NormSpec with_bound{.columns = 128 * blocks - missing,
                            .output = DType::e4m3,
                            .quantization = Quantization::row,
                            .upper_bound = true,
                            .also = Also::f32};
        NormSpec in_4_bits = with_blocks;
        in_4_bits.output = DType::e2m1;
        for (const NormSpec& spec : {with_blocks, in_4_bits, with_amax, with_bound}) {
          KernelCase c = shared_by_all({exchange, blocks}, spec, 7);
          if (spec.output == DType::e2m1) c.plan.vector = 2, c.plan.per_thread = 1;
          c.runs = 2;
          c.inputs = cases.size() % 4 == 0 ? InputKind::nan_row : InputKind::mixed;
          cases.push_back(c);
        }
      }
  expect_right(cases);
}

// Long rows, as users get them: in one block, in clusters and over the grid.
TEST(HostCornersOfLongNorms, LongRows) {
  std::vector<KernelCase> cases;
  std::set<Exchange> exchanges;
  for (const NormSpec& operation : {kOperations[0], kOperations[4]})
    for (const DType dtype : {DType::bf16, DType::f64})
      for (const int arch : {75, 90})
        for (const RowsRegime regime : {RowsRegime::lone, RowsRegime::many})
          for (const std::int64_t columns : {16'383, 16'384}) {
            KernelCase c;
            c.spec = canonical(with_operation({.columns = columns,
                                               .input = dtype,
                                               .output = dtype,
                                               .weight = dtype,
                                               .affine = Affine::weight,
                                               .statistics = true},
                                              operation));
            c.device = *DeviceProfile::of({.number = arch});
            c.plan = choose(c.spec, c.device, regime, Alignment::eight);
            c.rows = 2;
            c.blocks = c.plan.blocks_per_row;
            c.sum_in_place = has_sum_for_residual(c.spec) && regime == RowsRegime::lone;
            c.inputs = regime == RowsRegime::lone ? InputKind::large_mean : InputKind::unit;
            exchanges.insert(c.plan.exchange);
            cases.push_back(c);
          }
  EXPECT_EQ(exchanges.size(), 3u);
  expect_right(cases);
}

// The last slice empty, with one column, whole; rows that are fewer and more than teams; in place; again with
// the same workspace; a NaN.
TEST(HostCornersOfSharedRows, OfOtherNorms) {
  std::vector<KernelCase> cases;
  for (const NormSpec& operation : kOperations)
    for (const Sharing& sharing : kSharings) {
      const std::int64_t whole = sharing.blocks_per_row * kSpanOfSlice, front = whole - kSpanOfSlice;
      const std::int64_t teams = 10 / sharing.blocks_per_row;
      for (const std::int64_t columns : {std::int64_t{1}, front, front + 1, whole - 5, whole})
        for (const std::int64_t rows : {std::int64_t{1}, teams + 1, 3 * teams + 1}) {
          KernelCase c = shared(
              sharing,
              with_operation({.columns = columns, .affine = Affine::weight, .statistics = true}, operation),
              rows);
          c.in_place = columns == front + 1;
          c.sum_in_place = has_sum_for_residual(c.spec) && columns != front;
          c.overlaps = rows == teams + 1;
          c.inputs = columns == front       ? InputKind::nan_row
                     : columns == whole - 5 ? InputKind::large_mean
                                            : InputKind::unit;
          c.seed = static_cast<std::uint64_t>(rows);
          c.runs = 2;
          cases.push_back(c);
        }
    }
  expect_right(cases);
}

// ---- Persistent rows ----

constexpr int kChunk = 1024;  // columns of f32 with one vector a thread

KernelCase streamed(std::int64_t columns, int slices, int stages, std::int64_t rows) {
  KernelCase c = corner(Strategy::persistent_row,
                        {.columns = 1, .affine = Affine::weight_bias, .statistics = true}, 4, rows);
  c.spec.columns = columns;
  c.device.sm_count = 6;
  c.plan.blocks_per_row = slices;
  c.plan.exchange = slices > 1 ? Exchange::grid : Exchange::none;
  c.plan.stages = stages;
  return c;
}

// Slices of one chunk and of as many as the ring has room for, of different numbers of chunks, with a last
// chunk that is whole, nearly so, or one vector.
TEST(HostCornersOfPersistentRows, Chunks) {
  std::vector<KernelCase> cases;
  for (const int slices : {1, 2, 3})
    for (const int chunks : {1, 3, 5, 6})
      for (const int missing : {0, 4, kChunk - 4})
        for (const int more : {0, 3}) {
          if (chunks < slices || (more == 3 && missing == 4)) continue;
          const int own = (chunks + slices - 1) / slices;
          KernelCase c = streamed(chunks * kChunk - missing, slices, std::max(2, own + more), 3);
          c.inputs = missing == 4 ? InputKind::large_mean : InputKind::unit;
          c.in_place = more == 3;
          cases.push_back(c);
        }
  expect_right(cases);
}

// The ring and the places of the rows go round many times; teams have different numbers of rows.
TEST(HostCornersOfPersistentRows, ManyRows) {
  std::vector<KernelCase> cases;
  for (const int slices : {1, 2, 3}) {
    const int teams = 6 / slices;
    for (const int rows : {1, teams - 1, teams + 1, 9 * teams + 1}) {
      if (rows == 0) continue;
      KernelCase c = streamed(3 * kChunk - 4, slices, 4, rows);
      c.x_gap = 4;
      c.runs = 2;
      cases.push_back(c);
    }
  }
  cases.push_back(streamed(1020, 1, 2, 40));
  cases.back().device.sm_count = 1;
  expect_right(cases);
}

TEST(HostCornersOfPersistentRows, NanAndInfinityStayInTheirRow) {
  std::vector<KernelCase> cases;
  for (const int slices : {1, 3})
    for (const InputKind inputs : {InputKind::nan_row, InputKind::inf_row})
      for (const std::uint64_t seed : {0, 7, 1001}) {
        KernelCase c = streamed(4 * kChunk - 12, slices, 5, 11);
        c.inputs = inputs;
        c.seed = seed;
        cases.push_back(c);
      }
  expect_right(cases);
}

// Rows that begin anywhere: all places between two aligned vectors, of x and y alike or not; the row ends
// right at, before and behind a chunk's end, so that an element that shares its vector with the next row is
// the last of a chunk, or its only one.
TEST(HostCornersOfPersistentRows, BeginAnywhere) {
  std::vector<KernelCase> cases;
  for (const DType dtype : {DType::f16, DType::f32, DType::f64}) {
    const int vector = 16 / size_of(dtype), chunk = 256 * vector;
    for (const int slices : {1, 2})
      for (const int chunks : {1, 2, 3})
        for (const int more : {-vector - 1, -1, 0, 1, vector - 1}) {
          const int all = (chunks * chunk + more - 1) / chunk + 1;
          if (all < slices) continue;
          KernelCase c =
              streamed(chunks * chunk + more, slices, std::max(2, (all + slices - 1) / slices + 1), 5);
          c.spec.input = c.spec.output = c.spec.weight = dtype;
          c.spec = canonical(c.spec);
          c.plan.vector = vector;
          c.plan.unaligned = true;
          c.x_gap = more & 1;  // each row begins elsewhere, or all at one place
          c.x_shift = (chunks + 1) % vector;
          c.y_shift = more < 0 ? c.x_shift : vector - 1;
          c.weight_shift = 1;
          c.in_place = chunks == 2;
          if (c.in_place) c.y_gap = 0;
          c.guard = more % 2 == 0 ? Guard::before : Guard::behind;
          cases.push_back(c);
        }
  }
  expect_right(cases);
}

// Rows of `chunks` chunks but for the last `missing` vectors, with a residual. The dtypes, the norm and the
// rounding are those of `operation`.
KernelCase streamed_sum(const NormSpec& operation, int chunks, int missing, int slices, int stages,
                        std::int64_t rows, int per_thread = 1) {
  KernelCase c = streamed(1, slices, stages, rows);
  c.spec = operation;
  c.spec.residual = Residual::before;
  c.spec.statistics = true;
  c.plan.vector = 16 / size_of(operation.input);
  c.plan.per_thread = per_thread;
  c.spec.columns = (chunks * 256 * per_thread - missing) * c.plan.vector;
  c.spec = canonical(c.spec);
  return c;
}

// Sums that stay in the ring, in the place of x: of all types of x and of residuals that are no larger.
constexpr NormSpec kKeptSums[] = {
    {.affine = Affine::weight_bias},
    {.norm = Norm::rms, .residual_type = DType::f16, .sum = true},
    {.norm = Norm::rms,
     .input = DType::bf16,
     .weight = DType::f32,
     .residual_type = DType::bf16,
     .sum = true,
     .rounding = Rounding::sum,
     .affine = Affine::weight},
    {.input = DType::bf16, .residual_type = DType::f16, .rounding = Rounding::sum},
    {.input = DType::f64, .residual_type = DType::f32, .sum = true},
};

// Slices of one chunk and of as many as the ring has room for; the ring of residuals as long as the other
// one, and shorter; a last chunk that is whole, nearly so, or two vectors; in place.
TEST(HostCornersOfPersistentRows, KeptSums) {
  std::vector<KernelCase> cases;
  for (const NormSpec& operation : kKeptSums)
    for (const int slices : {1, 2, 3})
      for (const int chunks : {1, 3, 5})
        for (const int more : {0, 1, 5}) {
          if (chunks < slices) continue;
          const int own = (chunks + slices - 1) / slices, per_thread = more == 5 ? 2 : 1;
          const int missing = more == 1 ? 2 : more == 5 ? 0 : 254;
          KernelCase c =
              streamed_sum(operation, chunks, missing, slices, std::max(2, own + more), 9, per_thread);
          c.inputs = more == 1 ? InputKind::large_mean : InputKind::unit;
          c.in_place = more != 0 && c.spec.output == c.spec.input;
          c.sum_in_place = more != 1 && c.spec.sum;
          c.overlaps = more == 5;
          c.runs = more == 0 ? 2 : 1;
          cases.push_back(c);
        }
  expect_right(cases);
}

// Both rings go round many times; teams have different numbers of rows.
TEST(HostCornersOfPersistentRows, KeptSumsOfManyRows) {
  std::vector<KernelCase> cases;
  for (const NormSpec& operation : kKeptSums)
    for (const int slices : {1, 2, 3}) {
      const int teams = 6 / slices;
      for (const int rows : {1, teams + 1, 9 * teams + 1}) {
        KernelCase c = streamed_sum(operation, 3, 2, slices, 4, rows);
        c.x_gap = 2 * c.plan.vector;
        c.residual_gap = 4 * c.plan.vector;
        cases.push_back(c);
        c.plan.stages = 9;
        c.plan.per_thread = 4;
        if (slices == 1 && legal(c)) cases.push_back(c);
      }
    }
  cases.push_back(streamed_sum(kKeptSums[0], 1, 1, 1, 2, 40));
  cases.back().device.sm_count = 1;
  expect_right(cases);
}

TEST(HostCornersOfPersistentRows, NanInKeptSumsStaysInItsRow) {
  std::vector<KernelCase> cases;
  for (const NormSpec& operation : kKeptSums)
    for (const int slices : {1, 3})
      for (const InputKind inputs : {InputKind::nan_row, InputKind::inf_row}) {
        KernelCase c = streamed_sum(operation, 4, 6, slices, 5, 11);
        c.inputs = inputs;
        c.seed = slices;
        cases.push_back(c);
      }
  expect_right(cases);
}

// Beside sums that are kept: those that are larger than x, and residuals that are added to the result.
TEST(HostCornersOfPersistentRows, SumsThatAreNotKept) {
  std::vector<KernelCase> cases;
  const NormSpec halves{.input = DType::bf16, .residual_type = DType::bf16, .sum = true};
  for (const int slices : {1, 2})
    for (const int missing : {0, 2, 254}) {
      cases.push_back(streamed_sum(halves, 3, missing, slices, 4, 11));
      cases.push_back(streamed_sum({}, 3, missing, slices, 4, 11));
      cases.back().spec.residual = Residual::after;
    }
  expect_right(cases);
}

// Parameters that lie behind the ring of unaligned rows, none, one or two; rows of one chunk that are measured
// at once, and in parts.
TEST(HostCornersOfPersistentRows, ParametersOfUnalignedRows) {
  std::vector<KernelCase> cases;
  for (const Affine affine : {Affine::none, Affine::weight, Affine::weight_bias})
    for (const int per_thread : {1, 4})
      for (const int slices : {1, 3})
        for (const int columns : {2049, 8191, 40'001}) {
          KernelCase c = streamed(columns, slices, 0, 4);
          c.spec.input = c.spec.output = DType::bf16;
          c.spec.affine = affine;
          c.spec = canonical(c.spec);
          c.plan.vector = 8;
          c.plan.per_thread = per_thread;
          c.plan.unaligned = true;
          const int chunks = (columns - 1) / (2048 * per_thread) + 1;
          if (chunks < slices) continue;
          // All of a slice in the ring, or what the parameters behind it leave room for.
          c.plan.stages = std::max(2, (chunks + slices - 1) / slices);
          while (c.plan.stages > 2 && !legal(c)) --c.plan.stages;
          if (!legal(c)) continue;  // one block has no room for two parameters of 40,001 columns
          c.inputs = columns == 8191 ? InputKind::large_mean : InputKind::unit;
          c.x_shift = 3;
          c.y_shift = 5;
          cases.push_back(c);
        }
  expect_right(cases);
}

// Weights that the appliers hold, hold half of, and read anew for every row.
TEST(HostCornersOfPersistentRows, WeightsThatAreNotHeld) {
  std::vector<KernelCase> cases;
  for (const DType weight : {DType::f16, DType::f32, DType::f64})
    for (const int chunks : {8, 17}) {
      KernelCase c = streamed(chunks * kChunk - 8, 1, chunks + 1, 3);
      c.spec.weight = weight;
      c.plan.per_thread = 1;
      c.weight_shift = 4;
      c.bias_shift = 8;
      cases.push_back(c);
      c.device.sm_count = 1;
      c.plan.per_thread = 2;
      cases.push_back(c);
    }
  expect_right(cases);
}

// ---- Rows that begin anywhere ----

KernelCase unaligned(Plan plan, const NormSpec& spec, std::int64_t rows) {
  KernelCase c = corner(plan.strategy, spec, 1, rows);
  plan.unaligned = plan.strategy != Strategy::staged_rows;  // which are so anyway
  c.plan = plan;
  return c;
}

// Accesses of 16 bytes.
std::vector<Plan> unaligned_plans(const NormSpec& spec) {
  const int vector = 16 / std::max(size_of(spec.input), size_of(spec.output));
  const auto each = [&](int lanes) {
    return std::max(1, static_cast<int>((spec.columns + lanes * vector - 1) / (lanes * vector)));
  };
  return {
      {.strategy = Strategy::staged_rows,
       .threads = 64,
       .threads_per_row = 4,
       .vector = 1,
       .per_thread = each(4) * vector,
       .group_rows = 2},
      {.strategy = Strategy::block_row,
       .threads = 32,
       .threads_per_row = 32,
       .vector = vector,
       .per_thread = each(32)},
      {.strategy = Strategy::block_row,
       .threads = 32,
       .threads_per_row = 32,
       .vector = vector,
       .per_thread = each(64),
       .blocks_per_row = 2,
       .exchange = Exchange::cluster},
      {.strategy = Strategy::block_row,
       .threads = 32,
       .threads_per_row = 32,
       .vector = vector,
       .per_thread = each(96),
       .blocks_per_row = 3,
       .exchange = Exchange::grid},
      {.strategy = Strategy::split_row,
       .threads = 32,
       .threads_per_row = 32,
       .vector = vector,
       .per_thread = 1,
       .group_rows = 2},
  };
}

// Every place of x against every place of y; rows of odd pitch, so that all rows begin elsewhere.
TEST(HostCornersOfUnalignedRows, EveryPlaceOfXAndY) {
  std::vector<KernelCase> cases;
  for (const DType dtype : {DType::f16, DType::f32, DType::f64}) {
    const NormSpec spec{.columns = 101, .input = dtype, .affine = Affine::weight_bias, .statistics = true};
    const int vector = 16 / size_of(dtype);
    for (const Plan& plan : unaligned_plans(canonical(spec)))
      for (int x = 0; x < vector; ++x)
        for (int y = 0; y < vector; ++y) {
          KernelCase c = unaligned(plan, spec, 3);
          c.guard = Guard::before;
          c.x_shift = x;
          c.y_shift = y;
          c.weight_shift = (x + y) % 2;
          c.bias_shift = x % 2;
          cases.push_back(c);
        }
  }
  expect_right(cases);
}

// From no whole vector to some more than the lanes hold.
TEST(HostCornersOfUnalignedRows, Widths) {
  std::vector<KernelCase> cases;
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const std::int64_t columns : {1, 3, 7, 8, 9, 17, 129, 257})
      for (const int shift : {0, 1, 3}) {
        const NormSpec spec{.columns = columns, .input = dtype, .affine = Affine::weight};
        for (const Plan& plan : unaligned_plans(canonical(spec))) {
          KernelCase c = unaligned(plan, spec, 5);
          c.x_shift = c.weight_shift = shift;
          c.y_shift = 1;
          c.x_gap = shift;
          c.guard = shift == 1 ? Guard::before : Guard::behind;
          cases.push_back(c);
        }
      }
  expect_right(cases);
}

// All rows of x one, rows that overlap, in place, mixed dtypes.
TEST(HostCornersOfUnalignedRows, Distances) {
  std::vector<KernelCase> cases;
  for (const DType output : {DType::f16, DType::f32})
    for (const std::int64_t gap : {-77, -76, -3, 0, 1, 6}) {
      const NormSpec spec{.columns = 77,
                          .input = DType::f16,
                          .output = output,
                          .weight = DType::f32,
                          .affine = Affine::weight_bias};
      for (const Plan& plan : unaligned_plans(canonical(spec))) {
        KernelCase c = unaligned(plan, spec, 13);
        c.x_gap = gap;
        c.y_gap = 3;
        c.in_place = gap >= 0 && output == DType::f16;
        if (c.in_place) c.y_gap = 0;
        c.overlaps = gap == 1;
        c.runs = 2;
        cases.push_back(c);
      }
    }
  expect_right(cases);
}

// A row whose sum of squares has single elements at both ends.
TEST(HostCornersOfUnalignedRows, OfRms) {
  std::vector<KernelCase> cases;
  for (const DType dtype : {DType::f16, DType::f32, DType::f64})
    for (const std::int64_t columns : {1, 7, 101, 257}) {
      const NormSpec spec{.norm = Norm::rms,
                          .columns = columns,
                          .input = dtype,
                          .output = dtype,
                          .weight = dtype,
                          .affine = Affine::weight,
                          .statistics = true};
      for (const Plan& plan : unaligned_plans(canonical(spec)))
        for (const int x : {0, 1})
          for (const int y : {0, 1}) {
            KernelCase c = unaligned(plan, spec, 3);
            c.guard = Guard::before;
            c.x_shift = x;
            c.y_shift = y;
            c.x_gap = x;
            if (legal(c)) cases.push_back(c);
          }
    }
  EXPECT_GT(cases.size(), 100u);
  expect_right(cases);
}

// Of several warps: a block, a cluster, and chunks.
std::vector<Plan> plans_of_warps(std::int64_t columns, int vector) {
  const auto vectors = static_cast<int>((columns + vector - 1) / vector);
  const Plan block{.strategy = Strategy::block_row,
                   .threads = 128,
                   .threads_per_row = 128,
                   .vector = vector,
                   .per_thread = (vectors + 127) / 128};
  Plan cluster = block;
  cluster.threads = cluster.threads_per_row = 64;
  cluster.blocks_per_row = 2;
  cluster.exchange = Exchange::cluster;
  const Plan split{.strategy = Strategy::split_row,
                   .threads = 64,
                   .threads_per_row = 64,
                   .vector = vector,
                   .per_thread = 1,
                   .group_rows = 4};
  return {block, cluster, split};
}

// The single elements in each warp of a block; parameters of all rows, or of each its own; results of 8 bits.
TEST(HostCornersOfUnalignedRows, WarpsAndParameters) {
  const NormSpec specs[] = {
      {.input = DType::bf16, .weight = DType::bf16, .affine = Affine::weight_bias},
      {.input = DType::f16, .weight = DType::f16, .affine = Affine::weight_bias, .affine_rows = true},
      {.norm = Norm::rms, .input = DType::f32, .affine = Affine::weight, .affine_rows = true},
      {.input = DType::bf16,
       .output = DType::e4m3,
       .affine = Affine::weight_bias,
       .quantization = Quantization::tensor},
      {.norm = Norm::rms,
       .input = DType::f32,
       .output = DType::s8,
       .affine = Affine::weight,
       .quantization = Quantization::tensor}};
  std::vector<KernelCase> cases;
  for (const std::int64_t columns : {129, 300, 515, 777, 1023})
    for (NormSpec spec : specs) {
      spec.columns = columns;
      if (spec.quantization == Quantization::none) spec.output = spec.input;
      for (const Plan& plan : plans_of_warps(columns, 16 / size_of(spec.input)))
        for (const int gap : {0, 1, 3}) {
          KernelCase c = unaligned(plan, spec, 7);
          c.x_gap = c.y_gap = gap;
          c.x_shift = 1;
          c.y_shift = gap == 3 ? 2 : 1;
          c.blocks = 2;
          cases.push_back(c);
        }
    }
  expect_right(cases);
}

// Other operands of a row are cut where x is, or elsewhere; what is found of the results has its part of the
// single elements.
TEST(HostCornersOfUnalignedRows, OtherOperands) {
  const NormSpec specs[] = {
      {.input = DType::bf16, .residual = Residual::before, .sum = true, .affine = Affine::weight_bias},
      {.norm = Norm::rms, .input = DType::f32, .residual = Residual::before, .sum = true},
      {.input = DType::f16, .residual_type = DType::f32, .residual = Residual::after},
      {.norm = Norm::rms,
       .input = DType::bf16,
       .gate = Gate::before,
       .gate_function = GateFunction::silu,
       .residual = Residual::before,
       .affine = Affine::weight},
      {.input = DType::f32, .gate = Gate::after, .modulation = Modulation::scale_shift},
      {.input = DType::bf16,
       .modulation_type = DType::f32,
       .affine = Affine::weight_bias,
       .modulation = Modulation::scale},
      {.input = DType::f32,
       .output = DType::e4m3,
       .residual = Residual::before,
       .sum = true,
       .affine = Affine::weight_bias,
       .quantization = Quantization::row},
      {.norm = Norm::rms,
       .input = DType::bf16,
       .output = DType::s8,
       .quantization = Quantization::tensor,
       .also = Also::bf16,
       .amax = true}};
  std::vector<KernelCase> cases;
  for (const std::int64_t columns : {129, 300, 777})
    for (NormSpec spec : specs) {
      spec.columns = columns;
      for (const Plan& plan : plans_of_warps(columns, 16 / widest_element(canonical(spec))))
        for (const int gap : {0, 1, 3}) {
          KernelCase c = unaligned(plan, spec, 7);
          c.x_gap = c.y_gap = gap;
          const int elsewhere = gap == 3 ? 1 : gap;
          if (spec.residual != Residual::none) c.residual_gap = elsewhere;
          if (spec.sum && gap > 0) c.sum_gap = elsewhere;
          if (spec.gate != Gate::none) c.gate_gap = elsewhere;
          if (spec.modulation != Modulation::none) c.scale_gap = elsewhere;
          if (spec.modulation == Modulation::scale_shift) c.shift_gap = elsewhere;
          c.x_shift = 1;
          c.y_shift = gap == 3 ? 2 : 1;
          c.blocks = 2;
          c.sum_in_place = spec.sum && gap == 0;
          c.runs = 2;
          if (legal(c)) cases.push_back(c);
        }
    }
  EXPECT_GT(cases.size(), 150u);
  expect_right(cases);
}

// ---- Gradients ----

class HostCornersOfGradients : public ::testing::TestWithParam<Strategy> {
 protected:
  // Rows begin at a multiple of so many elements, where vectors have two.
  static int unit(const NormSpec& spec) {
    return GetParam() == Strategy::gradient_ring ? bulk_elements(spec) : 2;
  }
};

// With the sums over rows added by all blocks, or otherwise.
KernelCase gradient(Strategy strategy, NormSpec spec, int vector = 1, std::int64_t rows = 5,
                    Exchange exchange = Exchange::grid) {
  spec.backward = true;
  KernelCase c = corner(strategy, spec, vector, rows);
  const bool adds = sums_over_rows(c.spec) > 0 || strategy == Strategy::gradient_columns;
  c.plan.exchange = adds && strategy != Strategy::generic ? exchange : Exchange::none;
  return c;
}
constexpr Exchange kBoth[] = {Exchange::grid, Exchange::none};

// A row for a block of several warps.
KernelCase gradient_in_blocks(const NormSpec& spec, int threads, int vector, std::int64_t rows,
                              Exchange exchange = Exchange::grid) {
  KernelCase c = gradient(Strategy::gradient_rows, spec, vector, rows, exchange);
  c.plan.threads = c.plan.threads_per_row = threads;
  c.plan.per_thread = static_cast<int>((c.spec.columns - 1) / (threads * vector)) + 1;
  return c;
}

// One column, whose dx is 0, to a column more than lanes, warps and chunks end with.
TEST_P(HostCornersOfGradients, Widths) {
  std::vector<KernelCase> cases;
  for (const std::int64_t columns : {1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 193})
    for (const Norm norm : {Norm::layer, Norm::rms})
      cases.push_back(gradient(GetParam(),
                               {.norm = norm,
                                .columns = columns,
                                .dsum = columns % 2 == 0,
                                .affine = norm == Norm::layer ? Affine::weight_bias : Affine::weight,
                                .weight_offset = columns % 3 == 0},
                               1, 5, kBoth[columns % 2]));
  expect_right(cases);
}

TEST_P(HostCornersOfGradients, VectorBoundaries) {
  std::vector<KernelCase> cases;
  for (const DType dtype : {DType::f16, DType::f32, DType::f64})
    for (const int vector : {2, 4, 8})
      for (const int vectors : {1, 31, 32, 33}) {
        KernelCase c = gradient(GetParam(),
                                {.columns = vector * vectors,
                                 .input = dtype,
                                 .dsum = vectors > 31,
                                 .affine = Affine::weight_bias},
                                vector, 5, kBoth[vectors % 2]);
        c.guard = vectors % 2 == 0 ? Guard::before : Guard::behind;
        if (legal(c)) cases.push_back(c);
      }
  EXPECT_GT(cases.size(), 20u);
  expect_right(cases);
}

// One row, fewer rows than blocks, one more than the blocks hold at once, several batches of which the last
// is short; by one block and by as many as there are.
TEST_P(HostCornersOfGradients, EveryFewRows) {
  std::vector<KernelCase> cases;
  for (const Activation activation : {Activation::none, Activation::silu})
    for (std::int64_t rows = 1; rows <= 50; ++rows)
      for (const std::int64_t blocks : {0, 1}) {
        KernelCase c =
            gradient(GetParam(), {.columns = 70, .affine = Affine::weight_bias, .activation = activation}, 2,
                     rows, kBoth[rows / 2 % 2]);
        c.blocks = blocks;
        c.runs = 2;
        if (legal(c)) cases.push_back(c);
      }
  EXPECT_GT(cases.size(), 160u);
  expect_right(cases);
}

TEST_P(HostCornersOfGradients, Activations) {
  std::vector<KernelCase> cases;
  for (const auto& activation : kActivations)
    for (const DType dtype : kDTypes)
      for (const Affine affine : {Affine::none, Affine::weight, Affine::weight_bias})
        for (const double scale : {1.0, -0.5}) {
          const std::size_t turn = cases.size();
          cases.push_back(gradient(GetParam(),
                                   {.norm = turn % 4 == 0 ? Norm::rms : Norm::layer,
                                    .columns = turn % 3 == 0 ? 256 : 70,
                                    .input = dtype,
                                    .dsum = turn % 5 == 0,
                                    .affine = affine,
                                    .activation = activation,
                                    .scale = scale},
                                   2, 7, kBoth[turn % 2]));
          cases.back().inputs = turn % 7 == 0 ? InputKind::large_mean : InputKind::unit;
        }
  expect_right(cases);
}

// Behind huge and infinite biases, some of them with a weight of 0: the last of the short row.
TEST_P(HostCornersOfGradients, FlatActivations) {
  std::vector<KernelCase> cases;
  for (const auto& activation : kActivations)
    for (const DType dtype : kDTypes)
      for (const std::int64_t columns : {7, 96}) {
        cases.push_back(gradient(
            GetParam(),
            {.columns = columns, .input = dtype, .affine = Affine::weight_bias, .activation = activation}, 1,
            5, kBoth[cases.size() / 2 % 2]));
        cases.back().inputs = InputKind::extreme_affine;
        cases.back().seed = columns == 7 ? 25 : 0;
      }
  expect_right(cases);
}

// Every need of every affine, with an activation and without.
TEST_P(HostCornersOfGradients, Needs) {
  std::vector<KernelCase> cases;
  for (const auto& need : kNeeds)
    for (const Affine affine : {Affine::weight, Affine::weight_bias})
      for (const Activation activation : {Activation::none, Activation::gelu}) {
        const std::size_t turn = cases.size();
        const NormSpec spec = canonical({.norm = turn % 3 == 0 ? Norm::rms : Norm::layer,
                                         .backward = true,
                                         .columns = turn % 4 == 0 ? 256 : 70,
                                         .input = turn % 5 == 0 ? DType::bf16 : DType::f32,
                                         .affine = affine,
                                         .activation = activation,
                                         .need = need.value});
        if (!validate(spec)) continue;
        cases.push_back(gradient(GetParam(), spec, 2, 7, kBoth[turn / 3 % 2]));
        cases.back().inputs = turn % 5 == 1 ? InputKind::large_mean : InputKind::unit;
        cases.back().runs = 2;
      }
  EXPECT_GT(cases.size(), 24u);
  expect_right(cases);
}

// Statistics that the launch has: of large means, too, and of a row that is not finite.
TEST_P(HostCornersOfGradients, GivenStatistics) {
  std::vector<KernelCase> cases;
  for (const Norm norm : {Norm::layer, Norm::rms})
    for (const auto& activation : kActivations)
      for (const bool more : {false, true}) {
        const std::size_t turn = cases.size();
        const bool gated = more && turn % 3 == 0;
        const NormSpec spec = canonical({.norm = norm,
                                         .backward = true,
                                         .columns = turn % 4 == 1   ? 256
                                                    : turn % 9 == 7 ? 1
                                                                    : 70,
                                         .input = kDTypes[turn / 2 % 4],
                                         .gate = !gated                           ? Gate::none
                                                 : activation == Activation::none ? Gate::after
                                                                                  : Gate::before,
                                         .gate_function = GateFunction::silu,
                                         .dsum = turn % 2 == 0 && turn % 6 != 4,
                                         .affine = kAffines[turn % 3].value,
                                         .activation = activation,
                                         .statistics = true,
                                         .need = turn % 6 == 4 ? Need::dweight : Need::all});
        KernelCase c = gradient(GetParam(), spec, spec.columns == 1 ? 1 : 2, 7, kBoth[turn % 2]);
        c.inputs = turn % 5 == 1   ? InputKind::large_mean
                   : turn % 5 == 3 ? InputKind::nan_row
                                   : InputKind::unit;
        c.guard = turn / 2 % 2 == 0 ? Guard::before : Guard::behind;
        c.runs = 2;
        cases.push_back(c);
      }
  expect_right(cases);
}

// Before and behind the norm, of every function, with rows at distances of their own, and dgate over the
// gate.
TEST_P(HostCornersOfGradients, Gates) {
  std::vector<KernelCase> cases;
  for (const Gate gate : {Gate::before, Gate::after})
    for (const auto& function : kGateFunctions)
      for (const DType dtype : kDTypes) {
        const std::size_t turn = cases.size();
        const bool activates = gate == Gate::before && turn % 5 == 0;
        const NormSpec spec = canonical({.norm = turn % 3 == 0 ? Norm::rms : Norm::layer,
                                         .backward = true,
                                         .columns = turn % 4 == 1   ? 256
                                                    : turn % 8 == 7 ? 1
                                                                    : 70,
                                         .input = dtype,
                                         .output = turn % 3 == 1 ? kDTypes[turn / 2 % 4] : dtype,
                                         .modulation_type = turn % 3 == 2 ? kDTypes[turn / 3 % 4] : dtype,
                                         .gate = gate,
                                         .gate_function = function.value,
                                         .dsum = turn % 2 == 0,
                                         .affine = kAffines[turn / 2 % 3].value,
                                         .activation = activates ? Activation::silu : Activation::none,
                                         .scale = turn % 4 == 0 ? -0.5 : 1.0,
                                         .need = turn % 7 == 0 ? Need::dx : Need::all});
        KernelCase c = gradient(GetParam(), spec, spec.columns == 1 ? 1 : 2, 7, kBoth[turn % 2]);
        c.sum_in_place = turn / 2 % 2 == 1;
        c.gate_gap = static_cast<std::int64_t>(turn % 3) * unit(c.spec);
        if (!c.sum_in_place) c.shift_gap = static_cast<std::int64_t>(turn % 4) * unit(c.spec);
        c.guard = turn / 2 % 2 == 0 ? Guard::before : Guard::behind;
        cases.push_back(c);
      }
  expect_right(cases);
}

// All that a launch has of a row of the gate, where a group of rows has one, and without dx.
TEST_P(HostCornersOfGradients, GatesOfGroups) {
  std::vector<KernelCase> cases;
  for (const Gate gate : {Gate::before, Gate::after})
    for (const Need need : {Need::dx, Need::dweight_dbias}) {
      KernelCase c = gradient(GetParam(),
                              {.backward = true,
                               .columns = 100,
                               .gate = gate,
                               .gate_function = GateFunction::silu,
                               .affine = Affine::weight_bias,
                               .need = need},
                              2, 24);
      c.plan = in_groups(c.plan, c.spec, true);
      c.group = 3;
      c.group_gap = 3 * unit(c.spec);
      c.gate_gap = unit(c.spec);
      cases.push_back(c);
    }
  expect_right(cases);
}

// A distance of its own for each matrix, and rows of the inputs that are one, or overlap.
TEST_P(HostCornersOfGradients, Distances) {
  std::vector<KernelCase> cases;
  const KernelCase plain =
      gradient(GetParam(), {.columns = 100, .dsum = true, .affine = Affine::weight_bias}, 2, 8);
  for (const Guard guard : {Guard::before, Guard::behind})
    for (const int shift : {0, 1, 7})
      for (const std::int64_t x_gap : {-100, 0, 100})
        for (const std::int64_t dy_gap : {-100, -52, 0, 3 * unit(plain.spec)}) {
          KernelCase c = plain;
          c.guard = guard;
          c.x_shift = c.y_shift = c.weight_shift = c.bias_shift = shift * unit(c.spec);
          c.x_gap = x_gap;
          c.scale_gap = dy_gap;
          c.residual_gap = -dy_gap;
          c.y_gap = 2 * unit(c.spec);
          cases.push_back(c);
        }
  expect_right(cases);
}

TEST_P(HostCornersOfGradients, GroupsOfRows) {
  std::vector<KernelCase> cases;
  for (const std::int64_t group : {2, 3, 8}) {
    KernelCase c = gradient(GetParam(), {.columns = 100, .dsum = true, .affine = Affine::weight_bias}, 2, 24);
    c.plan = in_groups(c.plan, c.spec, true);
    c.group = group;
    c.group_gap = 3 * unit(c.spec);
    c.x_gap = 2 * unit(c.spec);
    c.y_gap = unit(c.spec);
    cases.push_back(c);
  }
  expect_right(cases);
}

// dx over dy, also of other numbers in the same bytes.
TEST_P(HostCornersOfGradients, InPlace) {
  std::vector<KernelCase> cases;
  for (const DType dtype : kDTypes)
    for (const std::int64_t gap : {0, 2})
      for (const std::int64_t columns : {4, 60, 180}) {
        KernelCase c =
            gradient(GetParam(), {.columns = columns, .input = dtype, .affine = Affine::weight_bias}, 2, 13);
        c.in_place = true;
        c.scale_gap = gap * unit(c.spec);
        c.runs = 2;
        cases.push_back(c);
      }
  cases.push_back(gradient(GetParam(), {.columns = 90, .input = DType::f16, .output = DType::bf16}, 1, 13));
  cases.back().in_place = true;
  expect_right(cases);
}

TEST_P(HostCornersOfGradients, EveryMixOfDtypes) {
  std::vector<KernelCase> cases;
  for (const DType input : kDTypes)
    for (const DType output : kDTypes)
      for (const DType weight : kDTypes) {
        const std::size_t turn = cases.size();
        cases.push_back(gradient(GetParam(),
                                 {.norm = turn % 3 == 0 ? Norm::rms : Norm::layer,
                                  .columns = 72,
                                  .input = input,
                                  .output = output,
                                  .weight = weight,
                                  .gradient_type = kDTypes[(turn + turn / 4) % 4],
                                  .residual_type = kDTypes[(turn / 2) % 4],
                                  .dsum = turn % 2 == 0,
                                  .affine = Affine::weight_bias},
                                 2));
      }
  expect_right(cases);
}

TEST_P(HostCornersOfGradients, Epsilons) {
  std::vector<KernelCase> cases;
  for (const Norm norm : {Norm::layer, Norm::rms})
    for (const DType dtype : {DType::f32, DType::f64})
      for (const double epsilon : {0.0, 1e-12, 0.5, 1e30})
        for (const InputKind inputs : {InputKind::unit, InputKind::constant_rows, InputKind::near_epsilon,
                                       InputKind::subnormal, InputKind::large_mean}) {
          KernelCase c = gradient(
              GetParam(),
              {.norm = norm, .columns = 100, .input = dtype, .epsilon = epsilon, .affine = Affine::weight}, 2,
              12);
          c.inputs = inputs;
          if (legal(c)) cases.push_back(c);
        }
  expect_right(cases);
}

// In dx; sums over rows have it by right.
TEST_P(HostCornersOfGradients, NanAndInfinityStayInTheirRow) {
  std::vector<KernelCase> cases;
  for (const Norm norm : {Norm::layer, Norm::rms})
    for (const Affine affine : {Affine::none, Affine::weight_bias})
      for (const InputKind inputs : {InputKind::nan_row, InputKind::inf_row})
        for (const std::uint64_t seed : {0, 5, 7, 1001, 1006}) {
          const Activation activation = kActivations[cases.size() * 6 / 5 % std::size(kActivations)];
          KernelCase c = gradient(
              GetParam(), {.norm = norm, .columns = 80, .affine = affine, .activation = activation}, 1, 11);
          c.inputs = inputs;
          c.seed = seed;
          cases.push_back(c);
        }
  expect_right(cases);
}

TEST_P(HostCornersOfGradients, Overlaps) {
  std::vector<KernelCase> cases;
  for (const DType dtype : {DType::bf16, DType::f32}) {
    cases.push_back(gradient(
        GetParam(), {.columns = 96, .input = dtype, .dsum = true, .affine = Affine::weight_bias}, 2));
    cases.back().overlaps = true;
    cases.back().runs = 2;
  }
  expect_right(cases);
}
INSTANTIATE_TEST_SUITE_P(HostCorners, HostCornersOfGradients, ::testing::ValuesIn(kGradientStrategies),
                         [](const auto& info) { return std::string(normjit::name(info.param)); });

// From one warp, whose parts are merged with none, to more than a lane merges one of; warps without columns.
TEST(HostCornersOfGradientRows, Blocks) {
  std::vector<KernelCase> cases;
  for (const int threads : {32, 64, 96, 224, 256, 1024})
    for (const std::int64_t columns : {1, 33, 200, 1024, 1030})
      for (const std::int64_t rows : {1, 2, 3, 4, 10}) {
        if (columns > 32 * threads) continue;
        cases.push_back(gradient_in_blocks({.columns = columns, .affine = Affine::weight_bias}, threads, 1,
                                           rows, kBoth[rows % 2]));
        if (columns == 1024) cases.back().inputs = InputKind::large_mean;
      }
  std::erase_if(cases, [](const KernelCase& c) { return !legal(c); });
  EXPECT_GT(cases.size(), 80u);
  expect_right(cases);
}

// Lanes that share no row with others, and as many as there are in a warp: what a block adds up over rows.
TEST(HostCornersOfGradientRows, RowsSideBySide) {
  std::vector<KernelCase> cases;
  for (const int threads : {32, 128})
    for (int lanes = 1; lanes <= 32; lanes *= 2)
      for (const std::int64_t columns : {1, 5, 24, 32}) {
        const int rows = threads / lanes;  // a block
        for (const std::int64_t count : {rows - 1, rows, 3 * rows + 1}) {
          if (count < 1) continue;
          KernelCase c = gradient(Strategy::gradient_rows,
                                  {.norm = lanes % 3 == 1 ? Norm::rms : Norm::layer,
                                   .columns = columns,
                                   .affine = Affine::weight_bias},
                                  1, count, kBoth[count % 2]);
          c.plan.threads = threads;
          c.plan.threads_per_row = lanes;
          c.plan.per_thread = static_cast<int>((columns - 1) / lanes) + 1;
          if (legal(c)) cases.push_back(c);
        }
      }
  EXPECT_GT(cases.size(), 100u);
  expect_right(cases);
}

// Without a weight there are no sums, no workspace and no meeting.
TEST(HostCornersOfGradientRows, WithoutSums) {
  std::vector<KernelCase> cases;
  for (const std::int64_t rows : {1, 7, 40})
    for (const Norm norm : {Norm::layer, Norm::rms}) {
      cases.push_back(
          gradient(Strategy::gradient_rows, {.norm = norm, .columns = 50, .dsum = true}, 2, rows));
      cases.push_back(gradient_in_blocks({.norm = norm, .columns = 150}, 64, 2, rows, Exchange::none));
    }
  for (const KernelCase& c : cases) EXPECT_EQ(workspace_bytes(c.plan, c.spec, c.device), 0u);
  expect_right(cases);
}

// A row for a cluster of blocks, whose last slice may be short.
KernelCase gradient_in_cluster(const NormSpec& spec, int blocks, int threads, std::int64_t rows) {
  KernelCase c = gradient(Strategy::gradient_ring, spec, 1, rows);
  c.plan.threads = c.plan.threads_per_row = threads;
  c.plan.blocks_per_row = blocks;
  c.plan.exchange = blocks > 1 ? Exchange::cluster : c.plan.exchange;
  c.plan.per_thread = static_cast<int>((c.spec.columns - 1) / (threads * blocks)) + 1;
  return c;
}

// Fewer rows than places in the ring, as many, and several rounds; of clusters whose last slice is whole,
// short, or has 16 bytes; without sums too.
TEST(HostCornersOfGradientRing, RoundsAndClusters) {
  std::vector<KernelCase> cases;
  for (const int blocks : {1, 2, 4, 8})
    for (const int sms : {1, 3})
      for (const std::int64_t columns : {64, 68, 252, 256})
        for (const std::int64_t rows : {1, 2, 3, 4, 9, 20}) {
          if ((columns / 4 + rows + blocks + sms) % 3 != 0) continue;  // a third of all
          KernelCase c = gradient_in_cluster({.norm = rows == 9 ? Norm::rms : Norm::layer,
                                              .columns = columns,
                                              .dsum = rows % 2 == 0,
                                              .affine = rows == 4 ? Affine::none : Affine::weight_bias},
                                             blocks, 32, rows);
          c.device.sm_count = sms * blocks * 2;
          c.plan.stages = 3 + sms;
          c.runs = rows == 9 ? 2 : 1;
          if (legal(c)) cases.push_back(c);
        }
  EXPECT_GT(cases.size(), 30u);
  expect_right(cases);
}

// Slices and warps whose means are far apart, in both compute types.
TEST(HostCornersOfGradientRing, LargeMeans) {
  std::vector<KernelCase> cases;
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64})
    for (const int blocks : {1, 2, 8})
      for (const Norm norm : {Norm::layer, Norm::rms}) {
        KernelCase c = gradient_in_cluster(
            {.norm = norm, .columns = 1016, .input = dtype, .affine = Affine::weight_bias}, blocks, 64, 7);
        c.device.sm_count = 16;
        c.inputs = InputKind::large_mean;
        cases.push_back(c);
      }
  expect_right(cases);
}

// Chunks of 64 columns: one, one and a column, several; fewer of them than blocks, whose rows are shared
// then, evenly or not, and more. Batches: a short one alone, whole ones, a short last one.
TEST(HostCornersOfGradientColumns, ChunksAndBatches) {
  std::vector<KernelCase> cases;
  for (const std::int64_t columns : {1, 63, 64, 65, 127, 128, 129, 320, 321})
    for (const int sms : {1, 2, 3, 5, 8})
      for (const int group : {1, 3, 8})
        for (const std::int64_t rows : {1, 3, 8, 17}) {
          if ((columns + sms + group + rows) % 3 != 0) continue;  // a third of all
          KernelCase c = gradient(Strategy::gradient_columns,
                                  {.columns = columns,
                                   .dsum = rows == 3,
                                   .affine = group == 3 ? Affine::weight : Affine::weight_bias},
                                  1, rows);
          c.device.sm_count = sms;
          c.plan.group_rows = group;
          c.runs = rows == 8 ? 2 : 1;
          cases.push_back(c);
        }
  EXPECT_GT(cases.size(), 150u);
  expect_right(cases);
}

// More rows of a batch than warps, which work out one each: several rounds, of which the last is short.
TEST(HostCornersOfGradientColumns, MoreRowsThanWarps) {
  std::vector<KernelCase> cases;
  for (const int threads : {32, 64, 128})
    for (const std::int64_t rows : {1, 4, 5, 9, 30})
      for (const int sms : {1, 3}) {
        KernelCase c =
            gradient(Strategy::gradient_columns, {.columns = 300, .affine = Affine::weight_bias}, 2, rows);
        c.device.sm_count = sms;
        c.plan.threads = c.plan.threads_per_row = threads;
        c.plan.group_rows = 16;
        if (rows == 9) c.inputs = InputKind::large_mean;
        cases.push_back(c);
      }
  expect_right(cases);
}

// More chunks than a warp has lanes to add them, whose means are far apart.
TEST(HostCornersOfGradientColumns, ManyChunks) {
  std::vector<KernelCase> cases;
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Norm norm : {Norm::layer, Norm::rms})
      for (const std::int64_t columns : {32 * 64, 32 * 64 + 1, 2500}) {
        KernelCase c =
            gradient(Strategy::gradient_columns,
                     {.norm = norm, .columns = columns, .input = dtype, .affine = Affine::weight}, 1, 4);
        cases.push_back(c);
        c.inputs = InputKind::large_mean;
        cases.push_back(c);
      }
  expect_right(cases);
}

// A warp has a row of up to 64 columns, a block of two warps a longer one: rounds of rows that are full, or
// not, of one block and of several, which have no row, one round or more; chunks of long rows.
TEST(HostCornersOfGenericGradients, RoundsAndParts) {
  std::vector<KernelCase> cases;
  for (const std::int64_t columns : {1, 31, 64, 65, 129, 700})
    for (const std::int64_t rows : {1, 2, 3, 6, 7, 25})
      for (const int sms : {1, 3, 8}) {
        if ((columns + rows + sms) % 2 != 0) continue;
        KernelCase c = gradient(Strategy::generic,
                                {.norm = sms == 1 ? Norm::rms : Norm::layer,
                                 .columns = columns,
                                 .dsum = rows == 3,
                                 .affine = rows == 25 ? Affine::weight : Affine::weight_bias,
                                 .statistics = rows == 6},
                                1, rows);
        c.device.sm_count = sms;
        if (columns == 700) c.inputs = InputKind::large_mean;
        c.runs = 2;
        cases.push_back(c);
      }
  EXPECT_GT(cases.size(), 50u);
  expect_right(cases);
}

// ---- Gradients of a modulation ----

// Rows of a chunk or several, for a block that has them all to one of many that share a chunk; short batches.
KernelCase gradient_in_chunks(const NormSpec& spec, int vector, std::int64_t rows, Exchange exchange,
                              std::size_t turn) {
  KernelCase c = gradient(Strategy::gradient_columns, spec, vector, rows, exchange);
  c.plan.threads = c.plan.threads_per_row = 32;
  c.plan.per_thread = turn % 3 == 2 ? 2 : 1;
  c.plan.group_rows = 1 << turn % 4;
  c.device.sm_count = 1 + static_cast<int>(turn * 3 % 8);
  return c;
}

// How a kernel has the rows; in parts of a warp and in blocks in turn.
enum class Had { in_threads, in_chunks, by_generic };
constexpr Had kHad[] = {Had::in_threads, Had::in_chunks, Had::by_generic};
KernelCase modulated_gradient(Had had, const NormSpec& spec, int vector, std::int64_t rows, Exchange exchange,
                              bool in_warps, std::size_t turn) {
  if (had == Had::by_generic) return gradient(Strategy::generic, spec, 1, rows);
  if (had == Had::in_chunks) return gradient_in_chunks(spec, vector, rows, exchange, turn);
  return in_warps ? gradient(Strategy::gradient_rows, spec, vector, rows, exchange)
                  : gradient_in_blocks(spec, 64, vector, rows, exchange);
}

// A modulation of each row, of all kinds; rows that have distances of their own.
TEST(HostCornersOfModulatedGradients, OfRows) {
  std::vector<KernelCase> cases;
  for (const Modulation modulation : {Modulation::scale, Modulation::scale_shift})
    for (const bool plain : {false, true})
      for (const bool table : {false, true})
        for (const DType dtype : kDTypes) {
          const std::size_t turn = cases.size() / std::size(kHad);
          const NormSpec spec = canonical({.norm = turn % 3 == 0 ? Norm::rms : Norm::layer,
                                           .backward = true,
                                           .columns = turn % 8 == 7 ? 1 : 70,
                                           .input = dtype,
                                           .output = turn % 3 == 1 ? kDTypes[turn / 2 % 4] : dtype,
                                           .modulation_type = turn % 3 == 2 ? kDTypes[turn / 3 % 4] : dtype,
                                           .dsum = turn % 2 == 0,
                                           .affine = kAffines[turn / 2 % 3].value,
                                           .weight_offset = turn % 5 == 0,
                                           .modulation = modulation,
                                           .plain_modulation = plain,
                                           .modulation_table = table,
                                           .activation = kActivations[turn % 5],
                                           .scale = turn % 4 == 0 ? -0.5 : 1.0,
                                           .statistics = turn % 4 == 1,
                                           .need = turn % 7 == 0 ? Need::dx : Need::all});
          const int vector = spec.columns == 1 ? 1 : 2;
          for (const Had had : kHad) {
            KernelCase c = modulated_gradient(had, spec, vector, 7, kBoth[turn / 2 % 2], turn % 2 == 0, turn);
            c.plan = in_groups(c.plan, c.spec, turn / 2 % 3 == 2);
            c.scale_gap = static_cast<std::int64_t>(turn % 3) * 2;
            c.sum_gap = static_cast<std::int64_t>(turn % 4) * 2;
            c.guard = turn / 2 % 2 == 0 ? Guard::before : Guard::behind;
            cases.push_back(c);
          }
        }
  expect_right(cases);
}

// Scale and shift of groups of rows: groups of one row and of more rows than the launch has blocks for, more
// groups than blocks and fewer, one group, pieces and batches that are not full, a NaN, which stays in its
// group; with and without the sums over all rows, and with an activation. Of chunks fewer than blocks, as
// many and more.
TEST(HostCornersOfModulatedGradients, OfGroups) {
  std::vector<KernelCase> cases;
  for (const std::int64_t group : {1, 2, 3, 7, 30})
    for (const std::int64_t groups : {1, 2, 5, 12})
      for (const Exchange exchange : kBoth) {
        const std::size_t turn = cases.size() / std::size(kHad);
        const NormSpec spec =
            canonical({.norm = turn % 5 == 0 ? Norm::rms : Norm::layer,
                       .backward = true,
                       .columns = turn % 4 == 3 ? 45 : 100,
                       .input = turn % 7 == 3 ? DType::bf16 : DType::f32,
                       .dsum = turn % 5 == 1,
                       .affine = kAffines[turn / 3 % 3].value,
                       .weight_offset = turn % 4 == 1,
                       .modulation = turn % 3 == 0 ? Modulation::scale : Modulation::scale_shift,
                       .plain_modulation = turn % 6 == 1,
                       .modulation_table = turn % 5 == 2,
                       .activation = turn % 4 == 2 ? Activation::silu : Activation::none,
                       .statistics = turn % 6 == 3,
                       .need = turn % 5 == 3 ? Need::dx : Need::all});
        const int vector = spec.columns % 2 == 0 ? 2 : 1;
        for (const Had had : kHad) {
          KernelCase c =
              modulated_gradient(had, spec, vector, group * groups, exchange, turn / 2 % 2 == 0, turn);
          if (had != Had::by_generic) c.plan.exchange = exchange;
          c.plan = in_groups(c.plan, c.spec, true);
          c.group = group;
          if (group > 1) c.group_gap = 3 * vector;
          c.scale_gap = turn % 3 == 1 ? vector : 0;
          c.sum_gap = turn % 3 == 2 ? 2 * vector : 0;
          c.inputs = turn % 6 == 4 ? InputKind::nan_row : InputKind::unit;
          c.runs = 1 + static_cast<int>(turn % 2);
          c.in_place = turn % 3 == 1;  // dx over dy, also of a last piece with fewer rows than the block
          EXPECT_TRUE(legal(c)) << to_text(c);
          cases.push_back(c);
        }
      }
  expect_right(cases);
}

// ---- One workspace ----

// Kernels of all kinds that meet through memory, of other dtypes and grids, leave it as the next needs it.
TEST(HostCorners, AllKernelsTakeTurnsWithOneWorkspace) {
  std::vector<KernelCase> cases;
  for (int round = 0; round < 2; ++round)
    for (const DType dtype : {DType::f32, DType::f64}) {
      const NormSpec spec{.columns = 300, .input = dtype, .statistics = true};
      cases.push_back(corner(Strategy::split_row, spec, 1, 20 + round));
      cases.push_back(shared({Exchange::grid, 3}, spec, 14));
      cases.push_back(streamed(3 * kChunk, 2, 3, 11));
      cases.push_back(shared({Exchange::grid, 10}, spec, 3));
      cases.push_back(streamed(2 * kChunk, 2, 4, 1));
      cases.push_back(shared({Exchange::grid, 3}, spec, 8 + round));
      cases.back().blocks = 6;
      cases.push_back(shared({Exchange::grid, 3}, with_operation(spec, kOperations[2]), 8 + round));
      const NormSpec gradients{.columns = 300, .input = dtype, .affine = Affine::weight_bias};
      for (const Exchange exchange : kBoth) {
        cases.push_back(gradient(Strategy::gradient_rows, gradients, 1, 30 + round, exchange));
        cases.push_back(gradient(Strategy::gradient_ring, gradients, 1, 30 + round, exchange));
        cases.push_back(gradient(Strategy::gradient_columns, gradients, 1, 7 + round, exchange));
        cases.push_back(gradient(Strategy::generic, gradients, 1, 7 + round));
      }
      if (dtype == DType::f64) continue;
      for (const Strategy strategy :
           {Strategy::warp_rows, Strategy::block_row, Strategy::split_row, Strategy::generic})
        cases.push_back(corner(strategy, {.columns = 300, .amax = true}, 1, 9 + round));
      cases.push_back(shared({Exchange::grid, 3}, {.columns = 300, .amax = true}, 8 + round));
    }
  const auto kernels = compile_batch(cases);
  ASSERT_TRUE(kernels) << kernels.error().message;
  for (const std::uint64_t schedule : kSchedules) {
    const auto wrong = run_in_turn(cases, *kernels, schedule);
    EXPECT_FALSE(wrong) << *wrong;
  }
}

}  // namespace
}  // namespace testing
}  // namespace normjit
