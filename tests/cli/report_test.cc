// SPDX-License-Identifier: Apache-2.0
// Tables, timings and exit codes: what the commands' reports are made of.
#include <gtest/gtest.h>

#include "cli/commands.h"
#include "cli/measure.h"
#include "cli/table.h"

namespace normjit::cli {
namespace {

TEST(Table, PadsToTheWidestCell) {
  Table table({"name", ">us", "note"});
  table.add({"a", "1.5", "x"});
  table.add({"longer", "12345.5"});
  EXPECT_EQ(table.text(),
            "name         us  note\n"
            "a           1.5  x\n"
            "longer  12345.5\n");
}

TEST(Table, FixedDecimals) {
  EXPECT_EQ(fixed(1.26, 1), "1.3");
  EXPECT_EQ(fixed(-2, 0), "-2");
  EXPECT_EQ(fixed(1e300, 2).size(), 304u);
}

TEST(Bench, CountsTheBytesThatMustMove) {
  EXPECT_EQ(bytes_moved({.columns = 4194304, .affine = Affine::weight_bias}, 16),
            2 * 268435456 + 2 * 16777216);
  const NormSpec mixed{.columns = 10,
                       .input = DType::f16,
                       .output = DType::f32,
                       .weight = DType::bf16,
                       .affine = Affine::weight,
                       .statistics = true};
  EXPECT_EQ(bytes_moved(mixed, 3), 3 * 10 * (2 + 4) + 10 * 2 + 2 * 3 * 4);
}

TEST(Bench, TensorsOfASetAreApart) {
  const NormSpec spec{.columns = 65, .affine = Affine::weight_bias, .statistics = true};
  const SetLayout layout = layout_of(spec, 1);
  EXPECT_EQ(layout.at[Operand::x], 0u);
  EXPECT_EQ(layout.at[Operand::weight], 512u);  // 260 bytes, rounded up
  EXPECT_EQ(layout.at[Operand::bias], 1024u);
  EXPECT_EQ(layout.at[Operand::y], 1536u);
  EXPECT_EQ(layout.at[Operand::mean], 2048u);
  EXPECT_EQ(layout.at[Operand::rstd], 2304u);
  EXPECT_EQ(layout.bytes, 2560u);
}

TEST(Bench, RotatesPastTheCacheWithinMemory) {
  constexpr std::size_t kMiB = 1 << 20, kGiB = 1 << 30;
  EXPECT_EQ(rotation_sets(kMiB, 60 * kMiB, 64 * kGiB), 240);
  EXPECT_EQ(rotation_sets(kGiB, 60 * kMiB, 64 * kGiB), 2);
  EXPECT_EQ(rotation_sets(kGiB, 60 * kMiB, kGiB + 1), 1);
  EXPECT_EQ(rotation_sets(kGiB, 60 * kMiB, 1), 1) << "then the allocation says what is missing";
  EXPECT_EQ(rotation_sets(1024, 60 * kMiB, 64 * kGiB), 512);
}

TEST(Bench, TimingIsMedianMinimumAndMaximum) {
  const Timing odd = timing_of({5, 1, 3});
  EXPECT_EQ(odd.median, 3);
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.max, 5);
  EXPECT_EQ(timing_of({4, 1, 2, 10}).median, 3);
  EXPECT_EQ(timing_of({7}).median, 7);
}

TEST(ExitCode, TellsUsageFromEnvironmentFromFailure) {
  EXPECT_EQ(exit_code(Code::Ok), 0);
  EXPECT_EQ(exit_code(Code::CompileFailed), 1);
  EXPECT_EQ(exit_code(Code::DriverError), 1);
  EXPECT_EQ(exit_code(Code::BadSpecText), 2);
  EXPECT_EQ(exit_code(Code::IllegalPlan), 2);
  EXPECT_EQ(exit_code(Code::UnknownArch), 2);
  EXPECT_EQ(exit_code(Code::BadArgument), 2);
  EXPECT_EQ(exit_code(Code::NoCompiler), 3);
  EXPECT_EQ(exit_code(Code::NoDriver), 3);
  EXPECT_EQ(exit_code(Code::NoDevice), 3);
  EXPECT_EQ(exit_code(Code::CacheIo), 4);
  EXPECT_EQ(exit_code(Code::Untrusted), 5);
}

}  // namespace
}  // namespace normjit::cli
