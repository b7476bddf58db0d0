// SPDX-License-Identifier: Apache-2.0
// Modes on a GPU: no compile at run time, the generic kernel meanwhile, captures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/captured_graph.h"
#include "tests/support/gpu.h"
#include "tests/support/temp_directory.h"

namespace normjit::testing {
namespace {

constexpr NormSpec kSpecs[] = {{.columns = 64, .affine = Affine::weight_bias},
                               {.columns = 4096, .input = DType::bf16, .affine = Affine::weight_bias},
                               {.columns = 1023, .input = DType::f16, .affine = Affine::weight},
                               {.columns = 3000, .input = DType::f64, .activation = Activation::gelu}};
constexpr std::int64_t kRows = 150;

class ModesGpuTest : public GpuTest {
 protected:
  // One launch, and its result.
  void launch(Service& by, const NormSpec& spec, std::int64_t rows) {
    oracle::Problem problem = make(spec, rows);
    GpuProblem on_gpu(problem);
    const auto done = by.layer_norm(spec, on_gpu.tensors(), nullptr);
    ASSERT_TRUE(done.ok()) << done.error().message;
    on_gpu.fetch();
    expect_right(problem);
  }
};

// A deployment: one pack, no writable cache, no libnvrtc, everything in a graph.
TEST_F(ModesGpuTest, APackAloneServesWithoutACompiler) {
  const TempDirectory folder;
  const std::string pack = folder / "kernels.njp";
  const DeviceProfile device = service().device().value();
  Service builder(options(folder / "cache"));
  ASSERT_EQ(builder.prebuild(kSpecs, {&device, 1}).value().failed, 0);
  ASSERT_TRUE(builder.export_pack(pack).ok());

  Options deployed = options("");
  deployed.layers = {pack};
  deployed.mode = Mode::cached_only;
  deployed.compiler_path = folder / "no-libnvrtc.so";
  Service service(deployed);
  for (const NormSpec& spec : kSpecs) {
    oracle::Problem problem = make(spec, kRows);
    GpuProblem on_gpu(problem);
    ASSERT_TRUE(service.layer_norm(spec, on_gpu.tensors(), nullptr).ok());  // makes it ready
    problem[Operand::y].poison();
    on_gpu.upload();
    const GpuStream stream;
    const CapturedGraph graph(stream,
                              [&] { EXPECT_TRUE(service.layer_norm(spec, on_gpu.tensors(), stream).ok()); });
    graph.launch(stream);
    on_gpu.fetch();
    expect_right(problem);
  }
  EXPECT_EQ(service.counters().compiles, 0U);
  EXPECT_EQ(service.counters().misses, 0U);
  EXPECT_EQ(service.counters().layer_hits, std::size(kSpecs));
  EXPECT_EQ(service.prepare({.columns = 77}).code(), Code::NotCached);
}

TEST_F(ModesGpuTest, LazyServesBeforeTheCompileEnds) {
  Options lazy = options("");
  lazy.mode = Mode::lazy;
  Service service(lazy);
  if (service.environment().embedded_archs.empty())
    GTEST_SKIP() << "This library was built without generic kernels.";
  for (const NormSpec& spec : kSpecs) {
    launch(service, spec, kRows);
    launch(service, spec, 1);
  }
  EXPECT_GE(service.counters().fallback_launches, 1U);
  service.wait_for_compiles();
  const std::uint64_t fallbacks = service.counters().fallback_launches;
  for (const NormSpec& spec : kSpecs) launch(service, spec, kRows);
  EXPECT_EQ(service.counters().fallback_launches, fallbacks);
  EXPECT_EQ(service.counters().failed_compiles, 0U);
}

// In each mode a kernel that is ready, one that is not, and one that may be made ready.
TEST_F(ModesGpuTest, AMissLeavesTheCaptureValid) {
  for (const CUstreamCaptureMode mode : kCaptureModes) {
    SCOPED_TRACE(mode);
    const TempDirectory cache;
    Service service(options(cache.path()));
    oracle::Problem problem = make(kSpecs[0], kRows), other = make(kSpecs[1], kRows);
    GpuProblem on_gpu(problem), other_on_gpu(other);
    ASSERT_TRUE(service.layer_norm(kSpecs[0], on_gpu.tensors(), nullptr).ok());
    problem[Operand::y].poison();
    on_gpu.upload();
    const auto normalize = [&](int which, const GpuStream& stream, const LaunchOptions& how) {
      const GpuProblem& of = which == 0 ? on_gpu : other_on_gpu;
      return service.layer_norm(kSpecs[which], of.tensors(), stream, how).code();
    };
    const GpuStream stream;
    const CapturedGraph graph(
        stream,
        [&] {
          EXPECT_EQ(normalize(1, stream, {}), Code::NotReady);
          EXPECT_EQ(service.counters().compiles, 1U);
          EXPECT_EQ(normalize(0, stream, {}), Code::Ok);
          EXPECT_EQ(normalize(1, stream, {.miss_in_capture = true}), Code::Ok);
          EXPECT_EQ(service.counters().compiles, 2U);
        },
        mode);
    EXPECT_EQ(graph.nodes().size(), 2U);
    graph.launch(stream);
    on_gpu.fetch();
    expect_right(problem);
    other_on_gpu.fetch();
    expect_right(other);
  }
}

// Only misses, and then nothing: an empty graph, and a stream that goes on.
TEST_F(ModesGpuTest, ACaptureOfNothingButMissesIsAnEmptyGraph) {
  Service service(options(""));
  oracle::Problem problem = make(kSpecs[0], kRows);
  GpuProblem on_gpu(problem);
  const GpuStream stream;
  for (const CUstreamCaptureMode mode : kCaptureModes) {
    const CapturedGraph graph(
        stream,
        [&] { EXPECT_EQ(service.layer_norm(kSpecs[0], on_gpu.tensors(), stream).code(), Code::NotReady); },
        mode);
    EXPECT_EQ(graph.nodes().size(), 0U);
    graph.launch(stream);
  }
  ASSERT_TRUE(service.layer_norm(kSpecs[0], on_gpu.tensors(), stream).ok());
  on_gpu.fetch();
  expect_right(problem);
}

}  // namespace
}  // namespace normjit::testing
