// `normjit bench --startup` as far as it goes without a compiler.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

TEST(StartupTool, OptionsThatDoNotGoTogetherExitWith2) {
  const std::vector<std::vector<std::string>> mistakes = {
      {"--startup", "--suite"},
      {"--startup", "--list"},
      {"--startup", "--seed", "1"},
      {"--startup", "--regime", "few"},
      {"--startup", "--plot", "plot.svg"},
      {"--startup", "--plan", "warp_rows"},
      {"--startup", "--device", "1"},
      {"--startup", "--cache-dir", "cache"},
      {"--startup", "--repeat", "0"},
      {"--startup", "--kernels", "-1"},
      {"--startup", "--kernels", "many"},
      {"--startup", "--rows", "1,2"},
      {"--startup", "--rows", "0"},
      {"--startup", "layernorm/cols=none"},
      {"--kernels", "5", "layernorm/cols=64/f32"},
      {"--kernels", "5", "--suite"},
  };
  for (std::vector<std::string> arguments : mistakes) {
    arguments.insert(arguments.begin(), "bench");
    const ToolRun run = run_tool(arguments);
    EXPECT_EQ(run.status, 2) << testing::PrintToString(arguments) << run.err;
    EXPECT_THAT(run.out, IsEmpty()) << testing::PrintToString(arguments);
    EXPECT_THAT(run.err, StartsWith("normjit: ")) << testing::PrintToString(arguments);
  }
}

TEST(StartupTool, WithoutACompilerItExitsWith3AndLeavesNothingBehind) {
  const TempDirectory scratch;
  const ToolRun run = run_tool({"bench", "--startup", "--kernels", "1"},
                               {"NORMJIT_NVRTC_PATH=/no/such/libnvrtc.so", "TMPDIR=" + scratch.path()});
  EXPECT_EQ(run.status, 3) << run.err;
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(run.err,
              HasSubstr("normjit: NoCompiler: The compiler library /no/such/libnvrtc.so cannot be used"));
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(StartupTool, ItsStepsAreNotInTheHelp) {
  EXPECT_THAT(run_tool({"bench", "--help"}).out, HasSubstr("--startup"));
  EXPECT_THAT(run_tool({"--help"}).out, Not(HasSubstr("startup-step")));
  EXPECT_EQ(run_tool({"startup-step", "dance"}).status, 2);
}

}  // namespace
}  // namespace normjit
