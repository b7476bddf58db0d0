// SPDX-License-Identifier: Apache-2.0
// `normjit-bench startup` with a compiler; a GPU is not needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "normjit/base/embedded_file.h"
#include "tests/support/nvrtc.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kSpec = "layernorm/cols=64/f32/eps=1e-05/wb";

class StartupWithCompiler : public testing::NvrtcTest {
 protected:
  // A step of its own, and what its kernel came from.
  std::string origin(std::vector<std::string> more, const std::vector<std::string>& environment = {}) {
    std::vector<std::string> arguments = {"startup-step", "first", "--spec", kSpec, "--rows", "8"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ToolRun run = run_bench(arguments, environment);
    EXPECT_EQ(run.status, 0) << run.err;
    return run.status == 0 ? Json::parse(run.out).at("origin") : "nothing";
  }

  TempDirectory scratch_;
};

TEST_F(StartupWithCompiler, MeasuresEveryStepInFreshProcessesAndLeavesNothingBehind) {
  const std::string cache = scratch_ / "cache", temporary = scratch_ / "tmp";
  std::filesystem::create_directory(temporary);
  const ToolRun run =
      run_bench({"startup", kSpec, "--rows", "8", "--repeat", "2", "--kernels", "1", "--json"},
                {"NORMJIT_CACHE_DIR=" + cache, "TMPDIR=" + temporary});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(std::filesystem::is_empty(temporary));
  EXPECT_FALSE(std::filesystem::exists(cache)) << "the user's cache is none of its business";
  EXPECT_THAT(run.err, HasSubstr("prebuild on one core"));

  const Json json = Json::parse(run.out);
  EXPECT_EQ(json.at("repeat"), 2);
  EXPECT_THAT(json.at("compiler").get<std::string>(), HasSubstr(facts_.toolchain()));
  ASSERT_EQ(json.at("results").size(), 1u);
  const Json& result = json.at("results")[0];
  EXPECT_EQ(result.at("spec"), kSpec);
  EXPECT_EQ(result.at("rows"), 8);
  EXPECT_FALSE(result.at("plan").get<std::string>().empty());
  for (const char* time :
       {"nvrtc_load_ms", "raw_compile_ms", "cold_ms", "cold_ratio", "disk_ms", "pack_ms", "later_us"})
    EXPECT_GT(result.at(time).get<double>(), 0) << time;
  for (const char* part : {"objects_us", "tuned_us", "choose_us", "render_us", "read_us"})
    EXPECT_GT(result.at("disk_parts").at(part).get<double>(), 0) << part;
  const bool gpu = json.at("no_gpu").is_null();
  EXPECT_EQ(json.at("cuda_ms").is_null(), !gpu);
  EXPECT_EQ(result.at("cold_met").is_null(), !gpu);
  EXPECT_EQ(result.at("disk_parts").at("load_us").is_null(), !gpu);
  const Json& prebuild = json.at("prebuild");
  EXPECT_GE(prebuild.at("kernels"), 1);
  EXPECT_GT(prebuild.at("efficiency").get<double>(), 0);
  EXPECT_GT(prebuild.at("busy").get<double>(), 0);
  EXPECT_GT(prebuild.at("slowdown").get<double>(), 0);
}

TEST_F(StartupWithCompiler, AsTextItNamesWhatIsLeftOut) {
  const ToolRun run = run_bench({"startup", kSpec, "--rows", "8", "--repeat", "1", "--kernels", "0"});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("warm-disk first call"));
  EXPECT_EQ(run.out.find("CUDA's own initialisation") == std::string::npos,
            run.out.find("Left out: ") != std::string::npos);
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'),
            run.out.find("Left out: ") != std::string::npos ? 6 : 7)
      << "one line a step:\n"
      << run.err;
}

// What is found opens no compiler: one that cannot be opened is not missed.
TEST_F(StartupWithCompiler, EachStepIsAProcessThatKnowsOnlyItsCache) {
  const std::string cache = scratch_ / "cache", pack = scratch_ / "kernels.njp";
  const std::vector<std::string> no_compiler = {"NORMJIT_NVRTC_PATH=/no/such/libnvrtc.so"};
  EXPECT_EQ(origin({"--cache-dir", cache}), "compiled");
  EXPECT_EQ(origin({"--cache-dir", scratch_ / "other"}), "compiled");
  EXPECT_EQ(origin({"--cache-dir", cache}, no_compiler), "disk");
  ASSERT_EQ(run_tool({"export", pack, "--cache-dir", cache}).status, 0);
  EXPECT_EQ(origin({"--layer", pack}, no_compiler), "layer");
  if (embedded_pack().empty())
    EXPECT_EQ(run_bench({"startup-step", "first", "--spec", kSpec, "--rows", "8"}, no_compiler).status, 3);
  else
    EXPECT_EQ(origin({}, no_compiler), "embedded");  // the generic kernel serves
}

}  // namespace
}  // namespace normjit
