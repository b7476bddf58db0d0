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

// Every plan that random specs reach, on every architecture.
template <class Check>
void for_random_plans(std::uint64_t specs, Check check) {
  for (std::uint64_t seed = 0; seed < specs; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const LayerNormSpec spec = canonical(random_spec(random));
    for (const DeviceProfile& device : DeviceProfile::known())
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

TEST(RegimeOf, FewRowsBecomeManyOnceAndForAll) {
  for (const DeviceProfile& device : DeviceProfile::known()) {
    SCOPED_TRACE(device.text());
    EXPECT_EQ(regime_of(1, device), RowsRegime::few);
    EXPECT_EQ(regime_of(std::numeric_limits<std::int64_t>::max(), device), RowsRegime::many);
    RowsRegime last = RowsRegime::few;
    for (std::int64_t rows = 1; rows < (std::int64_t{1} << 40); rows += 1 + rows / 64) {
      EXPECT_GE(regime_of(rows, device), last) << rows;
      last = regime_of(rows, device);
    }
    EXPECT_EQ(last, RowsRegime::many);
  }
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

TEST(PlanText, IsOneLineOfAllFields) {
  EXPECT_EQ(to_text(Plan{Strategy::packed_rows, 256, 16, 4, 1, 1, 1}),
            "packed_rows threads=256 lanes=16 vector=4 per_thread=1 group_rows=1 blocks_per_sm=1");
  EXPECT_EQ(to_text(Plan{Strategy::two_reads, 128, 128, 8, 3, 4, 2}),
            "two_reads threads=128 lanes=128 vector=8 per_thread=3 group_rows=4 blocks_per_sm=2");
  EXPECT_EQ(name(Strategy::resident_row), "resident_row");
}

TEST(PlanText, IsEqualForEqualPlansOnly) {
  std::map<std::string, Plan> seen;
  for_random_plans(300, [&](const Plan& plan, const LayerNormSpec&, const DeviceProfile&, Random&) {
    const std::string text = to_text(plan);
    EXPECT_EQ(text.find('\n'), text.npos);
    EXPECT_EQ(seen.emplace(text, plan).first->second, plan);
  });
  const Plan plan{Strategy::two_reads, 128, 128, 4, 3, 4, 2};
  const auto changed = [&](auto change) {
    Plan other = plan;
    change(other);
    return other != plan && to_text(other) != to_text(plan);
  };
  EXPECT_TRUE(changed([](Plan& p) { p.strategy = Strategy::resident_row; }));
  EXPECT_TRUE(changed([](Plan& p) { p.threads = 256; }));
  EXPECT_TRUE(changed([](Plan& p) { p.lanes = 256; }));
  EXPECT_TRUE(changed([](Plan& p) { p.vector = 8; }));
  EXPECT_TRUE(changed([](Plan& p) { p.per_thread = 4; }));
  EXPECT_TRUE(changed([](Plan& p) { p.group_rows = 8; }));
  EXPECT_TRUE(changed([](Plan& p) { p.blocks_per_sm = 1; }));
}

// ---- Launch ----

TEST(GridBlocks, IsALegalGridForAnyNumberOfRows) {
  for_random_plans(
      300, [](const Plan& plan, const LayerNormSpec& spec, const DeviceProfile& device, Random& random) {
        for (int turn = 0; turn < 16; ++turn) {
          const std::int64_t rows = turn == 0   ? 1
                                    : turn == 1 ? std::int64_t{1} << 40
                                                : random_columns(random, std::int64_t{1} << 40);
          const std::int64_t blocks = grid_blocks(plan, spec, device, rows);
          ASSERT_GE(blocks, 1) << rows;
          ASSERT_LE(blocks, kMaxGrid) << rows;
          if (plan.strategy == Strategy::two_reads) {
            ASSERT_LE(blocks, device.sm_count * plan.blocks_per_sm) << "all blocks run at once";
          } else if (blocks < kMaxGrid) {
            ASSERT_GE(blocks * rows_per_block(plan), rows) << "a row without a block";
            ASSERT_LT((blocks - 1) * rows_per_block(plan), rows) << "a block without a row";
          }
        }
      });
}

TEST(GridBlocks, IsCappedAtTheHardwaresLimit) {
  const LayerNormSpec spec{.columns = 4096};
  const Plan plan = choose(spec, h200(), RowsRegime::many, Alignment::eight);
  ASSERT_EQ(rows_per_block(plan), 1);
  EXPECT_EQ(grid_blocks(plan, spec, h200(), kMaxGrid), kMaxGrid);
  EXPECT_EQ(grid_blocks(plan, spec, h200(), kMaxGrid + 1), kMaxGrid);
  EXPECT_EQ(grid_blocks(plan, spec, h200(), std::numeric_limits<std::int64_t>::max()), kMaxGrid);
}

TEST(GridBlocks, AFewGiganticRowsOccupyTheWholeDevice) {
  const LayerNormSpec spec{.columns = 4194304};
  const Plan plan = choose(spec, h200(), RowsRegime::few, Alignment::eight);
  for (const std::int64_t rows : {1, 2, 16})
    EXPECT_GE(grid_blocks(plan, spec, h200(), rows), h200().sm_count);
}

TEST(PlanFacts, BlocksCoverTheRows) {
  EXPECT_EQ(rows_per_block({.strategy = Strategy::packed_rows, .threads = 256, .lanes = 8}), 32);
  EXPECT_EQ(rows_per_block({.strategy = Strategy::packed_rows, .threads = 256, .lanes = 1}), 256);
  EXPECT_EQ(rows_per_block({.strategy = Strategy::resident_row, .threads = 256, .lanes = 256}), 1);
  EXPECT_EQ(columns_per_block({.lanes = 256, .vector = 4, .per_thread = 3}), 3072);
}

TEST(WorkspaceBytes, OnlyRowsSplitOverBlocksNeedOne) {
  for_random_plans(300,
                   [](const Plan& plan, const LayerNormSpec& spec, const DeviceProfile& device, Random&) {
                     const std::size_t bytes = workspace_bytes(plan, spec, device);
                     if (plan.strategy == Strategy::two_reads) {
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

void expect_refused(const LayerNormSpec& spec, const Plan& legal, const std::vector<Broken>& all) {
  const DeviceProfile device = h200();
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
                                               HasSubstr(to_text(spec)), HasSubstr("sm_90")));
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
      {"registers of the row", [](Plan& p) { p.per_thread = 1000; }},
      {"registers of the row", [](Plan& p) { p.per_thread = kMaxInt; }},
      {"registers of the row", [](Plan& p) { p.per_thread = 1 << 30; }},
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
  const auto on_h200 = check(plan, spec, h200());
  ASSERT_EQ(on_h200.code(), Code::IllegalPlan);
  EXPECT_THAT(on_h200.error().message, HasSubstr("registers a thread; a multiprocessor has 65536"));
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
