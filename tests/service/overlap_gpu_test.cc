// SPDX-License-Identifier: Apache-2.0
// Launches that overlap the one before: the same bits as launches that wait for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "tests/support/cuda_calls.h"
#include "tests/support/gpu.h"

namespace normjit::testing {
namespace {

constexpr LaunchOptions kOverlap{.overlap_previous = true};
constexpr int kLaunches = 12;
constexpr std::int64_t kMostElements = 10'000'000;  // or copying takes minutes

// Rows that different strategies serve; which, is the planner's business.
const NormSpec kSpecs[] = {{.columns = 64, .affine = Affine::weight_bias},
                           {.columns = 5000, .input = DType::f16, .affine = Affine::weight_bias},
                           {.columns = 65536, .affine = Affine::weight_bias},
                           {.columns = 1 << 20, .input = DType::bf16, .affine = Affine::weight_bias}};

using Bytes = std::vector<std::byte>;
Bytes bytes_of(const oracle::Matrix& matrix) { return {matrix.data(), matrix.data() + matrix.bytes()}; }

class OverlapGpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    device_ = service().device().value();
    if (device_.arch.number < 90) GTEST_SKIP() << "Launches overlap from sm_90 on.";
  }

  // Each plan of the planner's for this spec, once; those with an exchange last.
  std::vector<Kernel> kernels(const NormSpec& spec) {
    std::vector<Kernel> all;
    for (const Plan& plan : plans(spec, device_)) {
      auto kernel = service().prepare(spec, {.plan = plan});
      if (kernel.code() == Code::IllegalPlan || kernel.code() == Code::NotResident) continue;  // a small GPU
      all.push_back(std::move(kernel).value());
    }
    return all;
  }

  DeviceProfile device_;
};

// Launches one after the other, y of each x of the next, with two sets of weights in turn, so that whoever is
// early reads something else.
class Chain {
 public:
  Chain(oracle::Problem& first, oracle::Problem& second, void* workspace)
      : problems_{first, second}, on_gpu_{GpuProblem(first), GpuProblem(second)}, workspace_(workspace) {}

  void enqueue(const Kernel& kernel, bool in_place, Stream stream, const LaunchOptions& options) const {
    const void* x = on_gpu_[0].tensors().x.pointer;
    for (int i = 0; i < kLaunches; ++i) {
      Tensors tensors = on_gpu_[i % 2].tensors();
      tensors.x = x;
      if (in_place) tensors.y = on_gpu_[0].tensors().y;
      tensors.workspace = workspace_;
      const Status status = kernel.launch(tensors, stream, options);
      ASSERT_TRUE(status) << status.message() << " " << status.driver_result;
      x = tensors.y.pointer;
    }
  }

  // What the last launch leaves, of launches that `enqueue` enqueues.
  Bytes result(bool in_place, const std::function<void()>& enqueue) {
    for (int i = 0; i < 2; ++i) {
      problems_[i].get()[Operand::y].poison();
      on_gpu_[i].upload();
    }
    enqueue();
    for (GpuProblem& each : on_gpu_) each.fetch();
    return bytes_of(problems_[in_place ? 0 : (kLaunches - 1) % 2].get()[Operand::y]);
  }

 private:
  std::reference_wrapper<oracle::Problem> problems_[2];
  GpuProblem on_gpu_[2];
  void* workspace_;
};

TEST_F(OverlapGpuTest, AChainOfLaunchesGivesTheSameBits) {
  for (const NormSpec& spec : kSpecs)
    for (const std::int64_t rows : {1, 7, 140}) {
      if (rows * spec.columns > kMostElements) continue;
      oracle::Problem first = make(spec, rows), second = make(spec, rows);
      Chain chain(first, second, workspace(spec));
      for (const Kernel& kernel : kernels(spec)) {
        SCOPED_TRACE(to_text(spec) + " " + to_text(kernel.plan()));
        const GpuStream stream;
        for (const bool in_place : {false, true}) {
          const Bytes expected = chain.result(in_place, [&] { chain.enqueue(kernel, in_place, stream, {}); });
          for (int run = 0; run < 5; ++run)
            ASSERT_EQ(chain.result(in_place, [&] { chain.enqueue(kernel, in_place, stream, kOverlap); }) ==
                          expected,
                      true)
                << rows << " rows, in place: " << in_place << ", run " << run;
        }
      }
    }
}

TEST_F(OverlapGpuTest, AndSoInAGraph) {
  for (const NormSpec& spec : kSpecs) {
    oracle::Problem first = make(spec, 7), second = make(spec, 7);
    Chain chain(first, second, workspace(spec));
    for (const Kernel& kernel : kernels(spec)) {
      SCOPED_TRACE(to_text(spec) + " " + to_text(kernel.plan()));
      const GpuStream stream;
      const Bytes expected = chain.result(false, [&] { chain.enqueue(kernel, false, stream, {}); });

      must(CUDA(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
      chain.enqueue(kernel, false, stream, kOverlap);
      CUgraph graph = nullptr;
      must(CUDA(cuStreamEndCapture)(stream, &graph), "cuStreamEndCapture");
      std::size_t nodes = 0;
      must(CUDA(cuGraphGetNodes)(graph, nullptr, &nodes), "cuGraphGetNodes");
      EXPECT_EQ(nodes, static_cast<std::size_t>(kLaunches));
      CUgraphExec replay = nullptr;
      must(CUDA(cuGraphInstantiateWithFlags)(&replay, graph, 0), "cuGraphInstantiate");
      for (int run = 0; run < 5; ++run)
        ASSERT_EQ(chain.result(false, [&] { must(CUDA(cuGraphLaunch)(replay, stream), "cuGraphLaunch"); }) ==
                      expected,
                  true)
            << "run " << run;
      must(CUDA(cuGraphExecDestroy)(replay), "cuGraphExecDestroy");
      must(CUDA(cuGraphDestroy)(graph), "cuGraphDestroy");
    }
  }
}

// Only what the launch directly before writes comes too late for weights. Here a long launch writes them as
// its last row, a short one follows, and one that uses them: it may begin only when the long one is over.
TEST_F(OverlapGpuTest, WeightsMayComeFromTheLaunchBeforeTheOneBefore) {
  for (const std::int64_t columns : {64, 5000, 65536}) {
    const NormSpec plain{.columns = columns}, weighted{.columns = columns, .affine = Affine::weight};
    const std::int64_t rows = (1 << 24) / columns;
    oracle::Problem sources[] = {make(plain, rows), make(plain, rows)};
    GpuProblem of_sources[] = {GpuProblem(sources[0]), GpuProblem(sources[1])};
    oracle::Problem between = make(plain, 1), last = make(weighted, 1);
    GpuProblem of_between(between), of_last(last);
    const Kernel wide = service().prepare(plain, {.rows_hint = rows}).value();
    const Kernel thin = service().prepare(plain, {.rows_hint = 1}).value();
    workspace(plain);
    void* const memory = workspace(weighted);  // enough for both
    const GpuStream stream;

    for (const Kernel& kernel : kernels(weighted)) {
      SCOPED_TRACE(to_text(weighted) + " " + to_text(kernel.plan()));
      const auto result = [&](const GpuProblem& source, const LaunchOptions& options) {
        const auto launch = [&](const Kernel& of, Tensors tensors) {
          tensors.workspace = memory;
          const Status status = of.launch(tensors, stream, options);
          EXPECT_TRUE(status) << status.message() << " " << status.driver_result;
        };
        Tensors written = source.tensors();
        written.y = of_sources[0].tensors().y;
        Tensors used = of_last.tensors();
        used.weight =
            static_cast<const std::byte*>(written.y.pointer) + (rows - 1) * columns * size_of(plain.output);
        launch(wide, written);
        launch(thin, of_between.tensors());
        launch(kernel, used);
        of_last.fetch();
        return bytes_of(last[Operand::y]);
      };
      const Bytes expected[] = {result(of_sources[0], {}), result(of_sources[1], {})};
      ASSERT_NE(expected[0], expected[1]);
      for (int run = 0; run < 20; ++run)
        ASSERT_EQ(result(of_sources[run % 2], kOverlap) == expected[run % 2], true) << "run " << run;
    }
  }
}

}  // namespace
}  // namespace normjit::testing
