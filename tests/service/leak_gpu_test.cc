// SPDX-License-Identifier: Apache-2.0
// A process that launches for days keeps nothing of it: not of the device, not of the system.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "tests/support/captured_graph.h"
#include "tests/support/gpu.h"
#include "tests/support/process_state.h"
#include "tests/support/temp_directory.h"

namespace normjit::testing {
namespace {

constexpr NormSpec kSpecs[] = {{.columns = 64, .affine = Affine::weight_bias},
                               {.columns = 5000, .affine = Affine::weight_bias},
                               {.columns = 300001, .affine = Affine::weight_bias}};
constexpr std::int64_t kRows = 3;
// What the driver's own pools may still grow by; 34,000 calls that lose 128 bytes each lose more.
constexpr std::size_t kSlackBytes = std::size_t{4} << 20;

using LeakGpuTest = GpuTest;

std::size_t free_device_memory() {
  std::size_t free = 0, total = 0;
  must(CUDA(cuMemGetInfo)(&free, &total), "cuMemGetInfo");
  return free;
}

TEST_F(LeakGpuTest, AHundredThousandCallsLeaveDeviceAndProcessAsTheyWere) {
  int failed = 0;
  for (const NormSpec& spec : kSpecs) {
    oracle::Problem problem = make(spec, kRows);
    GpuProblem on_gpu(problem);
    Tensors tensors = on_gpu.tensors();
    tensors.workspace = workspace(spec);
    const GpuStream stream;
    const auto calls = [&](int count) {
      const Kernel kernel = service().prepare(spec, {.rows_hint = kRows}).value();
      for (int i = 0; i < count; ++i) {
        if (i % 100 == 0) {
          const CapturedGraph graph(stream, [&] { failed += !kernel.launch(tensors, stream).ok(); });
          graph.launch(stream);
          stream.synchronize();
        } else if (i % 100 < 10) {
          failed += !service().prepare(spec, {.rows_hint = kRows}).value().launch(tensors, stream).ok();
        } else if (i % 2 == 0) {
          failed += !kernel.launch(tensors, stream).ok();
        } else {
          failed += !service().layer_norm(spec, tensors, stream).ok();
        }
      }
      stream.synchronize();
    };
    calls(2000);
    const std::size_t memory = free_device_memory(), resident = resident_bytes();
    const ProcessState before = process_state();
    calls(34000);
    EXPECT_EQ(process_state(), before);
    EXPECT_GE(free_device_memory(), memory);
    EXPECT_LE(resident_bytes(), resident + kSlackBytes);
    on_gpu.fetch();
    expect_right(problem);
  }
  EXPECT_EQ(failed, 0);
}

// Services and their kernels, loaded and unloaded: as a host that reloads a plugin does.
TEST_F(LeakGpuTest, AServiceTakesItsKernelsWithIt) {
  oracle::Problem problem = make(kSpecs[1], kRows);
  GpuProblem on_gpu(problem);
  const TempDirectory cache;
  const auto one = [&] {
    Service service(options(cache.path()));
    ASSERT_TRUE(service.layer_norm(kSpecs[1], on_gpu.tensors(), nullptr).ok());
    must(CUDA(cuCtxSynchronize)(), "the launch");
  };
  for (int i = 0; i < 20; ++i) one();
  const std::size_t memory = free_device_memory();
  const ProcessState before = process_state();
  for (int i = 0; i < 500; ++i) one();
  EXPECT_EQ(process_state(), before);
  EXPECT_GE(free_device_memory(), memory);
}

}  // namespace
}  // namespace normjit::testing
