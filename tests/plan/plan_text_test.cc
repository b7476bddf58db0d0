// SPDX-License-Identifier: Apache-2.0
// A plan as a line of text, and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>

#include "normjit/plan.h"
#include "tests/support/random_spec.h"

namespace normjit {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kMaxInt = std::numeric_limits<int>::max();

TEST(PlanText, IsOneLine) {
  EXPECT_EQ(to_text(Plan{Strategy::warp_rows, 256, 16, 4, 1, 1, 1}),
            "warp_rows threads=256 threads_per_row=16 vector=4 per_thread=1 group_rows=1 blocks_per_sm=1");
  EXPECT_EQ(to_text(Plan{Strategy::split_row, 128, 128, 8, 3, 4, 2, 1, Exchange::none, true}),
            "split_row threads=128 threads_per_row=128 vector=8 per_thread=3 group_rows=4 blocks_per_sm=2 "
            "unaligned=1");
  EXPECT_EQ(to_text(Plan{Strategy::block_row, 128, 128, 8, 3, 1, 2, 8, Exchange::cluster}),
            "block_row threads=128 threads_per_row=128 vector=8 per_thread=3 group_rows=1 blocks_per_sm=2 "
            "blocks_per_row=8 "
            "exchange=cluster");
  EXPECT_EQ(to_text(Plan{Strategy::persistent_row, 512, 256, 4, 2, 1, 1, 16, Exchange::grid, false, 28}),
            "persistent_row threads=512 threads_per_row=256 vector=4 per_thread=2 group_rows=1 "
            "blocks_per_sm=1 blocks_per_row=16 "
            "stages=28 exchange=grid");
}

// Of any values, legal or not.
Plan random_plan(Random& random) {
  constexpr Strategy kStrategies[] = {
      Strategy::warp_rows,        Strategy::staged_rows,    Strategy::block_row,     Strategy::persistent_row,
      Strategy::split_row,        Strategy::channels_first, Strategy::gradient_rows, Strategy::gradient_ring,
      Strategy::gradient_columns, Strategy::generic};
  constexpr Exchange kExchanges[] = {Exchange::none, Exchange::cluster, Exchange::grid};
  const auto any = [&] {
    return static_cast<int>(random.coin() ? random.between(1, 4) : random.between(1, kMaxInt));
  };
  return {.strategy = random.one_of(kStrategies),
          .threads = any(),
          .threads_per_row = any(),
          .vector = any(),
          .per_thread = any(),
          .group_rows = any(),
          .blocks_per_sm = any(),
          .blocks_per_row = any(),
          .exchange = random.one_of(kExchanges),
          .unaligned = random.coin(),
          .stages = random.coin() ? 0 : any()};
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
  const Plan plan{Strategy::split_row, 128, 128, 4, 3, 4, 2};
  const auto changed = [&](auto change) {
    Plan other = plan;
    change(other);
    return other != plan && to_text(other) != to_text(plan);
  };
  EXPECT_TRUE(changed([](Plan& p) { p.strategy = Strategy::block_row; }));
  EXPECT_TRUE(changed([](Plan& p) { p.strategy = Strategy::persistent_row; }));
  EXPECT_TRUE(changed([](Plan& p) { p.threads = 256; }));
  EXPECT_TRUE(changed([](Plan& p) { p.threads_per_row = 256; }));
  EXPECT_TRUE(changed([](Plan& p) { p.vector = 8; }));
  EXPECT_TRUE(changed([](Plan& p) { p.per_thread = 4; }));
  EXPECT_TRUE(changed([](Plan& p) { p.group_rows = 8; }));
  EXPECT_TRUE(changed([](Plan& p) { p.blocks_per_sm = 1; }));
  EXPECT_TRUE(changed([](Plan& p) { p.blocks_per_row = 2; }));
  EXPECT_TRUE(changed([](Plan& p) { p.exchange = Exchange::cluster; }));
  EXPECT_TRUE(changed([](Plan& p) { p.unaligned = true; }));
  EXPECT_TRUE(changed([](Plan& p) { p.stages = 2; }));
}

constexpr std::string_view kShortest = "block_row threads=64 threads_per_row=64 vector=4 per_thread=1";

TEST(ParsePlan, WhatIsLeftOutHasItsDefault) {
  const Plan plan{
      .strategy = Strategy::block_row, .threads = 64, .threads_per_row = 64, .vector = 4, .per_thread = 1};
  EXPECT_EQ(parse_plan(kShortest).value(), plan);
  EXPECT_EQ(
      parse_plan("block_row per_thread=1 vector=4 threads_per_row=64 threads=64 unaligned=0 exchange=none")
          .value(),
      plan);
}

TEST(ParsePlan, WhatHasNoDefaultMayNotBeLeftOut) {
  EXPECT_EQ(parse_plan("warp_rows").code(), Code::BadArgument);
  for (const std::string word : {"threads", "threads_per_row", "vector", "per_thread"}) {
    std::string text(kShortest);
    const std::size_t begin = text.find(" " + word + "=");
    text.erase(begin, text.find(' ', begin + 1) - begin);
    const auto refused = parse_plan(text);
    ASSERT_EQ(refused.code(), Code::BadArgument) << text;
    EXPECT_THAT(refused.error().message, HasSubstr("'" + word + "' is missing")) << text;
  }
}

TEST(ParsePlan, NamesTheWordThatItDoesNotKnow) {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "''"},
      {"fast_rows threads=64", "'fast_rows'"},
      {"threads=64 warp_rows", "'threads=64'"},
      {"warp_rows  threads=64", "''"},
      {"warp_rows threads=64 ", "''"},
      {"warp_rows threads", "'threads'"},
      {"warp_rows threads=", "'threads='"},
      {"warp_rows threads=64x", "'threads=64x'"},
      {"warp_rows threads=1.5", "'threads=1.5'"},
      {"warp_rows threads=99999999999", "'threads=99999999999'"},
      {"warp_rows warps=2", "'warps=2'"},
      {"warp_rows exchange=mail", "'exchange=mail'"},
      {"warp_rows exchange=1", "'exchange=1'"},
      {"warp_rows unaligned=2", "'unaligned=2'"},
      {"warp_rows unaligned=yes", "'unaligned=yes'"},
      {"warp_rows vector=0", "'vector=0'"},
      {"persistent_row stages=-1", "'stages=-1'"},
  };
  for (const auto& [text, word] : wrong) {
    const auto refused = parse_plan(text);
    ASSERT_EQ(refused.code(), Code::BadArgument) << text;
    EXPECT_THAT(refused.error().message,
                AllOf(HasSubstr(word), HasSubstr("is unknown"), HasSubstr("A plan reads like")))
        << text;
  }
}

// Tuned plans of 0.1 are still in caches and packs.
TEST(PlanText, ReadsTheNamesOfVersionZeroPointOne) {
  const std::pair<std::string_view, std::string_view> texts[] = {
      {"packed_rows threads=64 lanes=8 vector=4 per_thread=2 group_rows=1 blocks_per_sm=9",
       "warp_rows threads=64 threads_per_row=8 vector=4 per_thread=2 group_rows=1 blocks_per_sm=9"},
      {"tiled_rows threads=64 lanes=32 vector=1 per_thread=2 group_rows=4 blocks_per_sm=3",
       "staged_rows threads=64 threads_per_row=32 vector=1 per_thread=2 group_rows=4 blocks_per_sm=3"},
      {"resident_row threads=256 lanes=256 vector=8 per_thread=1 group_rows=1 blocks_per_sm=1 slices=4 "
       "exchange=cluster shifted=1",
       "block_row threads=256 threads_per_row=256 vector=8 per_thread=1 group_rows=1 blocks_per_sm=1 "
       "blocks_per_row=4 exchange=cluster unaligned=1"},
      {"streamed_row threads=512 lanes=256 vector=4 per_thread=2 group_rows=1 blocks_per_sm=1 slices=64 "
       "stages=27 exchange=grid",
       "persistent_row threads=512 threads_per_row=256 vector=4 per_thread=2 group_rows=1 blocks_per_sm=1 "
       "blocks_per_row=64 stages=27 exchange=grid"},
      {"two_reads threads=256 lanes=256 vector=4 per_thread=8 group_rows=16 blocks_per_sm=2",
       "split_row threads=256 threads_per_row=256 vector=4 per_thread=8 group_rows=16 blocks_per_sm=2"},
  };
  for (const auto& [old, now] : texts) EXPECT_EQ(to_text(parse_plan(old).value()), now) << old;
}

}  // namespace
}  // namespace normjit
