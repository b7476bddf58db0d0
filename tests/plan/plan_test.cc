// The facts of a plan: its text, its legality, its launch.
#include "normjit/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "tests/support/random_spec.h"

namespace normjit {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kMaxGrid = 2147483647;
constexpr int kMaxInt = std::numeric_limits<int>::max();

DeviceProfile h200() { return DeviceProfile::of({.number = 90}).value(); }

// Every plan that random specs reach, on one architecture each.
template <class Check>
void for_random_plans(std::uint64_t specs, Check check) {
  for (std::uint64_t seed = 0; seed < specs; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const LayerNormSpec spec = canonical(random_spec(random));
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
    EXPECT_EQ(regime_of(device.sm_count / 16, device), RowsRegime::lone);
    EXPECT_EQ(regime_of(device.sm_count / 16 + 1, device), RowsRegime::few);
    EXPECT_EQ(regime_of(device.sm_count - 1, device), RowsRegime::few);
    EXPECT_EQ(regime_of(device.sm_count, device), RowsRegime::many);
    RowsRegime last = RowsRegime::lone;
    for (std::int64_t rows = 1; rows < (std::int64_t{1} << 40); rows += 1 + rows / 64) {
      EXPECT_GE(regime_of(rows, device), last) << rows;
      last = regime_of(rows, device);
    }
    EXPECT_EQ(regime_of(std::numeric_limits<std::int64_t>::max(), device), RowsRegime::many);
  }
  EXPECT_EQ(name(RowsRegime::lone), "lone");
  EXPECT_EQ(name(RowsRegime::few), "few");
  EXPECT_EQ(name(RowsRegime::many), "many");
}

// ---- Alignment ----

// Word for word what the header says: the most elements n whose access of min(16, n * size) bytes both
// address and row stride are multiples of.
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

// ---- Text ----

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
  constexpr Strategy kStrategies[] = {Strategy::packed_rows, Strategy::resident_row, Strategy::streamed_row,
                                      Strategy::two_reads};
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
  for_random_plans(300, [](const Plan& plan, const LayerNormSpec&, const DeviceProfile&, Random&) {
    EXPECT_EQ(parse_plan(to_text(plan)).value(), plan);
  });
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

// ---- Launch ----

TEST(GridBlocks, IsALegalGridForAnyNumberOfRows) {
  for_random_plans(
      1'000, [](const Plan& plan, const LayerNormSpec& spec, const DeviceProfile& device, Random& random) {
        const std::int64_t resident = std::int64_t{device.sm_count} * plan.blocks_per_sm;
        for (int turn = 0; turn < 16; ++turn) {
          const std::int64_t rows = turn == 0   ? 1
                                    : turn == 1 ? std::int64_t{1} << 40
                                                : random_columns(random, std::int64_t{1} << 40);
          const std::int64_t blocks = grid_blocks(plan, spec, device, rows);
          ASSERT_GE(blocks, 1) << rows;
          ASSERT_LE(blocks, kMaxGrid) << rows;
          ASSERT_EQ(blocks % plan.slices, 0) << "a row that lacks a slice";
          const std::int64_t teams = blocks / plan.slices, per_team = rows_per_block(plan);
          if (plan.strategy == Strategy::two_reads) {
            ASSERT_LE(blocks, resident);
            continue;
          }
          ASSERT_LT((teams - 1) * per_team, rows) << "a block without a row";
          if (plan.strategy == Strategy::streamed_row || plan.exchange == Exchange::grid) {
            ASSERT_LE(blocks, resident) << "blocks that wait for others must run at once";
          } else if (blocks + plan.slices <= kMaxGrid) {
            ASSERT_GE(teams * per_team, rows) << "a row without a block";
          }
        }
      });
}

// Blocks that stay share all rows: as many teams as there is room for.
TEST(GridBlocks, TeamsThatStayFillTheDevice) {
  const LayerNormSpec spec{.columns = 1 << 20};
  const Plan plan{Strategy::resident_row, 1024, 1024, 4, 4, 1, 1, 64, Exchange::grid};
  const DeviceProfile device = h200();
  ASSERT_TRUE(check(plan, spec, device).ok()) << check(plan, spec, device).error().message;
  EXPECT_EQ(grid_blocks(plan, spec, device, 1), 64);
  EXPECT_EQ(grid_blocks(plan, spec, device, 2), 128);
  EXPECT_EQ(grid_blocks(plan, spec, device, 1'000'000), 128) << "a third team has no room among 132 blocks";
  Plan cluster = plan;
  cluster.slices = 8;
  cluster.exchange = Exchange::cluster;
  EXPECT_EQ(grid_blocks(cluster, spec, device, 1'000'000), 8'000'000) << "clusters come and go";
}

TEST(GridBlocks, IsCappedAtTheHardwaresLimit) {
  const LayerNormSpec spec{.columns = 4096};
  Plan plan{Strategy::resident_row, 256, 256, 4, 4, 1, 1};
  EXPECT_EQ(grid_blocks(plan, spec, h200(), kMaxGrid), kMaxGrid);
  EXPECT_EQ(grid_blocks(plan, spec, h200(), kMaxGrid + 1), kMaxGrid);
  EXPECT_EQ(grid_blocks(plan, spec, h200(), std::numeric_limits<std::int64_t>::max()), kMaxGrid);
  plan.slices = 4;
  plan.exchange = Exchange::cluster;
  EXPECT_EQ(grid_blocks(plan, spec, h200(), kMaxGrid), kMaxGrid - 3) << "whole clusters";
}

TEST(GridBlocks, AFewGiganticRowsOccupyTheWholeDeviceWhenReadTwice) {
  const LayerNormSpec spec{.columns = 4194304};
  const Plan plan = fallback(spec, h200(), RowsRegime::few, Alignment::eight);
  for (const std::int64_t rows : {1, 2, 16})
    EXPECT_GE(grid_blocks(plan, spec, h200(), rows), h200().sm_count);
}

TEST(PlanFacts, BlocksCoverTheRows) {
  EXPECT_EQ(rows_per_block({.strategy = Strategy::packed_rows, .threads = 256, .lanes = 8}), 32);
  EXPECT_EQ(rows_per_block({.strategy = Strategy::packed_rows, .threads = 256, .lanes = 1}), 256);
  EXPECT_EQ(rows_per_block({.strategy = Strategy::resident_row, .threads = 256, .lanes = 256}), 1);
  EXPECT_EQ(rows_per_block({.strategy = Strategy::streamed_row, .threads = 512, .lanes = 256}), 1);
  EXPECT_EQ(columns_per_block({.lanes = 256, .vector = 4, .per_thread = 3}), 3072);
}

TEST(TargetOf, OnlyBulkCopiesNeedTheArchitecturesOwnTarget) {
  for_random_plans(300, [](const Plan& plan, const LayerNormSpec&, const DeviceProfile& device, Random&) {
    const std::string suffix = plan.strategy == Strategy::streamed_row ? "a" : "";
    EXPECT_EQ(target_of(plan, device.arch).name(), device.arch.name() + suffix);
  });
  EXPECT_EQ(target_of({.strategy = Strategy::streamed_row}, Arch{90}).name(), "sm_90a");
  EXPECT_EQ(target_of({.strategy = Strategy::resident_row}, Arch{90}).name(), "sm_90");
}

TEST(SharedBytes, HoldTheRingOrTheRowsThatAreShifted) {
  const LayerNormSpec f32{.columns = 4096};
  EXPECT_EQ(shared_bytes({Strategy::resident_row, 256, 256, 4, 4, 1, 1}, f32), 0);
  EXPECT_EQ(shared_bytes({Strategy::streamed_row, 512, 256, 4, 2, 1, 1, 1, Exchange::none, false, 28}, f32),
            28 * 8192);
  // Each row of a block, with a vector more for where it begins, as wide as the wider of the dtypes; and no
  // more than two units of 16 bytes besides.
  const auto expect_rows = [](const Plan& plan, const LayerNormSpec& spec, int rows, int columns) {
    const int row = (columns + plan.vector) * std::max(size_of(spec.input), size_of(spec.output));
    EXPECT_GE(shared_bytes(plan, spec), rows * row) << to_text(plan);
    EXPECT_LE(shared_bytes(plan, spec), rows * (row + 32)) << to_text(plan);
  };
  Plan shifted{Strategy::resident_row, 256, 256, 4, 4, 1, 1, 1, Exchange::none, true};
  expect_rows(shifted, {.columns = 4097}, 1, 4097);
  shifted.slices = 2;
  shifted.exchange = Exchange::cluster;
  expect_rows(shifted, {.columns = 8191}, 1, 4096);
  expect_rows({Strategy::packed_rows, 64, 8, 4, 1, 1, 1, 1, Exchange::none, true},
              canonical({.columns = 33, .input = DType::f16, .output = DType::f32}), 8, 33);
}

TEST(SharedBytes, OfALegalPlanFitOnTheMultiprocessor) {
  for_random_plans(1'000,
                   [](const Plan& plan, const LayerNormSpec& spec, const DeviceProfile& device, Random&) {
                     const int bytes = shared_bytes(plan, spec);
                     EXPECT_GE(bytes, 0);
                     EXPECT_LE(bytes, device.shared_per_block);
                     EXPECT_LE(bytes * plan.blocks_per_sm, device.shared_per_sm);
                     EXPECT_EQ(bytes > 0, plan.shifted || plan.strategy == Strategy::streamed_row);
                     EXPECT_EQ(bytes % 16, 0);
                   });
}

TEST(WorkspaceBytes, OnlyRowsSplitOverBlocksNeedOne) {
  for_random_plans(1'000,
                   [](const Plan& plan, const LayerNormSpec& spec, const DeviceProfile& device, Random&) {
                     const std::size_t bytes = workspace_bytes(plan, spec, device);
                     if (plan.strategy == Strategy::two_reads || plan.exchange == Exchange::grid) {
                       EXPECT_GT(bytes, 0u);
                       EXPECT_EQ(bytes % 16, 0u);
                     } else {
                       EXPECT_EQ(bytes, 0u);
                     }
                   });
}

TEST(WorkspaceBytes, ABiggerGpuNeedsNoLess) {
  for_random_plans(300,
                   [](const Plan& plan, const LayerNormSpec& spec, const DeviceProfile& device, Random&) {
                     DeviceProfile bigger = device;
                     bigger.sm_count *= 2;
                     EXPECT_GE(workspace_bytes(plan, spec, bigger), workspace_bytes(plan, spec, device));
                   });
}

// ---- Legality ----

struct Broken {
  const char* says;
  std::function<void(Plan&)> breaking;
};

void expect_refused(const LayerNormSpec& spec, const Plan& legal, const std::vector<Broken>& all,
                    const DeviceProfile& device = h200()) {
  ASSERT_TRUE(check(legal, spec, device).ok()) << check(legal, spec, device).error().message;
  for (const Broken& broken : all) {
    Plan plan = legal;
    broken.breaking(plan);
    const auto refused = check(plan, spec, device);
    if (refused.code() != Code::IllegalPlan) {
      ADD_FAILURE() << to_text(plan) << " should be refused: " << broken.says;
      continue;
    }
    EXPECT_THAT(refused.error().message, AllOf(HasSubstr(broken.says), HasSubstr(to_text(plan)),
                                               HasSubstr(to_text(spec)), HasSubstr(device.arch.name())));
  }
}

// Broken whatever the strategy.
std::vector<Broken> broken_shapes() {
  return {
      {"threads must be", [](Plan& p) { p.threads = p.lanes = 0; }},
      {"threads must be", [](Plan& p) { p.threads = p.lanes = -32; }},
      {"threads must be", [](Plan& p) { p.threads = p.lanes = 16; }},
      {"threads must be", [](Plan& p) { p.threads = p.lanes = 100; }},
      {"threads must be", [](Plan& p) { p.threads = p.lanes = 1056; }},
      {"vector must be", [](Plan& p) { p.vector = 0; }},
      {"vector must be", [](Plan& p) { p.vector = -4; }},
      {"vector must be", [](Plan& p) { p.vector = 3; }},
      {"vector must be", [](Plan& p) { p.vector = 16; }},
      {"per_thread must be", [](Plan& p) { p.per_thread = 0; }},
      {"per_thread must be", [](Plan& p) { p.per_thread = -1; }},
      {"registers a thread at least", [](Plan& p) { p.per_thread = 1000; }},
      {"registers a thread at least", [](Plan& p) { p.per_thread = kMaxInt; }},
      {"registers a thread at least", [](Plan& p) { p.per_thread = 1 << 30; }},
      {"group_rows must be", [](Plan& p) { p.group_rows = 0; }},
      {"group_rows must be", [](Plan& p) { p.group_rows = -4; }},
      {"group_rows must be", [](Plan& p) { p.group_rows = 6; }},
      {"blocks_per_sm", [](Plan& p) { p.blocks_per_sm = 0; }},
      {"blocks_per_sm", [](Plan& p) { p.blocks_per_sm = 33; }},
      {"blocks_per_sm", [](Plan& p) { p.blocks_per_sm = kMaxInt; }},
  };
}

TEST(Check, RefusesBrokenPackedRows) {
  const LayerNormSpec spec{.columns = 64};
  const Plan plan{
      .strategy = Strategy::packed_rows, .threads = 256, .lanes = 16, .vector = 4, .per_thread = 1};
  expect_refused(spec, plan, broken_shapes());
  expect_refused(spec, plan,
                 {{"lanes must be a power of two", [](Plan& p) { p.lanes = 0; }},
                  {"lanes must be a power of two", [](Plan& p) { p.lanes = -16; }},
                  {"lanes must be a power of two", [](Plan& p) { p.lanes = 24; }},
                  {"lanes must be a power of two", [](Plan& p) { p.lanes = 64; }},
                  {"do not cover the row", [](Plan& p) { p.lanes = 8; }},
                  {"do not cover the row", [](Plan& p) { p.vector = 2; }}});
}

TEST(Check, RefusesBrokenResidentRow) {
  const LayerNormSpec spec{.columns = 4096};
  const Plan plan{
      .strategy = Strategy::resident_row, .threads = 256, .lanes = 256, .vector = 4, .per_thread = 4};
  expect_refused(spec, plan, broken_shapes());
  expect_refused(spec, plan,
                 {{"lanes must equal threads", [](Plan& p) { p.lanes = 32; }},
                  {"lanes must equal threads", [](Plan& p) { p.lanes = 0; }},
                  {"power of two", [](Plan& p) { p.threads = p.lanes = 384; }},
                  {"do not cover the row", [](Plan& p) { p.per_thread = 3; }},
                  {"do not cover the row", [](Plan& p) { p.threads = p.lanes = 128; }}});
}

TEST(Check, RefusesBrokenTwoReads) {
  const LayerNormSpec spec{.columns = 4194304};
  const Plan plan{.strategy = Strategy::two_reads,
                  .threads = 256,
                  .lanes = 256,
                  .vector = 4,
                  .per_thread = 4,
                  .group_rows = 1,
                  .blocks_per_sm = 2};
  expect_refused(spec, plan, broken_shapes());
  expect_refused(spec, plan,
                 {{"lanes must equal threads", [](Plan& p) { p.lanes = 128; }},
                  {"power of two", [](Plan& p) { p.threads = p.lanes = 96; }}});
}

TEST(Check, RefusesBrokenSlicesOfResidentRows) {
  const LayerNormSpec spec{.columns = 65536};
  const Plan plan{Strategy::resident_row, 512, 512, 4, 4, 1, 1, 8, Exchange::cluster};
  expect_refused(spec, plan, broken_shapes());
  expect_refused(spec, plan,
                 {{"slices of a row need an exchange", [](Plan& p) { p.slices = 1; }},
                  {"slices of a row need an exchange", [](Plan& p) { p.slices = 0; }},
                  {"slices of a row need an exchange", [](Plan& p) { p.slices = -8; }},
                  {"slices of a row need an exchange", [](Plan& p) { p.exchange = Exchange::none; }},
                  {"do not cover the row", [](Plan& p) { p.slices = 4; }},
                  {"2, 4 or 8 blocks", [](Plan& p) { p.slices = 3; }},
                  {"2, 4 or 8 blocks", [](Plan& p) { p.slices = 16; }},
                  {"only streamed rows have a ring", [](Plan& p) { p.stages = 2; }},
                  {"unknown strategy or exchange", [](Plan& p) { p.exchange = Exchange{9}; }}});
  expect_refused({.columns = 65536}, {Strategy::two_reads, 256, 256, 4, 4, 1, 2},
                 {{"only resident and streamed rows are shared",
                   [](Plan& p) { p.slices = 2, p.exchange = Exchange::cluster; }}});
  expect_refused({.columns = 64}, {Strategy::packed_rows, 128, 16, 4, 1, 1, 1},
                 {{"only resident and streamed rows are shared",
                   [](Plan& p) { p.slices = 2, p.exchange = Exchange::grid; }}});
}

TEST(Check, ClustersNeedTheirArchitecture) {
  const LayerNormSpec spec{.columns = 8192};
  const Plan plan{Strategy::resident_row, 256, 256, 4, 4, 1, 1, 2, Exchange::cluster};
  for (const DeviceProfile& device : DeviceProfile::known()) {
    const auto legal = check(plan, spec, device);
    EXPECT_EQ(legal.ok(), device.arch.number >= 90) << device.text();
    if (!legal) {
      EXPECT_THAT(legal.error().message, HasSubstr("clusters need sm_90")) << device.text();
    }
  }
}

TEST(Check, SlicesThatMeetOverTheGridMustBeResidentTogether) {
  const LayerNormSpec spec{.columns = 1 << 20};
  const Plan plan{Strategy::resident_row, 256, 256, 4, 8, 1, 1, 132, Exchange::grid};
  expect_refused(spec, plan,
                 {{"133 slices of a row must be resident together; the device has room for 132 blocks",
                   [](Plan& p) { p.slices = 133; }}});
  DeviceProfile small = h200();
  small.sm_count = 66;
  EXPECT_EQ(check(plan, spec, small).code(), Code::IllegalPlan);
  Plan twice = plan;
  twice.blocks_per_sm = 2;
  EXPECT_TRUE(check(twice, spec, small).ok()) << check(twice, spec, small).error().message;
}

TEST(Check, RefusesMoreBlocksThanHavePlacesForTheirPosts) {
  const LayerNormSpec spec{.columns = 1 << 20};
  const Plan plan{Strategy::resident_row, 256, 256, 4, 8, 1, 2, 128, Exchange::grid};
  DeviceProfile device = h200();
  device.sm_count = 1024;  // 2048 blocks of two places each
  EXPECT_TRUE(check(plan, spec, device).ok()) << check(plan, spec, device).error().message;
  device.sm_count = 1025;
  const auto refused = check(plan, spec, device);
  ASSERT_EQ(refused.code(), Code::IllegalPlan);
  EXPECT_THAT(refused.error().message, HasSubstr("more than 4096 posts"));
}

TEST(Check, RefusesBrokenStreamedRow) {
  const LayerNormSpec spec{.columns = 4194304};
  const Plan plan{Strategy::streamed_row, 512, 256, 4, 2, 1, 1, 128, Exchange::grid, false, 27};
  expect_refused(spec, plan,
                 {{"threads must be", [](Plan& p) { p.threads = 384; }},
                  {"half of the threads", [](Plan& p) { p.lanes = 512; }},
                  {"half of the threads", [](Plan& p) { p.threads = 256; }},
                  {"vector must be", [](Plan& p) { p.vector = 3; }},
                  {"per_thread must be", [](Plan& p) { p.per_thread = 0; }},
                  {"group_rows must be", [](Plan& p) { p.group_rows = 0; }},
                  {"blocks_per_sm", [](Plan& p) { p.blocks_per_sm = 0; }},
                  {"exchange through memory", [](Plan& p) { p.slices = 8, p.exchange = Exchange::cluster; }},
                  {"2 chunks at least", [](Plan& p) { p.stages = 1; }},
                  {"2 chunks at least", [](Plan& p) { p.stages = 0; }},
                  {"2 chunks at least", [](Plan& p) { p.stages = -4; }},
                  {"does not fit in the ring", [](Plan& p) { p.stages = 15; }},
                  {"does not fit in the ring", [](Plan& p) { p.slices = 64; }},
                  {"bytes of shared memory", [](Plan& p) { p.stages = 29; }},
                  {"bytes of shared memory", [](Plan& p) { p.blocks_per_sm = 2; }},
                  {"can be shifted", [](Plan& p) { p.shifted = true; }},
                  {"slices of a row need an exchange", [](Plan& p) { p.exchange = Exchange::none; }}});
  // However far beyond, also where 32 bits do not hold the bytes.
  expect_refused({.columns = 8192},
                 {Strategy::streamed_row, 512, 256, 4, 2, 1, 1, 1, Exchange::none, false, 4},
                 {{"bytes of shared memory", [](Plan& p) { p.stages = (1 << 21) + 8; }},
                  {"bytes of shared memory", [](Plan& p) { p.stages = kMaxInt; }}});
  expect_refused({.columns = 16384},
                 {Strategy::streamed_row, 512, 256, 4, 2, 1, 1, 8, Exchange::grid, false, 8},
                 {{"every slice must have a chunk", [](Plan& p) { p.slices = 9; }}});
  for (const DeviceProfile& device : DeviceProfile::known())
    if (device.arch.number < 90) {
      const auto refused = check({Strategy::streamed_row, 512, 256, 4, 2, 1, 1, 1, Exchange::none, false, 4},
                                 {.columns = 4096}, device);
      ASSERT_EQ(refused.code(), Code::IllegalPlan) << device.text();
      EXPECT_THAT(refused.error().message, HasSubstr("bulk copies, which need sm_90")) << device.text();
    }
}

TEST(Check, RefusesWhatCannotBeShifted) {
  const LayerNormSpec spec = canonical({.columns = 4097, .input = DType::f16});
  Plan plan{Strategy::resident_row, 256, 256, 8, 2, 1, 1, 1, Exchange::none, true};
  expect_refused(spec, plan,
                 {{"can be shifted", [](Plan& p) { p.vector = 1, p.per_thread = 17; }},
                  {"divide the columns", [](Plan& p) { p.shifted = false; }},
                  {"do not cover the row", [](Plan& p) { p.per_thread = 1; }}});
  // 128 KiB of shared memory, which not every multiprocessor has.
  const LayerNormSpec long_rows = canonical({.columns = 65537, .input = DType::f16});
  plan = {Strategy::resident_row, 1024, 1024, 8, 8, 1, 1, 1, Exchange::none, true};
  EXPECT_TRUE(check(plan, long_rows, h200()).ok()) << check(plan, long_rows, h200()).error().message;
  const DeviceProfile l4 = DeviceProfile::of({.number = 89}).value();
  const auto refused = check(plan, long_rows, l4);
  ASSERT_EQ(refused.code(), Code::IllegalPlan);
  EXPECT_THAT(refused.error().message, HasSubstr("bytes of shared memory each"));
}

TEST(Check, AVectorDividesTheColumns) {
  Plan plan{.strategy = Strategy::packed_rows, .threads = 256, .lanes = 32, .vector = 1, .per_thread = 8};
  for (const int vector : {1, 2, 4, 8}) {
    plan.vector = vector;
    for (const std::int64_t columns : {3, 6, 12, 24})
      EXPECT_EQ(check(plan, {.columns = columns, .input = DType::f16}, h200()).ok(), columns % vector == 0)
          << vector << " elements an access of " << columns << " columns";
  }
}

// Threads and registers are limits of a multiprocessor, blocks_per_sm what must fit on it together.
TEST(Check, RefusesMoreBlocksThanAMultiprocessorHolds) {
  const LayerNormSpec spec{.columns = 4194304};
  Plan plan{.strategy = Strategy::two_reads,
            .threads = 256,
            .lanes = 256,
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
              HasSubstr("registers a thread at least; a thread has 255, a multiprocessor 65536"));
}

TEST(Check, AStrategyOutsideItsSetIsRefused) {
  EXPECT_EQ(name(Strategy{99}), "?");
  const Plan plan{.strategy = Strategy{99}, .threads = 256, .lanes = 256, .vector = 4, .per_thread = 4};
  const auto refused = check(plan, {.columns = 4096}, h200());
  ASSERT_EQ(refused.code(), Code::IllegalPlan);
  EXPECT_THAT(refused.error().message, HasSubstr("strategy"));
}

TEST(Check, RefusesMoreBlocksThanTheRingOfRowsServes) {
  const LayerNormSpec spec{.columns = 2 * 8192};
  const Plan plan{Strategy::two_reads, 256, 256, 4, 8, 1, 2};
  DeviceProfile device = DeviceProfile::of(Arch{90}).value();
  EXPECT_TRUE(check(plan, spec, device).ok());
  device.sm_count = 1000;
  EXPECT_EQ(check(plan, spec, device).code(), Code::IllegalPlan);
}

}  // namespace
}  // namespace normjit
