// SPDX-License-Identifier: Apache-2.0
// `normjit-bench suite` as far as they go without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using Json = nlohmann::json;

class SuiteTool : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_ / name; }

  TempDirectory directory_;
};

TEST_F(SuiteTool, ListsTheSuiteWithoutAGpu) {
  const ToolRun list = run_bench({"suite", "--list", "--json", "--seed", "18446744073709551615"});
  ASSERT_EQ(list.status, 0) << list.err;
  EXPECT_THAT(list.err, IsEmpty());
  const Json report = Json::parse(list.out);
  EXPECT_EQ(report.at("seed"), 18446744073709551615u);
  int drawn = 0;
  for (const Json& one : report.at("cases")) {
    EXPECT_GT(one.at("rows"), 0);
    EXPECT_GT(one.at("bytes"), 0);
    EXPECT_THAT(one.at("spec").get<std::string>(),
                AnyOf(StartsWith("layernorm/cols="), StartsWith("rmsnorm/cols=")));
    EXPECT_FALSE(one.at("target").get<std::string>().empty());
    drawn += one.at("drawn").get<bool>();
  }
  EXPECT_EQ(drawn, 40 + 4 * 3 * 6 + 15)
      << "of all regimes, the widths of the fused one, and one of each quantized form";
  EXPECT_EQ(run_bench({"suite", "--list", "--json", "--seed", "18446744073709551615"}).out, list.out);
}

TEST_F(SuiteTool, WithoutASeedTheOneDrawnIsPrinted) {
  const Json report = Json::parse(run_bench({"suite", "--list", "--json"}).out);
  const std::string seed = std::to_string(report.at("seed").get<std::uint64_t>());
  const Json again = Json::parse(run_bench({"suite", "--list", "--json", "--seed", seed}).out);
  EXPECT_EQ(again, report);
}

TEST_F(SuiteTool, HelpAndErrorNameTheSameRegimes) {
  const std::string error = run_bench({"suite", "--list", "--regime", "nope"}).err;
  const std::string before = "it may be one of ";
  ASSERT_THAT(error, HasSubstr(before));
  std::string names = error.substr(error.find(before) + before.size());
  names.pop_back();
  EXPECT_THAT(run_bench({"suite", "--help"}).out, HasSubstr("Only the cases of one: " + names + "\n"));
}

TEST_F(SuiteTool, ListsOneRegimeAsText) {
  const ToolRun list = run_bench({"suite", "--list", "--regime", "decode", "--seed", "5"});
  ASSERT_EQ(list.status, 0) << list.err;
  EXPECT_THAT(list.out, HasSubstr("layernorm/cols=4096/f16/eps=1e-05/wb"));
  EXPECT_THAT(list.out, HasSubstr("<= 1.7 us"));
  EXPECT_THAT(list.out, HasSubstr("seed 5"));
  EXPECT_THAT(list.out, testing::Not(HasSubstr("ordinary")));
}

TEST_F(SuiteTool, ListsTheFusedRegimeAlone) {
  const Json report =
      Json::parse(run_bench({"suite", "--list", "--json", "--regime", "fused", "--seed", "5"}).out);
  int overlap = 0;
  for (const Json& one : report.at("cases")) {
    EXPECT_EQ(one.at("regime"), "fused");
    overlap += one.at("overlap").get<bool>();
  }
  EXPECT_EQ(overlap, 16);
}

TEST_F(SuiteTool, HelpHasWhatChoosesHowToMeasure) {
  EXPECT_THAT(run_tool({"bench", "--help"}).out, HasSubstr("--overlap"));
  EXPECT_THAT(run_bench({"suite", "--help"}).out, HasSubstr("--compact"));
}

TEST_F(SuiteTool, OptionsThatDoNotGoTogetherExitWith2) {
  const std::vector<std::vector<std::string>> mistakes = {
      {"layernorm/cols=64/f32"},
      {"--rows", "1"},
      {"--plan", "warp_rows"},
      {"--repeat", "0"},
      {"--seed", "-1"},
      {"--seed", "one"},
      {"--list", "--regime", "wide"},
      {"--list", "--regime", "narrow"},
  };
  for (std::vector<std::string> arguments : mistakes) {
    arguments.insert(arguments.begin(), "suite");
    const ToolRun run = run_bench(arguments);
    EXPECT_EQ(run.status, 2) << testing::PrintToString(arguments) << run.err;
    EXPECT_THAT(run.out, IsEmpty()) << testing::PrintToString(arguments);
    EXPECT_THAT(run.err, StartsWith("normjit: ")) << testing::PrintToString(arguments);
  }
}

TEST_F(SuiteTool, StandardOutputThatIsFullExitsWith4) {
  const ToolRun run = run_bench({"suite", "--list"}, {}, "/dev/full");
  EXPECT_EQ(run.status, 4);
  EXPECT_THAT(run.err, testing::EndsWith("standard output cannot be written: No space left on device\n"));
}

TEST_F(SuiteTool, TheToolNamesTheProgramThatMeasuresIt) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"bench", "--suite"},
                                             {"bench", "--suite", "--seed", "1", "--output", "suite.json"},
                                             {"bench", "layernorm/cols=64/f32", "--suite"}}) {
    const ToolRun run = run_tool(arguments);
    EXPECT_EQ(run.status, 2);
    EXPECT_THAT(run.out, IsEmpty());
    EXPECT_THAT(run.err, HasSubstr("`normjit-bench suite`"));
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
  EXPECT_THAT(run_tool({"bench", "--startup"}).err, HasSubstr("`normjit-bench startup`"));
  for (const char* option : {"--list", "--seed=1", "--regime=few"})
    EXPECT_EQ(run_tool({"bench", "layernorm/cols=64/f32", option}).status, 2) << option;
  EXPECT_EQ(run_tool({"bench"}).status, 2);
}

TEST_F(SuiteTool, WithoutADriverTheSuiteExitsWith3) {
  const Json environment = Json::parse(run_tool({"doctor", "--json"}).out);
  if (!environment.at("devices").empty()) GTEST_SKIP() << "this machine has a GPU";
  const ToolRun run = run_bench({"suite", "--output", path("suite.json")});
  EXPECT_EQ(run.status, 3);
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(path("suite.json")));
}

}  // namespace
}  // namespace normjit
