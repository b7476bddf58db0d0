// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace normjit::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Progress, EstimatesTheTimeThatIsLeft) {
  EXPECT_EQ(time_left(10, 20, 100), "about 40 s left");
  EXPECT_EQ(time_left(100, 1, 10), "about 15 min left");
  EXPECT_EQ(time_left(3600, 10, 100), "about 9 h left");
  EXPECT_EQ(time_left(2, 999, 1000), "about 1 s left") << "never 0";
  EXPECT_EQ(time_left(0.5, 1, 100), "") << "too early to say";
  EXPECT_EQ(time_left(10, 0, 100), "");
  EXPECT_EQ(time_left(10, 100, 100), "");
}

TEST(Progress, BarsAndLinesShowIt) {
  const auto begun = Progress::Clock::now() - std::chrono::seconds(10);
  testing::internal::CaptureStderr();
  Progress(/*terminal=*/true, begun).show(20, 100, "kernels", "");
  const std::string bar = testing::internal::GetCapturedStderr();
  EXPECT_THAT(bar, HasSubstr("] 20/100 kernels, about 4"));
  EXPECT_THAT(bar, HasSubstr(" s left"));
  testing::internal::CaptureStderr();
  Progress(/*terminal=*/false, begun).show(20, 100, "kernels", "the line");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::MatchesRegex("\\[20/100, about 4[01] s left\\] the line\n"));
  testing::internal::CaptureStderr();
  Progress(/*terminal=*/false).show(20, 100, "kernels", "the line");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[20/100] the line\n");
}

}  // namespace
}  // namespace normjit::cli
