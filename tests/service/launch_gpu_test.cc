// SPDX-License-Identifier: Apache-2.0
// Launches as a host application makes them: workspaces, streams, graphs, contexts, bad pointers, the cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/cuda_calls.h"
#include "tests/support/gpu.h"
#include "tests/support/recording_file_system.h"
#include "tests/support/temp_directory.h"

namespace normjit::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr NormSpec kRow{.columns = 5000, .affine = Affine::weight_bias};
constexpr NormSpec kLong{.columns = 300001, .affine = Affine::weight_bias, .statistics = true};
// One of each strategy; which, is the planner's business.
const NormSpec kSpecs[] = {{.columns = 64, .affine = Affine::weight_bias}, kRow, kLong};

class LaunchGpuTest : public GpuTest {
 protected:
  static CUcontext current_context() {
    CUcontext context = nullptr;
    must(CUDA(cuCtxGetCurrent)(&context), "cuCtxGetCurrent");
    return context;
  }
  Tensors with_workspace(const GpuProblem& problem, const NormSpec& spec) {
    Tensors tensors = problem.tensors();
    tensors.workspace = workspace(spec);
    return tensors;
  }
};

// run() never clears the workspace, so each launch finds what the one before left.
TEST_F(LaunchGpuTest, OneWorkspaceServesManyKernelsInTurn) {
  const NormSpec specs[] = {kLong,
                            {.columns = 1 << 20, .input = DType::f16, .affine = Affine::weight},
                            {.columns = 150001, .input = DType::f64, .statistics = true},
                            {.columns = 4194304, .input = DType::bf16}};
  std::size_t most = 0;
  for (const NormSpec& spec : specs) most = std::max(most, service().workspace_bytes(spec).value());
  ASSERT_GT(most, 0U);
  for (const NormSpec& spec : specs)
    if (service().workspace_bytes(spec).value() == most) workspace(spec);  // the largest, once for all
  for (int round = 0; round < 2; ++round)
    for (const std::int64_t rows : {1, 3, 16})
      for (const NormSpec& spec : specs) run(spec, rows);
  for (const std::int64_t rows : {150, 2, 150}) run(kLong, rows);
}

TEST_F(LaunchGpuTest, ManyLaunchesBackToBackOnOneWorkspace) {
  oracle::Problem problem = make(kLong, 11);
  GpuProblem on_gpu(problem);
  const Kernel kernel = service().prepare(kLong, {.rows_hint = 11, .pointer_alignment = 4}).value();
  const GpuStream stream;
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(kernel.launch(with_workspace(on_gpu, kLong), stream));
  on_gpu.fetch();
  expect_right(problem);
}

TEST_F(LaunchGpuTest, TwoStreamsWithAWorkspaceEach) {
  const NormSpec spec{.columns = 1 << 20, .affine = Affine::weight_bias};
  constexpr std::int64_t kRows[] = {16, 150};
  const Kernel kernels[] = {service().prepare(spec, {.rows_hint = kRows[0]}).value(),
                            service().prepare(spec, {.rows_hint = kRows[1]}).value()};
  oracle::Problem problems[] = {make(spec, kRows[0]), make(spec, kRows[1])};
  GpuProblem on_gpu[] = {GpuProblem(problems[0]), GpuProblem(problems[1])};
  DeviceMemory first(std::max<std::size_t>(16, kernels[0].workspace_bytes()));
  DeviceMemory second(std::max<std::size_t>(16, kernels[1].workspace_bytes()));
  DeviceMemory* const workspaces[] = {&first, &second};
  for (DeviceMemory* workspace : workspaces) workspace->fill(0);
  must(CUDA(cuCtxSynchronize)(), "cuMemsetD8");

  const GpuStream streams[2];
  for (int launch = 0; launch < 50; ++launch)
    for (int i = 0; i < 2; ++i) {
      Tensors tensors = on_gpu[i].tensors();
      tensors.workspace = workspaces[i]->data();
      ASSERT_TRUE(kernels[i].launch(tensors, streams[i]));
    }
  for (int i = 0; i < 2; ++i) {
    on_gpu[i].fetch();
    expect_right(problems[i]);
    EXPECT_TRUE(workspaces[i]->canaries_live());
  }
}

TEST_F(LaunchGpuTest, EveryRunGivesTheSameBits) {
  for (const NormSpec& spec : kSpecs)
    for (const std::int64_t rows : {5, 140}) {
      SCOPED_TRACE(to_text(spec));
      oracle::Problem problem = make(spec, rows);
      GpuProblem on_gpu(problem);
      const GpuStream stream;
      std::vector<std::byte> first;
      for (int i = 0; i < 200; ++i) {
        ASSERT_TRUE(service().layer_norm(spec, with_workspace(on_gpu, spec), stream).ok());
        if (rows > 5 && i % 20 != 0) continue;  // the launches count, the copies only take time
        on_gpu.fetch();
        if (i == 0)
          first.assign(problem[Operand::y].data(), problem[Operand::y].data() + problem[Operand::y].bytes());
        ASSERT_EQ(std::memcmp(first.data(), problem[Operand::y].data(), first.size()), 0) << "run " << i;
      }
      expect_right(problem);
    }
}

TEST_F(LaunchGpuTest, WithoutAContextADeviceMustBeNamed) {
  oracle::Problem problem = make(kRow, 10);
  GpuProblem on_gpu(problem);
  const CUcontext context = current_context();
  must(CUDA(cuCtxSetCurrent)(nullptr), "cuCtxSetCurrent");
  EXPECT_EQ(service().prepare(kRow).code(), Code::NoContext);
  EXPECT_EQ(service().layer_norm(kRow, on_gpu.tensors(), nullptr).code(), Code::NoContext);
  const auto kernel = service().prepare(kRow, {.device = 0, .rows_hint = 10});
  EXPECT_EQ(current_context(), nullptr);
  must(CUDA(cuCtxSetCurrent)(context), "cuCtxSetCurrent");
  ASSERT_TRUE(kernel.ok()) << kernel.error().message;
  EXPECT_TRUE(kernel->launch(on_gpu.tensors(), nullptr));
  on_gpu.fetch();
  expect_right(problem);
}

TEST_F(LaunchGpuTest, HostMemoryIsRefusedAndTheContextStaysHealthy) {
  oracle::Problem problem = make(kRow, 10);
  GpuProblem on_gpu(problem);
  const std::vector<double> host(10 * 5000);
  Tensors tensors = on_gpu.tensors();
  tensors.x = host.data();
  const auto refused = service().layer_norm(kRow, tensors, nullptr);
  ASSERT_EQ(refused.code(), Code::WrongDevice);
  EXPECT_THAT(refused.error().message, HasSubstr("x is not memory"));
  tensors = on_gpu.tensors();
  tensors.y = const_cast<double*>(host.data());
  EXPECT_EQ(service().layer_norm(kRow, tensors, nullptr).code(), Code::WrongDevice);
  run(problem);
}

TEST_F(LaunchGpuTest, ShortMemoryIsRefusedAndTheContextStaysHealthy) {
  oracle::Problem problem = make(kRow, 10);
  GpuProblem on_gpu(problem);
  CUdeviceptr small = 0;
  must(CUDA(cuMemAlloc)(&small, 1 << 17), "cuMemAlloc");
  Tensors tensors = on_gpu.tensors();
  tensors.y = reinterpret_cast<void*>(small);
  const auto refused = service().layer_norm(kRow, tensors, nullptr);
  EXPECT_EQ(refused.code(), Code::OutOfBounds) << (refused.ok() ? "launched" : refused.error().message);
  must(CUDA(cuMemFree)(small), "cuMemFree");
  run(problem);
}

TEST_F(LaunchGpuTest, AMissingWorkspaceIsRefused) {
  oracle::Problem problem = make(kLong, 3);
  GpuProblem on_gpu(problem);
  const Kernel kernel = service().prepare(kLong, {.rows_hint = 3, .pointer_alignment = 4}).value();
  ASSERT_GT(kernel.workspace_bytes(), 0U);
  EXPECT_EQ(kernel.launch(on_gpu.tensors(), nullptr).code, Code::WorkspaceRequired);
  EXPECT_EQ(service().layer_norm(kLong, on_gpu.tensors(), nullptr).code(), Code::WorkspaceRequired);
  run(problem);
}

// A second process needs no compiler, writes nothing and gets the same bits.
TEST_F(LaunchGpuTest, ColdThenWarm) {
  using Kind = RecordingFileSystem::Kind;
  const TempDirectory cache;
  const auto files = std::make_shared<RecordingFileSystem>();
  oracle::Problem problem = make(kRow, 10);
  GpuProblem on_gpu(problem);

  Service cold(options(cache.path()), {.compiler = nullptr, .driver = nullptr, .files = files});
  ASSERT_TRUE(cold.layer_norm(kRow, on_gpu.tensors(), nullptr).ok());
  on_gpu.fetch();
  expect_right(problem);
  const std::vector<std::byte> first(problem[Operand::y].data(),
                                     problem[Operand::y].data() + problem[Operand::y].bytes());
  EXPECT_EQ(cold.entries().value().size(), 1U);

  files->forget();
  Options without_compiler = options(cache.path());
  without_compiler.compiler_path = cache / "no-libnvrtc.so";
  Service warm(without_compiler, {.compiler = nullptr, .driver = nullptr, .files = files});
  ASSERT_TRUE(warm.layer_norm(kRow, on_gpu.tensors(), nullptr).ok());
  EXPECT_EQ(files->count(Kind::open), 2) << "the kernel, and a tuned plan that is not there";
  EXPECT_EQ(files->writes(), 0);
  on_gpu.fetch();
  EXPECT_EQ(std::memcmp(first.data(), problem[Operand::y].data(), first.size()), 0);

  files->forget();
  ASSERT_TRUE(warm.layer_norm(kRow, on_gpu.tensors(), nullptr).ok());
  EXPECT_THAT(files->calls(), IsEmpty());
}

TEST_F(LaunchGpuTest, AKernelOutlivesItsService) {
  const TempDirectory cache;
  Kernel kernel;
  {
    Service service(options(cache.path()));
    kernel = service.prepare(kRow, {.rows_hint = 10}).value();
  }
  oracle::Problem problem = make(kRow, 10);
  GpuProblem on_gpu(problem);
  EXPECT_TRUE(kernel.launch(on_gpu.tensors(), nullptr));
  on_gpu.fetch();
  expect_right(problem);
}

// After a prebuild for this device's own profile, no launch needs the compiler.
TEST_F(LaunchGpuTest, APrebuiltSpecNeedsNoCompiler) {
  const TempDirectory cache;
  const DeviceProfile device = service().device().value();
  Service builder(options(cache.path()));
  ASSERT_EQ(builder.prebuild(kSpecs, {&device, 1}).value().failed, 0);

  Options without_compiler = options(cache.path());
  without_compiler.compiler_path = cache / "no-libnvrtc.so";
  Service service(without_compiler);
  for (const NormSpec& spec : kSpecs)
    for (const std::int64_t rows : {1, 140})
      for (const std::int64_t shift : {0, 1, 2}) {
        oracle::Problem problem = make(spec, rows);
        GpuProblem on_gpu(problem, {.shift = shift});
        const auto launched = service.layer_norm(spec, with_workspace(on_gpu, spec), nullptr);
        ASSERT_TRUE(launched.ok()) << launched.error().message;
        on_gpu.fetch();
        expect_right(problem);
      }
}

// CUDA does not survive a fork: a child is told so by whatever it calls first, and its parent goes on.
TEST_F(LaunchGpuTest, AForkedChildIsRefusedAndTheParentGoesOn) {
  NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
  oracle::Problem problem = make(kRow, 11);
  GpuProblem on_gpu(problem);
  const Kernel kernel = service().prepare(kRow).value();
  const Tensors tensors = with_workspace(on_gpu, kRow);
  const auto refused = [](Code code) { return code == Code::ForkedAfterCudaInit; };
  const auto in_child = [&](const auto& body) { return outcome_in_child([&] { return refused(body()); }); };
  EXPECT_EQ(in_child([&] { return kernel.launch(tensors, nullptr).code; }), "done");
  EXPECT_EQ(in_child([&] { return kernel.check(tensors).code(); }), "done");
  EXPECT_EQ(in_child([&] { return service().prepare({.columns = 777}).code(); }), "done");
  EXPECT_EQ(in_child([&] { return service().layer_norm(kRow, tensors, nullptr).code(); }), "done");
  EXPECT_EQ(in_child([&] { return Service().prepare(kRow).code(); }), "done");
  const GpuStream stream;
  ASSERT_TRUE(kernel.launch(tensors, stream));
  on_gpu.fetch();
  expect_right(problem);
}

}  // namespace
}  // namespace normjit::testing
