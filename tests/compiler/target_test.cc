// SPDX-License-Identifier: Apache-2.0
#include "normjit/compiler/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "normjit/compiler/compiler.h"

namespace normjit {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

// Those of NVRTC 13.0.
std::vector<Arch> known() {
  std::vector<Arch> archs;
  for (int number : {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121})
    archs.push_back({.number = number});
  return archs;
}

// The name of what is compiled for `wanted`, "none" for nothing.
std::string target_of(const char* wanted) {
  const auto target = choose_target(Arch::parse(wanted).value(), known());
  return target ? target->name() : "none";
}

TEST(Target, AKnownArchitectureIsItself) {
  for (Arch arch : known()) EXPECT_EQ(target_of(arch.name().c_str()), arch.name());
}

TEST(Target, ASuffixIsKeptWhereTheNumberIsKnown) {
  EXPECT_EQ(target_of("sm_90a"), "sm_90a");
  EXPECT_EQ(target_of("sm_100f"), "sm_100f");
}

TEST(Target, AnUnknownMinorGetsTheNewestOlderOneOfItsMajor) {
  EXPECT_EQ(target_of("sm_101"), "sm_100");
  EXPECT_EQ(target_of("sm_109"), "sm_103");
  EXPECT_EQ(target_of("sm_82"), "sm_80");
  EXPECT_EQ(target_of("sm_95"), "sm_90");
}

TEST(Target, AStandInHasNoSuffix) { EXPECT_EQ(target_of("sm_101a"), "sm_100"); }

TEST(Target, AnUnknownMajorGetsPtxOfTheNewestOlderOne) {
  EXPECT_EQ(target_of("sm_999"), "compute_121");
  EXPECT_EQ(choose_target({.number = 100}, {{.number = 80}, {.number = 90}}),
            (Target{.arch = {.number = 90}, .ptx = true}));
}

TEST(Target, NothingServesAnArchitectureOlderThanAll) {
  EXPECT_EQ(target_of("sm_70"), "none");
  EXPECT_EQ(choose_target({.number = 90}, {}), std::nullopt);
}

TEST(Target, TheOrderOfTheKnownOnesIsWithoutMeaning) {
  EXPECT_EQ(choose_target({.number = 89}, {{.number = 90}, {.number = 86}, {.number = 80}}),
            (Target{.arch = {.number = 86}}));
}

TEST(Options, TheSemanticOnesAreOneStableLine) {
  // Part of the identity of every cache entry: a change here makes all of them misses.
  EXPECT_EQ(semantic_options({.number = 90}), "--std=c++17 --gpu-architecture=sm_90");
  EXPECT_EQ(semantic_options({.number = 90, .suffix = 'a'}), "--std=c++17 --gpu-architecture=sm_90a");
}

TEST(Options, TheCommandLineBeginsWithTheSemanticOnes) {
  const std::string line = joined(compile_options("sm_90", 13, 0));
  EXPECT_TRUE(line.starts_with(semantic_options({.number = 90}) + " ")) << line;
}

TEST(Options, AVersionGetsOnlyOptionsThatItKnows) {
  EXPECT_THAT(compile_options("sm_90", 12, 0),
              AllOf(Contains("--ptxas-options=-v"), Not(Contains("--minimal"))));
  EXPECT_THAT(compile_options("sm_90", 12, 4), AllOf(Contains("--minimal"), Not(Contains("--no-cache"))));
  EXPECT_THAT(compile_options("sm_90", 12, 8), Not(Contains("--no-cache")));
  EXPECT_THAT(compile_options("sm_90", 12, 9), Contains("--no-cache"));
  EXPECT_THAT(compile_options("sm_90", 13, 0), Contains("--no-cache"));
}

TEST(Options, NameAVirtualTarget) {
  EXPECT_THAT(joined(compile_options("compute_121", 13, 0)), HasSubstr("--gpu-architecture=compute_121 "));
}

}  // namespace
}  // namespace normjit
