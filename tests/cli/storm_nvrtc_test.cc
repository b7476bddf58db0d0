// SPDX-License-Identifier: Apache-2.0
// Many processes that want the same kernels at the same time compile each of them once.
#include <gtest/gtest.h>

#include <barrier>
#include <nlohmann/json.hpp>
#include <thread>

#include "normjit/plan.h"
#include "normjit/spec.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit {
namespace {

using Json = nlohmann::json;

constexpr int kProcesses = 16;
constexpr int kSpecs = 20;

// Their kernels compile fast. All have as many.
std::vector<std::string> storm_specs() {
  std::vector<std::string> specs;
  for (int i = 0; i < kSpecs; ++i)
    specs.push_back("layernorm/cols=1/f32/eps=" + std::to_string(i + 1) + "e-05");
  return specs;
}

TEST(PrebuildStorm, CompilesEachKernelOnce) {
  const DeviceProfile device = DeviceProfile::of(Arch{90}).value();
  const auto kernels = kSpecs * static_cast<int>(plans(parse_spec(storm_specs()[0]).value(), device).size());
  const TempDirectory directory;
  std::vector<std::string> command = {"prebuild", "--arch",      "sm_90",
                                      "--json",   "--cache-dir", directory / "cache"};
  for (const std::string& spec : storm_specs()) command.push_back(spec);

  std::vector<ToolRun> runs(kProcesses);
  std::barrier start(kProcesses);
  std::vector<std::thread> threads;
  for (ToolRun& run : runs)
    threads.emplace_back([&] {
      start.arrive_and_wait();
      run = run_tool(command);
    });
  for (std::thread& thread : threads) thread.join();

  int compiled = 0, busy = 0;
  for (const ToolRun& run : runs) {
    ASSERT_EQ(run.status, 0) << run.err;
    const Json report = Json::parse(run.out);
    EXPECT_EQ(report.at("requested"), kernels);
    EXPECT_EQ(report.at("failed"), 0);
    EXPECT_EQ(report.at("unstored"), 0);
    compiled += report.at("compiled").get<int>();
    busy += report.at("compiled") > 0;
  }
  EXPECT_EQ(compiled, kernels);
  RecordProperty("processes_that_compiled", busy);
}

}  // namespace
}  // namespace normjit
