// SPDX-License-Identifier: Apache-2.0
// A GPU that is sick: broken by somebody else's kernel, or full. Each test has a process of its own, for what
// it does cannot be undone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/cuda_calls.h"
#include "tests/support/gpu.h"
#include "tests/support/temp_directory.h"

namespace normjit::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kRows = 200;
constexpr NormSpec kLaunched{.columns = 5000, .affine = Affine::weight_bias};  // was, before
constexpr NormSpec kCached{.columns = 4096, .affine = Affine::weight_bias};    // has never been loaded
constexpr NormSpec kUnknown{.columns = 4097, .affine = Affine::weight_bias};   // no cache has it

// Two kernels as any library of the process may have them.
constexpr const char* kForeign = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry writes_anywhere() {
  .reg .b64 %address;
  .reg .b32 %value;
  mov.u64 %address, 256;
  mov.u32 %value, 1;
  st.global.u32 [%address], %value;
  ret;
}
.visible .entry traps() {
  trap;
  ret;
}
)";

// In a child of a test: what is not so is told on stderr, and the child fails.
class Findings {
 public:
  void expect(bool so, const std::string& what) {
    if (so) return;
    std::fprintf(stderr, "not so: %s\n", what.c_str());
    failed_ = true;
  }
  template <class ResultOrStatus>
  void expect_code(const ResultOrStatus& result, Code code, const std::string& what) {
    expect(code_of(result) == code, what + " answers " + std::string(code_name(code_of(result))) + ", not " +
                                        std::string(code_name(code)));
  }
  bool failed() const { return failed_; }

 private:
  static Code code_of(const Status& status) { return status.code; }
  template <class T>
  static Code code_of(const Result<T>& result) {
    return result.code();
  }

  bool failed_ = false;
};

template <class T>
std::string message_of(const Result<T>& result) {
  return result.ok() ? "success" : result.error().message;
}

class SickDeviceGpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";  // a new process: CUDA does not survive a fork
  }

  // Everything that a Service does after a foreign kernel has failed, its own end included. The context is
  // lost then. Whether all was as it should be.
  bool lives_through(const char* foreign_kernel) {
    Findings so;
    const TempDirectory folder;
    {
      Service builder(options(folder / "cache"));
      so.expect_code(builder.prepare(kLaunched, {.rows_hint = kRows}), Code::Ok, "prepare");
      so.expect_code(builder.prepare(kCached), Code::Ok, "prepare of " + to_text(kCached));
    }
    Options quiet = options(folder / "cache");
    quiet.log = [&so](LogLevel level, std::string_view text) {
      so.expect(level < LogLevel::warn, "nothing is warned of, such as: " + std::string(text));
    };
    Service sick(quiet);
    oracle::Problem problem = make(kLaunched, kRows);
    GpuProblem on_gpu(problem);
    const Tensors tensors = on_gpu.tensors();
    const Kernel kernel = sick.prepare(kLaunched, {.rows_hint = problem.rows}).value();
    so.expect_code(sick.layer_norm(kLaunched, tensors, nullptr), Code::Ok, "a launch before");
    so.expect_code(kernel.launch(tensors, nullptr), Code::Ok, "a launch before");
    must(CUDA(cuCtxSynchronize)(), "a launch before");
    const std::size_t entries = sick.entries().value().size();

    CUmodule module = nullptr;
    CUfunction function = nullptr;
    must(CUDA(cuModuleLoadData)(&module, kForeign), "cuModuleLoadData");
    must(CUDA(cuModuleGetFunction)(&function, module, foreign_kernel), "cuModuleGetFunction");
    must(CUDA(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), "cuLaunchKernel");
    const CUresult reason = CUDA(cuCtxSynchronize)();
    const char* name = "no error";
    CUDA(cuGetErrorName)(reason, &name);
    std::fprintf(stderr, "%s ends with %s\n", foreign_kernel, name);
    so.expect(reason != CUDA_SUCCESS, "the foreign kernel has failed");

    const Status status = kernel.launch(tensors, nullptr);
    so.expect_code(status, Code::DriverError, "Kernel::launch");
    so.expect(status.driver_result == reason, "Kernel::launch answers the driver's own result");
    const auto launched = sick.layer_norm(kLaunched, tensors, nullptr);
    so.expect_code(launched, Code::DriverError, "layer_norm");
    so.expect(message_of(launched).find(name) != std::string::npos,
              "layer_norm names it: " + message_of(launched));
    const auto checked = kernel.check(tensors);
    so.expect(checked.ok() || checked.code() == Code::DriverError,
              "check blames no pointer: " + message_of(checked));
    const Counters before = sick.counters();
    for (const NormSpec& spec : {kCached, kUnknown}) {
      const auto prepared = sick.prepare(spec);
      so.expect_code(prepared, Code::DriverError, "prepare of " + to_text(spec));
      so.expect(message_of(prepared).find(name) != std::string::npos,
                "prepare names it: " + message_of(prepared));
      so.expect_code(sick.prepare(spec), Code::DriverError, "prepare once more");
    }
    const Counters after = sick.counters();
    so.expect(after.compiles <= before.compiles + 1, "only what no cache has is compiled, once");
    so.expect(after.damaged_entries == 0, "no entry is called damaged");
    so.expect(after.fallback_launches == 0, "nothing else serves");
    const VerifyReport report = sick.verify().value();
    so.expect(report.flaws.empty(), "the cache is sound");
    so.expect(report.entries >= static_cast<int>(entries), "the cache has what it had");
    return !so.failed();
  }

  // Allocates all of the device's memory but crumbs.
  static std::vector<CUdeviceptr> fill_the_device() {
    std::vector<CUdeviceptr> taken;
    for (std::size_t bytes = std::size_t{8} << 30; bytes >= 4096; bytes /= 2)
      for (CUdeviceptr memory = 0; CUDA(cuMemAlloc)(&memory, bytes) == CUDA_SUCCESS;) taken.push_back(memory);
    return taken;
  }

  bool lives_without_memory() {
    constexpr int kSpecs = 16;
    Findings so;
    const TempDirectory folder;
    std::vector<NormSpec> specs;
    for (int i = 0; i < kSpecs; ++i)
      specs.push_back({.columns = 30000 + 512 * i, .affine = Affine::weight_bias});
    {
      Service builder(options(folder / "cache"));
      for (const NormSpec& spec : specs)
        so.expect_code(builder.prepare(spec), Code::Ok, "prepare of " + to_text(spec));
    }
    Options talks = options(folder / "cache");  // what it says is shown where the test fails
    talks.log = [](LogLevel level, std::string_view text) {
      if (level >= LogLevel::info) std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
    };
    Service poor(talks);
    std::vector<CUdeviceptr> taken = fill_the_device();
    int refused = 0;
    std::vector<Kernel> kernels;  // keep what they take
    for (const NormSpec& spec : specs) {
      auto kernel = poor.prepare(spec);
      if (kernel)
        kernels.push_back(*std::move(kernel));
      else
        so.expect_code(kernel, Code::OutOfMemory, "prepare of " + to_text(spec) + ": " + message_of(kernel));
      refused += kernel.code() == Code::OutOfMemory;
    }
    std::fprintf(stderr, "%d of %d loads found no memory\n", refused, kSpecs);
    so.expect(refused > 0, "a load finds no memory");
    so.expect(poor.counters().compiles == 0, "nothing is compiled");
    so.expect(poor.counters().damaged_entries == 0 && poor.verify().value().flaws.empty(),
              "the cache is sound");
    for (const CUdeviceptr memory : taken) CUDA(cuMemFree)(memory);
    for (const NormSpec& spec : specs)
      so.expect_code(poor.prepare(spec), Code::Ok,
                     "prepare of " + to_text(spec) + " once there is memory again");
    so.expect(poor.counters().compiles == 0, "nothing is compiled");
    return !so.failed();
  }
};

TEST_F(SickDeviceGpuTest, AnIllegalAddressOfAForeignKernelIsWhatEveryCallAnswers) {
  EXPECT_EXIT(std::exit(lives_through("writes_anywhere") ? 0 : 1), ::testing::ExitedWithCode(0),
              HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST_F(SickDeviceGpuTest, ATrapOfAForeignKernelIsWhatEveryCallAnswers) {
  EXPECT_EXIT(std::exit(lives_through("traps") ? 0 : 1), ::testing::ExitedWithCode(0),
              HasSubstr("traps ends with CUDA_ERROR_"));
}

TEST_F(SickDeviceGpuTest, AFullDeviceIsOutOfMemoryAndWellAgain) {
  EXPECT_EXIT(std::exit(lives_without_memory() ? 0 : 1), ::testing::ExitedWithCode(0),
              HasSubstr("found no memory"));
}

}  // namespace
}  // namespace normjit::testing
