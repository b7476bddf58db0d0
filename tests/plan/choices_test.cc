// SPDX-License-Identifier: Apache-2.0
// The choices of the planner, pinned, so that a change of the planner shows whether it changes a choice.
#include <gtest/gtest.h>

#include "normjit/base/digest.h"
#include "normjit/plan.h"
#include "normjit/spec/valid.h"
#include "tests/support/random_spec.h"

namespace normjit {
namespace {

// Every choice, and its fallback, of random specs on every known device.
std::string digest_of_choices(std::uint64_t specs) {
  std::string all;
  for (std::uint64_t seed = 0; seed < specs; ++seed) {
    Random random(seed);
    const NormSpec spec = canonical(random_spec(random));
    for (const DeviceProfile& device : DeviceProfile::known())
      for (const RowsRegime regime : kRowsRegimes)
        for (const Alignment alignment : kAlignments)
          all += to_text(choose(spec, device, regime, alignment)) + "\n" +
                 to_text(fallback(spec, device, regime, alignment)) + "\n";
  }
  return digest(all);
}

// A change of the costs or of a known device changes the digest on purpose. Then put the new digest here,
// and the measurements behind it into the commit message.
TEST(Choose, ChoicesOfRandomSpecsAreThoseOfTheMeasuredCosts) {
  EXPECT_EQ(digest_of_choices(300), "afb4a9641991f97c4e0d24818b917b94");
}

void expect_a_plan(const NormSpec& spec) {
  for (const DeviceProfile& device : DeviceProfile::known())
    for (const Alignment alignment : kAlignments) {
      const auto all = candidates(spec, device, RowsRegime::many, alignment);
      ASSERT_FALSE(all.empty()) << to_text(spec) << " on " << device.text();
      for (const Candidate& one : all)
        ASSERT_TRUE(one.plan.strategy == Strategy::warp_rows || one.plan.strategy == Strategy::block_row)
            << to_text(spec) << " as " << to_text(one.plan);
    }
}

// Every spec that validate() accepts has a plan, also where only warp_rows and block_row compute it.
TEST(Choose, EveryNormAndResidualHasAPlan) {
  for (const DType input : {DType::f16, DType::bf16, DType::f32, DType::f64})
    for (const DType output : {DType::f16, DType::f32, DType::f64})
      for (const DType weight : {DType::bf16, DType::f32, DType::f64})
        for (const Activation activation : {Activation::none, Activation::gelu})
          for (const std::int64_t columns : {kMaxHeldColumns - 1, kMaxHeldColumns}) {
            expect_a_plan({.norm = Norm::rms,
                           .columns = columns,
                           .input = input,
                           .output = output,
                           .weight = weight,
                           .residual = Residual::before,
                           .sum = true,
                           .affine = Affine::weight_bias,
                           .activation = activation});
            if (HasFatalFailure()) return;
          }
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    if (const NormSpec spec = canonical(random_spec(random, {.every_norm = true})); is_held(spec))
      expect_a_plan(spec);
    if (HasFatalFailure()) return;
  }
}

// Their fallback has one of the same strategies. Where rows are too long for one block, check() refuses it.
TEST(Fallback, OfOtherNormsHoldsARowToo) {
  for (const std::int64_t columns : {std::int64_t{64}, std::int64_t{4096}, kMaxHeldColumns})
    for (const DType dtype : {DType::bf16, DType::f32, DType::f64})
      for (const DeviceProfile& device : DeviceProfile::known()) {
        const NormSpec spec{.norm = Norm::rms, .columns = columns, .input = dtype};
        const Plan plan = fallback(spec, device, RowsRegime::lone, Alignment::one);
        const auto legal = check(plan, spec, device);
        EXPECT_EQ(plan.exchange, Exchange::none);
        EXPECT_TRUE(legal.ok() || columns == kMaxHeldColumns) << legal.error().message;
        if (!legal) {
          EXPECT_NE(legal.error().message.find("split_row does not compute rmsnorm yet"), std::string::npos);
        }
      }
}

}  // namespace
}  // namespace normjit
