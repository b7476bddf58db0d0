// SPDX-License-Identifier: Apache-2.0
// The tool and tuned plans, where there is no GPU: options of tune, and what the other commands show.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "normjit/service.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using Json = nlohmann::json;

constexpr const char* kSpec = "layernorm/cols=4096/f32/eps=1e-05";
constexpr const char* kPlan = "block_row threads=1024 threads_per_row=1024 vector=2 per_thread=2";

class ToolTune : public testing::Test {
 protected:
  ToolRun run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--cache-dir", directory_.path()});
    return run_tool(arguments);
  }
  // Keeps kPlan for many rows on the default profile of sm_90.
  void remember() const {
    Options options;
    options.cache_directory = directory_.path();
    ASSERT_TRUE(Service(options)
                    .remember({.spec = parse_spec(kSpec).value(),
                               .device = DeviceProfile::of(Arch{90}).value(),
                               .plan = parse_plan(kPlan).value()})
                    .ok());
  }

  TempDirectory directory_;
};

TEST_F(ToolTune, UsageErrorsExitWith2) {
  const std::vector<std::vector<std::string>> mistakes = {
      {"tune"},
      {"tune", "layernorm/cols=0/f32"},
      {"tune", kSpec, "--rows", "0"},
      {"tune", kSpec, "--rows", "12x"},
      {"tune", kSpec, "--repeat", "0"},
      {"tune", kSpec, "--top", "-1"},
      {"tune", kSpec, "--random", "2"},
      {"tune", "--random", "2"},
      {"tune", "--random", "2", "--data", "data.txt", "--columns", "64-16"},
      {"tune", "--random", "2", "--data", "data.txt", "--rows", "1,2"},
      {"tune", "--manifest", "/dev/null"},
      {"tune", "--manifest", "/nowhere.json"},
      {"tune", kSpec, "--sample-rows", "0"},
      {"tune", kSpec, "--arch", "sm_90"},
  };
  for (const auto& arguments : mistakes) {
    const ToolRun tune = run(arguments);
    EXPECT_EQ(tune.status, 2) << testing::PrintToString(arguments) << tune.err;
    EXPECT_THAT(tune.out, IsEmpty()) << testing::PrintToString(arguments);
    EXPECT_FALSE(tune.err.empty()) << testing::PrintToString(arguments);
  }
}

TEST_F(ToolTune, HelpSaysWhatIsKept) {
  const ToolRun help = run_tool({"tune", "--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("--dry-run"));
  EXPECT_THAT(help.out, HasSubstr("Exit status"));
  EXPECT_THAT(run_tool({"--help"}).out, HasSubstr("tune"));
}

TEST_F(ToolTune, WithoutADirectoryToKeepPlansInItExitsWith4) {
  const ToolRun tune = run_tool({"tune", kSpec}, {"NORMJIT_CACHE_DIR=", "XDG_CACHE_HOME=", "HOME="});
  EXPECT_EQ(tune.status, 4);
  EXPECT_THAT(tune.err, HasSubstr("--dry-run"));
}

TEST_F(ToolTune, WithoutAGpuItExitsWith3) {
  if (!Json::parse(run({"doctor", "--json"}).out).at("devices").empty())
    GTEST_SKIP() << "this machine has a GPU";
  for (const char* option : {"--json", "--dry-run"}) {
    const ToolRun tune = run({"tune", kSpec, option});
    EXPECT_EQ(tune.status, 3);
    EXPECT_THAT(tune.out, IsEmpty());
  }
}

TEST_F(ToolTune, ListShowsATunedPlanAsSuch) {
  remember();
  const ToolRun text = run({"list"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("tuned"));
  EXPECT_THAT(text.out, HasSubstr("for the row regime many, alignment 8 on sm_90"));
  const Json report = Json::parse(run({"list", "--json"}).out);
  EXPECT_EQ(report.at("damaged"), 0);
  const Json& entry = report.at("entries").at(0);
  EXPECT_EQ(entry.at("code"), "plan");
  EXPECT_EQ(entry.at("spec"), kSpec);
  EXPECT_EQ(entry.at("regime"), "many");
  EXPECT_EQ(entry.at("alignment"), "8");
  EXPECT_EQ(entry.at("registers"), -1);
}

TEST_F(ToolTune, ShowRenderAndPrebuildGoByIt) {
  const std::string plan = to_text(parse_plan(kPlan).value());
  const auto shown = [&] {
    std::vector<std::string> tuned;
    const Json report = Json::parse(run({"show", kSpec, "--arch", "sm_90", "--json"}).out);
    for (const Json& use : report.at("uses"))
      if (use.at("tuned")) {
        tuned.push_back(use.at("plan"));
        EXPECT_EQ(use.at("regime"), "many");
        EXPECT_EQ(use.at("alignment"), 8);
        EXPECT_EQ(use.at("id").get<std::string>().size(), 32u);
      }
    return tuned;
  };
  EXPECT_THAT(shown(), IsEmpty());
  const std::string before = run({"render", kSpec, "--arch", "sm_90"}).out;
  remember();
  EXPECT_THAT(shown(), testing::ElementsAre(plan));
  const std::string rendered = run({"render", kSpec, "--arch", "sm_90"}).out;
  EXPECT_NE(rendered, before);
  EXPECT_EQ(rendered, run({"render", kSpec, "--arch", "sm_90", "--plan", kPlan}).out);
  EXPECT_THAT(run({"prebuild", kSpec, "--arch", "sm_90", "--dry-run"}).out, HasSubstr(plan));
  EXPECT_THAT(run({"prebuild", kSpec, "--arch", "sm_80", "--dry-run"}).out, testing::Not(HasSubstr(plan)));
}

}  // namespace
}  // namespace normjit
