// SPDX-License-Identifier: Apache-2.0
// Both halves of hw:: do the same: every conformance kernel on the GPU, against its promise and against the
// executor.
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "normjit/driver/driver.h"
#include "normjit/service/default_compiler.h"
#include "tests/support/conformance_host.h"
#include "tests/support/cuda_calls.h"
#include "tests/support/gpu.h"

namespace normjit::testing {
namespace {

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const ConformanceKernel& kernel : conformance_kernels()) names.push_back(kernel.name);
  return names;
}

class ConformanceGpu : public GpuTest, public ::testing::WithParamInterface<std::string> {
 protected:
  static const ConformanceKernel& kernel() {
    for (const ConformanceKernel& kernel : conformance_kernels())
      if (kernel.name == GetParam()) return kernel;
    throw std::out_of_range(GetParam());
  }

  // What the GPU makes of the kernel.
  Bytes run_on_gpu(const LoadedKernel& loaded) {
    DeviceMemory x(kernel().x.size()), y(kernel().y_bytes), workspace(kernel().workspace_bytes);
    x.upload(kernel().x.data(), kernel().x.size());
    y.fill(0xcc);
    workspace.fill(0);
    must(CUDA(cuCtxSynchronize)(), "the upload");
    const GpuStream stream;
    ConformanceOperands operands{kernel().rows, workspace.data(), x.data(), y.data()};
    void* arguments[] = {&operands};
    must(static_cast<CUresult>(loaded.launch(kernel().blocks, kernel().shape, stream, arguments)),
         "cuLaunchKernelEx");
    stream.synchronize();
    Bytes result(y.bytes());
    y.download(result.data(), result.size());
    EXPECT_TRUE(x.canaries_live() && y.canaries_live() && workspace.canaries_live());
    return result;
  }

  const std::shared_ptr<Driver> driver_ = make_cuda_driver();
};

TEST_P(ConformanceGpu, KeepsItsPromiseAsOnTheHost) {
  const Arch arch = driver_->profile(0).value().arch;
  if (arch.number < kernel().oldest.number)
    GTEST_SKIP() << kernel().name << " is for " << kernel().oldest.name() << " and newer, this GPU is "
                 << arch.name() << ".";
  // Eight are everywhere; the GPUs with sixteen are those of data centers, up to sm_103.
  if (kernel().shape.cluster_blocks > 8 && arch.major() > 10)
    GTEST_SKIP() << "Clusters of " << kernel().shape.cluster_blocks << " blocks are not for " << arch.name()
                 << ".";

  const auto compiler_of_gpu = make_default_compiler(Options::from_environment(), driver_);
  const auto binary = compiler_of_gpu->compile(conformance_source(kernel(), arch), target_of(kernel(), arch));
  ASSERT_TRUE(binary.ok()) << binary.error().message;
  const auto loaded = driver_->load(binary->code, kernel().kernel, 0, kernel().shape);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;

  // More than once, for what depends on which thread is first.
  std::vector<Bytes> results;
  for (int i = 0; i < 10; ++i) {
    results.push_back(run_on_gpu(**loaded));
    ASSERT_EQ(difference(kernel(), kernel().expected(kernel()), results[i]), "");
    ASSERT_EQ(results[i], results[0]) << "run " << i;
  }

  const auto compiler = simt::HostCompiler::find();
  if (compiler.code() == Code::NoCompiler) GTEST_SKIP() << compiler.error().message;
  const Source source = conformance_source(kernel(), arch);
  const auto on_host = compiler->compile({&source, 1});
  ASSERT_TRUE(on_host.ok()) << on_host.error().message;
  const HostRun run = run_on_host(kernel(), on_host->at(0), 1);
  ASSERT_EQ(run.trouble, "");
  EXPECT_EQ(difference(kernel(), run.y, results[0]), "");
}

INSTANTIATE_TEST_SUITE_P(Table, ConformanceGpu, ::testing::ValuesIn(names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace normjit::testing
