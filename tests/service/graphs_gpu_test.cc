// SPDX-License-Identifier: Apache-2.0
// CUDA graphs: what a capture makes of a launch, many replays, several graphs at once, other tensors for a
// graph.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "normjit/service/prepared.h"
#include "tests/support/captured_graph.h"
#include "tests/support/cuda_calls.h"
#include "tests/support/gpu.h"

namespace normjit::testing {
namespace {

// Rows that different strategies serve; which, is the planner's business. The chunks of one take turns
// through a workspace, whatever the planner thinks best; blocks of the last join their largest results in it.
struct Layer {
  NormSpec spec;
  std::int64_t rows;
  bool split_row = false;
};
const Layer kLayers[] = {
    {{.columns = 64, .affine = Affine::weight_bias, .activation = Activation::gelu}, 1000},
    {{.columns = 1023, .input = DType::f16, .affine = Affine::weight}, 150},
    {{.columns = 5000, .affine = Affine::weight_bias}, 40},
    {{.columns = 65536, .input = DType::f16, .affine = Affine::weight_bias}, 7},
    {{.columns = 300001, .affine = Affine::weight_bias, .statistics = true}, 11},
    {{.columns = 1 << 19, .input = DType::bf16, .affine = Affine::weight_bias}, 16},
    {{.columns = 1 << 17, .affine = Affine::weight_bias}, 40, true},
    {{.columns = 4096, .input = DType::bf16, .affine = Affine::weight, .amax = true}, 700},
};

Kernel prepared(Service& service, const Layer& layer) {
  PrepareOptions options{.rows_hint = layer.rows};
  if (layer.split_row) {
    const DeviceProfile device = service.device().value();
    options.plan = fallback(layer.spec, device, regime_of(layer.rows, device), Alignment::eight);
  }
  return service.prepare(layer.spec, options).value();
}

using Bytes = std::vector<std::byte>;

// A problem in device memory, its prepared kernel, and a workspace of its own.
struct Work {
  Work(Kernel prepared, oracle::Problem made)
      : problem(std::move(made)),
        on_gpu(problem),
        kernel(std::move(prepared)),
        workspace(std::max<std::size_t>(16, kernel.workspace_bytes())),
        tensors(on_gpu.tensors()) {
    workspace.fill(0);
    tensors.workspace = workspace.data();
  }

  void launch(const GpuStream& stream) const {
    const Status status = kernel.launch(tensors, stream);
    EXPECT_TRUE(status) << status.message() << " " << status.driver_result;
  }
  void poison() {
    problem[Operand::y].poison();
    on_gpu.upload();
  }
  Bytes fetched() {
    on_gpu.fetch();
    return {problem[Operand::y].data(), problem[Operand::y].data() + problem[Operand::y].bytes()};
  }
  // No counter of the workspace is left, and nothing was written beside it.
  void expect_clean_workspace() const {
    std::uint64_t counters[2] = {};  // tickets and blocks, of templates/workspace.cuh
    workspace.download(counters, sizeof counters);
    EXPECT_EQ(counters[0], 0U);
    EXPECT_EQ(counters[1], 0U);
    EXPECT_TRUE(workspace.canaries_live());
  }

  oracle::Problem problem;
  GpuProblem on_gpu;
  Kernel kernel;
  DeviceMemory workspace;
  Tensors tensors;
};

class GraphsGpuTest : public GpuTest {
 protected:
  std::unique_ptr<Work> work(const Layer& layer) {
    return std::make_unique<Work>(prepared(service(), layer), make(layer.spec, layer.rows));
  }
};

TEST_F(GraphsGpuTest, SomeLayersNeedAWorkspaceAndSomeNone) {
  int with = 0, without = 0;
  for (const Layer& layer : kLayers) ++(work(layer)->kernel.workspace_bytes() > 0 ? with : without);
  EXPECT_GT(with, 0) << "or the tests below see no workspace";
  EXPECT_GT(without, 0);
}

TEST_F(GraphsGpuTest, APreparedKernelIsOneKernelNodeInEveryMode) {
  for (const Layer& layer : kLayers) {
    const auto work = this->work(layer);
    for (const CUstreamCaptureMode mode : kCaptureModes) {
      SCOPED_TRACE(to_text(layer.spec) + ", mode " + std::to_string(mode));
      const GpuStream stream;
      const CapturedGraph graph(
          stream, [&] { work->launch(stream); }, mode);
      EXPECT_NE(graph.only_kernel(), nullptr);
      work->poison();
      graph.launch(stream);
      work->on_gpu.fetch();
      expect_right(work->problem);
    }
  }
}

// The one-call form in a capture: the kernel is ready, so nothing but its node is there.
TEST_F(GraphsGpuTest, TheOneCallFormIsOneKernelNodeToo) {
  for (const Layer& layer : kLayers) {
    SCOPED_TRACE(to_text(layer.spec));
    const auto work = this->work(layer);
    Tensors tensors = work->on_gpu.tensors();
    tensors.workspace = workspace(layer.spec);
    const GpuStream stream;
    ASSERT_TRUE(service().layer_norm(layer.spec, tensors, stream).ok());
    stream.synchronize();
    const CapturedGraph graph(stream,
                              [&] { EXPECT_TRUE(service().layer_norm(layer.spec, tensors, stream).ok()); });
    EXPECT_NE(graph.only_kernel(), nullptr);
    work->poison();
    graph.launch(stream);
    work->on_gpu.fetch();
    expect_right(work->problem);
  }
}

TEST_F(GraphsGpuTest, TenThousandReplaysAreRight) {
  constexpr int kReplays = 10000, kLooks = 4;
  for (const Layer& layer : kLayers) {
    SCOPED_TRACE(to_text(layer.spec));
    const auto work = this->work(layer);
    const GpuStream stream;
    work->launch(stream);
    const Bytes expected = work->fetched();
    const CapturedGraph graph(stream, [&] { work->launch(stream); });
    for (int look = 0; look < kLooks; ++look) {
      work->poison();
      for (int i = 0; i < kReplays / kLooks; ++i) graph.launch(stream);
      stream.synchronize();
      ASSERT_EQ(work->fetched() == expected, true) << "after " << (look + 1) * kReplays / kLooks;
      work->expect_clean_workspace();
    }
    expect_right(work->problem);
  }
}

// Each graph keeps the workspace that it has captured, so that replays of both may overlap.
TEST_F(GraphsGpuTest, TwoGraphsAtOnceOnTwoStreams) {
  constexpr int kReplays = 1000;
  for (const Layer& layer : kLayers) {
    SCOPED_TRACE(to_text(layer.spec));
    const GpuStream streams[2];
    const std::unique_ptr<Work> works[] = {work(layer), work(layer)};
    Bytes expected[2];
    std::unique_ptr<CapturedGraph> graphs[2];
    for (int i = 0; i < 2; ++i) {
      works[i]->launch(streams[i]);
      expected[i] = works[i]->fetched();
      works[i]->poison();
      graphs[i] = std::make_unique<CapturedGraph>(streams[i], [&] { works[i]->launch(streams[i]); });
    }
    EXPECT_NE(expected[0], expected[1]) << "or one might stand in for the other";
    for (int replay = 0; replay < kReplays; ++replay)
      for (int i = 0; i < 2; ++i) graphs[i]->launch(streams[i]);
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(works[i]->fetched() == expected[i], true) << "graph " << i;
      expect_right(works[i]->problem);
      works[i]->expect_clean_workspace();
    }
  }
}

// Launches of a graph on one stream take turns, so that all its layers may share a workspace.
TEST_F(GraphsGpuTest, LayersOfOneGraphShareAWorkspace) {
  std::vector<std::unique_ptr<Work>> works;
  std::size_t most = 16;
  for (const Layer& layer : kLayers) {
    works.push_back(work(layer));
    most = std::max(most, works.back()->kernel.workspace_bytes());
  }
  DeviceMemory shared(most);
  shared.fill(0);
  for (const auto& work : works) work->tensors.workspace = shared.data();
  const GpuStream stream;
  const CapturedGraph graph(stream, [&] {
    for (const auto& work : works) work->launch(stream);
  });
  EXPECT_EQ(graph.nodes().size(), works.size());
  for (int i = 0; i < 100; ++i) graph.launch(stream);
  stream.synchronize();
  for (const auto& work : works) {
    work->on_gpu.fetch();
    expect_right(work->problem);
  }
  EXPECT_TRUE(shared.canaries_live());
}

// The way that asks for no knowledge of a node: capture the same launches with other tensors.
TEST_F(GraphsGpuTest, ASecondCaptureUpdatesAGraphToOtherTensors) {
  for (const Layer& layer : kLayers) {
    SCOPED_TRACE(to_text(layer.spec));
    const auto first = work(layer), second = work(layer);
    const GpuStream stream;
    const CapturedGraph graph(stream, [&] { first->launch(stream); });
    const CapturedGraph other(stream, [&] { second->launch(stream); });
    first->poison();
    const Bytes untouched = first->fetched();
    CUgraphExecUpdateResultInfo info{};
    ASSERT_EQ(CUDA(cuGraphExecUpdate)(graph.replay(), other.graph(), &info), CUDA_SUCCESS) << info.result;
    for (int i = 0; i < 3; ++i) graph.launch(stream);
    second->on_gpu.fetch();
    expect_right(second->problem);
    EXPECT_EQ(first->fetched() == untouched, true) << "nothing was written to the tensors of before";
    second->expect_clean_workspace();
  }
}

// The other way: the pointers of the one node are replaced where Kernel::node_offset says.
TEST_F(GraphsGpuTest, ANodesPointersCanBeReplaced) {
  for (const Layer& layer : kLayers) {
    SCOPED_TRACE(to_text(layer.spec));
    const auto first = work(layer), second = work(layer);
    const GpuStream stream;
    const CapturedGraph graph(stream, [&] { first->launch(stream); });
    const CUgraphNode node = graph.only_kernel();
    ASSERT_NE(node, nullptr);
    first->poison();
    const Bytes untouched = first->fetched();

    CUDA_KERNEL_NODE_PARAMS parameters{};
    must(CUDA(cuGraphKernelNodeGetParams)(node, &parameters), "cuGraphKernelNodeGetParams");
    ASSERT_NE(parameters.kernelParams, nullptr);
    const Kernel& kernel = first->kernel;
    std::vector<std::byte> block(OperandBlock::bytes_of(kernel_layout(kernel.plan(), kernel.spec())));
    std::memcpy(block.data(), parameters.kernelParams[0], block.size());
    const auto pointer = [&](Operand operand) { return block.data() + kernel.node_offset(operand).value(); };
    for (const OperandRow& row : kOperands) {
      if (!row.present(layer.spec)) continue;
      const void* const captured = pointer_of(first->tensors, row);
      EXPECT_EQ(std::memcmp(pointer(row.operand), &captured, sizeof captured), 0) << row.name;
    }

    const Tensors& to = second->tensors;
    for (const OperandRow& row : kOperands) {
      if (!row.present(layer.spec)) continue;
      const void* const replaced = pointer_of(to, row);
      std::memcpy(pointer(row.operand), &replaced, sizeof replaced);
    }
    if (kernel.workspace_bytes() > 0)
      std::memcpy(pointer(Operand::workspace), &to.workspace, sizeof to.workspace);
    void* arguments[] = {block.data()};
    parameters.kernelParams = arguments;
    must(CUDA(cuGraphExecKernelNodeSetParams)(graph.replay(), node, &parameters),
         "cuGraphExecKernelNodeSetParams");
    for (int i = 0; i < 3; ++i) graph.launch(stream);
    second->on_gpu.fetch();
    expect_right(second->problem);
    EXPECT_EQ(first->fetched() == untouched, true) << "nothing was written to the tensors of before";
    second->expect_clean_workspace();
  }
}

TEST_F(GraphsGpuTest, AHandleKeepsTheKernelOfAGraphWhenItsServiceIsGone) {
  const Layer& layer = kLayers[2];
  oracle::Problem problem = make(layer.spec, layer.rows);
  std::unique_ptr<Work> work;
  {
    Service short_lived(options(""));
    work = std::make_unique<Work>(prepared(short_lived, layer), std::move(problem));
  }
  const GpuStream stream;
  const CapturedGraph graph(stream, [&] { work->launch(stream); });
  work->poison();
  graph.launch(stream);
  work->on_gpu.fetch();
  expect_right(work->problem);
}

}  // namespace
}  // namespace normjit::testing
