// SPDX-License-Identifier: Apache-2.0
// What the real tool says about plans: why one was chosen, and what is wrong with one that it is given.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "normjit/base/embedded_file.h"
#include "normjit/plan.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using Json = nlohmann::json;

constexpr const char* kSpec = "layernorm/cols=64/f32/eps=1e-05/wb/gelu";

class ToolPlan : public testing::Test {
 protected:
  ToolRun run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--cache-dir", directory_.path()});
    return run_tool(arguments);
  }

  TempDirectory directory_;
};

TEST_F(ToolPlan, ShowAndWhyKnowGradients) {
  constexpr const char* kGradients = "layernorm_bwd/cols=4096/bf16/out=f32/wb";
  const ToolRun show = run({"show", kGradients, "--arch", "sm_90", "--rows", "100"});
  ASSERT_EQ(show.status, 0) << show.err;
  EXPECT_THAT(show.out, HasSubstr("spec       layernorm_bwd/cols=4096/bf16/out=f32/eps=1e-05/wb\n"));
  EXPECT_THAT(show.out, HasSubstr("row bytes  8192 in, 16384 of dy, 8192 out\n"));
  const std::string place =
      embedded_pack().empty() ? "not here; it would be compiled\n" : "embedded, for sm_90\n";
  EXPECT_THAT(show.out, HasSubstr("generic    " + place));
  EXPECT_THAT(show.out, HasSubstr("gradient_"));
  const Json report = Json::parse(run({"show", kGradients, "--arch", "sm_90", "--json"}).out);
  EXPECT_EQ(report.at("dx_row_bytes"), 8192);
  EXPECT_EQ(report.at("dy_row_bytes"), 16384);
  EXPECT_FALSE(report.contains("y_row_bytes"));
  EXPECT_NE(report.at("generic").at("id"), "");
  for (const Json& use : report.at("uses"))
    EXPECT_THAT(use.at("plan").get<std::string>(), HasSubstr("gradient_"));

  const ToolRun why = run({"why", kGradients, "--arch", "sm_90"});
  EXPECT_EQ(why.status, 1) << why.err;
  EXPECT_THAT(why.out, HasSubstr("generic kernel: " + place));
  EXPECT_EQ(why.out.find("\ngeneric threads="), std::string::npos);
}

// The planner's choice for contiguous tensors, and what it beat: at most four plans, and no more than it has.
TEST_F(ToolPlan, ShowExplainsTheChoiceForSoManyRows) {
  const DeviceProfile device = DeviceProfile::of(Arch{90}).value();
  std::set<std::size_t> sizes;
  for (const char* spec :
       {"layernorm/cols=4096/bf16/eps=1e-05/wb", "layernorm/cols=1073741824/f64/eps=1e-05"}) {
    SCOPED_TRACE(spec);
    std::vector<Candidate> all =
        candidates(parse_spec(spec).value(), device, regime_of(100, device), Alignment::eight);
    all.resize(std::min<std::size_t>(all.size(), 5));
    sizes.insert(all.size());

    const ToolRun json = run({"show", spec, "--arch", "sm_90", "--rows", "100", "--json"});
    ASSERT_EQ(json.status, 0) << json.err;
    const Json report = Json::parse(json.out);
    EXPECT_EQ(report.at("regime"), "1");
    EXPECT_EQ(report.at("contiguous_alignment"), 8);
    std::vector<Json> weighed = {report.at("choice")};
    for (const Json& alternative : report.at("alternatives")) weighed.push_back(alternative);
    ASSERT_EQ(weighed.size(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(weighed[i].at("plan"), to_text(all[i].plan));
      EXPECT_EQ(weighed[i].at("cost"), all[i].cost);
      EXPECT_EQ(weighed[i].at("why"), all[i].why);
    }

    const ToolRun text = run({"show", spec, "--arch", "sm_90", "--rows", "100"});
    const std::size_t table = text.out.find("\nchosen  ");
    ASSERT_NE(table, text.out.npos) << text.out;
    EXPECT_EQ(text.out.find("\nbeaten  ") == text.out.npos, all.size() == 1);
    for (const Candidate& candidate : all)
      EXPECT_THAT(text.out.substr(table), HasSubstr(std::string(candidate.why) + "  "))
          << to_text(candidate.plan);
  }
  EXPECT_THAT(sizes, testing::SizeIs(2)) << "one spec has many plans, the other few";
}

// Rows of an odd length begin anywhere, though the tensors are contiguous.
TEST_F(ToolPlan, ShowExplainsTheChoiceForTheAlignmentOfContiguousRows) {
  const auto alignment = [&](const std::string& spec) {
    return Json::parse(run({"show", spec, "--arch", "sm_80", "--rows", "9", "--json"}).out)
        .at("contiguous_alignment")
        .get<int>();
  };
  EXPECT_EQ(alignment("layernorm/cols=1023/f32"), 1);
  EXPECT_EQ(alignment("layernorm/cols=1022/f16"), 2);
  EXPECT_EQ(alignment("layernorm/cols=1020/f16"), 4);
  EXPECT_EQ(alignment("layernorm/cols=1020/f32"), 8) << "16 bytes are as many as there are";
  EXPECT_EQ(alignment("layernorm/cols=1020/f32/out=f16"), 4) << "the narrower dtype decides";
}

TEST_F(ToolPlan, ShowWithoutRowsExplainsNothing) {
  const Json report = Json::parse(run({"show", kSpec, "--arch", "sm_90", "--json"}).out);
  EXPECT_FALSE(report.contains("choice"));
  EXPECT_FALSE(report.contains("alternatives"));
  EXPECT_THAT(run({"show", kSpec, "--arch", "sm_90"}).out, testing::Not(HasSubstr("chosen")));
}

// The three commands that take a plan say what is wrong with its text, and what one reads like.
// The kernels that prebuild builds with the same options, no more and no fewer.
TEST_F(ToolPlan, ShowAndWhyHaveTheUsesOfPrebuild) {
  const auto texts = [](const Json& report, const char* list) {
    std::set<std::string> found;
    for (const Json& item : report.at(list)) found.insert(item.at("plan"));
    return found;
  };
  // Channels first have no groups, and so no other kernels for them.
  EXPECT_EQ(run({"show", "layernorm/cols=96/f16/wb/cf", "--arch", "sm_90", "--grouped-rows"}).out,
            run({"show", "layernorm/cols=96/f16/wb/cf", "--arch", "sm_90"}).out);
  for (const bool batch_invariant : {false, true})
    for (const bool grouped_rows : {false, true}) {
      std::vector<std::string> uses;
      if (batch_invariant) uses.push_back("--batch-invariant");
      if (grouped_rows) uses.push_back("--grouped-rows");
      std::set<std::string> planned;
      for (const Plan& plan : plans(parse_spec(kSpec).value(), DeviceProfile::of({.number = 90}).value(),
                                    {batch_invariant, grouped_rows}))
        planned.insert(to_text(plan));
      const auto report = [&](const char* command) {
        std::vector<std::string> line = {command, kSpec, "--arch", "sm_90", "--json"};
        line.insert(line.end(), uses.begin(), uses.end());
        return Json::parse(run(line).out);
      };
      SCOPED_TRACE(testing::PrintToString(uses));
      EXPECT_EQ(texts(report("why"), "kernels"), planned);
      for (const std::string& text : texts(report("show"), "uses"))
        EXPECT_TRUE(planned.contains(text)) << text;
      EXPECT_EQ(report("show").at("uses").size(), batch_invariant ? 4u : 4 * kRowsRegimes.size());
    }
}

TEST_F(ToolPlan, AWrongPlanIsNamed) {
  const std::pair<const char*, const char*> wrong[] = {
      {"fast", "'fast' is unknown"},
      {"warp_rows warps=2", "'warps=2' is unknown"},
      {"warp_rows threads_per_row=x", "'threads_per_row=x' is unknown"}};
  for (const auto& [plan, says] : wrong)
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"render", kSpec, "--arch", "sm_90"},
          {"run", kSpec, "--rows", "1", "--device", "host"},
          {"run", kSpec, "--rows", "1"},
          {"bench", kSpec, "--rows", "1"}}) {
      std::vector<std::string> arguments = command;
      arguments.insert(arguments.end(), {"--plan", plan});
      const ToolRun refused = run(arguments);
      EXPECT_EQ(refused.status, 2) << command[0] << refused.err;
      EXPECT_THAT(refused.out, IsEmpty()) << command[0];
      EXPECT_THAT(refused.err, HasSubstr(says)) << command[0];
      EXPECT_THAT(refused.err, HasSubstr("A plan reads like")) << command[0];
    }
}

TEST_F(ToolPlan, APlanThatTheSpecDoesNotAllowIsRefusedWithItsReason) {
  const ToolRun refused = run(
      {"render", "layernorm/cols=4096/f32", "--arch", "sm_80", "--plan",
       "block_row threads=256 threads_per_row=256 vector=4 per_thread=2 blocks_per_row=2 exchange=cluster"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.out, IsEmpty());
  EXPECT_THAT(refused.err, HasSubstr("clusters need sm_90"));
}

TEST_F(ToolPlan, RenderTakesAPlan) {
  const std::string plan =
      "warp_rows threads=64 threads_per_row=8 vector=2 per_thread=4 group_rows=1 blocks_per_sm=2";
  const ToolRun rendered = run({"render", kSpec, "--arch", "sm_80", "--plan", plan});
  ASSERT_EQ(rendered.status, 0) << rendered.err;
  EXPECT_THAT(rendered.out, HasSubstr("// " + plan + "\n"));
}

}  // namespace
}  // namespace normjit
