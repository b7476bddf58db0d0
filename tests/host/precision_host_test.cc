// SPDX-License-Identifier: Apache-2.0
// The mean of a row is known to twice the precision of f32, which the tolerance of other tests does not ask
// for.
#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "tests/support/host_kernels.h"
#include "verify/check.h"
#include "verify/element.h"

namespace normjit::testing {
namespace {

// Rows around 1e4 with deviation 1: floats lie 1e-3 apart there, so the nearest to the mean is up to 5e-4
// off, and with it alone so is every y. Of 8 rows some are far off.
constexpr const char* kCases[] = {
    "layernorm/cols=96/f32 warp_rows threads=64 threads_per_row=8 vector=4 per_thread=3 arch=sm_90 rows=8 "
    "inputs=large_mean seed=21",
    "layernorm/cols=700/f32 block_row threads=64 threads_per_row=64 vector=4 per_thread=3 arch=sm_90 rows=8 "
    "inputs=large_mean seed=22",
    "layernorm/cols=900/f32 block_row threads=64 threads_per_row=64 vector=4 per_thread=1 arch=sm_90 "
    "blocks_per_row=4 "
    "exchange=cluster rows=8 inputs=large_mean seed=24",
    "layernorm/cols=900/f32 block_row threads=64 threads_per_row=64 vector=4 per_thread=1 arch=sm_80 "
    "blocks_per_row=4 "
    "exchange=grid sms=8 rows=8 inputs=large_mean seed=25",
    "layernorm/cols=901/f32 block_row threads=64 threads_per_row=64 vector=4 per_thread=4 arch=sm_90 "
    "unaligned=1 "
    "rows=8 inputs=large_mean seed=26",
    "layernorm/cols=5000/f32 persistent_row threads=512 threads_per_row=256 vector=4 per_thread=1 "
    "blocks_per_row=2 exchange=grid "
    "stages=4 arch=sm_90 sms=4 rows=8 inputs=large_mean seed=27",
    "layernorm/cols=900/f32 split_row threads=64 threads_per_row=64 vector=2 per_thread=2 group_rows=4 "
    "arch=sm_90 "
    "rows=8 sms=2 inputs=large_mean seed=23",
    "layernorm/cols=700/f32 generic threads=64 threads_per_row=32 vector=1 per_thread=32 arch=sm_90 rows=8 "
    "inputs=large_mean seed=34",
    "layernorm/cols=5000/f32 generic threads=64 threads_per_row=32 vector=1 per_thread=4 arch=sm_90 rows=8 "
    "inputs=large_mean seed=35",
};
constexpr double kAllowed = 3e-5;

// Beside them: parts that are merged by pairs, full chunks, and single elements.
constexpr const char* kMoreCases[] = {
    "layernorm/cols=512/f32 block_row threads=64 threads_per_row=64 vector=4 per_thread=2 arch=sm_90 rows=8 "
    "seed=28",
    "layernorm/cols=1024/f32 block_row threads=64 threads_per_row=64 vector=4 per_thread=1 arch=sm_90 "
    "blocks_per_row=4 "
    "exchange=cluster rows=8 seed=29",
    "layernorm/cols=8192/f32 persistent_row threads=512 threads_per_row=256 vector=4 per_thread=1 "
    "blocks_per_row=2 exchange=grid "
    "stages=5 arch=sm_90 sms=4 rows=8 seed=30",
    "layernorm/cols=9001/f32 persistent_row threads=512 threads_per_row=256 vector=4 per_thread=1 "
    "blocks_per_row=2 exchange=grid "
    "stages=6 unaligned=1 arch=sm_90 sms=4 rows=8 seed=31",
    "layernorm/cols=300001/f32 persistent_row threads=512 threads_per_row=256 vector=4 per_thread=2 "
    "blocks_per_row=16 "
    "exchange=grid "
    "stages=27 unaligned=1 arch=sm_90 sms=16 rows=1 seed=33",
    "layernorm/cols=97/f32 staged_rows threads=64 threads_per_row=8 vector=1 per_thread=13 arch=sm_90 rows=8 "
    "seed=32",
};

std::vector<KernelCase> cases_of(std::span<const char* const> texts) {
  std::vector<KernelCase> cases;
  for (const char* text : texts) {
    cases.push_back(case_from_text(text).value());
    EXPECT_TRUE(legal(cases.back())) << text;
  }
  return cases;
}

TEST(HostPrecision, TheMeanIsAPair) {
  const std::vector<KernelCase> cases = cases_of(kCases);
  const auto kernels = compile_batch(cases);
  ASSERT_TRUE(kernels) << kernels.error().message;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    oracle::Problem problem = make_problem(cases[i]).value();
    const auto wrong = run_once(cases[i], problem, (*kernels)[i], 5);
    ASSERT_FALSE(wrong) << *wrong;
    EXPECT_LT(oracle::check(problem, problem.rows)[Operand::y].largest.error, kAllowed) << to_text(cases[i]);
  }
}

// One huge value in each row, in the first, which some would take for the mean of its part, or anywhere.
TEST(HostPrecision, AnOutlierLeavesTheMeanExact) {
  std::vector<KernelCase> cases = cases_of(kCases);
  for (KernelCase& c : cases_of(kMoreCases)) cases.push_back(c);
  for (KernelCase& c : cases) {
    c.inputs = InputKind::unit;
    c.spec.statistics = true;
  }
  const auto kernels = compile_batch(cases);
  ASSERT_TRUE(kernels) << kernels.error().message;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    oracle::Problem problem = make_problem(cases[i]).value();
    constexpr double kOutlier = 1e6;
    for (std::int64_t row = 0; row < problem.rows; ++row)
      oracle::store(problem[Operand::x].dtype(), problem[Operand::x].row(row),
                    row * 977 % cases[i].spec.columns, 1, &kOutlier);
    const auto wrong = run_once(cases[i], problem, (*kernels)[i], 5);
    EXPECT_FALSE(wrong) << to_text(cases[i]) << ": " << *wrong;
  }
}

}  // namespace
}  // namespace normjit::testing
