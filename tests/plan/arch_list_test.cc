// SPDX-License-Identifier: Apache-2.0
#include "normjit/plan/arch_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace normjit {
namespace {

Result<DeviceProfile> no_gpu(int) { return Error{Code::NoDriver, "no driver."}; }

// Three GPUs of two kinds, one of them with fewer SMs than its architecture's default.
Result<DeviceProfile> three_gpus(int ordinal) {
  if (ordinal >= 3) return Error{Code::NoDevice, "no such device"};
  DeviceProfile profile = DeviceProfile::of(Arch{90}).value();
  if (ordinal == 1) profile.sm_count = 60;
  return profile;
}

std::vector<std::string> names(const Result<std::vector<DeviceProfile>>& profiles) {
  std::vector<std::string> result;
  if (profiles)
    for (const DeviceProfile& profile : *profiles) result.push_back(profile.arch.name());
  return result;
}

TEST(ArchList, NamesGroupsAndRepetitions) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(parse_arch_list("sm_90", no_gpu)), (Names{"sm_90"}));
  EXPECT_EQ(names(parse_arch_list("sm_90,sm_80,sm_90", no_gpu)), (Names{"sm_90", "sm_80"}));
  EXPECT_EQ(names(parse_arch_list("all-major", no_gpu)),
            (Names{"sm_75", "sm_80", "sm_90", "sm_100", "sm_110", "sm_120"}));
  EXPECT_EQ(parse_arch_list("all", no_gpu)->size(), DeviceProfile::known().size());
  EXPECT_EQ(parse_arch_list("all-major,all", no_gpu)->size(), DeviceProfile::known().size());
}

TEST(ArchList, NativeIsEveryKindOfGpuHere) {
  const Result<std::vector<DeviceProfile>> profiles = parse_arch_list("native,sm_90", three_gpus);
  ASSERT_EQ(profiles->size(), 2u) << "the first GPU is the default sm_90";
  EXPECT_EQ((*profiles)[1].sm_count, 60);
}

TEST(ArchList, NativeWithoutAGpuSaysWhatToDo) {
  const Result<std::vector<DeviceProfile>> profiles = parse_arch_list("native", no_gpu);
  EXPECT_EQ(profiles.code(), Code::NoDriver);
  EXPECT_THAT(profiles.error().message, testing::HasSubstr("name architectures"));
}

TEST(ArchList, BadWords) {
  EXPECT_EQ(parse_arch_list("", no_gpu).code(), Code::BadArgument);
  EXPECT_EQ(parse_arch_list("sm_90,", no_gpu).code(), Code::BadArgument);
  EXPECT_EQ(parse_arch_list("ampere", no_gpu).code(), Code::UnknownArch);
  EXPECT_EQ(parse_arch_list("sm_60", no_gpu).code(), Code::UnknownArch);
}

}  // namespace
}  // namespace normjit
