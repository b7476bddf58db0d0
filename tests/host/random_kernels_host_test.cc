// SPDX-License-Identifier: Apache-2.0
// Random kernels under random schedules against the float64 reference.
//
//   NORMJIT_TEST_SEED=N      the same kernels again; without it, others every time
//   NORMJIT_HOST_SPECS=N     about so many kernels in all
//   NORMJIT_HOST_CASE='...' NORMJIT_HOST_SCHEDULE=N build/normjit_host_tests
//   --gtest_filter=HostKernels.Replay
//                            one run again, as a failure prints it
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "normjit/base/text.h"
#include "tests/support/host_kernels.h"
#include "tests/support/shrink_case.h"
#include "tests/support/test_seed.h"

namespace normjit::testing {
namespace {

constexpr int kShards = 12;  // that ctest can run at the same time
constexpr int kBatch = 25;   // kernels a compile: more save nothing

int specs_in_all() {
  // With ThreadSanitizer a kernel takes ten times as long.
  const int usual = simt::sanitizer() == "thread" ? 50 : simt::sanitizer() == "address" ? 100 : 540;
  const char* const wanted = std::getenv("NORMJIT_HOST_SPECS");
  if (wanted != nullptr) return number<int>(wanted).value_or(usual);
  return std::max(usual / static_cast<int>(test_part()), kShards);
}

// Half of the kernels as random_case likes, the others of each strategy in turn.
KernelCase case_number(std::uint64_t i) {
  const std::uint64_t seed = test_seed() * 1'000'003 + i;
  return i % 2 == 0 ? random_case(seed)
                    : random_case(seed, kAllStrategies[i / 2 % std::size(kAllStrategies)]);
}

// In order; one warp ahead; any lane.
std::vector<std::uint64_t> schedules(const KernelCase& c) { return {0, 2 * c.seed + 1, 2 * c.seed + 2}; }

// Compiles a case and runs it; the kernel before is kept, since many simplifications leave it as it is.
class Judge {
 public:
  explicit Judge(std::uint64_t schedule) : schedule_(schedule) {}

  std::optional<std::string> operator()(const KernelCase& c) {
    const auto text = sources({&c, 1});
    if (!text) return text.error().message;
    if (kernels_.empty() || text_ != text->front().text) {
      auto compiled = compile_batch({&c, 1});
      if (!compiled) return compiled.error().message;
      kernels_ = *std::move(compiled);
      text_ = text->front().text;
    }
    return run_case(c, kernels_[0], schedule_, kTimeLimit);
  }

 private:
  static constexpr auto kTimeLimit = std::chrono::seconds(5);  // many times what a case takes

  std::uint64_t schedule_;
  std::string text_;
  std::vector<simt::HostKernel> kernels_;
};

std::string how_to_replay(const KernelCase& c, std::uint64_t schedule) {
  return concat({"NORMJIT_HOST_CASE='", to_text(c), "' NORMJIT_HOST_SCHEDULE=", shortest(schedule),
                 " build/normjit_host_tests --gtest_filter=HostKernels.Replay"});
}

std::string report(const KernelCase& c, std::uint64_t schedule, const std::string& wrong) {
  const ShrunkCase shrunk = shrink(c, wrong, Judge(schedule));
  return concat({wrong, "\n  ", how_to_replay(c, schedule), "\nthe smallest of ", shortest(shrunk.tried),
                 " simpler ones that fails: ", shrunk.wrong, "\n  ",
                 how_to_replay(shrunk.smallest, schedule)});
}

class RandomKernels : public ::testing::TestWithParam<int> {};

TEST_P(RandomKernels, AreRightUnderEverySchedule) {
  const int all = specs_in_all(), shard = GetParam();
  std::vector<KernelCase> own;
  for (int i = all * shard / kShards; i < all * (shard + 1) / kShards; ++i)
    own.push_back(case_number(static_cast<std::uint64_t>(i)));
  for (std::size_t first = 0; first < own.size(); first += kBatch) {
    const auto batch = std::span(own).subspan(first, std::min<std::size_t>(kBatch, own.size() - first));
    const auto kernels = compile_batch(batch);
    ASSERT_TRUE(kernels) << kernels.error().message;
    for (std::size_t i = 0; i < batch.size(); ++i)
      for (const std::uint64_t schedule : schedules(batch[i]))
        if (const auto wrong = run_case(batch[i], (*kernels)[i], schedule))
          FAIL() << report(batch[i], schedule, *wrong);
  }
}
INSTANTIATE_TEST_SUITE_P(HostKernels, RandomKernels, ::testing::Range(0, kShards));

TEST(HostKernels, Replay) {
  const char* const line = std::getenv("NORMJIT_HOST_CASE");
  if (line == nullptr) GTEST_SKIP() << "set NORMJIT_HOST_CASE to a case that a failure has printed";
  const auto c = case_from_text(line);
  ASSERT_TRUE(c && legal(*c)) << "no legal case: " << line;
  const char* const schedule = std::getenv("NORMJIT_HOST_SCHEDULE");
  const auto wrong = Judge(number<std::uint64_t>(schedule == nullptr ? "0" : schedule).value_or(0))(*c);
  EXPECT_FALSE(wrong) << *wrong;
}

}  // namespace
}  // namespace normjit::testing
