// SPDX-License-Identifier: Apache-2.0
// The model of the planner's costs, and what it knows of a plan.
#include "normjit/plan/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "normjit/plan/cost.h"

namespace normjit {
namespace {

const DeviceProfile& h200() {
  static const DeviceProfile device = DeviceProfile::of(Arch{90}).value();
  return device;
}

TEST(Model, EveryFamilyHasTrees) {
  for (const PlanFamily family : {PlanFamily::forward, PlanFamily::channels_first, PlanFamily::gradients}) {
    EXPECT_GT(trees_of(family).size(), 10u);
    for (const Tree& tree : trees_of(family))
      for (const Tree::Split& split : tree.splits)
        EXPECT_LT(static_cast<std::size_t>(split.feature), kFeatures);
  }
}

// Plans pass through the trees side by side, and not all of them through all trees.
TEST(Model, TheOrderOfThePlansMeansNothing) {
  for (const char* text :
       {"layernorm/cols=4096/bf16/wb", "rmsnorm/cols=100/f32/cf", "rmsnorm_bwd/cols=768/f16/w"}) {
    const NormSpec spec = parse_spec(text).value();
    const PlanUse use{spec, h200(), RowsRegime::many, contiguous_alignment(spec)};
    std::vector<Plan> plans = every_plan(spec, h200(), use.regime, use.alignment);
    ASSERT_GT(plans.size(), 20u) << text;
    const std::vector<float> costs = costs_of(plans, use);
    std::reverse(plans.begin(), plans.end());
    const std::vector<float> reversed = costs_of(plans, use);
    EXPECT_EQ(std::ranges::min(costs), std::ranges::min(reversed)) << text;
  }
}

TEST(Features, AreThePhysicsOfALaunch) {
  const NormSpec spec = parse_spec("layernorm/cols=5000/f32/wb").value();
  const Plan plan{.strategy = Strategy::block_row,
                  .threads = 256,
                  .threads_per_row = 256,
                  .vector = 4,
                  .per_thread = 5,
                  .blocks_per_sm = 4};
  ASSERT_TRUE(check(plan, spec, h200()).ok());
  const Features f = LaunchFeatures(spec, h200(), 132 * 6).of(plan);
  constexpr float kClose = 0.02f;
  EXPECT_NEAR(f[Feature::log_rows], std::log2(6.0f), kClose);
  EXPECT_NEAR(f[Feature::log_row_bytes], std::log2(40'000.0f), kClose);
  EXPECT_EQ(f[Feature::access_bytes], 16);
  EXPECT_EQ(f[Feature::elements], 20);
  EXPECT_EQ(f[Feature::warps], 32);
  EXPECT_EQ(f[Feature::registers], 64);
  EXPECT_EQ(f[Feature::held], 20);
  EXPECT_NEAR(f[Feature::idle], 5120.0f / 5000 - 1, 1e-6f);
  EXPECT_NEAR(f[Feature::log_waves], std::log2(1.5f), kClose);
  EXPECT_NEAR(f[Feature::tail], 1.0f / 3, 1e-6f) << "half of the second wave is empty";
  EXPECT_EQ(f[Feature::busy], 1);
  EXPECT_NEAR(f[Feature::log_in_flight], std::log2(1024.0f * 20 * 4), kClose);
  EXPECT_EQ(f[Feature::read_twice], 0);
  EXPECT_EQ(LaunchFeatures(spec, h200(), 33).of(plan)[Feature::busy], 0.25f);
}

}  // namespace
}  // namespace normjit
