// SPDX-License-Identifier: Apache-2.0
// What plan.h computes of rows, alignments and launches.
#include "normjit/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/support/random_spec.h"

namespace normjit {
namespace {

constexpr std::int64_t kMaxGrid = 2147483647;

DeviceProfile h200() { return DeviceProfile::of({.number = 90}).value(); }

// Every plan that random specs reach, on one architecture each.
template <class Check>
void for_random_plans(std::uint64_t specs, Check check) {
  for (std::uint64_t seed = 0; seed < specs; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const NormSpec spec = canonical(random_spec(random));
    const DeviceProfile& device = DeviceProfile::known()[random.below(DeviceProfile::known().size())];
    for (const Plan& plan : plans(spec, device)) {
      check(plan, spec, device, random);
      if (testing::Test::HasFailure()) {
        ADD_FAILURE() << to_text(plan) << " for " << to_text(spec) << " on " << device.text();
        return;  // one example is enough
      }
    }
  }
}

// ---- Rows regime ----

TEST(RegimeOf, RowsPassThroughTheRegimesInOrder) {
  for (const DeviceProfile& device : DeviceProfile::known()) {
    SCOPED_TRACE(device.text());
    EXPECT_EQ(regime_of(1, device), RowsRegime::lone);
    EXPECT_EQ(regime_of(device.sm_count / 8, device), RowsRegime::lone);
    EXPECT_EQ(name(regime_of(device.sm_count / 8 + 1, device)), "1/4");
    EXPECT_EQ(regime_of(device.sm_count / 2, device), RowsRegime::few);
    EXPECT_EQ(name(regime_of(device.sm_count, device)), "1");
    EXPECT_EQ(name(regime_of(device.sm_count + 1, device)), "2");
    EXPECT_EQ(name(regime_of(device.sm_count * 512, device)), "512");
    EXPECT_EQ(regime_of(device.sm_count * 512 + 1, device), RowsRegime::many);
    RowsRegime last = RowsRegime::lone;
    for (std::int64_t rows = 1; rows < (std::int64_t{1} << 40); rows += 1 + rows / 64) {
      EXPECT_GE(regime_of(rows, device), last) << rows;
      last = regime_of(rows, device);
    }
    EXPECT_EQ(regime_of(std::numeric_limits<std::int64_t>::max(), device), RowsRegime::many);
  }
  EXPECT_EQ(name(RowsRegime::lone), "lone");
  EXPECT_EQ(name(RowsRegime::few), "1/2");
  EXPECT_EQ(name(RowsRegime::many), "many");
}

TEST(RegimeOf, MostRowsAreTheLastOfTheirRegime) {
  for (const bool channels_first : {false, true}) {
    const NormSpec spec{.columns = 64, .channels_first = channels_first};
    for (DeviceProfile device : DeviceProfile::known())
      for (const int multiprocessors : {1, 7, 16, 132, 160}) {
        device.sm_count = multiprocessors;
        std::int64_t before = 0;
        for (const RowsRegime regime : kRowsRegimes) {
          SCOPED_TRACE(testing::Message() << name(regime) << " on " << multiprocessors);
          const std::int64_t most = most_rows(regime, spec, device);
          ASSERT_GE(most, before);
          if (most > before) {
            EXPECT_EQ(regime_of(spec, before + 1, device), regime);
            EXPECT_EQ(regime_of(spec, most, device), regime);
          }
          before = most;
        }
        EXPECT_EQ(before, std::numeric_limits<std::int64_t>::max());
      }
  }
}

TEST(RowsText, NamesTheRowsOfRegimesSideBySide) {
  const NormSpec spec{.columns = 64}, planes{.columns = 64, .channels_first = true};
  DeviceProfile device = DeviceProfile::of(Arch{90}).value();
  const auto of = [&](RowsRegime first, RowsRegime last) { return rows_text(first, last, spec, device); };
  EXPECT_EQ(of(RowsRegime::lone, RowsRegime::lone), "1 to 16");
  EXPECT_EQ(of(RowsRegime::few, RowsRegime::few), "34 to 66");
  EXPECT_EQ(of(RowsRegime::lone, RowsRegime::few), "1 to 66");
  EXPECT_EQ(of(RowsRegime::many, RowsRegime::many), "67585 and more");
  EXPECT_EQ(of(RowsRegime::lone, RowsRegime::many), "all");
  EXPECT_EQ(rows_text(RowsRegime::few, RowsRegime::few, planes, device), "2113 to 4224");
  device.sm_count = 4;
  EXPECT_EQ(of(RowsRegime::lone, RowsRegime::lone), "no");
}

// ---- Alignment ----

// The definition in the header: the largest n for which address and row stride are multiples of
// min(16, n * size) bytes.
Alignment naive_alignment(std::uint64_t address, std::uint64_t stride, DType dtype) {
  for (const std::uint64_t n : {8, 4, 2, 1}) {
    const std::uint64_t bytes = std::min<std::uint64_t>(16, n * static_cast<std::uint64_t>(size_of(dtype)));
    if (address % bytes == 0 && stride % bytes == 0) return Alignment{static_cast<std::uint8_t>(n)};
  }
  return Alignment{0};
}

TEST(AlignmentOf, IsItsDefinition) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64})
    for (std::uint64_t address = 0; address <= 64; ++address)
      for (std::uint64_t stride = 0; stride <= 64; ++stride)
        ASSERT_EQ(alignment_of(address | stride, dtype), naive_alignment(address, stride, dtype))
            << name(dtype) << " at " << address << " with rows " << stride << " bytes apart";
}

TEST(AlignmentOf, TakesAll64Bits) {
  EXPECT_EQ(alignment_of(std::uint64_t{1} << 63, DType::f32), Alignment::eight);
  EXPECT_EQ(alignment_of(~std::uint64_t{0}, DType::f16), Alignment{0});
  EXPECT_EQ(alignment_of(~std::uint64_t{1}, DType::f16), Alignment::one);
}

// ---- Launch ----

TEST(GridBlocks, IsALegalGridForAnyNumberOfRows) {
  for_random_plans(
      1'000, [](const Plan& plan, const NormSpec& spec, const DeviceProfile& device, Random& random) {
        const std::int64_t resident = std::int64_t{device.sm_count} * plan.blocks_per_sm;
        for (int turn = 0; turn < 16; ++turn) {
          const std::int64_t rows = turn == 0   ? 1
                                    : turn == 1 ? std::int64_t{1} << 40
                                                : random_columns(random, std::int64_t{1} << 40);
          const std::int64_t blocks = grid_blocks(plan, spec, device, rows);
          ASSERT_GE(blocks, 1) << rows;
          ASSERT_LE(blocks, kMaxGrid) << rows;
          ASSERT_EQ(blocks % plan.blocks_per_row, 0) << "a row that lacks a block";
          const std::int64_t teams = blocks / plan.blocks_per_row, per_team = rows_per_block(plan);
          if (plan.strategy == Strategy::split_row) {
            ASSERT_LE(blocks, resident);
            continue;
          }
          ASSERT_LT((teams - 1) * per_team, rows) << "a block without a row";
          if (plan.strategy == Strategy::persistent_row || plan.exchange == Exchange::grid ||
              (plan.unaligned && spec.affine != Affine::none)) {
            ASSERT_LE(blocks, resident) << "blocks that wait for others or copy parameters run at once";
          } else if (blocks + plan.blocks_per_row <= kMaxGrid) {
            ASSERT_GE(teams * per_team, rows) << "a row without a block";
          }
        }
      });
}

// Blocks that exchange over the grid loop over all rows: as many at a time as there is room for.
TEST(GridBlocks, RowsSharedOverTheGridFillTheDevice) {
  const NormSpec spec{.columns = 1 << 20};
  const Plan plan{Strategy::block_row, 1024, 1024, 4, 4, 1, 1, 64, Exchange::grid};
  const DeviceProfile device = h200();
  ASSERT_TRUE(check(plan, spec, device).ok()) << check(plan, spec, device).error().message;
  EXPECT_EQ(grid_blocks(plan, spec, device, 1), 64);
  EXPECT_EQ(grid_blocks(plan, spec, device, 2), 128);
  EXPECT_EQ(grid_blocks(plan, spec, device, 1'000'000), 128) << "132 blocks have no room for a third row";
  Plan cluster = plan;
  cluster.blocks_per_row = 8;
  cluster.exchange = Exchange::cluster;
  EXPECT_EQ(grid_blocks(cluster, spec, device, 1'000'000), 8'000'000) << "clusters come and go";
}

TEST(GridBlocks, IsCappedAtTheHardwaresLimit) {
  const NormSpec spec{.columns = 4096};
  Plan plan{Strategy::block_row, 256, 256, 4, 4, 1, 1};
  EXPECT_EQ(grid_blocks(plan, spec, h200(), kMaxGrid), kMaxGrid);
  EXPECT_EQ(grid_blocks(plan, spec, h200(), kMaxGrid + 1), kMaxGrid);
  EXPECT_EQ(grid_blocks(plan, spec, h200(), std::numeric_limits<std::int64_t>::max()), kMaxGrid);
  plan.blocks_per_row = 4;
  plan.exchange = Exchange::cluster;
  EXPECT_EQ(grid_blocks(plan, spec, h200(), kMaxGrid), kMaxGrid - 3) << "whole clusters";
}

TEST(GridBlocks, AFewGiganticRowsOccupyTheWholeDeviceWhenReadTwice) {
  const NormSpec spec{.columns = 4194304};
  const Plan plan = fallback(spec, h200(), RowsRegime::few, Alignment::eight);
  for (const std::int64_t rows : {1, 2, 16})
    EXPECT_GE(grid_blocks(plan, spec, h200(), rows), h200().sm_count);
}

TEST(PlanFacts, BlocksCoverTheRows) {
  EXPECT_EQ(rows_per_block({.strategy = Strategy::warp_rows, .threads = 256, .threads_per_row = 8}), 32);
  EXPECT_EQ(rows_per_block({.strategy = Strategy::warp_rows, .threads = 256, .threads_per_row = 1}), 256);
  EXPECT_EQ(rows_per_block(
                {.strategy = Strategy::staged_rows, .threads = 64, .threads_per_row = 8, .group_rows = 4}),
            32);
  EXPECT_EQ(rows_per_block({.strategy = Strategy::block_row, .threads = 256, .threads_per_row = 256}), 1);
  EXPECT_EQ(rows_per_block({.strategy = Strategy::persistent_row, .threads = 512, .threads_per_row = 256}),
            1);
  EXPECT_EQ(columns_per_block({.threads_per_row = 256, .vector = 4, .per_thread = 3}), 3072);
}

TEST(TargetOf, OnlyBulkCopiesAndResultsOf4BitsNeedTheArchitecturesOwnTarget) {
  for_random_plans(300, [](const Plan& plan, const NormSpec& spec, const DeviceProfile& device, Random&) {
    const std::string suffix = plan.strategy == Strategy::persistent_row ? "a" : "";
    EXPECT_EQ(target_of(plan, spec, device.arch).name(), device.arch.name() + suffix);
  });
  EXPECT_EQ(target_of({.strategy = Strategy::persistent_row}, {}, Arch{90}).name(), "sm_90a");
  EXPECT_EQ(target_of({.strategy = Strategy::block_row}, {}, Arch{90}).name(), "sm_90");
  const NormSpec in_4_bits = parse_spec("rmsnorm/cols=64/out=e2m1/q=16:e4m3").value();
  EXPECT_EQ(target_of({.strategy = Strategy::block_row}, in_4_bits, Arch{90}).name(), "sm_90");
  EXPECT_EQ(target_of({.strategy = Strategy::block_row}, in_4_bits, Arch{120}).name(), "sm_120a");
  EXPECT_EQ(target_of(generic_plan(), in_4_bits, Arch{120}).name(), "sm_120");
}

// Cubins run on later architectures of a major version, but not between Tegra and the others.
TEST(TargetOf, OneGenericCubinServesManyArchitectures) {
  std::string targets;
  for (const DeviceProfile& device : DeviceProfile::known()) {
    const Arch target = target_of(generic_plan(), {}, device.arch);
    EXPECT_EQ(target.major(), device.arch.major());
    EXPECT_EQ(target_of(generic_plan(), {}, target), target);
    targets += std::to_string(target.number) + " ";
  }
  EXPECT_EQ(targets, "75 80 80 87 88 80 90 100 100 110 120 120 ");
}

TEST(GenericPlan, IsLegalForEverySpecAndNeverChosen) {
  for_random_plans(300, [](const Plan& plan, const NormSpec& spec, const DeviceProfile& device, Random&) {
    EXPECT_NE(plan.strategy, Strategy::generic);
    const auto legal = check(generic_plan(), spec, device);
    EXPECT_TRUE(legal.ok()) << legal.error().message;
    EXPECT_EQ(workspace_bytes(generic_plan(), spec, device), 0u);
    EXPECT_EQ(shared_bytes(generic_plan(), spec), 0);
  });
}

TEST(GenericSpec, OfGradientsIsOneForEachComputeType) {
  const NormSpec f32 = generic_spec({.backward = true, .columns = 3});
  EXPECT_EQ(generic_spec(parse_spec("rmsnorm_bwd/cols=70/bf16/gate:silu/dsum/w/stats").value()), f32);
  EXPECT_TRUE(f32.backward && !f32.statistics && validate(f32));
  EXPECT_EQ(compute_type(generic_spec(parse_spec("layernorm_bwd/cols=70/f16/dw=f64/w").value())), DType::f64);
}

TEST(GenericSpec, IsOneForEachComputeType) {
  const NormSpec f32 = generic_spec({.columns = 3}), f64 = generic_spec({.columns = 3, .input = DType::f64});
  EXPECT_EQ(generic_spec({.columns = 70, .input = DType::f16, .affine = Affine::weight, .scale = 2}), f32);
  EXPECT_EQ(generic_spec({.columns = 70, .input = DType::bf16, .output = DType::f64}), f64);
  EXPECT_EQ(compute_type(f32), DType::f32);
  EXPECT_EQ(compute_type(f64), DType::f64);
  for (const NormSpec& spec : {f32, f64}) {
    EXPECT_TRUE(validate(spec).ok());
    EXPECT_EQ(generic_spec(spec), spec);
    EXPECT_EQ(source_spec(generic_plan(), spec), spec);
  }
  EXPECT_EQ(source_spec({.strategy = Strategy::block_row}, {.columns = 3}), canonical({.columns = 3}));
}

TEST(GridBlocks, OfGenericRowsHaveAWarpOrABlockEach) {
  const DeviceProfile device = *DeviceProfile::of(Arch{90});
  const auto blocks = [&](std::int64_t columns, std::int64_t rows) {
    return grid_blocks(generic_plan(), {.columns = columns}, device, rows);
  };
  EXPECT_EQ(blocks(1024, 1), 1);
  EXPECT_EQ(blocks(1024, 17), 3);
  EXPECT_EQ(blocks(1025, 17), 17);
  EXPECT_EQ(blocks(1025, std::int64_t{1} << 40), (std::int64_t{1} << 31) - 1);
}

// A gate behind the norm is read like a weight: the ring is as large as without it.
TEST(SharedBytes, HaveNoRoomForAGate) {
  const Plan plan{Strategy::persistent_row, 512, 256, 4, 2, 1, 1, 1, Exchange::none, false, 3};
  for (const Residual residual : {Residual::none, Residual::before, Residual::after}) {
    NormSpec spec{.columns = 4096, .residual = residual};
    const int without = shared_bytes(plan, spec);
    spec.gate = Gate::after;
    EXPECT_EQ(shared_bytes(plan, spec), without);
  }
}

TEST(SharedBytes, HoldTheRingOrTheParametersOfUnalignedRows) {
  const NormSpec f32{.columns = 4096};
  EXPECT_EQ(shared_bytes({Strategy::block_row, 256, 256, 4, 4, 1, 1}, f32), 0);
  EXPECT_EQ(shared_bytes({Strategy::persistent_row, 512, 256, 4, 2, 1, 1, 1, Exchange::none, false, 28}, f32),
            28 * 8192);
  // The sum in the place of x, and three places for residuals: two chunks in flight, and one that is summed.
  // As many as chunks, if those are fewer. Else, and behind the norm, each place has both.
  const auto added = [](NormSpec spec, int stages, int vector = 4) {
    if (spec.residual == Residual::none) spec.residual = Residual::before;
    return shared_bytes(
        {Strategy::persistent_row, 512, 256, vector, 2, 1, 1, 1, Exchange::none, false, stages},
        canonical(spec));
  };
  EXPECT_EQ(added(f32, 25), 25 * 8192 + 3 * 8192);
  EXPECT_EQ(added(f32, 2), 2 * 8192 + 2 * 8192);
  EXPECT_EQ(added({.columns = 4096, .residual_type = DType::f16}, 25), 25 * 8192 + 4 * 4096);
  EXPECT_EQ(added({.columns = 4096, .residual = Residual::after}, 14), 14 * 16'384);
  const NormSpec bf16{.columns = 8192, .input = DType::bf16, .residual_type = DType::bf16};
  NormSpec rounded = bf16;
  rounded.rounding = Rounding::sum;
  EXPECT_EQ(added(bf16, 14, 8), 14 * 16'384);
  EXPECT_EQ(added(rounded, 25, 8), 25 * 8192 + 3 * 8192);
  // Unaligned rows: the parameters of the columns of a block, in whole vectors; of two rows where each row
  // has its own.
  Plan unaligned{Strategy::block_row, 256, 256, 4, 4, 1, 1, 1, Exchange::none, true};
  EXPECT_EQ(shared_bytes(unaligned, {.columns = 4097}), 0);
  NormSpec affine{.columns = 4097, .affine = Affine::weight_bias};
  EXPECT_EQ(shared_bytes(unaligned, affine), 4100 * 2 * 4);
  affine.affine_rows = true;
  EXPECT_EQ(shared_bytes(unaligned, affine), 2 * 4100 * 2 * 4);
  unaligned.blocks_per_row = 2;
  unaligned.exchange = Exchange::cluster;
  EXPECT_EQ(shared_bytes(unaligned, {.columns = 8191, .affine = Affine::weight}), 4096 * 4);
  const Plan narrow{Strategy::block_row, 64, 64, 2, 1, 1, 1, 1, Exchange::none, true};
  EXPECT_EQ(shared_bytes(narrow, canonical({.columns = 101, .input = DType::f16, .affine = Affine::weight})),
            208);
  // staged_rows: all rows of a block, with all vectors that a row can touch.
  EXPECT_EQ(shared_bytes({Strategy::staged_rows, 64, 8, 1, 5, 2},
                         canonical({.columns = 33, .input = DType::f16, .output = DType::f32})),
            16 * 36 * 4);
  EXPECT_EQ(
      shared_bytes({Strategy::staged_rows, 64, 1, 8, 3}, canonical({.columns = 24, .input = DType::f16})),
      64 * 32 * 2);
}

TEST(SharedBytes, OfALegalPlanFitOnTheMultiprocessor) {
  for_random_plans(1'000, [](const Plan& plan, const NormSpec& spec, const DeviceProfile& device, Random&) {
    const int bytes = shared_bytes(plan, spec);
    EXPECT_GE(bytes, 0);
    EXPECT_LE(bytes, device.shared_per_block);
    EXPECT_LE(bytes * plan.blocks_per_sm, device.shared_per_sm);
    EXPECT_EQ(bytes > 0, (plan.unaligned && spec.affine != Affine::none) ||
                             plan.strategy == Strategy::persistent_row ||
                             plan.strategy == Strategy::staged_rows);
    EXPECT_EQ(bytes % 16, 0);
  });
}

TEST(WorkspaceBytes, OnlyRowsSplitOverBlocksNeedOne) {
  for_random_plans(1'000, [](const Plan& plan, const NormSpec& spec, const DeviceProfile& device, Random&) {
    const std::size_t bytes = workspace_bytes(plan, spec, device);
    if (plan.strategy == Strategy::split_row || plan.exchange == Exchange::grid) {
      EXPECT_GT(bytes, 0u);
      EXPECT_EQ(bytes % 16, 0u);
    } else {
      EXPECT_EQ(bytes, 0u);
    }
  });
}

TEST(WorkspaceBytes, ABiggerGpuNeedsNoLess) {
  for_random_plans(300, [](const Plan& plan, const NormSpec& spec, const DeviceProfile& device, Random&) {
    DeviceProfile bigger = device;
    bigger.sm_count *= 2;
    EXPECT_GE(workspace_bytes(plan, spec, bigger), workspace_bytes(plan, spec, device));
  });
}

}  // namespace
}  // namespace normjit
