// SPDX-License-Identifier: Apache-2.0
// Plans of backward specs: there always are some, those without an exchange included, and each limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "normjit/plan.h"
#include "normjit/plan/footprint.h"
#include "tests/support/plan_checks.h"
#include "tests/support/random_spec.h"

namespace normjit {
namespace {

using testing::HasSubstr;

NormSpec random_backward_spec(Random& random) {
  NormSpec spec = random_spec(random, {.every_norm = true});
  make_backward(spec, random);
  return canonical(spec);
}

bool is_of_backward(const Plan& plan) {
  return plan.strategy == Strategy::gradient_rows || plan.strategy == Strategy::gradient_ring ||
         plan.strategy == Strategy::gradient_columns;
}

// Numbers of a thread for the sums over rows, and their size.
int sums_of(const NormSpec& spec) { return writes_dweight(spec) + writes_dbias(spec); }
int size_of_sum(const NormSpec& spec) { return size_of(compute_type(spec)); }

TEST(GradientPlans, AreLegalRankedAndExplained) {
  for_random_uses(
      1'000, random_backward_spec,
      [](const NormSpec& spec, const DeviceProfile& device, RowsRegime regime, Alignment alignment) {
        const std::vector<Candidate> all = candidates(spec, device, regime, alignment);
        ASSERT_FALSE(all.empty());
        for (std::size_t i = 0; i < all.size(); ++i) {
          const Plan& plan = all[i].plan;
          const auto legal = check(plan, spec, device);
          ASSERT_TRUE(legal.ok()) << legal.error().message;
          ASSERT_TRUE(is_of_backward(plan)) << to_text(plan);
          ASSERT_TRUE(std::isfinite(all[i].cost) && all[i].cost > 0) << to_text(plan);
          ASSERT_FALSE(all[i].why.empty()) << to_text(plan);
          ASSERT_LE(plan.vector, static_cast<int>(alignment)) << to_text(plan);
          if (i > 0) {
            ASSERT_LE(all[i - 1].cost, all[i].cost);
          }
          for (std::size_t j = 0; j < i; ++j) ASSERT_NE(all[j].plan, plan) << to_text(plan);
        }
        ASSERT_EQ(choose(spec, device, regime, alignment), all.front().plan);
      });
}

TEST(GradientPlans, ExistForEverySpecOnEveryDevice) {
  for (const DType type : {DType::f16, DType::bf16, DType::f32, DType::f64})
    for (const std::int64_t columns :
         {std::int64_t{1}, std::int64_t{63}, std::int64_t{4096}, std::int64_t{16'383},
          std::int64_t{4'194'304}, (std::int64_t{1} << 31) - 1})
      for (const Affine affine : {Affine::none, Affine::weight_bias})
        for (const DeviceProfile& device : DeviceProfile::known())
          for (const RowsRegime regime : kRowsRegimes)
            for (const Alignment alignment : kAlignments) {
              const NormSpec spec = canonical({.backward = true,
                                               .columns = columns,
                                               .input = type,
                                               .gradient_type = DType::f64,
                                               .dsum = true,
                                               .affine = affine});
              const Plan plan = choose(spec, device, regime, alignment);
              const auto legal = check(plan, spec, device);
              ASSERT_TRUE(legal.ok()) << legal.error().message;
            }
}

// Their blocks need not run together: the last one adds the sums, or there is one.
TEST(GradientPlans, AFallbackHasNoExchange) {
  for_random_uses(
      1'000, random_backward_spec,
      [](const NormSpec& spec, const DeviceProfile& device, RowsRegime regime, Alignment alignment) {
        const Plan plan = fallback(spec, device, regime, alignment);
        ASSERT_EQ(plan.exchange, Exchange::none);
        ASSERT_TRUE(is_of_backward(plan)) << to_text(plan);
        const auto legal = check(plan, spec, device);
        ASSERT_TRUE(legal.ok()) << legal.error().message;
        if (plan.strategy == Strategy::gradient_columns) {
          ASSERT_EQ(grid_blocks(plan, spec, device, std::int64_t{1} << 40), 1) << "blocks that would meet";
        }
      });
}

TEST(GradientPlans, AreWhatChooseAndFallbackReturnWithoutRepetition) {
  for_random_specs(500, random_backward_spec, [](const NormSpec& spec, const DeviceProfile& device, Random&) {
    const std::vector<Plan> all = plans(spec, device);
    std::vector<Plan> wanted;
    for (const RowsRegime regime : kRowsRegimes)
      for (const Alignment alignment : kAlignments) {
        wanted.push_back(choose(spec, device, regime, alignment));
        if (wanted.back().exchange != Exchange::none)
          wanted.push_back(fallback(spec, device, regime, alignment));
      }
    for (const Plan& plan : wanted)
      ASSERT_NE(std::find(all.begin(), all.end(), plan), all.end()) << "missing: " << to_text(plan);
    for (const Plan& plan : all) {
      ASSERT_EQ(std::count(all.begin(), all.end(), plan), 1) << to_text(plan);
      ASSERT_NE(std::find(wanted.begin(), wanted.end(), plan), wanted.end()) << to_text(plan);
      ASSERT_EQ(parse_plan(to_text(plan)).value(), plan);
    }
  });
}

TEST(GradientPlans, DependOnTheArchitectureNotOnTheSizeOfTheGpu) {
  for_random_specs(500, random_backward_spec, expect_no_influence_of_size);
}

// ---- Limits ----

std::vector<Broken> broken_shapes() {
  return {
      {"threads must be", [](Plan& p) { p.threads = p.threads_per_row = 0; }},
      {"threads must be", [](Plan& p) { p.threads = p.threads_per_row = -32; }},
      {"threads must be", [](Plan& p) { p.threads = p.threads_per_row = 16; }},
      {"threads must be", [](Plan& p) { p.threads = p.threads_per_row = 100; }},
      {"threads must be", [](Plan& p) { p.threads = p.threads_per_row = 2048; }},
      {"threads_per_row must be", [](Plan& p) { p.threads_per_row = 0; }},
      {"threads_per_row must be", [](Plan& p) { p.threads_per_row = 64; }},
      {"threads_per_row must be", [](Plan& p) { p.threads_per_row = 2 * p.threads; }},
      {"vector must be", [](Plan& p) { p.vector = 0; }},
      {"vector must be", [](Plan& p) { p.vector = 3; }},
      {"vector must be", [](Plan& p) { p.vector = 16; }},
      {"per_thread must be", [](Plan& p) { p.per_thread = 0; }},
      {"per_thread must be", [](Plan& p) { p.per_thread = 9; }},
      {"needs blocks_per_row=1", [](Plan& p) { p.blocks_per_row = 2; }},
      {"needs blocks_per_row=1", [](Plan& p) { p.blocks_per_row = 0; }},
      {"needs blocks_per_row=1", [](Plan& p) { p.stages = 2; }},
      {"needs blocks_per_row=1", [](Plan& p) { p.exchange = Exchange::cluster; }},
      {"gradients need unaligned=0", [](Plan& p) { p.unaligned = true; }},
      {"gradients need unaligned=0", [](Plan& p) { p.group_rows = 0; }},
      {"gradients need unaligned=0", [](Plan& p) { p.group_rows = 1025; }},
      {"unknown strategy or exchange", [](Plan& p) { p.exchange = Exchange{9}; }},
      {"blocks_per_sm must be", [](Plan& p) { p.blocks_per_sm = 0; }},
      {"blocks_per_sm must be", [](Plan& p) { p.blocks_per_sm = 33; }},
      {"registers per thread", [](Plan& p) { p.per_thread = 8, p.blocks_per_sm = 8; }},
  };
}

constexpr NormSpec kSpec{.backward = true, .columns = 4096, .affine = Affine::weight_bias};

TEST(GradientPlans, RefusedWhereRowsAreHeldBadly) {
  const Plan plan{.strategy = Strategy::gradient_rows,
                  .threads = 256,
                  .threads_per_row = 256,
                  .vector = 4,
                  .per_thread = 4,
                  .exchange = Exchange::grid};
  expect_refused(kSpec, plan, broken_shapes());
  expect_refused(kSpec, plan,
                 {{"must cover the columns", [](Plan& p) { p.per_thread = 3; }},
                  {"must cover the columns", [](Plan& p) { p.vector = 2; }},
                  {"must cover the columns", [](Plan& p) { p.threads_per_row = 32; }},
                  {"threads_per_row must be", [](Plan& p) { p.threads_per_row = 24; }},
                  {"gradients need unaligned=0", [](Plan& p) { p.group_rows = 2; }},
                  {"threads must be", [](Plan& p) { p.threads = 384, p.threads_per_row = 32; }}});
  Plan uneven = plan;
  uneven.threads = uneven.threads_per_row = 352;
  EXPECT_TRUE(check(uneven, kSpec, h200()).ok()) << "a multiple of 32 where a block has one row";
}

TEST(GradientPlans, RefusedWhereColumnsAreReadBadly) {
  const Plan plan{.strategy = Strategy::gradient_columns,
                  .threads = 256,
                  .threads_per_row = 256,
                  .vector = 4,
                  .per_thread = 1,
                  .group_rows = 512,
                  .exchange = Exchange::grid};
  expect_refused(kSpec, plan, broken_shapes());
  expect_refused(kSpec, plan,
                 {{"threads must be", [](Plan& p) { p.threads = p.threads_per_row = 384; }},
                  {"threads_per_row must be", [](Plan& p) { p.threads_per_row = 32; }}});
}

TEST(GradientPlans, RefusedWhereTheRingIsBad) {
  const Plan plan{.strategy = Strategy::gradient_ring,
                  .threads = 352,
                  .threads_per_row = 352,
                  .vector = 4,
                  .per_thread = 3,
                  .exchange = Exchange::grid,
                  .stages = 4};
  ASSERT_TRUE(check(plan, kSpec, h200()).ok()) << check(plan, kSpec, h200()).error().message;
  expect_refused(
      kSpec, plan,
      {{"threads must be", [](Plan& p) { p.threads = p.threads_per_row = 100; }},
       {"threads_per_row must be", [](Plan& p) { p.threads_per_row = 32; }},
       {"per_thread must be", [](Plan& p) { p.per_thread = 9; }},
       {"gradients need unaligned=0", [](Plan& p) { p.unaligned = true; }},
       {"gradients need unaligned=0", [](Plan& p) { p.group_rows = 2; }},
       {"blocks_per_row must be 1", [](Plan& p) { p.blocks_per_row = 0; }},
       {"blocks_per_row must be 1", [](Plan& p) { p.blocks_per_row = 2; }},
       {"blocks_per_row must be 1", [](Plan& p) { p.exchange = Exchange::cluster; }},
       {"blocks_per_row must be 1", [](Plan& p) { p.blocks_per_row = 3, p.exchange = Exchange::cluster; }},
       {"blocks_per_row must be 1", [](Plan& p) { p.blocks_per_row = 16, p.exchange = Exchange::cluster; }},
       {"must cover the columns", [](Plan& p) { p.per_thread = 2; }},
       {"must cover the columns", [](Plan& p) { p.blocks_per_row = 2, p.exchange = Exchange::cluster; }},
       {"at most 16 bytes",
        [](Plan& p) { p.vector = 8, p.per_thread = 2, p.threads = p.threads_per_row = 256; }},
       {"stages must be at least 3", [](Plan& p) { p.stages = 2; }},
       {"bytes of shared memory", [](Plan& p) { p.stages = 7; }},
       {"bytes of shared memory", [](Plan& p) { p.blocks_per_sm = 2; }}});
  NormSpec odd = kSpec;
  odd.columns = 4100;
  odd.input = odd.output = odd.weight = odd.gradient_type = DType::bf16;
  Plan narrow = plan;
  const auto refused = check(narrow, odd, h200());
  ASSERT_EQ(refused.code(), Code::IllegalPlan);
  EXPECT_THAT(refused.error().message, HasSubstr("the columns must be a multiple of 8"));
  const auto older = check(plan, kSpec, DeviceProfile::of({.number = 80}).value());
  ASSERT_EQ(older.code(), Code::IllegalPlan);
  EXPECT_THAT(older.error().message, HasSubstr("need sm_90"));
}

// Clusters of four and eight may leave some multiprocessors without work.
TEST(GradientPlans, ClustersFitOnTheGpu) {
  Plan plan{.strategy = Strategy::gradient_ring,
            .threads = 128,
            .threads_per_row = 128,
            .vector = 4,
            .per_thread = 2,
            .blocks_per_row = 4,
            .exchange = Exchange::cluster,
            .stages = 3};
  EXPECT_EQ(grid_blocks(plan, kSpec, h200(), 1), 4);
  EXPECT_EQ(grid_blocks(plan, kSpec, h200(), 1'000'000), 112);
  plan.blocks_per_row = 2, plan.per_thread = 4;
  EXPECT_EQ(grid_blocks(plan, kSpec, h200(), 1'000'000), 132);
}

// ---- Neither serves the other ----

TEST(GradientPlans, NoForwardPlanServesABackwardSpec) {
  const NormSpec forward{.columns = 4096, .affine = Affine::weight_bias};
  std::vector<Plan> all;
  for (const DeviceProfile& device : DeviceProfile::known())
    for (const Plan& plan : plans(forward, device)) all.push_back(plan);
  for (const Plan& plan : all) {
    const auto refused = check(plan, kSpec, h200());
    ASSERT_EQ(refused.code(), Code::IllegalPlan) << to_text(plan);
    EXPECT_THAT(refused.error().message,
                HasSubstr("a backward spec needs gradient_rows, gradient_ring, gradient_columns or generic"));
  }
}

TEST(GradientPlans, ServeNoForwardSpec) {
  const NormSpec forward{.columns = 4096, .affine = Affine::weight_bias};
  std::set<Strategy> strategies;
  for (const Candidate& one : candidates(kSpec, h200(), RowsRegime::many, Alignment::eight)) {
    const auto refused = check(one.plan, forward, h200());
    ASSERT_EQ(refused.code(), Code::IllegalPlan) << to_text(one.plan);
    strategies.insert(one.plan.strategy);
    EXPECT_THAT(refused.error().message,
                HasSubstr(std::string(name(one.plan.strategy)) + " serves backward specs only"));
  }
  EXPECT_EQ(strategies.size(), 3u);
}

TEST(GradientPlans, TheGenericOneServesAll) {
  for (const DeviceProfile& device : DeviceProfile::known())
    for (const char* spec :
         {"layernorm_bwd/cols=1/f64", "rmsnorm_bwd/cols=2147483647/bf16/gate:silu/dsum/w/stats",
          "layernorm_bwd/cols=768/f16/w=f32/wb/mod:table/gelu/need=dw+db"}) {
      const auto legal = check(generic_plan(), parse_spec(spec).value(), device);
      EXPECT_TRUE(legal) << legal.error().message;
    }
}

// ---- Launches ----

// Header, ring and slots, which all kernels share.
constexpr std::size_t kShared = 32 + 1024 * 32 + 4096 * 48;

// Of the generic kernel a part for each block, of fewer blocks where rows are long.
TEST(GradientWorkspace, OfTheGenericKernelIsSmall) {
  const auto bytes = [](const char* spec) {
    return workspace_bytes(generic_plan(), parse_spec(spec).value(), h200());
  };
  const auto blocks = [](const char* spec) {
    return grid_blocks(generic_plan(), parse_spec(spec).value(), h200(), 1 << 30);
  };
  EXPECT_EQ(bytes("layernorm_bwd/cols=768/bf16/wb"), kShared + 2 * 264 * 768 * 4);
  EXPECT_EQ(blocks("layernorm_bwd/cols=768/bf16/wb"), 264);
  EXPECT_EQ(bytes("rmsnorm_bwd/cols=16384/f64/w"), kShared + 64 * 16384 * 8);
  EXPECT_EQ(blocks("rmsnorm_bwd/cols=16384/f64/w"), 64);
  EXPECT_EQ(bytes("rmsnorm_bwd/cols=4194304/f32/w"), kShared + 4194304 * 4);
  EXPECT_EQ(blocks("rmsnorm_bwd/cols=4194304/f32/w"), 1);
  EXPECT_EQ(bytes("layernorm_bwd/cols=768/f32/w/mod"), kShared + 3 * 264 * 768 * 4);
  EXPECT_EQ(bytes("layernorm_bwd/cols=768/f32/dsum"), 0u) << "no sums over rows";
  EXPECT_EQ(blocks("layernorm_bwd/cols=768/f32/dsum"), 1 << 27);
}

TEST(GradientWorkspace, HasAPartOfTheSumsForEachBlock) {
  Plan plan{.strategy = Strategy::gradient_rows,
            .threads = 256,
            .threads_per_row = 256,
            .vector = 4,
            .per_thread = 4,
            .blocks_per_sm = 2};
  const std::size_t blocks = 2 * 132;
  NormSpec spec = kSpec;
  for (const Exchange exchange : {Exchange::none, Exchange::grid}) {
    plan.exchange = exchange;
    spec.affine = Affine::weight_bias;
    EXPECT_EQ(workspace_bytes(plan, spec, h200()), kShared + 2 * blocks * 4096 * 4);
    spec.affine = Affine::weight;
    EXPECT_EQ(workspace_bytes(plan, spec, h200()), kShared + blocks * 4096 * 4);
    spec.affine = Affine::none;
    EXPECT_EQ(workspace_bytes(plan, spec, h200()), 0u) << "there is nothing to add";
  }
  // In the type in which the spec is computed, whatever it is stored in.
  spec = {.backward = true, .columns = 4096, .gradient_type = DType::f64, .affine = Affine::weight};
  EXPECT_EQ(workspace_bytes(plan, spec, h200()), kShared + blocks * 4096 * 8);
  // Of single columns, to whole 16 bytes.
  plan = {
      .strategy = Strategy::gradient_rows, .threads = 32, .threads_per_row = 1, .vector = 1, .per_thread = 1};
  EXPECT_EQ(workspace_bytes(plan, {.backward = true, .columns = 1, .affine = Affine::weight}, h200()),
            kShared + 132 * 4);
}

// Blocks of a cluster have a part of one row of sums each.
TEST(GradientWorkspace, HasAPartOfTheSumsForEachCluster) {
  Plan plan{.strategy = Strategy::gradient_ring,
            .threads = 128,
            .threads_per_row = 128,
            .vector = 4,
            .per_thread = 4,
            .blocks_per_row = 2,
            .exchange = Exchange::cluster,
            .stages = 3};
  NormSpec spec = kSpec;
  EXPECT_EQ(workspace_bytes(plan, spec, h200()), kShared + 2 * 66 * 4096 * 4);
  spec.affine = Affine::none;
  EXPECT_EQ(workspace_bytes(plan, spec, h200()), 0u) << "there is nothing to add";
}

// Four batches of what is measured: five numbers for each row and chunk.
TEST(GradientWorkspace, OfColumnsHasWhatIsMeasured) {
  Plan plan{.strategy = Strategy::gradient_columns,
            .threads = 256,
            .threads_per_row = 256,
            .vector = 4,
            .per_thread = 2,
            .group_rows = 4,
            .blocks_per_sm = 2,
            .exchange = Exchange::grid};
  NormSpec spec{.backward = true, .columns = 4'194'304, .affine = Affine::weight_bias};
  const std::size_t chunks = 2048;
  EXPECT_EQ(workspace_bytes(plan, spec, h200()), kShared + 4 * 4 * chunks * 5 * 4 + 2 * 4'194'304 * 4)
      << "each chunk is one block's";
  spec.affine = Affine::none;
  EXPECT_EQ(workspace_bytes(plan, spec, h200()), kShared + 4 * 4 * chunks * 5 * 4);
  spec = {.backward = true, .columns = 8192, .affine = Affine::weight};
  EXPECT_EQ(workspace_bytes(plan, spec, h200()), kShared + 4 * 4 * 4 * 5 * 4 + (2 * 132 / 4) * 8192 * 4)
      << "66 blocks share each of 4 chunks";
  plan.exchange = Exchange::none;
  EXPECT_EQ(workspace_bytes(plan, spec, h200()), kShared + 4 * 4 * 4 * 5 * 4 + 8192 * 4)
      << "there is one block";
}

// A warp's row of x and dy of 16 bits without a gate may have 40 elements a lane.
TEST(GradientPlans, LongerRowsInWarpsAreThoseOf16Bits) {
  const NormSpec spec{.backward = true, .columns = 1280, .input = DType::bf16, .affine = Affine::weight};
  const Plan plan{.strategy = Strategy::gradient_rows,
                  .threads = 128,
                  .threads_per_row = 32,
                  .vector = 4,
                  .per_thread = 10,
                  .exchange = Exchange::grid};
  EXPECT_TRUE(check(plan, spec, h200()).ok());
  EXPECT_EQ(choose(spec, h200(), RowsRegime::many, Alignment::eight).threads_per_row, 32);
  NormSpec given = spec;
  given.columns = 1152, given.activation = Activation::gelu, given.statistics = true;
  EXPECT_EQ(choose(given, h200(), RowsRegime::many, Alignment::eight).threads_per_row, 32)
      << "what arrives is kept with given statistics, too";
  expect_refused(
      spec, plan,
      {{"per_thread must be at least 1, and times vector at most 40", [](Plan& p) { p.per_thread = 11; }},
       {"and times vector at most 32", [](Plan& p) { p.threads_per_row = p.threads; }}});
  NormSpec gated = spec, wide = {.backward = true, .columns = 1280, .affine = Affine::weight};
  gated.gate = Gate::after;
  for (const NormSpec& other : {gated, wide}) {
    const auto refused = check(plan, other, h200());
    ASSERT_EQ(refused.code(), Code::IllegalPlan);
    EXPECT_THAT(refused.error().message, HasSubstr("and times vector at most 32"));
  }
}

// The last block alone would take longer for the sums of all groups than all blocks for the rows.
TEST(GradientPlans, SumsOverGroupsAreAddedByAllBlocks) {
  for (const Affine affine : {Affine::none, Affine::weight_bias})
    for (std::int64_t columns = 16; columns < 100'000; columns = columns * 3 / 2) {
      const NormSpec spec{
          .backward = true, .columns = columns, .affine = affine, .modulation = Modulation::scale_shift};
      const auto all = candidates(spec, h200(), RowsRegime::many, Alignment::eight);
      EXPECT_TRUE(std::ranges::is_partitioned(all, [](const Candidate& candidate) {
        return candidate.plan.exchange == Exchange::grid;
      })) << columns;
      EXPECT_EQ(all.front().plan.exchange, Exchange::grid) << columns;
      EXPECT_EQ(fallback(spec, h200(), RowsRegime::many, Alignment::eight).exchange, Exchange::none);
    }
}

TEST(GradientWorkspace, IsOfTheSumsThatAreNeeded) {
  const Plan plan{.strategy = Strategy::gradient_rows,
                  .threads = 256,
                  .threads_per_row = 256,
                  .vector = 4,
                  .per_thread = 1,
                  .exchange = Exchange::grid};
  NormSpec spec{.backward = true, .columns = 1024, .affine = Affine::weight_bias};
  const std::size_t both = workspace_bytes(plan, spec, h200());
  for (const Need need : {Need::dx_dweight, Need::dx_dbias, Need::dweight, Need::dbias}) {
    spec.need = need;
    EXPECT_EQ(both - workspace_bytes(plan, spec, h200()), std::size_t{132} * 1024 * 4) << name(need);
  }
  spec.need = Need::dweight_dbias;
  EXPECT_EQ(workspace_bytes(plan, spec, h200()), both);
  spec.need = Need::dx;
  EXPECT_EQ(workspace_bytes(plan, spec, h200()), 0u);
  EXPECT_FALSE(all_blocks_meet({.strategy = Strategy::gradient_ring, .exchange = Exchange::cluster}, spec));
}

TEST(GradientWorkspace, HoldsTheSumsOfEveryLaunch) {
  for_random_specs(500, random_backward_spec,
                   [](const NormSpec& spec, const DeviceProfile& device, Random& random) {
                     for (const Plan& plan : plans(spec, device)) {
                       const auto bytes = static_cast<std::int64_t>(workspace_bytes(plan, spec, device));
                       DeviceProfile bigger = device;
                       bigger.sm_count *= 2;
                       EXPECT_GE(workspace_bytes(plan, spec, bigger), static_cast<std::size_t>(bytes));
                       EXPECT_EQ(bytes % 16, 0);
                       const std::int64_t rows = random_columns(random, std::int64_t{1} << 40);
                       const std::int64_t blocks = grid_blocks(plan, spec, device, rows);
                       EXPECT_GE(blocks, 1);
                       EXPECT_LE(blocks, std::int64_t{device.sm_count} * plan.blocks_per_sm)
                           << "a part for each, and all run";
                       const std::int64_t sums = sums_of(spec) * spec.columns * size_of_sum(spec);
                       if (plan.strategy != Strategy::gradient_columns) {
                         const std::int64_t teams = blocks / plan.blocks_per_row;
                         EXPECT_EQ(blocks % plan.blocks_per_row, 0);
                         EXPECT_LT((teams - 1) * rows_per_block(plan), rows) << "a block without a row";
                         EXPECT_GE(bytes, sums * teams);
                         EXPECT_EQ(bytes > 0, sums > 0);
                       } else {
                         EXPECT_GT(bytes, sums);
                       }
                     }
                   });
}

TEST(GradientPlans, HaveRowsSideBySide) {
  EXPECT_EQ(rows_per_block({.strategy = Strategy::gradient_rows, .threads = 256, .threads_per_row = 8}), 32);
  EXPECT_EQ(rows_per_block({.strategy = Strategy::gradient_rows, .threads = 256, .threads_per_row = 256}), 1);
  EXPECT_EQ(rows_per_block({.strategy = Strategy::gradient_columns, .threads = 256, .threads_per_row = 256}),
            1);
}

}  // namespace
}  // namespace normjit
