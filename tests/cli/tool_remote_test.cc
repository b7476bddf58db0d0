// SPDX-License-Identifier: Apache-2.0
// The tool's commands for a remote store, without a store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

ToolRun run(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {}) {
  static const TempDirectory directory;
  std::vector<std::string> all = environment;
  all.push_back("NORMJIT_CACHE_DIR=" + directory.path());
  return run_tool(arguments, all);
}

TEST(ToolRemote, AsksForAUrl) {
  for (const char* const command : {"stats", "put", "verify", "get"}) {
    const ToolRun out = run({"remote", command});
    EXPECT_EQ(out.status, 2) << command;
    EXPECT_THAT(out.err, HasSubstr("NORMJIT_REMOTE")) << command;
  }
}

TEST(ToolRemote, SaysThatNothingIsTrusted) {
  const ToolRun out = run({"remote", "stats"}, {"NORMJIT_REMOTE=redis://user:secret@127.0.0.1:1/0"});
  EXPECT_EQ(out.status, 3);
  EXPECT_THAT(out.out, AllOf(HasSubstr("redis://127.0.0.1:1/0"), HasSubstr("believes nothing"),
                             HasSubstr("offers nothing"), Not(HasSubstr("secret"))));
  EXPECT_THAT(out.err, AllOf(HasSubstr("NORMJIT_TRUST"), Not(HasSubstr("secret"))));
}

TEST(ToolRemote, SaysWhyAStoreCannotBeUsed) {
  const ToolRun out =
      run({"remote", "put"}, {"NORMJIT_REMOTE=gopher://127.0.0.1", "NORMJIT_REMOTE_UNSIGNED=1"});
  EXPECT_EQ(out.status, 4);
  EXPECT_THAT(out.err, HasSubstr("begins with none of redis://"));
}

TEST(ToolRemote, DoctorShowsTheStore) {
  const std::vector<std::string> environment = {"NORMJIT_REMOTE=gopher://u:p@host",
                                                "NORMJIT_REMOTE_UNSIGNED=1"};
  EXPECT_THAT(run({"doctor"}, environment).out, HasSubstr("remote     gopher://host"));
  const auto json = nlohmann::json::parse(run({"doctor", "--json"}, environment).out);
  EXPECT_EQ(json.at("remote").at("url"), "gopher://host");
  EXPECT_EQ(json.at("remote").at("unsigned"), true);
  EXPECT_THAT(run({"doctor"}).out, Not(HasSubstr("remote")));
}

TEST(ToolRemote, DoctorShowsThePackThatIsFetched) {
  const std::vector<std::string> environment = {"NORMJIT_REMOTE_PACK=gopher://u:p@host/kernels.njp",
                                                "NORMJIT_REMOTE_UNSIGNED=1"};
  EXPECT_THAT(run({"doctor"}, environment).out,
              AllOf(HasSubstr("pack       gopher://host/kernels.njp\n"), HasSubstr("begins with none of")));
  const auto json = nlohmann::json::parse(run({"doctor", "--json"}, environment).out);
  EXPECT_EQ(json.at("remote_pack").at("url"), "gopher://host/kernels.njp");
  EXPECT_NE(json.at("remote_pack").at("error"), "");
}

TEST(ToolRemote, SpecsAndArchitecturesGoTogether) {
  const std::vector<std::string> environment = {"NORMJIT_REMOTE=gopher://host", "NORMJIT_REMOTE_UNSIGNED=1"};
  EXPECT_EQ(run({"remote", "put", "layernorm/cols=64/f32"}, environment).status, 2);
  EXPECT_EQ(run({"remote", "put", "--arch", "sm_90"}, environment).status, 2);
}

TEST(ToolRemote, AMissSaysWhatTheStoreSays) {
  const ToolRun out = run({"why", "layernorm/cols=64/f32", "--arch", "sm_90"},
                          {"NORMJIT_REMOTE=gopher://host", "NORMJIT_REMOTE_UNSIGNED=1"});
  EXPECT_THAT(out.out, HasSubstr("gopher://host does not answer: "));
}

}  // namespace
}  // namespace normjit
