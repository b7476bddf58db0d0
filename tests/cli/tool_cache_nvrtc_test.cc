// SPDX-License-Identifier: Apache-2.0
// From a machine with a compiler to one without: packs of real kernels, made and used by the real tool.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kOne = "layernorm/cols=3/f16/eps=1e-05/wb/gelu";
constexpr const char* kOther = "layernorm/cols=2/f32/eps=1e-05";

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class ToolPacks : public testing::Test {
 protected:
  // The report of a command that succeeds.
  static Json report(std::vector<std::string> arguments, const std::vector<std::string>& environment = {}) {
    arguments.push_back("--json");
    const ToolRun run = run_tool(arguments, environment);
    EXPECT_EQ(run.status, 0) << testing::PrintToString(arguments) << run.err;
    return Json::parse(run.out);
  }
  // Both specs, built into a new directory.
  std::string built(const std::string& name, const std::string& first, const std::string& second,
                    const std::string& jobs) const {
    const std::string cache = directory_ / name;
    const Json done =
        report({"prebuild", first, second, "--arch", "sm_80,sm_90", "-j", jobs, "--cache-dir", cache});
    EXPECT_GT(done.at("compiled"), 0);
    return cache;
  }
  std::string packed(const std::string& cache, const std::string& name) const {
    const std::string pack = directory_ / name;
    report({"export", pack, "--cache-dir", cache});
    return pack;
  }
  // A process that has only this layer: no directory, no compiler.
  static std::vector<std::string> only(const std::string& layer) {
    return {"NORMJIT_LAYERS=" + layer,
            "XDG_CACHE_HOME=",
            "HOME=",
            "CUDA_HOME=",
            "CUDA_PATH=",
            "NORMJIT_NVRTC_PATH=/nonexistent/libnvrtc.so"};
  }

  TempDirectory directory_;
};

TEST_F(ToolPacks, BuildsOfTheSameSpecsMakeTheSamePack) {
  const std::string one = packed(built("one", kOne, kOther, "1"), "one.njp");
  const std::string other = packed(built("other", kOther, kOne, "3"), "other.njp");
  EXPECT_EQ(contents(one), contents(other));
}

TEST_F(ToolPacks, APackServesWhereThereIsNoCompiler) {
  const std::string cache = built("cache", kOne, kOther, "2");
  const std::string pack = packed(cache, "kernels.njp");
  const Json held = report({"list", "--cache-dir", cache});

  const std::vector<std::string> check = {"prebuild", kOther, kOne, "--arch", "sm_90,sm_80", "--check"};
  const Json alone = report(check, only(pack));
  EXPECT_EQ(alone.at("cached"), held.at("entries").size());
  EXPECT_EQ(alone.at("missing"), 0);

  std::vector<std::string> fresh = check;
  fresh.insert(fresh.end(), {"--cache-dir", directory_ / "fresh"});
  EXPECT_EQ(report(fresh, only(pack)).at("missing"), 0);
  EXPECT_FALSE(fs::exists(directory_ / "fresh"));

  for (const char* spec : {kOne, kOther}) {
    const Json found = report({"why", spec, "--arch", "sm_80"}, only(pack));
    for (const Json& kernel : found.at("kernels")) EXPECT_EQ(kernel.at("tier"), pack);
  }
  // Without --check it copies, and compiles as little.
  const Json taken = report(
      {"prebuild", kOne, kOther, "--arch", "sm_80,sm_90", "--cache-dir", directory_ / "taken"}, only(pack));
  EXPECT_EQ(taken.at("compiled"), 0);
  EXPECT_EQ(taken.at("cached"), held.at("entries").size());
}

TEST_F(ToolPacks, PacksCanBeImportedAndMerged) {
  const std::string all = packed(built("all", kOne, kOther, "2"), "all.njp");
  const std::string cache = directory_ / "imported";
  const Json imported = report({"import", all, "--cache-dir", cache});
  EXPECT_GT(imported.at("imported"), 0);
  EXPECT_EQ(contents(packed(cache, "again.njp")), contents(all));

  const std::string one = directory_ / "one.njp", other = directory_ / "other.njp",
                    both = directory_ / "both.njp";
  report({"export", one, kOne, "--arch", "sm_80,sm_90", "--cache-dir", cache});
  report({"export", other, kOther, "--arch", "sm_80,sm_90", "--from", all});
  const Json merged = report({"export", both, "--from", other, "--from", one});
  EXPECT_EQ(merged.at("entries"), imported.at("imported"));
  EXPECT_EQ(contents(both), contents(all));
}

}  // namespace
}  // namespace normjit
