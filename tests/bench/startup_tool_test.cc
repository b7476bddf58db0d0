// SPDX-License-Identifier: Apache-2.0
// `normjit-bench startup` as far as it goes without a compiler.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

TEST(StartupTool, OptionsThatDoNotGoTogetherExitWith2) {
  const std::vector<std::vector<std::string>> mistakes = {
      {"--seed", "1"},   {"--plan", "warp_rows"}, {"--device", "1"},     {"--cache-dir", "cache"},
      {"--repeat", "0"}, {"--kernels", "-1"},     {"--kernels", "many"}, {"--rows", "1,2"},
      {"--rows", "0"},   {"layernorm/cols=none"},
  };
  for (std::vector<std::string> arguments : mistakes) {
    arguments.insert(arguments.begin(), "startup");
    const ToolRun run = run_bench(arguments);
    EXPECT_EQ(run.status, 2) << testing::PrintToString(arguments) << run.err;
    EXPECT_THAT(run.out, IsEmpty()) << testing::PrintToString(arguments);
    EXPECT_THAT(run.err, StartsWith("normjit: ")) << testing::PrintToString(arguments);
  }
}

TEST(StartupTool, WithoutACompilerItExitsWith3AndLeavesNothingBehind) {
  const TempDirectory scratch;
  const ToolRun run = run_bench({"startup", "--kernels", "1"},
                                {"NORMJIT_NVRTC_PATH=/no/such/libnvrtc.so", "TMPDIR=" + scratch.path()});
  EXPECT_EQ(run.status, 3) << run.err;
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(run.err,
              HasSubstr("normjit: NoCompiler: The compiler library /no/such/libnvrtc.so cannot be used"));
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(StartupTool, ItsStepsAreNotInTheHelp) {
  EXPECT_THAT(run_bench({"--help"}).out, AllOf(HasSubstr("startup"), Not(HasSubstr("startup-step"))));
  EXPECT_EQ(run_bench({"startup-step", "dance"}).status, 2);
  EXPECT_EQ(run_tool({"startup-step", "look"}).status, 2) << "it has no such command";
}

}  // namespace
}  // namespace normjit
