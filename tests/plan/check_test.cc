// SPDX-License-Identifier: Apache-2.0
// Each limit that a plan may break, broken once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "normjit/plan.h"
#include "tests/support/plan_checks.h"

namespace normjit {
namespace {

using testing::HasSubstr;

constexpr int kMaxInt = std::numeric_limits<int>::max();

// Broken whatever the strategy.
std::vector<Broken> broken_shapes() {
  return {
      {"threads must be", [](Plan& p) { p.threads = p.threads_per_row = 0; }},
      {"threads must be", [](Plan& p) { p.threads = p.threads_per_row = -32; }},
      {"threads must be", [](Plan& p) { p.threads = p.threads_per_row = 16; }},
      {"threads must be", [](Plan& p) { p.threads = p.threads_per_row = 100; }},
      {"threads must be", [](Plan& p) { p.threads = p.threads_per_row = 1056; }},
      {"vector must be", [](Plan& p) { p.vector = 0; }},
      {"vector must be", [](Plan& p) { p.vector = -4; }},
      {"vector must be", [](Plan& p) { p.vector = 3; }},
      {"vector must be", [](Plan& p) { p.vector = 16; }},
      {"per_thread must be", [](Plan& p) { p.per_thread = 0; }},
      {"per_thread must be", [](Plan& p) { p.per_thread = -1; }},
      {"registers per thread", [](Plan& p) { p.per_thread = 1000; }},
      {"registers per thread", [](Plan& p) { p.per_thread = kMaxInt; }},
      {"registers per thread", [](Plan& p) { p.per_thread = 1 << 30; }},
      {"group_rows must be", [](Plan& p) { p.group_rows = 0; }},
      {"group_rows must be", [](Plan& p) { p.group_rows = -4; }},
      {"group_rows must be", [](Plan& p) { p.group_rows = 6; }},
      {"blocks_per_sm must be", [](Plan& p) { p.blocks_per_sm = 0; }},
      {"blocks_per_sm must be", [](Plan& p) { p.blocks_per_sm = 33; }},
      {"too much for a block or for blocks_per_sm blocks", [](Plan& p) { p.blocks_per_sm = kMaxInt; }},
  };
}

TEST(Check, RefusesBrokenWarpRows) {
  const NormSpec spec{.columns = 64};
  const Plan plan{
      .strategy = Strategy::warp_rows, .threads = 256, .threads_per_row = 16, .vector = 4, .per_thread = 1};
  expect_refused(spec, plan, broken_shapes());
  expect_refused(spec, plan,
                 {{"threads_per_row must be a power of two", [](Plan& p) { p.threads_per_row = 0; }},
                  {"threads_per_row must be a power of two", [](Plan& p) { p.threads_per_row = -16; }},
                  {"threads_per_row must be a power of two", [](Plan& p) { p.threads_per_row = 24; }},
                  {"threads_per_row must be a power of two", [](Plan& p) { p.threads_per_row = 64; }},
                  {"must cover the columns", [](Plan& p) { p.threads_per_row = 8; }},
                  {"must cover the columns", [](Plan& p) { p.vector = 2; }}});
}

TEST(Check, RefusesBrokenBlockRow) {
  const NormSpec spec{.columns = 4096};
  const Plan plan{
      .strategy = Strategy::block_row, .threads = 256, .threads_per_row = 256, .vector = 4, .per_thread = 4};
  expect_refused(spec, plan, broken_shapes());
  expect_refused(spec, plan,
                 {{"threads_per_row equal to threads", [](Plan& p) { p.threads_per_row = 32; }},
                  {"threads_per_row equal to threads", [](Plan& p) { p.threads_per_row = 0; }},
                  {"multiple of 32", [](Plan& p) { p.threads = p.threads_per_row = 400; }},
                  {"power of two",
                   [](Plan& p) {
                     p.threads = p.threads_per_row = 384;
                     p.blocks_per_row = 2;
                     p.exchange = Exchange::cluster;
                   }},
                  {"must cover the columns", [](Plan& p) { p.per_thread = 3; }},
                  {"must cover the columns", [](Plan& p) { p.threads = p.threads_per_row = 128; }}});
}

TEST(Check, RefusesBrokenSplitRow) {
  const NormSpec spec{.columns = 4194304};
  const Plan plan{.strategy = Strategy::split_row,
                  .threads = 256,
                  .threads_per_row = 256,
                  .vector = 4,
                  .per_thread = 4,
                  .group_rows = 1,
                  .blocks_per_sm = 2};
  expect_refused(spec, plan, broken_shapes());
  expect_refused(spec, plan,
                 {{"threads_per_row equal to threads", [](Plan& p) { p.threads_per_row = 128; }},
                  {"power of two", [](Plan& p) { p.threads = p.threads_per_row = 96; }}});
}

TEST(Check, RefusesBrokenBlocksPerRow) {
  const NormSpec spec{.columns = 65536};
  const Plan plan{Strategy::block_row, 512, 512, 4, 4, 1, 1, 8, Exchange::cluster};
  expect_refused(spec, plan, broken_shapes());
  expect_refused(
      spec, plan,
      {{"blocks_per_row must be 1 without an exchange", [](Plan& p) { p.blocks_per_row = 1; }},
       {"blocks_per_row must be 1 without an exchange", [](Plan& p) { p.blocks_per_row = 0; }},
       {"blocks_per_row must be 1 without an exchange", [](Plan& p) { p.blocks_per_row = -8; }},
       {"blocks_per_row must be 1 without an exchange", [](Plan& p) { p.exchange = Exchange::none; }},
       {"must cover the columns", [](Plan& p) { p.blocks_per_row = 4; }},
       {"must be 2, 4 or 8", [](Plan& p) { p.blocks_per_row = 3; }},
       {"must be 2, 4 or 8", [](Plan& p) { p.blocks_per_row = 16; }},
       {"only persistent_row has a ring", [](Plan& p) { p.stages = 2; }},
       {"unknown strategy or exchange", [](Plan& p) { p.exchange = Exchange{9}; }}});
  expect_refused({.columns = 65536}, {Strategy::split_row, 256, 256, 4, 4, 1, 2},
                 {{"only block_row and persistent_row can have blocks_per_row above 1",
                   [](Plan& p) { p.blocks_per_row = 2, p.exchange = Exchange::cluster; }}});
  expect_refused({.columns = 64}, {Strategy::warp_rows, 128, 16, 4, 1, 1, 1},
                 {{"only block_row and persistent_row can have blocks_per_row above 1",
                   [](Plan& p) { p.blocks_per_row = 2, p.exchange = Exchange::grid; }}});
}

TEST(Check, ClustersNeedTheirArchitecture) {
  const NormSpec spec{.columns = 8192};
  const Plan plan{Strategy::block_row, 256, 256, 4, 4, 1, 1, 2, Exchange::cluster};
  for (const DeviceProfile& device : DeviceProfile::known()) {
    const auto legal = check(plan, spec, device);
    EXPECT_EQ(legal.ok(), device.arch.number >= 90) << device.text();
    if (!legal) {
      EXPECT_THAT(legal.error().message, HasSubstr("clusters need sm_90")) << device.text();
    }
  }
}

TEST(Check, BlocksThatExchangeOverTheGridMustBeResidentAtOnce) {
  const NormSpec spec{.columns = 1 << 20};
  const Plan plan{Strategy::block_row, 256, 256, 4, 8, 1, 1, 132, Exchange::grid};
  expect_refused(spec, plan,
                 {{"133 blocks of a row must be resident at once; the device has room for 132",
                   [](Plan& p) { p.blocks_per_row = 133; }}});
  DeviceProfile small = h200();
  small.sm_count = 66;
  EXPECT_EQ(check(plan, spec, small).code(), Code::IllegalPlan);
  Plan twice = plan;
  twice.blocks_per_sm = 2;
  EXPECT_TRUE(check(twice, spec, small).ok()) << check(twice, spec, small).error().message;
}

TEST(Check, RefusesMoreBlocksThanTheWorkspaceHasSlotsFor) {
  const NormSpec spec{.columns = 1 << 20};
  const Plan plan{Strategy::block_row, 256, 256, 4, 8, 1, 2, 128, Exchange::grid};
  DeviceProfile device = h200();
  device.sm_count = 1024;  // 2048 blocks of two slots each
  EXPECT_TRUE(check(plan, spec, device).ok()) << check(plan, spec, device).error().message;
  device.sm_count = 1025;
  const auto refused = check(plan, spec, device);
  ASSERT_EQ(refused.code(), Code::IllegalPlan);
  EXPECT_THAT(refused.error().message, HasSubstr("more than the 4096 slots"));
}

TEST(Check, RefusesBrokenPersistentRow) {
  const NormSpec spec{.columns = 4194304};
  const Plan plan{Strategy::persistent_row, 512, 256, 4, 2, 1, 1, 128, Exchange::grid, false, 27};
  expect_refused(
      spec, plan,
      {{"threads must be", [](Plan& p) { p.threads = 384; }},
       {"needs threads=512", [](Plan& p) { p.threads_per_row = 512; }},
       {"needs threads=512", [](Plan& p) { p.threads = 256; }},
       {"needs threads=512", [](Plan& p) { p.threads = 1024, p.threads_per_row = 512; }},
       {"needs threads=512", [](Plan& p) { p.blocks_per_sm = 0; }},
       {"needs threads=512", [](Plan& p) { p.blocks_per_sm = 2; }},
       {"vector of 16 bytes of x", [](Plan& p) { p.vector = 2, p.per_thread = 4; }},
       {"vector must be", [](Plan& p) { p.vector = 3; }},
       {"per_thread must be", [](Plan& p) { p.per_thread = 0; }},
       {"group_rows must be", [](Plan& p) { p.group_rows = 0; }},
       {"needs exchange=grid", [](Plan& p) { p.blocks_per_row = 8, p.exchange = Exchange::cluster; }},
       {"stages must be at least 2", [](Plan& p) { p.stages = 1; }},
       {"stages must be at least 2", [](Plan& p) { p.stages = 0; }},
       {"stages must be at least 2", [](Plan& p) { p.stages = -4; }},
       {"stages must be at least the number of chunks", [](Plan& p) { p.stages = 15; }},
       {"stages must be at least the number of chunks", [](Plan& p) { p.blocks_per_row = 64; }},
       {"bytes of shared memory", [](Plan& p) { p.stages = 29; }},
       {"blocks_per_row must be 1 without an exchange", [](Plan& p) { p.exchange = Exchange::none; }}});
  const auto refused = check({Strategy::persistent_row, 512, 256, 4, 2, 1, 1, 1, Exchange::none, true, 4},
                             {.columns = 7}, *DeviceProfile::of(Arch{90}));
  ASSERT_EQ(refused.code(), Code::IllegalPlan);
  EXPECT_THAT(refused.error().message, HasSubstr("at least 2 * vector columns"));
  // However far beyond, also where 32 bits do not hold the bytes.
  expect_refused({.columns = 8192},
                 {Strategy::persistent_row, 512, 256, 4, 2, 1, 1, 1, Exchange::none, false, 4},
                 {{"bytes of shared memory", [](Plan& p) { p.stages = (1 << 21) + 8; }},
                  {"bytes of shared memory", [](Plan& p) { p.stages = kMaxInt; }},
                  {"bytes of shared memory", [](Plan& p) { p.stages = p.per_thread = kMaxInt; }}});
  expect_refused({.columns = 16384},
                 {Strategy::persistent_row, 512, 256, 4, 2, 1, 1, 8, Exchange::grid, false, 8},
                 {{"at most the number of chunks of a row", [](Plan& p) { p.blocks_per_row = 9; }}});
  for (const DeviceProfile& device : DeviceProfile::known())
    if (device.arch.number < 90) {
      const auto refused =
          check({Strategy::persistent_row, 512, 256, 4, 2, 1, 1, 1, Exchange::none, false, 4},
                {.columns = 4096}, device);
      ASSERT_EQ(refused.code(), Code::IllegalPlan) << device.text();
      EXPECT_THAT(refused.error().message, HasSubstr("bulk copies, which need sm_90")) << device.text();
    }
}

TEST(Check, RefusesWhatCannotBeUnaligned) {
  const NormSpec spec = canonical({.columns = 4097, .input = DType::f16});
  Plan plan{Strategy::block_row, 256, 256, 8, 2, 1, 1, 1, Exchange::none, true};
  expect_refused(spec, plan,
                 {{"unaligned rows need", [](Plan& p) { p.vector = 1, p.per_thread = 17; }},
                  {"divide the columns", [](Plan& p) { p.unaligned = false; }},
                  {"must cover the columns", [](Plan& p) { p.per_thread = 1; }}});
  EXPECT_EQ(check({Strategy::warp_rows, 64, 4, 4, 3, 1, 1, 1, Exchange::none, true},
                  canonical({.columns = 33}), h200())
                .code(),
            Code::IllegalPlan)
      << "staged_rows is for that";
  const Plan realigned{Strategy::block_row, 256, 256, 8, 2, 1, 1, 1, Exchange::none, true};
  EXPECT_TRUE(check(realigned, spec, h200()).ok());
  const auto with_in_bias =
      check(realigned, canonical({.columns = 4097, .input = DType::f16, .in_bias = true}), h200());
  EXPECT_EQ(with_in_bias.code(), Code::IllegalPlan) << "it is not aligned where x is";
  EXPECT_THAT(with_in_bias.error().message, HasSubstr("no in_bias"));
  expect_refused(canonical({.columns = 4097}),
                 {Strategy::block_row, 256, 256, 4, 4, 1, 1, 1, Exchange::none, true},
                 {{"unaligned rows need", [](Plan& p) { p.vector = 8, p.per_thread = 2; }}});
  const auto by_row = canonical(
      {.columns = 4097, .input = DType::f16, .output = DType::e4m3, .quantization = Quantization::row});
  EXPECT_TRUE(check(realigned, by_row, h200()).ok());
  // 156 KiB of parameters in shared memory, which not every multiprocessor has.
  const NormSpec long_rows =
      canonical({.columns = 40001, .input = DType::f16, .affine = Affine::weight_bias});
  plan = {Strategy::block_row, 1024, 1024, 8, 5, 1, 1, 1, Exchange::none, true};
  EXPECT_TRUE(check(plan, long_rows, h200()).ok()) << check(plan, long_rows, h200()).error().message;
  const DeviceProfile l4 = DeviceProfile::of({.number = 89}).value();
  const auto refused = check(plan, long_rows, l4);
  ASSERT_EQ(refused.code(), Code::IllegalPlan);
  EXPECT_THAT(refused.error().message, HasSubstr("bytes of shared memory, too much for a block"));
}

TEST(Check, RefusesBrokenStagedRows) {
  const NormSpec spec = canonical({.columns = 40, .input = DType::f16, .output = DType::f32});
  expect_refused(spec, {Strategy::staged_rows, 64, 2, 4, 5, 2},
                 {{"needs unaligned=0", [](Plan& p) { p.unaligned = true; }},
                  {"vector of at most 16 bytes", [](Plan& p) { p.vector = 8; }},
                  {"power of two up to 32", [](Plan& p) { p.threads_per_row = 64; }},
                  {"must cover the columns", [](Plan& p) { p.per_thread = 4; }},
                  {"group_rows must be", [](Plan& p) { p.group_rows = 5; }},
                  {"bytes of shared memory", [](Plan& p) { p.threads = 1024, p.group_rows = 16; }}});
}

TEST(Check, AVectorDividesTheColumns) {
  Plan plan{
      .strategy = Strategy::warp_rows, .threads = 256, .threads_per_row = 32, .vector = 1, .per_thread = 8};
  for (const int vector : {1, 2, 4, 8}) {
    plan.vector = vector;
    for (const std::int64_t columns : {3, 6, 12, 24})
      EXPECT_EQ(check(plan, {.columns = columns, .input = DType::f16}, h200()).ok(), columns % vector == 0)
          << vector << " elements an access of " << columns << " columns";
  }
}

// Threads and registers are limits of a multiprocessor, blocks_per_sm what must fit on it together.
TEST(Check, RefusesMoreBlocksThanAMultiprocessorHolds) {
  const NormSpec spec{.columns = 4194304};
  Plan plan{.strategy = Strategy::split_row,
            .threads = 256,
            .threads_per_row = 256,
            .vector = 4,
            .per_thread = 1,
            .group_rows = 1,
            .blocks_per_sm = 4};
  EXPECT_TRUE(check(plan, spec, h200()).ok());
  EXPECT_TRUE(check(plan, spec, DeviceProfile::of({.number = 75}).value()).ok())
      << "exactly its 1024 threads";
  plan.blocks_per_sm = 5;
  const auto on_t4 = check(plan, spec, DeviceProfile::of({.number = 75}).value());
  ASSERT_EQ(on_t4.code(), Code::IllegalPlan);
  EXPECT_THAT(on_t4.error().message, HasSubstr("1024 threads of a multiprocessor"));
  plan.blocks_per_sm = 8;
  plan.per_thread = 5;  // 20 registers of the row, and 16 to work with
  const auto on_h200 = check(plan, spec, h200());
  ASSERT_EQ(on_h200.code(), Code::IllegalPlan);
  EXPECT_THAT(on_h200.error().message,
              HasSubstr("registers per thread; a thread can have 255, a multiprocessor has 65536"));
}

TEST(Check, AStrategyOutsideItsSetIsRefused) {
  EXPECT_EQ(name(Strategy{99}), "?");
  const Plan plan{
      .strategy = Strategy{99}, .threads = 256, .threads_per_row = 256, .vector = 4, .per_thread = 4};
  const auto refused = check(plan, {.columns = 4096}, h200());
  ASSERT_EQ(refused.code(), Code::IllegalPlan);
  EXPECT_THAT(refused.error().message, HasSubstr("strategy"));
}

TEST(Check, RefusesMoreBlocksThanTheRingOfRowsServes) {
  const NormSpec spec{.columns = 2 * 8192};
  const Plan plan{Strategy::split_row, 256, 256, 4, 8, 1, 2};
  DeviceProfile device = DeviceProfile::of(Arch{90}).value();
  EXPECT_TRUE(check(plan, spec, device).ok());
  device.sm_count = 1000;
  EXPECT_EQ(check(plan, spec, device).code(), Code::IllegalPlan);
}

// Every strategy computes every norm, but the ring of persistent_row has no room for in_bias and a gate.
TEST(Check, AllPlansButOnesComputeEveryNorm) {
  const auto refused = [](const NormSpec& spec, Plan plan) {
    const auto answer = check(plan, spec, h200());
    return answer ? "" : answer.error().message;
  };
  const NormSpec plain{.columns = 65'536, .input = DType::bf16, .affine = Affine::weight};
  NormSpec rms = plain, sum = plain, after = plain, bias = plain, rows = plain, gate = plain, gated = plain,
           modulated = plain;
  rms.norm = Norm::rms;
  sum.residual = Residual::before;
  sum.sum = true;
  after.residual = Residual::after;
  bias.in_bias = true;
  rows.affine_rows = true;
  gate.gate = Gate::before;
  gated.gate = Gate::after;
  modulated.modulation = Modulation::scale_shift;
  std::set<Strategy> tried;
  for (const std::int64_t columns : {64, 63, 65'536})
    for (const NormSpec& spec : {rms, sum, after, bias, rows, gate, gated, modulated}) {
      NormSpec own = spec;
      own.columns = columns;
      for (const RowsRegime regime : kRowsRegimes)
        for (const Candidate& one : candidates(own, h200(), regime, Alignment::eight)) {
          EXPECT_EQ(refused(own, one.plan), "");
          tried.insert(one.plan.strategy);
        }
      EXPECT_EQ(refused(own, generic_plan()), "");
    }
  EXPECT_EQ(tried.size(), 5u);
  const Plan streamed{.strategy = Strategy::persistent_row,
                      .threads = 512,
                      .threads_per_row = 256,
                      .vector = 8,
                      .per_thread = 2,
                      .stages = 16};
  NormSpec wide = sum;
  wide.residual_type = DType::f64;
  EXPECT_EQ(refused(rms, streamed), "");
  EXPECT_THAT(refused(bias, streamed),
              HasSubstr("no room in its ring for in_bias or a gate before the norm"));
  EXPECT_THAT(refused(gate, streamed), HasSubstr("no room in its ring for in_bias or a gate"));
  EXPECT_THAT(refused(wide, streamed), HasSubstr("residuals of at most twice the size of x"));
}

// A bulk copy moves 16 bytes, which are more elements of a residual that is narrower than x.
TEST(Check, ChannelsFirstHaveAStrategyOfTheirOwn) {
  const NormSpec spec{.columns = 97, .affine = Affine::weight_bias, .channels_first = true};
  const auto refused = [](const NormSpec& of, const Plan& plan) {
    const auto answer = check(plan, of, h200());
    return answer ? std::string() : answer.error().message;
  };
  const Plan plan{Strategy::channels_first, 256, 8, 4, 13};
  EXPECT_EQ(refused(spec, plan), "") << "the vector is of rows, and need not divide the columns";
  EXPECT_EQ(refused(spec, {Strategy::channels_first, 256, 8, 4, 5}), "") << "in pieces";
  EXPECT_EQ(refused(spec, generic_plan()), "");
  EXPECT_THAT(refused(spec, {Strategy::warp_rows, 64, 32, 1, 4}),
              HasSubstr("a spec with channels first (/cf) needs channels_first or generic"));
  EXPECT_THAT(refused({.columns = 97}, plan),
              HasSubstr("channels_first serves specs with channels first (/cf) only"));
  Plan broken = plan;
  broken.grouped_rows = true;
  EXPECT_THAT(refused(spec, broken), HasSubstr("grouped_rows must be 0"));
  broken = plan;
  broken.unaligned = true;
  EXPECT_THAT(refused(spec, broken), HasSubstr("channels_first needs unaligned=0"));
  broken = plan;
  broken.group_rows = 2;
  EXPECT_THAT(refused(spec, broken), HasSubstr("channels_first needs unaligned=0, group_rows=1"));
  broken = plan;
  broken.vector = 8;
  EXPECT_THAT(refused(spec, broken), HasSubstr("a vector of at most 16 bytes"));
  broken = plan;
  broken.threads_per_row = 6;
  EXPECT_THAT(refused(spec, broken), HasSubstr("threads_per_row must be a power of two up to threads"));
  broken.threads_per_row = 512;
  EXPECT_THAT(refused(spec, broken), HasSubstr("threads_per_row must be a power of two up to threads"));
  broken = plan;
  broken.blocks_per_row = 2;
  EXPECT_FALSE(check(broken, spec, h200()).ok());
  EXPECT_THAT(refused(spec, {Strategy::channels_first, 1024, 32, 4, 4}), HasSubstr("more than 48 KiB"));
  NormSpec rms = spec;
  rms.norm = Norm::rms;
  EXPECT_EQ(refused(rms, {Strategy::channels_first, 1024, 32, 4, 4}), "") << "one number for each part";
}

TEST(Check, StreamedResidualsAreWhole16Bytes) {
  const Plan plan{Strategy::persistent_row, 512, 256, 4, 2, 1, 1, 1, Exchange::none, false, 12};
  NormSpec spec{.columns = 8196, .residual_type = DType::f16, .residual = Residual::before};
  const auto refused = check(plan, spec, h200());
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("whole 16 bytes of x and of a residual"));
  spec.residual_type = DType::f32;
  EXPECT_TRUE(check(plan, spec, h200()).ok());
  // In candidates the tensors count, too: four elements of f16 are 8 bytes.
  for (const DType residual : {DType::f16, DType::f32})
    for (const Alignment alignment : {Alignment::four, Alignment::eight}) {
      spec.columns = 65'536;
      spec.residual_type = residual;
      const auto all = candidates(spec, h200(), RowsRegime::many, alignment);
      const bool streamed = std::ranges::any_of(
          all, [](const Candidate& one) { return one.plan.strategy == Strategy::persistent_row; });
      EXPECT_EQ(streamed, residual == DType::f32 || alignment == Alignment::eight);
    }
}

// The ring has x and a residual at one place; a thread that reads both itself need not find them there.
TEST(Check, UnalignedRowsMayHaveAResidualButNotInARing) {
  const NormSpec spec{.norm = Norm::rms, .columns = 1001, .residual = Residual::before};
  const Plan plan{.strategy = Strategy::block_row,
                  .threads = 256,
                  .threads_per_row = 256,
                  .vector = 4,
                  .per_thread = 1,
                  .unaligned = true};
  EXPECT_TRUE(check(plan, spec, h200()).ok());
  const Plan ring{Strategy::persistent_row, 512, 256, 4, 1, 1, 1, 1, Exchange::none, true, 4};
  EXPECT_TRUE(check(ring, {.norm = Norm::rms, .columns = 1001}, h200()).ok());
  EXPECT_THAT(check(ring, spec, h200()).error().message, HasSubstr("without residual, sum, gate"));
}

TEST(Check, RefusesBrokenGenericRows) {
  const NormSpec spec{.columns = 4096};
  expect_refused(spec, generic_plan(),
                 {{"generic needs threads_per_row=32", [](Plan& p) { p.threads_per_row = 16; }},
                  {"generic needs threads_per_row=32", [](Plan& p) { p.threads_per_row = p.threads; }},
                  {"generic needs threads_per_row=32", [](Plan& p) { p.vector = 4; }},
                  {"generic needs threads_per_row=32", [](Plan& p) { p.group_rows = 2; }},
                  {"generic needs threads_per_row=32", [](Plan& p) { p.per_thread = kMaxInt; }},
                  {"unaligned rows need", [](Plan& p) { p.unaligned = true; }},
                  {"only block_row and persistent_row",
                   [](Plan& p) { p.blocks_per_row = 2, p.exchange = Exchange::grid; }},
                  {"without an exchange", [](Plan& p) { p.blocks_per_row = 2; }},
                  {"has a ring", [](Plan& p) { p.stages = 2; }},
                  {"per_thread must be", [](Plan& p) { p.per_thread = 0; }},
                  {"threads must be", [](Plan& p) { p.threads = 96; }},
                  {"blocks_per_sm must be", [](Plan& p) { p.blocks_per_sm = 99; }}});
}

}  // namespace
}  // namespace normjit
