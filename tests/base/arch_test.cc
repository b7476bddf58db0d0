// SPDX-License-Identifier: Apache-2.0
#include "normjit/arch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace normjit {
namespace {

using testing::HasSubstr;

TEST(Arch, NameAndParseAreInverse) {
  for (const char* name : {"sm_75", "sm_90", "sm_90a", "sm_100", "sm_100f", "sm_121a"}) {
    const Result<Arch> arch = Arch::parse(name);
    ASSERT_TRUE(arch.ok()) << arch.error().message;
    EXPECT_EQ(arch->name(), name);
  }
}

TEST(Arch, TakesNumberAndSuffixApart) {
  const Arch arch = Arch::parse("sm_103f").value();
  EXPECT_EQ(arch, (Arch{.number = 103, .suffix = 'f'}));
  EXPECT_EQ(arch.major(), 10);
  EXPECT_EQ(arch.minor(), 3);
}

TEST(Arch, TheSuffixIsPartOfTheIdentity) {
  EXPECT_NE(Arch::parse("sm_90").value(), Arch::parse("sm_90a").value());
}

TEST(Arch, RefusesEveryOtherForm) {
  for (const char* text :
       {"", "90", "sm90", "SM_90", "compute_90", "sm_", "sm_a", "sm_9", "sm_090", "sm_1000", "sm_90b",
        "sm_90aa", "sm_-90", "sm_+90", "sm_9.0", " sm_90", "sm_90 ", "sm_90,sm_80"}) {
    const Result<Arch> arch = Arch::parse(text);
    EXPECT_EQ(arch.code(), Code::UnknownArch) << text;
  }
}

TEST(Arch, TheErrorShowsWhatToWrite) {
  const Result<Arch> arch = Arch::parse("hopper");
  ASSERT_FALSE(arch.ok());
  EXPECT_THAT(arch.error().message, HasSubstr("'hopper'"));
  EXPECT_THAT(arch.error().message, HasSubstr("sm_90"));
}

}  // namespace
}  // namespace normjit
