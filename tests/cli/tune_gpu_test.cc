// SPDX-License-Identifier: Apache-2.0
// normjit tune on a GPU, and what later processes make of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/gpu.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit::testing {
namespace {

using Json = nlohmann::json;

constexpr NormSpec kSpec{.columns = 4096, .affine = Affine::weight_bias};
constexpr std::int64_t kRows = 300;

class TuneGpuTest : public GpuTest {
 protected:
  ToolRun run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--json", "--cache-dir", directory_.path()});
    return run_tool(arguments);
  }
  // The plan of a run in a process of its own, which also compares its numbers with the reference.
  std::string plan_of_a_checked_run() const {
    const ToolRun checked = run({"run", to_text(kSpec), "--rows", std::to_string(kRows), "--check"});
    EXPECT_EQ(checked.status, 0) << checked.err;
    const Json report = Json::parse(checked.out);
    EXPECT_TRUE(report.at("check").at("ok"));
    return report.at("plan");
  }
  int tuned_entries() const {
    int tuned = 0;
    const Json report = Json::parse(run({"list"}).out);
    for (const Json& entry : report.at("entries")) tuned += entry.at("code") == "plan";
    return tuned;
  }
  Json tune(std::vector<std::string> options) const {
    options.insert(options.begin(),
                   {"tune", to_text(kSpec), "--rows", std::to_string(kRows), "--repeat", "5"});
    const ToolRun tuned = run(options);
    EXPECT_EQ(tuned.status, 0) << tuned.err;
    return Json::parse(tuned.out).at("results").at(0);
  }

  const TempDirectory directory_;
};

TEST_F(TuneGpuTest, LaterProcessesTakeTheWinnerAndComputeRightNumbers) {
  const Json result = tune({});
  EXPECT_GT(result.at("trials").size(), 1u);
  int ran = 0;
  for (const Json& trial : result.at("trials")) {
    ran += trial.contains("kernel");
    EXPECT_NE(trial.contains("kernel"), trial.contains("error")) << trial;
    if (trial.contains("kernel")) {
      EXPECT_GT(trial.at("kernel").at("median_us"), 0);
      EXPECT_GT(trial.at("fraction_of_copy"), 0);
    }
  }
  EXPECT_GT(ran, 1);
  EXPECT_EQ(result.at("stored"), result.at("best") != result.at("rules"));
  EXPECT_EQ(tuned_entries(), result.at("stored") ? 1 : 0);
  EXPECT_EQ(result.at("best"), plan_of_a_checked_run());
}

TEST_F(TuneGpuTest, EveryPlanThatIsWorthMeasuringComputesRightNumbers) {
  const DeviceProfile device = service().device().value();
  for (const std::int64_t columns : {1023, 4096, 40000})
    for (const std::int64_t rows : {1, 300}) {
      const NormSpec spec{.columns = columns, .affine = Affine::weight_bias};
      const RowsRegime regime = regime_of(rows, device);
      const Alignment alignment = columns % 4 == 0 ? Alignment::eight : Alignment::one;
      for (const Candidate& candidate : candidates(spec, device, regime, alignment)) {
        SCOPED_TRACE(to_text(candidate.plan));
        const auto kernel = service().prepare(spec, {.device = 0, .plan = candidate.plan});
        ASSERT_TRUE(kernel.ok()) << kernel.error().message;
        oracle::Problem problem = make(spec, rows);
        GpuProblem on_gpu(problem);
        DeviceMemory workspace(kernel->workspace_bytes() + 16);
        workspace.fill(0);
        const GpuStream stream;
        Tensors tensors = on_gpu.tensors();
        tensors.workspace = workspace.data();
        ASSERT_TRUE(kernel->launch(tensors, stream).ok());
        stream.synchronize();
        on_gpu.fetch();
        expect_right(problem);
      }
    }
}

TEST_F(TuneGpuTest, ADryRunKeepsNothing) {
  EXPECT_FALSE(tune({"--dry-run", "--top", "3"}).at("stored"));
  EXPECT_EQ(tuned_entries(), 0);
}

// Whatever was kept before gives way to what is measured now.
TEST_F(TuneGpuTest, AnOlderPlanIsReplaced) {
  const Plan slow{.strategy = Strategy::block_row,
                  .threads = 1024,
                  .threads_per_row = 1024,
                  .vector = 1,
                  .per_thread = 4};
  const DeviceProfile device = service().device().value();
  const RowsRegime regime = regime_of(kRows, device);
  ASSERT_TRUE(Service(options(directory_.path()))
                  .remember({.spec = kSpec, .device = device, .regime = regime, .plan = slow})
                  .ok());
  EXPECT_EQ(plan_of_a_checked_run(), to_text(slow)) << "until then it is taken";
  const Json result = tune({"--top", "3"});
  EXPECT_TRUE(result.at("stored"));
  EXPECT_EQ(tuned_entries(), 1);
  EXPECT_EQ(result.at("best"), plan_of_a_checked_run());
}

}  // namespace
}  // namespace normjit::testing
