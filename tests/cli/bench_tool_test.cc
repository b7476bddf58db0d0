// `normjit bench --suite` and `--plot` as far as they go without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using Json = nlohmann::json;

class BenchTool : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_ / name; }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }

  TempDirectory directory_;
};

TEST_F(BenchTool, ListsTheSuiteWithoutAGpu) {
  const ToolRun list = run_tool({"bench", "--suite", "--list", "--json", "--seed", "18446744073709551615"});
  ASSERT_EQ(list.status, 0) << list.err;
  EXPECT_THAT(list.err, IsEmpty());
  const Json report = Json::parse(list.out);
  EXPECT_EQ(report.at("seed"), 18446744073709551615u);
  int drawn = 0;
  for (const Json& one : report.at("cases")) {
    EXPECT_GT(one.at("rows"), 0);
    EXPECT_GT(one.at("bytes"), 0);
    EXPECT_THAT(one.at("spec").get<std::string>(), StartsWith("layernorm/cols="));
    EXPECT_FALSE(one.at("target").get<std::string>().empty());
    drawn += one.at("drawn").get<bool>();
  }
  EXPECT_EQ(drawn, 40);
  EXPECT_EQ(run_tool({"bench", "--suite", "--list", "--json", "--seed", "18446744073709551615"}).out,
            list.out);
}

TEST_F(BenchTool, WithoutASeedTheOneDrawnIsPrinted) {
  const Json report = Json::parse(run_tool({"bench", "--suite", "--list", "--json"}).out);
  const std::string seed = std::to_string(report.at("seed").get<std::uint64_t>());
  const Json again = Json::parse(run_tool({"bench", "--suite", "--list", "--json", "--seed", seed}).out);
  EXPECT_EQ(again, report);
}

TEST_F(BenchTool, HelpAndErrorNameTheSameRegimes) {
  const std::string error = run_tool({"bench", "--suite", "--list", "--regime", "nope"}).err;
  const std::string before = "it may be one of ";
  ASSERT_THAT(error, HasSubstr(before));
  std::string names = error.substr(error.find(before) + before.size());
  names.pop_back();
  EXPECT_THAT(run_tool({"bench", "--help"}).out, HasSubstr("Only the cases of one: " + names + "\n"));
}

TEST_F(BenchTool, ListsOneRegimeAsText) {
  const ToolRun list = run_tool({"bench", "--suite", "--list", "--regime", "decode", "--seed", "5"});
  ASSERT_EQ(list.status, 0) << list.err;
  EXPECT_THAT(list.out, HasSubstr("layernorm/cols=4096/f16/eps=1e-05/wb"));
  EXPECT_THAT(list.out, HasSubstr("<= 1.7 us"));
  EXPECT_THAT(list.out, HasSubstr("seed 5"));
  EXPECT_THAT(list.out, testing::Not(HasSubstr("ordinary")));
}

TEST_F(BenchTool, OptionsThatDoNotGoTogetherExitWith2) {
  const std::string svg = path("plot.svg");
  const std::string suite = file("suite.json", "{}");
  const std::vector<std::vector<std::string>> mistakes = {
      {},
      {"--list"},
      {"--seed", "1"},
      {"--regime", "few"},
      {"--from", suite},
      {"--suite", "layernorm/cols=64/f32"},
      {"--suite", "--rows", "1"},
      {"--suite", "--plan", "warp_rows"},
      {"--suite", "--repeat", "0"},
      {"--suite", "--seed", "-1"},
      {"--suite", "--seed", "one"},
      {"--suite", "--list", "--regime", "wide"},
      {"--suite", "--list", "--regime", "narrow"},
      {"--suite", "--list", "--plot", svg},
      {"--suite", "--from", suite},
      {"--plot", svg},
      {"--plot", svg, "--from", suite},
      {"--plot", svg, "--from", path("absent.json")},
      {"--plot", svg, "--from", suite + "," + suite + "," + suite},
      {"--plot", svg, "--from", suite, "--regime", "few"},
  };
  for (std::vector<std::string> arguments : mistakes) {
    arguments.insert(arguments.begin(), "bench");
    const ToolRun run = run_tool(arguments);
    EXPECT_EQ(run.status, 2) << testing::PrintToString(arguments) << run.err;
    EXPECT_THAT(run.out, IsEmpty()) << testing::PrintToString(arguments);
    EXPECT_THAT(run.err, StartsWith("normjit: ")) << testing::PrintToString(arguments);
  }
  EXPECT_FALSE(std::filesystem::exists(svg));
}

TEST_F(BenchTool, PlotsStoredResultsWithoutAGpu) {
  const std::string suite =
      file("suite.json", R"({"device": "NVIDIA H200", "driver": "580.1", "date": "today",
    "cases": [{"spec": "layernorm/cols=1024/bf16/wb", "rows": 65536, "fraction_of_copy": 0.9}]})");
  const std::string peers = file("peers.json", R"({"cases": [
    {"spec": "layernorm/cols=1024/bf16/wb", "rows": 65536, "copy_us": 50, "peers": {"eager": 100}}]})");
  const std::string svg = path("plot.svg");
  const ToolRun run = run_tool({"bench", "--plot", svg, "--from", suite + "," + peers});
  ASSERT_EQ(run.status, 0) << run.err;
  std::ifstream in(svg);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  EXPECT_THAT(text, StartsWith("<svg "));
  EXPECT_THAT(text, HasSubstr("eager, bf16"));
  EXPECT_EQ(run_tool({"bench", "--plot", path("no/such/plot.svg"), "--from", suite}).status, 4);
}

TEST_F(BenchTool, WithoutADriverTheSuiteExitsWith3) {
  const Json environment = Json::parse(run_tool({"doctor", "--json"}).out);
  if (!environment.at("devices").empty()) GTEST_SKIP() << "this machine has a GPU";
  const ToolRun run = run_tool({"bench", "--suite", "--output", path("suite.json")});
  EXPECT_EQ(run.status, 3);
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(path("suite.json")));
}

}  // namespace
}  // namespace normjit
