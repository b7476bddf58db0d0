// SPDX-License-Identifier: Apache-2.0
// The options of run that say on what a kernel runs.
#include "cli/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace normjit::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ParseDevice, IsHostOrAnOrdinal) {
  EXPECT_EQ(parse_device("host").value(), std::nullopt);
  EXPECT_EQ(parse_device("0").value(), 0);
  EXPECT_EQ(parse_device("12").value(), 12);
}

TEST(ParseDevice, SaysWhatItMayBe) {
  for (const char* text : {"", "cpu", "Host", "-1", "1x", " 1", "0,1", "99999999999"}) {
    const auto device = parse_device(text);
    ASSERT_FALSE(device.ok()) << text;
    EXPECT_EQ(device.code(), Code::BadArgument) << text;
    EXPECT_THAT(device.error().message, HasSubstr("or host for the CPU")) << text;
  }
}

TEST(ParseSchedules, IsAListOfSeeds) {
  EXPECT_THAT(parse_schedules("0").value(), ElementsAre(0));
  EXPECT_THAT(parse_schedules("3,0,18446744073709551615,3").value(),
              ElementsAre(3, 0, 18446744073709551615u, 3));
}

TEST(ParseSchedules, RefusesWhatIsNoList) {
  for (const char* text : {"", ",", "0,", "0 1", "-1", "1.5", "0x1", "18446744073709551616"}) {
    const auto seeds = parse_schedules(text);
    ASSERT_FALSE(seeds.ok()) << text;
    EXPECT_EQ(seeds.code(), Code::BadArgument) << text;
    EXPECT_THAT(seeds.error().message, HasSubstr("--schedule is '")) << text;
  }
}

TEST(ReplayCommand, ReplacesTheSchedulesAndNothingElse) {
  const std::vector<std::string> command = {"normjit", "run", "layernorm/cols=64/f32", "--rows", "8"};
  EXPECT_EQ(replay_command(command, {7}, ""), "normjit run layernorm/cols=64/f32 --rows 8 --schedule 7");
  for (const auto& schedule : {std::vector<std::string>{"--schedule", "0,7"}, {"--schedule=0,7"}}) {
    std::vector<std::string> with = command;
    with.insert(with.begin() + 2, schedule.begin(), schedule.end());
    EXPECT_EQ(replay_command(with, {0, 7}, ""), "normjit run layernorm/cols=64/f32 --rows 8 --schedule 0,7");
  }
}

TEST(ReplayCommand, QuotesForAShellAndNamesTheTemplates) {
  EXPECT_EQ(replay_command({"./normjit", "run", "it's", "--out", "", "--x", "a b.npy"}, {1}, "my templates"),
            "NORMJIT_TEMPLATE_DIR='my templates' "
            "./normjit run 'it'\\''s' --out '' --x 'a b.npy' --schedule 1");
}

}  // namespace
}  // namespace normjit::cli
