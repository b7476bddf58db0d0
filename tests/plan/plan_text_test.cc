// A plan as a line of text, and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "normjit/plan.h"
#include "tests/support/random_spec.h"

namespace normjit {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kMaxInt = std::numeric_limits<int>::max();

TEST(PlanText, IsOneLine) {
  EXPECT_EQ(to_text(Plan{Strategy::packed_rows, 256, 16, 4, 1, 1, 1}),
            "packed_rows threads=256 lanes=16 vector=4 per_thread=1 group_rows=1 blocks_per_sm=1");
  EXPECT_EQ(to_text(Plan{Strategy::two_reads, 128, 128, 8, 3, 4, 2, 1, Exchange::none, true}),
            "two_reads threads=128 lanes=128 vector=8 per_thread=3 group_rows=4 blocks_per_sm=2 shifted=1");
  EXPECT_EQ(to_text(Plan{Strategy::resident_row, 128, 128, 8, 3, 1, 2, 8, Exchange::cluster}),
            "resident_row threads=128 lanes=128 vector=8 per_thread=3 group_rows=1 blocks_per_sm=2 slices=8 "
            "exchange=cluster");
  EXPECT_EQ(to_text(Plan{Strategy::streamed_row, 512, 256, 4, 2, 1, 1, 16, Exchange::grid, false, 28}),
            "streamed_row threads=512 lanes=256 vector=4 per_thread=2 group_rows=1 blocks_per_sm=1 slices=16 "
            "stages=28 exchange=grid");
}

// Of any values, legal or not.
Plan random_plan(Random& random) {
  constexpr Strategy kStrategies[] = {Strategy::packed_rows,  Strategy::tiled_rows, Strategy::resident_row,
                                      Strategy::streamed_row, Strategy::two_reads,  Strategy::generic};
  constexpr Exchange kExchanges[] = {Exchange::none, Exchange::cluster, Exchange::grid};
  const auto any = [&] {
    return static_cast<int>(random.coin() ? random.between(-2, 4) : random.between(-kMaxInt - 1LL, kMaxInt));
  };
  return {.strategy = random.one_of(kStrategies),
          .threads = any(),
          .lanes = any(),
          .vector = any(),
          .per_thread = any(),
          .group_rows = any(),
          .blocks_per_sm = any(),
          .slices = any(),
          .exchange = random.one_of(kExchanges),
          .shifted = random.coin(),
          .stages = any()};
}

TEST(PlanText, ReadsBackToTheSamePlan) {
  for (std::uint64_t seed = 0; seed < 5'000; ++seed) {
    Random random(seed);
    const Plan plan = random_plan(random);
    const std::string text = to_text(plan);
    EXPECT_EQ(text.find('\n'), text.npos);
    const auto read = parse_plan(text);
    ASSERT_TRUE(read.ok()) << read.error().message;
    ASSERT_EQ(*read, plan) << "seed " << seed << ": " << text;
  }
  const DeviceProfile& device = DeviceProfile::known().back();
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    for (const Plan& plan : plans(canonical(random_spec(random)), device))
      EXPECT_EQ(parse_plan(to_text(plan)).value(), plan) << "seed " << seed;
  }
}

// Each field makes a text, and so a kernel, of its own.
TEST(PlanText, EveryFieldIsInIt) {
  const Plan plan{Strategy::two_reads, 128, 128, 4, 3, 4, 2};
  const auto changed = [&](auto change) {
    Plan other = plan;
    change(other);
    return other != plan && to_text(other) != to_text(plan);
  };
  EXPECT_TRUE(changed([](Plan& p) { p.strategy = Strategy::resident_row; }));
  EXPECT_TRUE(changed([](Plan& p) { p.strategy = Strategy::streamed_row; }));
  EXPECT_TRUE(changed([](Plan& p) { p.threads = 256; }));
  EXPECT_TRUE(changed([](Plan& p) { p.lanes = 256; }));
  EXPECT_TRUE(changed([](Plan& p) { p.vector = 8; }));
  EXPECT_TRUE(changed([](Plan& p) { p.per_thread = 4; }));
  EXPECT_TRUE(changed([](Plan& p) { p.group_rows = 8; }));
  EXPECT_TRUE(changed([](Plan& p) { p.blocks_per_sm = 1; }));
  EXPECT_TRUE(changed([](Plan& p) { p.slices = 2; }));
  EXPECT_TRUE(changed([](Plan& p) { p.exchange = Exchange::cluster; }));
  EXPECT_TRUE(changed([](Plan& p) { p.shifted = true; }));
  EXPECT_TRUE(changed([](Plan& p) { p.stages = 2; }));
}

TEST(ParsePlan, WhatIsLeftOutHasItsDefault) {
  EXPECT_EQ(parse_plan("packed_rows").value(), Plan{.strategy = Strategy::packed_rows});
  EXPECT_EQ(parse_plan("resident_row lanes=64 threads=64 shifted=0 exchange=none").value(),
            (Plan{.strategy = Strategy::resident_row, .threads = 64, .lanes = 64}));
}

TEST(ParsePlan, NamesTheWordThatItDoesNotKnow) {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "''"},
      {"fast_rows threads=64", "'fast_rows'"},
      {"threads=64 packed_rows", "'threads=64'"},
      {"packed_rows  threads=64", "''"},
      {"packed_rows threads=64 ", "''"},
      {"packed_rows threads", "'threads'"},
      {"packed_rows threads=", "'threads='"},
      {"packed_rows threads=64x", "'threads=64x'"},
      {"packed_rows threads=1.5", "'threads=1.5'"},
      {"packed_rows threads=99999999999", "'threads=99999999999'"},
      {"packed_rows warps=2", "'warps=2'"},
      {"packed_rows exchange=mail", "'exchange=mail'"},
      {"packed_rows exchange=1", "'exchange=1'"},
      {"packed_rows shifted=2", "'shifted=2'"},
      {"packed_rows shifted=yes", "'shifted=yes'"},
  };
  for (const auto& [text, word] : wrong) {
    const auto refused = parse_plan(text);
    ASSERT_EQ(refused.code(), Code::BadArgument) << text;
    EXPECT_THAT(refused.error().message,
                AllOf(HasSubstr(word), HasSubstr("is unknown"), HasSubstr("A plan reads like")))
        << text;
  }
}

}  // namespace
}  // namespace normjit
