// SPDX-License-Identifier: Apache-2.0
// The device half of hw:: compiles: every conformance kernel, for the oldest architecture that has what it
// uses and for newer ones, without a word from the compiler.
#include <gtest/gtest.h>

#include "tests/support/conformance_kernels.h"
#include "tests/support/nvrtc.h"

namespace normjit::testing {
namespace {

class ConformanceNvrtc : public NvrtcTest {};

TEST_F(ConformanceNvrtc, EveryKernelCompilesFromItsOldestArchitectureOn) {
  int compiled = 0;
  for (const ConformanceKernel& kernel : conformance_kernels())
    for (const int number : {75, 80, 90, 100, 120}) {
      const Arch arch{.number = number};
      if (number < kernel.oldest.number || !knows(arch)) continue;
      const Arch target = target_of(kernel, arch);
      SCOPED_TRACE(kernel.name + " for " + target.name());
      const auto binary = compiler_->compile(conformance_source(kernel, arch), target);
      ASSERT_TRUE(binary.ok()) << binary.error().message;
      EXPECT_EQ(binary->target, target.name());
      for (const char* word : {"warning", "ignored"})
        EXPECT_EQ(binary->log.find(word), std::string::npos) << binary->log;
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
