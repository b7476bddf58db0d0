// SPDX-License-Identifier: Apache-2.0
// The C interface on a GPU: its results are those of the reference, and it is captured as the C++ one is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "normjit/c_api.h"
#include "normjit/c_api/call.h"
#include "normjit/c_api/values.h"
#include "tests/support/captured_graph.h"
#include "tests/support/cuda_calls.h"
#include "tests/support/gpu.h"
#include "tests/support/temp_directory.h"

namespace normjit::testing {
namespace {

using ::testing::HasSubstr;

constexpr NormSpec kSpecs[] = {
    {.columns = 768, .affine = Affine::weight_bias, .activation = Activation::gelu},
    {.columns = 4096, .input = DType::bf16, .affine = Affine::weight_bias, .statistics = true},
    {.columns = 1023, .input = DType::f16, .output = DType::f32, .affine = Affine::weight, .scale = 0.5},
    {.columns = 3000, .input = DType::f64}};
constexpr std::int64_t kRows = 150;

normjit_spec in_c(const NormSpec& spec) {
  normjit_spec to = NORMJIT_SPEC_INIT;
  c_api::write(spec, to);
  return to;
}

normjit_tensors in_c(const Tensors& t) {
  normjit_tensors to = NORMJIT_TENSORS_INIT;
  std::memcpy(reinterpret_cast<std::byte*>(&to) + sizeof to.struct_size, &t, sizeof t);
  return to;
}

class CApiGpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) service_ = new normjit_service(options(cache_.path()));
  }
  void TearDown() override {
    normjit_service_destroy(service_);
    GpuTest::TearDown();
  }

  // Ok, or the sentence of the error.
  template <class Call>
  static std::string outcome(const Call& call) {
    char* error = nullptr;
    const normjit_status status = call(&error);
    const std::string text =
        status == NORMJIT_OK ? "Ok" : normjit_status_name(status) + std::string(": ") + error;
    normjit_free(error);
    return text;
  }
  std::string launched(const NormSpec& spec, const Tensors& tensors, Stream stream,
                       const normjit_launch_options* how = nullptr) {
    const normjit_spec what = in_c(spec);
    const normjit_tensors on = in_c(tensors);
    return outcome([&](char** e) { return normjit_layer_norm(service_, &what, &on, stream, how, e); });
  }
  normjit_kernel* prepared(const NormSpec& spec, const normjit_prepare_options* use = nullptr) {
    const normjit_spec what = in_c(spec);
    normjit_kernel* kernel = nullptr;
    EXPECT_EQ(outcome([&](char** e) { return normjit_prepare(service_, &what, use, &kernel, e); }), "Ok");
    return kernel;
  }

  const TempDirectory cache_;
  normjit_service* service_ = nullptr;
};

TEST_F(CApiGpuTest, OneCallAndPreparedKernelsAreRight) {
  for (const NormSpec& spec : kSpecs) {
    SCOPED_TRACE(to_text(spec));
    oracle::Problem problem = make(spec, kRows);
    GpuProblem on_gpu(problem);
    ASSERT_EQ(launched(spec, on_gpu.tensors(), nullptr), "Ok");
    on_gpu.fetch();
    expect_right(problem);

    problem[Operand::y].poison();
    on_gpu.upload();
    const normjit_tensors tensors = in_c(on_gpu.tensors());
    normjit_prepare_options use = NORMJIT_PREPARE_OPTIONS_INIT;
    use.rows_hint = kRows;
    normjit_kernel* const kernel = prepared(spec, &use);
    ASSERT_NE(kernel, nullptr);
    EXPECT_EQ(outcome([&](char** e) { return normjit_kernel_check(kernel, &tensors, e); }), "Ok");
    const GpuStream stream;
    EXPECT_EQ(normjit_kernel_launch(kernel, &tensors, static_cast<Stream>(stream), nullptr), NORMJIT_OK);
    stream.synchronize();
    normjit_kernel_release(kernel);
    on_gpu.fetch();
    expect_right(problem);
  }
}

TEST_F(CApiGpuTest, MemoryThatTheDeviceCannotReachIsNamed) {
  oracle::Problem problem = make(kSpecs[0], 4);
  GpuProblem on_gpu(problem);
  alignas(16) static const float host[4 * 768] = {};
  Tensors tensors = on_gpu.tensors();
  tensors.x = host;
  EXPECT_THAT(launched(kSpecs[0], tensors, nullptr), HasSubstr("WrongDevice: x is not memory"));
  normjit_kernel* const kernel = prepared(kSpecs[0]);
  const normjit_tensors in = in_c(tensors);
  EXPECT_THAT(outcome([&](char** e) { return normjit_kernel_check(kernel, &in, e); }),
              HasSubstr("WrongDevice: x is not memory"));
  normjit_kernel_release(kernel);
}

TEST_F(CApiGpuTest, LaunchesAreCapturedAndAMissLeavesTheCaptureValid) {
  oracle::Problem problem = make(kSpecs[0], kRows), other = make(kSpecs[1], kRows);
  GpuProblem on_gpu(problem), other_on_gpu(other);
  normjit_prepare_options use = NORMJIT_PREPARE_OPTIONS_INIT;
  use.rows_hint = kRows;
  normjit_kernel* const kernel = prepared(kSpecs[0], &use);
  ASSERT_NE(kernel, nullptr);
  const normjit_tensors tensors = in_c(on_gpu.tensors());
  normjit_launch_options anyway = NORMJIT_LAUNCH_OPTIONS_INIT;
  anyway.miss_in_capture = 1;
  const GpuStream stream;
  const CapturedGraph graph(stream, [&] {
    EXPECT_THAT(launched(kSpecs[1], other_on_gpu.tensors(), stream), HasSubstr("NotReady"));
    EXPECT_EQ(normjit_kernel_launch(kernel, &tensors, static_cast<Stream>(stream), nullptr), NORMJIT_OK);
    EXPECT_EQ(launched(kSpecs[1], other_on_gpu.tensors(), stream, &anyway), "Ok");
  });
  EXPECT_EQ(graph.nodes().size(), 2U);
  for (int i = 0; i < 3; ++i) graph.launch(stream);
  stream.synchronize();
  normjit_kernel_release(kernel);
  on_gpu.fetch();
  expect_right(problem);
  other_on_gpu.fetch();
  expect_right(other);
}

TEST_F(CApiGpuTest, AWorkspaceServesEveryRowOfAGiganticSpec) {
  constexpr NormSpec kGigantic{.columns = 4194304, .affine = Affine::weight_bias};
  const normjit_spec what = in_c(kGigantic);
  std::size_t bytes = 0;
  ASSERT_EQ(outcome([&](char** e) { return normjit_workspace_bytes(service_, &what, &bytes, e); }), "Ok");
  ASSERT_GT(bytes, 0u);
  DeviceMemory workspace(bytes);
  workspace.fill(0);
  for (const std::int64_t rows : {1, 3}) {
    oracle::Problem problem = make(kGigantic, rows);
    GpuProblem on_gpu(problem);
    Tensors tensors = on_gpu.tensors();
    tensors.workspace = workspace.data();
    ASSERT_EQ(launched(kGigantic, tensors, nullptr), "Ok");
    on_gpu.fetch();
    expect_right(problem);
  }
}

}  // namespace
}  // namespace normjit::testing
