// SPDX-License-Identifier: Apache-2.0
// The compiler on the NVRTC of this machine. Every test skips where there is none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "normjit/compiler/cubin.h"
#include "tests/support/nvrtc.h"

namespace normjit {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string memory_map() {
  std::stringstream text;
  text << std::ifstream("/proc/self/maps").rdbuf();
  return text.str();
}

Source trivial_kernel() {
  return {.text = R"(
extern "C" __global__ void scale(const float* x, float* y, long long n) {
  __shared__ float tile[256];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < n) y[threadIdx.x] = 2.0f * tile[255 - threadIdx.x];
}
)",
          .kernel = "scale",
          .description = "a test kernel"};
}

class NvrtcCompilerReal : public testing::NvrtcTest {
 protected:
  bool knows(int number) const { return NvrtcTest::knows({.number = number}); }
};

TEST_F(NvrtcCompilerReal, TellsItsFacts) {
  EXPECT_GE(facts_.major, 12);
  EXPECT_TRUE(std::filesystem::exists(facts_.path)) << facts_.path;
  EXPECT_TRUE(knows(90));
  EXPECT_TRUE(std::ranges::is_sorted(facts_.archs, {}, &Arch::number));
}

TEST_F(NvrtcCompilerReal, CompilesForEveryArchitectureThatItKnows) {
  for (int number : {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121}) {
    if (!knows(number)) continue;
    const Arch arch{.number = number};
    const auto binary = compiler_->compile(trivial_kernel(), arch);
    ASSERT_TRUE(binary.ok()) << binary.error().message;
    EXPECT_FALSE(binary->ptx);
    EXPECT_EQ(binary->target, arch.name());
    EXPECT_EQ(cubin_architecture(binary->code), number);
    EXPECT_GT(binary->registers, 0) << binary->log;
    EXPECT_EQ(binary->spill_bytes, 0) << binary->log;
    EXPECT_GE(binary->shared_bytes, 1024) << binary->log;
  }
}

TEST_F(NvrtcCompilerReal, CompilesForASuffixedArchitecture) {
  Source source = trivial_kernel();
  source.text.insert(source.text.find("  __syncthreads"),
                     "  asm volatile(\"setmaxnreg.inc.sync.aligned.u32 40;\");\n");
  const auto binary = compiler_->compile(source, {.number = 90, .suffix = 'a'});
  ASSERT_TRUE(binary.ok()) << binary.error().message;
  EXPECT_EQ(binary->target, "sm_90a");
  EXPECT_EQ(compiler_->compile(source, {.number = 90}).code(), Code::CompileFailed)
      << "sm_90 has no setmaxnreg";
}

TEST_F(NvrtcCompilerReal, FallsBackToPtx) {
  const auto binary = compiler_->compile(trivial_kernel(), {.number = 999});
  ASSERT_TRUE(binary.ok()) << binary.error().message;
  EXPECT_TRUE(binary->ptx);
  EXPECT_TRUE(binary->target.starts_with("compute_")) << binary->target;
  EXPECT_THAT(binary->code,
              AllOf(HasSubstr(".target sm_" + binary->target.substr(8)), HasSubstr(".entry scale(")));
}

TEST_F(NvrtcCompilerReal, AnErrorNamesTheTemplateAndItsLine) {
  const Source source{.text =
                          "extern \"C\" __global__ void k(float* y) {\n"
                          "#line 8 \"epilogue.cuh\"\n"
                          "  *y = undeclared;\n"
                          "}\n",
                      .kernel = "k",
                      .description = "layernorm/cols=64/f32/eps=1e-05"};
  const auto binary = compiler_->compile(source, {.number = 90});
  ASSERT_EQ(binary.code(), Code::CompileFailed);
  EXPECT_THAT(binary.error().message, AllOf(HasSubstr("epilogue.cuh(8): error"), HasSubstr("undeclared"),
                                            HasSubstr("layernorm/cols=64"),
                                            HasSubstr("--gpu-architecture=sm_90 "), HasSubstr(facts_.path)));
}

TEST_F(NvrtcCompilerReal, TheSameInputGivesTheSameBytes) {
  const auto first = compiler_->compile(trivial_kernel(), {.number = 90});
  const auto second = compiler_->compile(trivial_kernel(), {.number = 90});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(first->code == second->code);
}

TEST_F(NvrtcCompilerReal, ThreadsCompileAtOnceWithEqualResults) {
  constexpr int kThreads = 4;
  std::vector<std::string> codes(kThreads);
  std::vector<std::thread> threads;
  for (std::string& code : codes) {
    threads.emplace_back([&code, this] {
      const auto binary = compiler_->compile(trivial_kernel(), {.number = 80});
      code = binary.ok() ? binary->code : binary.error().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cubin_architecture(codes[0]), 80) << codes[0];
  for (const std::string& code : codes) EXPECT_TRUE(code == codes[0]);
}

TEST_F(NvrtcCompilerReal, OpensTheBuiltinsBesideItAndNoDriver) {
  const bool driver_was_loaded = memory_map().find("/libcuda.so") != std::string::npos;
  ASSERT_TRUE(compiler_->compile(trivial_kernel(), {.number = 90}).ok());
  const std::string map = memory_map();
  const auto directory = std::filesystem::canonical(facts_.path).parent_path();
  EXPECT_THAT(map, HasSubstr((directory / "libnvrtc-builtins.so.").string()));
  if (driver_was_loaded) return;  // by another test of this process
  EXPECT_THAT(map, Not(HasSubstr("/libcuda.so")));
}

}  // namespace
}  // namespace normjit
