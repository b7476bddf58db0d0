#include "normjit/compiler/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "normjit/compiler/compiler.h"

namespace normjit {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

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
