// SPDX-License-Identifier: Apache-2.0
// The first calls of processes against their targets, as text and as JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "bench/startup.h"

namespace normjit::bench {

using namespace cli;

namespace {

using testing::DoubleEq;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

StartupReport a_report() {
  StartupReport report;
  report.device = "NVIDIA H200";
  report.compiler = "nvrtc 13.0, /lib";
  report.repeat = 5;
  report.cuda = 150;
  report.results.push_back({.spec = parse_spec("layernorm/cols=64/f32/wb").value(),
                            .rows = 100,
                            .plan = "warp_rows",
                            .nvrtc_load = 20,
                            .raw_compile = 80,
                            .cold = 120,
                            .disk = 0.999,
                            .pack = 0.5,
                            .parts = {1, 2, 3, 4, 5, 600},
                            .later = 2.5});
  report.prebuild = PrebuildSpeed{.kernels = 203,
                                  .specs = 30,
                                  .strategies = 5,
                                  .cores = 16,
                                  .one_thread = 28.8,
                                  .side_by_side = 31.68,
                                  .wall = 2.0};
  return report;
}

TEST(StartupReport, TargetsAreMetUpToTheirBounds) {
  StartupReport report = a_report();
  StartupResult& result = report.results[0];
  EXPECT_THAT(result.cold_ratio(), DoubleEq(1.2));
  EXPECT_EQ(report.cold_met(result), true);
  EXPECT_EQ(report.disk_met(result), true);
  EXPECT_THAT(report.prebuild->efficiency(), DoubleEq(0.9));
  EXPECT_THAT(report.prebuild->busy(), DoubleEq(0.99));
  EXPECT_THAT(report.prebuild->slowdown(), DoubleEq(1.1));
  EXPECT_TRUE(report.prebuild->met());
  result.cold = 120.1;
  result.disk = 1;
  report.prebuild->wall = 2.01;
  EXPECT_EQ(report.cold_met(result), false);
  EXPECT_EQ(report.disk_met(result), false);
  EXPECT_FALSE(report.prebuild->met());
}

TEST(StartupReport, WithoutAGpuWhatCountsTheDriverIsNotJudged) {
  StartupReport report = a_report();
  report.no_gpu = "there is no driver";
  EXPECT_EQ(report.cold_met(report.results[0]), std::nullopt);
  EXPECT_EQ(report.disk_met(report.results[0]), std::nullopt);
  const std::string text = text_of(report);
  EXPECT_THAT(text, HasSubstr("Left out: "));
  EXPECT_THAT(text, HasSubstr("there is no driver"));
  EXPECT_THAT(text, Not(HasSubstr("CUDA's own")));
  EXPECT_THAT(text, Not(HasSubstr("  the driver's load")));
  const Json json = Json::parse(json_of(report));
  EXPECT_EQ(json.at("no_gpu"), "there is no driver");
  EXPECT_TRUE(json.at("cuda_ms").is_null());
  EXPECT_TRUE(json.at("results")[0].at("cold_met").is_null());
  EXPECT_TRUE(json.at("results")[0].at("disk_parts").at("load_us").is_null());
  EXPECT_EQ(json.at("prebuild").at("met"), true) << "it needs no driver";
}

TEST(StartupReport, AsTextItShowsEveryStepAndTarget) {
  StartupReport report = a_report();
  std::string text = text_of(report);
  for (const char* part :
       {"CUDA's own initialisation", "NVRTC's own load", "raw NVRTC compile", "cold first call",
        "1.200 of both", "warm-disk first call", "< 1 ms", "the driver's load", "first call from a pack",
        "later call", "203 kernels, 5 strategies", "on 16 cores", "0.990 of the cores", "1.100 of alone"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(text, Not(HasSubstr("NO")));
  report.results[0].cold = 121;
  EXPECT_THAT(text_of(report), HasSubstr("NO"));
}

TEST(StartupReport, AsJsonItHasEveryNumber) {
  const Json json = Json::parse(json_of(a_report()));
  EXPECT_EQ(json.at("device"), "NVIDIA H200");
  EXPECT_EQ(json.at("cuda_ms"), 150);
  const Json& result = json.at("results")[0];
  EXPECT_EQ(result.at("spec"), "layernorm/cols=64/f32/eps=1e-05/wb");
  EXPECT_EQ(result.at("rows"), 100);
  EXPECT_EQ(result.at("cold_met"), true);
  EXPECT_EQ(result.at("disk_parts").at("load_us"), 600);
  EXPECT_EQ(result.at("later_us"), 2.5);
  EXPECT_EQ(json.at("prebuild").at("kernels"), 203);
  StartupReport report = a_report();
  report.prebuild.reset();
  EXPECT_TRUE(Json::parse(json_of(report)).at("prebuild").is_null());
}

TEST(StartupSpecs, AskForAsManyKernelsOfEveryStrategy) {
  const DeviceProfile device = DeviceProfile::of({.number = 90}).value();
  EXPECT_TRUE(startup_specs(device, 0).empty());
  const std::vector<NormSpec> specs = startup_specs(device, 200);
  std::set<std::string> distinct;
  std::set<Strategy> strategies;
  std::size_t kernels = 0, last = 0;
  for (const NormSpec& spec : specs) {
    EXPECT_TRUE(distinct.insert(to_text(spec)).second) << to_text(spec);
    const std::vector<Plan> wanted = plans(spec, device);
    for (const Plan& plan : wanted) strategies.insert(plan.strategy);
    kernels += last = wanted.size();
  }
  EXPECT_GE(kernels, 200u);
  EXPECT_LT(kernels - last, 200u) << "without the last one there are too few";
  for (const Strategy strategy : {Strategy::warp_rows, Strategy::staged_rows, Strategy::block_row,
                                  Strategy::persistent_row, Strategy::split_row})
    EXPECT_TRUE(strategies.contains(strategy)) << name(strategy);
}

}  // namespace
}  // namespace normjit::bench
