// SPDX-License-Identifier: Apache-2.0
// The choices of the planner, pinned, so that a change of the planner shows whether it changes a choice.
#include <gtest/gtest.h>

#include "normjit/base/digest.h"
#include "normjit/plan.h"
#include "normjit/plan/cost.h"
#include "normjit/spec/valid.h"
#include "tests/support/random_spec.h"

namespace normjit {
namespace {

// Every choice, and its fallback, of random forward or backward specs on every known device.
std::string digest_of_choices(std::uint64_t specs, bool backward) {
  std::string all;
  for (std::uint64_t seed = 0; seed < specs; ++seed) {
    Random random(seed);
    NormSpec spec = random_spec(random);
    if (backward) make_backward(spec, random);
    spec = canonical(spec);
    for (const DeviceProfile& device : DeviceProfile::known())
      for (const Alignment alignment : kAlignments) {
        for (const RowsRegime regime : kRowsRegimes)
          all += to_text(choose(spec, device, regime, alignment)) + "\n" +
                 to_text(fallback(spec, device, regime, alignment)) + "\n";
        all += to_text(choose(spec, device, RowsRegime::many, alignment, true)) + "\n";
      }
  }
  return digest(all);
}

// Another fit of the model, or a change of a known device, changes the digest on purpose. Then put the new
// digest here, and the errors of the fit into the commit message.
TEST(Choose, ChoicesOfRandomSpecsAreThoseOfTheMeasuredCosts) {
  EXPECT_EQ(digest_of_choices(100, false), "ea2c1449eb0f87e06eb1b5ed1e49a801");
  EXPECT_EQ(digest_of_choices(50, true), "9e0b95d63302a549ab4aec02c0bc634c");
}

void expect_a_plan(const NormSpec& spec) {
  for (const DeviceProfile& device : DeviceProfile::known())
    for (const Alignment alignment : kAlignments) {
      const std::vector<Plan> all = every_plan(spec, device, RowsRegime::many, alignment);
      ASSERT_FALSE(all.empty()) << to_text(spec) << " on " << device.text();
      for (const Plan& plan : all) {
        const auto legal = check(plan, spec, device);
        ASSERT_TRUE(legal.ok()) << legal.error().message;
      }
    }
}

// Every spec that validate() accepts has a plan.
TEST(Choose, EveryNormAndResidualHasAPlan) {
  for (const DType input : {DType::f16, DType::bf16, DType::f32, DType::f64})
    for (const DType output : {DType::f16, DType::f32, DType::f64})
      for (const DType weight : {DType::bf16, DType::f32, DType::f64})
        for (const Activation activation : {Activation::none, Activation::gelu})
          for (const std::int64_t columns : {16'383, 16'384, 4'194'304}) {
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
    expect_a_plan(canonical(random_spec(random, {.channels_first = true, .every_norm = true})));
    if (HasFatalFailure()) return;
  }
}

// Its blocks need not run together.
TEST(Fallback, OfEveryNormIsSplitRow) {
  for (const std::int64_t columns : {64, 4096, 16'384, 4'194'304})
    for (const DType dtype : {DType::bf16, DType::f32, DType::f64})
      for (const DeviceProfile& device : DeviceProfile::known())
        for (const Residual residual : {Residual::none, Residual::before, Residual::after}) {
          const NormSpec spec{
              .norm = Norm::rms, .columns = columns, .input = dtype, .in_bias = true, .residual = residual};
          const Plan plan = fallback(spec, device, RowsRegime::lone, Alignment::one);
          const auto legal = check(plan, spec, device);
          EXPECT_TRUE(legal.ok()) << legal.error().message;
          EXPECT_EQ(plan.strategy, Strategy::split_row);
        }
}

}  // namespace
}  // namespace normjit
