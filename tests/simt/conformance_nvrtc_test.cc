// The device half of hw:: compiles: every conformance kernel, for the oldest architecture that has what it
// uses and for newer ones, without a word from the compiler.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "normjit/compiler/nvrtc_compiler.h"
#include "tests/support/conformance_kernels.h"

namespace normjit::testing {
namespace {

class ConformanceNvrtc : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto facts = compiler_->facts();
    if (facts.code() == Code::NoCompiler) GTEST_SKIP() << "There is no NVRTC on this machine.";
    ASSERT_TRUE(facts.ok()) << facts.error().message;
    known_ = facts->archs;
  }

  bool knows(Arch arch) const { return std::find(known_.begin(), known_.end(), arch) != known_.end(); }

  static NvrtcSearch search() {
    const auto environment = [](const char* name) {
      const char* value = std::getenv(name);
      return std::string(value != nullptr ? value : "");
    };
    return {.explicit_path = environment("NORMJIT_NVRTC_PATH"),
            .cuda_home = environment("CUDA_HOME"),
            .driver_cuda_version = {}};
  }

  const std::shared_ptr<Compiler> compiler_ = make_nvrtc_compiler(search());

 private:
  std::vector<Arch> known_;
};

TEST_F(ConformanceNvrtc, EveryKernelCompilesFromItsOldestArchitectureOn) {
  int compiled = 0;
  for (const ConformanceKernel& kernel : conformance_kernels())
    for (const int number : {75, 80, 90, 100, 120}) {
      const Arch arch{.number = number};
      if (number < kernel.oldest.number || !knows(arch)) continue;
      SCOPED_TRACE(kernel.name + " for " + arch.name());
      const auto binary = compiler_->compile(conformance_source(kernel, arch), arch);
      ASSERT_TRUE(binary.ok()) << binary.error().message;
      EXPECT_EQ(binary->target, arch.name());
      EXPECT_EQ(binary->log.find("warning"), std::string::npos) << binary->log;
      ++compiled;
    }
  EXPECT_GE(compiled, static_cast<int>(conformance_kernels().size()));
}

// What a kernel may not use is an error when it is compiled, never wrong code.
TEST_F(ConformanceNvrtc, NoKernelCompilesBelowItsOldestArchitecture) {
  for (const ConformanceKernel& kernel : conformance_kernels())
    for (const int number : {75, 80}) {
      const Arch arch{.number = number};
      if (number >= kernel.oldest.number || !knows(arch)) continue;
      EXPECT_EQ(compiler_->compile(conformance_source(kernel, arch), arch).code(), Code::CompileFailed)
          << kernel.name << " for " << arch.name();
    }
}

}  // namespace
}  // namespace normjit::testing
