// SPDX-License-Identifier: Apache-2.0
// What cubins say of their kernels, against what ptxas reported when it made them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "normjit/compiler/cubin.h"
#include "normjit/device.h"
#include "tests/support/nvrtc.h"

namespace normjit {
namespace {

class CubinFactsReal : public testing::NvrtcTest {
 protected:
  void SetUp() override {
    NvrtcTest::SetUp();
    if (IsSkipped()) return;
    for (const DeviceProfile& device : DeviceProfile::known())
      if (knows(device.arch)) archs_.push_back(device.arch);
    if (knows({.number = 90})) archs_.push_back({.number = 90, .suffix = 'a'});
    ASSERT_FALSE(archs_.empty());
  }

  std::vector<Arch> archs_;  // that normjit knows and this NVRTC makes cubins for
};

struct Case {
  const char* kernel;
  const char* text;
  CubinFacts stated;  // what the text asks for; its registers and local memory are ptxas's business
  enum { no_stack, stack, spills } local = no_stack;
  int first_arch = 0;  // that has what the text uses
};

const Case kCases[] = {
    {"plain", R"(extern "C" __global__ void plain(float* x) { x[threadIdx.x] = 1; })", {}},
    {"static_shared",
     R"(extern "C" __global__ void __launch_bounds__(64) static_shared(float* x) {
          __shared__ float s[5];
          s[threadIdx.x % 5] = x[threadIdx.x];
          __syncthreads();
          x[threadIdx.x] = s[(threadIdx.x + 1) % 5];
        })",
     {.shared_bytes = 20, .max_threads = 64}},
    {"all_shared",
     R"(extern __shared__ float dynamic[];
        extern "C" __global__ void __launch_bounds__(1024, 1) all_shared(float* x) {
          __shared__ alignas(128) float s[12 * 1024];
          s[threadIdx.x] = x[threadIdx.x];
          dynamic[threadIdx.x] = x[threadIdx.x + 1024];
          __syncthreads();
          x[threadIdx.x] = s[1023 - threadIdx.x] + dynamic[threadIdx.x / 2];
        })",
     {.register_limit = 64, .shared_bytes = 48 * 1024, .max_threads = 1024}},
    {"calls",
     R"(__device__ __noinline__ float pick(const float* x, int n) {
          float a[200];
          for (int i = 0; i < 200; ++i) a[i] = x[i] * x[i + n];
          return a[n];
        }
        extern "C" __global__ void calls(const float* x, float* y, int n) { *y = pick(x, n); })",
     {},
     Case::stack},
    // 128 values are alive at the barrier, in 64 registers.
    {"spills",
     R"(extern "C" __global__ void __launch_bounds__(512, 2) spills(const float* x, float* y) {
          float a[128];
        #pragma unroll
          for (int i = 0; i < 128; ++i) a[i] = x[i * 512 + threadIdx.x];
          __syncthreads();
        #pragma unroll
          for (int i = 0; i < 128; ++i) y[i * 512 + threadIdx.x] = a[127 - i] * a[i * 7 % 128];
        })",
     {.register_limit = 64, .max_threads = 512},
     Case::spills},
    {"cluster",
     R"(extern "C" __global__ void __cluster_dims__(2, 2) __launch_bounds__(128) cluster(float* x) {
          x[threadIdx.x] = 1;
        })",
     {.max_threads = 128, .cluster_blocks = 4},
     Case::no_stack,
     90},
    {"some_cluster",
     R"(extern "C" __global__ void __launch_bounds__(128, 2, 8) some_cluster(float* x) { x[threadIdx.x] = 1; })",
     {.max_threads = 128, .max_cluster_blocks = 8},
     Case::no_stack,
     90},
};

TEST_F(CubinFactsReal, AgreeWithPtxasAndTheText) {
  for (const Arch arch : archs_)
    for (const Case& c : kCases) {
      if (arch.number < c.first_arch) continue;
      SCOPED_TRACE(std::string(c.kernel) + " for " + arch.name());
      const auto binary =
          compiler_->compile({.text = c.text, .kernel = c.kernel, .description = "a test kernel"}, arch);
      ASSERT_TRUE(binary.ok()) << binary.error().message;
      const auto facts = cubin_facts(binary->code, c.kernel);
      ASSERT_TRUE(facts.has_value());

      EXPECT_GT(facts->registers, 0);
      EXPECT_EQ(facts->registers, binary->registers);
      EXPECT_EQ(facts->shared_bytes, binary->shared_bytes);
      EXPECT_EQ(facts->local_bytes > 0, c.local != Case::no_stack) << facts->local_bytes;
      EXPECT_EQ(binary->spill_bytes > 0, c.local == Case::spills) << binary->spill_bytes;

      CubinFacts stated = c.stated;
      stated.registers = facts->registers;
      stated.local_bytes = facts->local_bytes;
      EXPECT_EQ(facts, stated) << "limit " << facts->register_limit << ", shared " << facts->shared_bytes
                               << ", threads " << facts->max_threads << ", cluster " << facts->cluster_blocks
                               << " of at most " << facts->max_cluster_blocks;
    }
}

TEST_F(CubinFactsReal, TellTheKernelsOfOneCubinApart) {
  const Source source{.text = R"(extern "C" __global__ void __launch_bounds__(32) a(float* x) {
                                   __shared__ float s[32];
                                   s[threadIdx.x] = x[threadIdx.x];
                                   __syncthreads();
                                   x[threadIdx.x] = s[31 - threadIdx.x];
                                 }
                                 extern "C" __global__ void __launch_bounds__(96) ab(float* x) { *x = 1; })",
                      .kernel = "a",
                      .description = "two test kernels"};
  for (const Arch arch : archs_) {
    SCOPED_TRACE(arch.name());
    const std::string code = compiler_->compile(source, arch).value().code;
    ASSERT_TRUE(cubin_facts(code, "a") && cubin_facts(code, "ab"));
    EXPECT_EQ(cubin_facts(code, "a")->max_threads, 32);
    EXPECT_EQ(cubin_facts(code, "a")->shared_bytes, 128);
    EXPECT_EQ(cubin_facts(code, "ab")->max_threads, 96);
    EXPECT_EQ(cubin_facts(code, "ab")->shared_bytes, 0);
    EXPECT_EQ(cubin_facts(code, "b"), std::nullopt);
  }
}

}  // namespace
}  // namespace normjit
