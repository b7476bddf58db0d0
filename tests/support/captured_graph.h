// SPDX-License-Identifier: Apache-2.0
// A CUDA graph made by a stream capture, ready to be replayed.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "tests/support/cuda_calls.h"
#include "tests/support/gpu.h"

namespace normjit::testing {

inline constexpr CUstreamCaptureMode kCaptureModes[] = {
    CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED};

// Throws what must() throws, also where the capture was spoilt.
class CapturedGraph {
 public:
  // Of what body() gives to the stream.
  template <class Body>
  CapturedGraph(const GpuStream& stream, const Body& body,
                CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    must(CUDA(cuStreamBeginCapture)(stream, mode), "cuStreamBeginCapture");
    body();
    must(CUDA(cuStreamEndCapture)(stream, &graph_), "cuStreamEndCapture");
    must(CUDA(cuGraphInstantiateWithFlags)(&replay_, graph_, 0), "cuGraphInstantiate");
  }
  ~CapturedGraph() {
    CUDA(cuGraphExecDestroy)(replay_);
    CUDA(cuGraphDestroy)(graph_);
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  CUgraph graph() const { return graph_; }
  CUgraphExec replay() const { return replay_; }
  void launch(const GpuStream& stream) const { must(CUDA(cuGraphLaunch)(replay_, stream), "cuGraphLaunch"); }

  std::vector<CUgraphNode> nodes() const {
    std::size_t count = 0;
    must(CUDA(cuGraphGetNodes)(graph_, nullptr, &count), "cuGraphGetNodes");
    std::vector<CUgraphNode> nodes(count);
    if (count > 0) must(CUDA(cuGraphGetNodes)(graph_, nodes.data(), &count), "cuGraphGetNodes");
    return nodes;
  }
  // The only node, which is a kernel; null, and a failure of the test, if it is not so.
  CUgraphNode only_kernel() const {
    const std::vector<CUgraphNode> all = nodes();
    EXPECT_EQ(all.size(), 1U);
    if (all.size() != 1) return nullptr;
    CUgraphNodeType type{};
    must(CUDA(cuGraphNodeGetType)(all[0], &type), "cuGraphNodeGetType");
    EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_KERNEL);
    return type == CU_GRAPH_NODE_TYPE_KERNEL ? all[0] : nullptr;
  }

 private:
  CUgraph graph_ = nullptr;
  CUgraphExec replay_ = nullptr;
};

}  // namespace normjit::testing
