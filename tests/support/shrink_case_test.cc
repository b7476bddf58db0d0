// SPDX-License-Identifier: Apache-2.0
#include "tests/support/shrink_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace normjit::testing {
namespace {

constexpr int kPlenty = 100'000;

Verdict fails_if(std::function<bool(const KernelCase&)> condition) {
  return [condition](const KernelCase& c) -> std::optional<std::string> {
    if (condition(c)) return "wrong at " + std::to_string(c.rows) + " rows";
    return {};
  };
}

// A random case that fails, which one in some hundreds does.
KernelCase first_failing(const Verdict& verdict) {
  for (std::uint64_t seed = 0;; ++seed)
    if (KernelCase c = random_case(seed); verdict(c)) return c;
}

TEST(ShrinkCase, FindsTheSmallestCaseThatFails) {
  const Verdict verdict = fails_if([](const KernelCase& c) {
    return c.rows >= 3 && c.spec.columns >= 37 && c.spec.activation == Activation::gelu &&
           c.plan.strategy == Strategy::split_row;
  });
  const KernelCase failing = first_failing(verdict);
  const ShrunkCase shrunk = shrink(failing, *verdict(failing), verdict, kPlenty);
  const KernelCase& c = shrunk.smallest;
  EXPECT_EQ(c.rows, 3);
  EXPECT_EQ(c.spec, (NormSpec{.columns = 37, .activation = Activation::gelu})) << to_text(c);
  EXPECT_EQ(c.plan, (Plan{Strategy::split_row, 32, 32, 1, 1, 1, 1})) << to_text(c);
  EXPECT_EQ(c.device.sm_count, 1);
  EXPECT_EQ(c.x_gap, 0);
  EXPECT_EQ(c.y_gap, 0);
  EXPECT_EQ(c.x_shift, 0);
  EXPECT_EQ(c.weight_shift, 0);
  EXPECT_FALSE(c.in_place);
  EXPECT_EQ(c.runs, 1);
  EXPECT_EQ(c.inputs, InputKind::unit);
  EXPECT_EQ(shrunk.wrong, "wrong at 3 rows");
}

TEST(ShrinkCase, KeepsWhatTheFailureNeeds) {
  const Verdict verdict = fails_if([](const KernelCase& c) {
    return c.spec.input == DType::f16 && c.spec.affine == Affine::weight_bias && c.x_gap > 0 && c.runs == 2 &&
           c.plan.vector == 2 && c.inputs == InputKind::nan_row && !c.spec.channels_first;
  });
  const KernelCase failing = first_failing(verdict);
  const ShrunkCase shrunk = shrink(failing, *verdict(failing), verdict, kPlenty);
  EXPECT_TRUE(verdict(shrunk.smallest)) << to_text(shrunk.smallest);
  EXPECT_EQ(shrunk.smallest.rows, 1);
  EXPECT_LE(shrunk.smallest.spec.columns, 2);
  EXPECT_EQ(shrunk.smallest.spec.activation, Activation::none);
}

TEST(ShrinkCase, DropsAQuantizationThatTheFailureDoesNotNeed) {
  const Verdict any = fails_if([](const KernelCase&) { return true; });
  const KernelCase failing =
      first_failing(fails_if([](const KernelCase& c) { return rounds_y(c.spec) && scales_rows(c.spec); }));
  const NormSpec plain = shrink(failing, "wrong", any, kPlenty).smallest.spec;
  EXPECT_EQ(plain.quantization, Quantization::none) << to_text(plain);
  EXPECT_EQ(plain.output, plain.input);
  EXPECT_EQ(plain.rounding, Rounding::none);

  const Verdict needs = fails_if([](const KernelCase& c) { return c.spec.output == DType::s8; });
  const NormSpec given = shrink(first_failing(needs), "wrong", needs, kPlenty).smallest.spec;
  EXPECT_EQ(given.output, DType::s8);
  EXPECT_EQ(given.quantization, Quantization::tensor);
  EXPECT_FALSE(given.inverse_scale);
}

TEST(ShrinkCase, ASampleKeepsItsPlane) {
  const Verdict verdict = fails_if(
      [](const KernelCase& c) { return c.spec.channels_first && c.plan.vector == 2 && c.rows >= 12; });
  const KernelCase failing = first_failing(verdict);
  const ShrunkCase shrunk = shrink(failing, *verdict(failing), verdict, kPlenty);
  EXPECT_EQ(shrunk.smallest.rows, 12);
  EXPECT_EQ(shrunk.smallest.rows % shrunk.smallest.plane, 0);
  EXPECT_EQ(shrunk.smallest.spec.columns, 1);
}

TEST(ShrinkCase, GradientsStayGradients) {
  const Verdict needs = fails_if([](const KernelCase& c) {
    return c.spec.backward && c.spec.affine == Affine::weight_bias && c.rows >= 5 && c.spec.columns >= 3 &&
           c.plan.strategy == Strategy::gradient_rows;
  });
  const KernelCase failing = first_failing(fails_if([&](const KernelCase& c) {
    return needs(c) && c.spec.dsum && c.residual_gap > 0 && c.scale_gap > 0 &&
           c.spec.gradient_type != c.spec.input;
  }));
  const KernelCase c = shrink(failing, "wrong", needs, kPlenty).smallest;
  EXPECT_EQ(c.spec, (NormSpec{.backward = true, .columns = 3, .affine = Affine::weight_bias})) << to_text(c);
  EXPECT_EQ(c.plan.vector, 1);
  EXPECT_EQ(c.plan.exchange, Exchange::none);
  EXPECT_EQ(c.rows, 5);
  EXPECT_EQ(c.scale_gap, 0);
  EXPECT_EQ(c.residual_gap, 0);
}

TEST(ShrinkCase, AsksOnlyAboutLegalCasesAndNotTooOften) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    int asked = 0;
    const ShrunkCase shrunk = shrink(
        random_case(seed), "wrong",
        [&](const KernelCase& c) -> std::optional<std::string> {
          ++asked;
          EXPECT_TRUE(legal(c)) << to_text(c);
          return "still wrong";
        },
        40);
    EXPECT_LE(asked, 40);
    EXPECT_EQ(asked, shrunk.tried);
    EXPECT_EQ(shrunk.smallest.rows, 1);
    EXPECT_EQ(shrunk.wrong, "still wrong");
  }
}

TEST(ShrinkCase, ReturnsACaseThatOnlyFailsAsItIs) {
  const KernelCase failing = random_case(7);
  const ShrunkCase shrunk = shrink(failing, "wrong", fails_if([](const KernelCase&) { return false; }));
  EXPECT_EQ(shrunk.smallest, failing);
  EXPECT_EQ(shrunk.wrong, "wrong");
}

}  // namespace
}  // namespace normjit::testing
