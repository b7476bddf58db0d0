// SPDX-License-Identifier: Apache-2.0
// Gradients on the GPU: every strategy and exchange against the reference, the same bits in each run, and
// captured launches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/captured_graph.h"
#include "tests/support/cuda_calls.h"
#include "tests/support/gpu.h"

namespace normjit::testing {
namespace {

using Bytes = std::vector<std::byte>;

constexpr Operand kResults[] = {Operand::dx, Operand::dweight, Operand::dbias, Operand::dgate};

struct Case {
  const char* spec;
  std::int64_t rows;
};
constexpr Case kCases[] = {
    {"layernorm_bwd/cols=4096/f32/wb", 1000},
    {"layernorm_bwd/cols=4096/bf16/w=f32/wb", 777},
    {"layernorm_bwd/cols=1000/f64/wb", 300},
    {"rmsnorm_bwd/cols=4096/bf16/dsum/w", 2000},
    {"rmsnorm_bwd/cols=768/f16/dw=f32/w1", 3001},
    {"layernorm_bwd/cols=768/bf16/out=f32/w=f32/dw=f32/res=f32/dsum/wb", 1500},
    {"layernorm_bwd/cols=64/f32/wb", 10'000},
    {"layernorm_bwd/cols=63/f16/wb", 5000},
    {"layernorm_bwd/cols=1/f32/wb", 333},
    {"layernorm_bwd/cols=5000/f32/dsum", 100},
    {"layernorm_bwd/cols=300001/f32/wb", 7},
    {"layernorm_bwd/cols=1048576/bf16/wb", 16},
    {"rmsnorm_bwd/cols=16384/f32/w", 64},
    {"rmsnorm_bwd/cols=8192/bf16/gate:silu/w", 500},
    {"rmsnorm_bwd/cols=128/bf16/w=f32/dw=f32/gateafter:silu/w", 8000},
    {"layernorm_bwd/cols=1001/f16/mod=f32/gateafter:tanh/dsum/wb", 300},
    {"layernorm_bwd/cols=20000/f32/gate:sigmoid/wb/gelu", 100},
    {"rmsnorm_bwd/cols=4096/bf16/dsum/w/need=dx", 1000},
    {"layernorm_bwd/cols=4096/bf16/wb/gelu/need=dw+db", 1000},
    {"layernorm_bwd/cols=4096/bf16/wb/stats", 1000},
    {"layernorm_bwd/cols=12288/bf16/wb/gelu/stats", 500},
    {"rmsnorm_bwd/cols=768/f16/dsum/w/stats", 3000},
    {"layernorm_bwd/cols=1000003/f32/wb/stats", 5},
    {"layernorm_bwd/cols=4096/bf16/wb/stats/need=dw+db", 1000},
    {"layernorm_bwd/cols=1152/bf16/wb/mod/silu", 700},
};

class GradientsGpuTest : public GpuTest {
 protected:
  // One plan of each strategy with each exchange: the best that the planner weighs for this use; and the
  // generic one. The service tunes the exchange to the device by itself, and a slice of one may have no room
  // for all blocks.
  std::vector<Plan> plans_of(const NormSpec& spec, RowsRegime regime, Alignment alignment) {
    std::vector<Plan> all;
    for (const Candidate& one : candidates(spec, service().device().value(), regime, alignment)) {
      const auto same = [&](const Plan& plan) {
        return plan.strategy == one.plan.strategy && plan.exchange == one.plan.exchange;
      };
      if (std::none_of(all.begin(), all.end(), same)) all.push_back(one.plan);
    }
    all.push_back(generic_plan());
    return all;
  }

  // Launches this plan, with a workspace of its own, and expects what the reference says.
  void run_plan(oracle::Problem& problem, const Plan& plan, const Placement& placement = {}) {
    SCOPED_TRACE(to_text(plan));
    const auto kernel = service().prepare(problem.spec, {.plan = plan});
    ASSERT_TRUE(kernel.ok()) << kernel.error().message;
    oracle::reset_outputs(problem);
    GpuProblem on_gpu(problem, placement);
    DeviceMemory workspace(std::max<std::size_t>(16, kernel->workspace_bytes()));
    workspace.fill(0);
    Tensors tensors = on_gpu.tensors();
    tensors.workspace = workspace.data();
    const GpuStream stream;
    const auto checked = kernel->check(tensors);
    ASSERT_TRUE(checked.ok()) << checked.error().message;
    // The second finds the workspace as the first has left it.
    for (int launch = 0; launch < 2; ++launch) {
      const Status status = kernel->launch(tensors, stream);
      ASSERT_TRUE(status) << status.message();
      if (placement.in_place) break;  // dy is gone
    }
    stream.synchronize();
    on_gpu.fetch();
    expect_right(problem);
    EXPECT_TRUE(workspace.canaries_live());
  }

  static Bytes bytes_of(const oracle::Problem& problem) {
    Bytes all;
    for (const Operand operand : kResults)
      if (!problem[operand].empty())
        all.insert(all.end(), problem[operand].data(), problem[operand].data() + problem[operand].bytes());
    return all;
  }

  // A problem on the GPU with a kernel and a workspace of its own.
  struct Work {
    Work(Kernel of, oracle::Problem given)
        : kernel(std::move(of)),
          problem(std::move(given)),
          on_gpu(problem),
          workspace(std::max<std::size_t>(16, kernel.workspace_bytes())),
          tensors(on_gpu.tensors()) {
      workspace.fill(0);
      tensors.workspace = workspace.data();
    }
    void launch(const GpuStream& stream) {
      const Status status = kernel.launch(tensors, stream);
      ASSERT_TRUE(status) << status.message();
    }
    Bytes fetched() {
      on_gpu.fetch();
      return bytes_of(problem);
    }
    void poison() {
      oracle::reset_outputs(problem);
      on_gpu.upload();
    }

    Kernel kernel;
    oracle::Problem problem;
    GpuProblem on_gpu;
    DeviceMemory workspace;
    Tensors tensors;
  };
  std::unique_ptr<Work> work(const NormSpec& spec, std::int64_t rows, const Plan& plan) {
    return std::make_unique<Work>(service().prepare(spec, {.plan = plan}).value(), make(spec, rows));
  }
  std::vector<Plan> plans_of(const NormSpec& spec, std::int64_t rows) {
    const DeviceProfile device = service().device().value();
    return plans_of(spec, regime_of(spec, rows, device), contiguous_alignment(spec));
  }
};

TEST_F(GradientsGpuTest, OfEveryStrategyAndExchangeAreRight) {
  for (const Case& c : kCases) {
    const NormSpec spec = parse_spec(c.spec).value();
    SCOPED_TRACE(c.spec);
    run(spec, c.rows);  // as the service chooses
    oracle::Problem problem = make(spec, c.rows);
    const std::vector<Plan> plans = plans_of(spec, c.rows);
    EXPECT_GE(plans.size(), 3u);
    for (const Plan& plan : plans) run_plan(problem, plan);
    if (HasFatalFailure()) return;
  }
}

// One row, and as few as there are blocks or fewer.
TEST_F(GradientsGpuTest, OfFewRowsAreRight) {
  for (const char* const text : {"layernorm_bwd/cols=4096/f32/wb", "rmsnorm_bwd/cols=70000/bf16/dsum/w"}) {
    const NormSpec spec = parse_spec(text).value();
    for (const std::int64_t rows : {1, 2, 5, 131, 133}) {
      oracle::Problem problem = make(spec, rows);
      for (const Plan& plan : plans_of(spec, rows)) run_plan(problem, plan);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(GradientsGpuTest, InPlaceOfDyAreRight) {
  for (const char* const text : {"layernorm_bwd/cols=4096/bf16/dsum/wb", "rmsnorm_bwd/cols=768/f32/w",
                                 "layernorm_bwd/cols=300000/f32/wb"}) {
    const NormSpec spec = parse_spec(text).value();
    oracle::Problem problem = make(spec, 60);
    for (const Plan& plan : plans_of(spec, 60)) run_plan(problem, plan, {.in_place = true});
  }
}

// Rows apart, rows in groups, rows that begin anywhere, and rows of an input that are all the same.
TEST_F(GradientsGpuTest, OfStridedAndGroupedRowsAreRight) {
  const NormSpec spec = parse_spec("layernorm_bwd/cols=1000/bf16/res=f32/dsum/wb").value();
  constexpr std::int64_t kRows = 240;
  const oracle::RowLayouts layouts[] = {
      {{Operand::x, 1008}, {Operand::dy, 2000}, {Operand::dsum, 1000}, {Operand::dx, 1016}},
      {{Operand::x, 1001}, {Operand::dy, 1003}, {Operand::dx, 1007}},
      {{Operand::x, {8, 9000, 1008}}, {Operand::dy, {8, 16'008, 2000}}, {Operand::dx, {8, 8200, 1016}}},
      {{Operand::x, 1000}, {Operand::dy, 0}, {Operand::dsum, 0}, {Operand::dx, 1000}},
  };
  for (const oracle::RowLayouts& layout : layouts) {
    oracle::Problem problem = oracle::make_problem(spec, kRows, layout, 0, 0).value();
    oracle::fill(problem, test_seed());
    run(problem);
  }
  oracle::Problem shifted = make(spec, kRows);
  run(shifted, {.shift = 1});
  run(shifted, {.shift = 4});
}

// Sums over rows are added in a fixed order, by whichever block comes last or first.
TEST_F(GradientsGpuTest, HaveTheSameBitsInEachRun) {
  constexpr int kRuns = 1000, kLooks = 20;
  const Case cases[] = {{"layernorm_bwd/cols=4096/bf16/dsum/wb", 600},
                        {"layernorm_bwd/cols=64/f32/wb", 9999},
                        {"rmsnorm_bwd/cols=100000/f32/w", 40}};
  for (const Case& c : cases) {
    const NormSpec spec = parse_spec(c.spec).value();
    for (const Plan& plan : plans_of(spec, c.rows)) {
      SCOPED_TRACE(std::string(c.spec) + " as " + to_text(plan));
      const GpuStream streams[2];
      const std::unique_ptr<Work> works[] = {work(spec, c.rows, plan), work(spec, c.rows, plan)};
      Bytes expected[2];
      for (int i = 0; i < 2; ++i) {
        works[i]->launch(streams[i]);
        expected[i] = works[i]->fetched();
        expect_right(works[i]->problem);
      }
      EXPECT_NE(expected[0], expected[1]) << "or one might stand in for the other";
      for (int look = 0; look < kLooks; ++look) {
        for (const auto& work : works) work->poison();
        for (int run = 0; run < kRuns / kLooks; ++run) works[run % 2]->launch(streams[run % 2]);
        for (int i = 0; i < 2; ++i)
          ASSERT_EQ(works[i]->fetched() == expected[i], true) << "look " << look << ", stream " << i;
      }
      for (const auto& work : works) EXPECT_TRUE(work->workspace.canaries_live());
    }
  }
}

TEST_F(GradientsGpuTest, InAGraphAreOneKernelNodeThatReplaysRight) {
  const Case cases[] = {{"layernorm_bwd/cols=4096/bf16/wb", 500},
                        {"layernorm_bwd/cols=768/f32/dsum", 500},
                        {"layernorm_bwd/cols=300000/f32/wb", 20}};
  for (const Case& c : cases) {
    const NormSpec spec = parse_spec(c.spec).value();
    for (const Plan& plan : plans_of(spec, c.rows)) {
      SCOPED_TRACE(std::string(c.spec) + " as " + to_text(plan));
      const std::unique_ptr<Work> work = this->work(spec, c.rows, plan);
      const GpuStream stream;
      const CapturedGraph graph(stream, [&] { work->launch(stream); });
      EXPECT_NE(graph.only_kernel(), nullptr);
      Bytes first;
      for (int replay = 0; replay < 10; ++replay) {
        work->poison();
        graph.launch(stream);
        const Bytes bytes = work->fetched();
        if (replay == 0) {
          first = bytes;
          expect_right(work->problem);
        }
        ASSERT_EQ(bytes == first, true) << "replay " << replay;
      }
    }
  }
}

}  // namespace
}  // namespace normjit::testing
