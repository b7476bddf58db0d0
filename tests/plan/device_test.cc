// SPDX-License-Identifier: Apache-2.0
#include "normjit/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace normjit {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(DeviceProfile, KnowsTheseArchitecturesInAscendingOrder) {
  std::vector<int> numbers;
  for (const DeviceProfile& profile : DeviceProfile::known()) {
    EXPECT_EQ(profile.arch.suffix, '\0');
    numbers.push_back(profile.arch.number);
  }
  EXPECT_THAT(numbers, ElementsAre(75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121));
}

TEST(DeviceProfile, OfAKnownArchitectureIsItsRow) {
  for (const DeviceProfile& profile : DeviceProfile::known())
    EXPECT_EQ(DeviceProfile::of(profile.arch).value(), profile);
}

TEST(DeviceProfile, ASuffixStaysAndChangesNothingElse) {
  DeviceProfile expected = DeviceProfile::of({.number = 90}).value();
  expected.arch.suffix = 'a';
  EXPECT_EQ(DeviceProfile::of({.number = 90, .suffix = 'a'}).value(), expected);
}

TEST(DeviceProfile, AnUnknownArchitectureIsAnErrorThatListsTheKnownOnes) {
  for (const int number : {0, 70, 76, 91, 999}) {
    const auto unknown = DeviceProfile::of({.number = number});
    ASSERT_EQ(unknown.code(), Code::UnknownArch);
    EXPECT_THAT(unknown.error().message, HasSubstr(Arch{.number = number}.name()));
    for (const DeviceProfile& profile : DeviceProfile::known())
      EXPECT_THAT(unknown.error().message, HasSubstr(profile.arch.name()));
  }
}

// What holds for every compute capability since 7.5.
TEST(DeviceProfile, LimitsArePlausible) {
  for (const DeviceProfile& profile : DeviceProfile::known()) {
    SCOPED_TRACE(profile.text());
    EXPECT_GE(profile.sm_count, 1);
    EXPECT_THAT((std::vector{1024, 1536, 2048}), testing::Contains(profile.threads_per_sm));
    EXPECT_THAT((std::vector{16, 24, 32}), testing::Contains(profile.blocks_per_sm));
    EXPECT_EQ(profile.registers_per_sm, 65536);
    EXPECT_GE(profile.shared_per_block, 48 * 1024);
    EXPECT_LE(profile.shared_per_block, profile.shared_per_sm);
    EXPECT_GE(profile.l2_bytes, 1024 * 1024);
  }
}

TEST(DeviceProfile, PrintsOnOneLine) {
  EXPECT_EQ(DeviceProfile::of({.number = 90, .suffix = 'a'}).value().text(),
            "sm_90a, 132 SMs, 227 KiB shared memory a block, 60 MiB L2");
}

}  // namespace
}  // namespace normjit
