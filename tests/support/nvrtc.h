// SPDX-License-Identifier: Apache-2.0
// What tests of the NVRTC of this machine share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "normjit/compiler/nvrtc_compiler.h"
#include "normjit/service.h"

namespace normjit::testing {

// Found as the environment says, not limited by a driver. Every test skips where there is none.
class NvrtcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto facts = compiler_->facts();
    if (facts.code() == Code::NoCompiler) GTEST_SKIP() << "There is no NVRTC on this machine.";
    ASSERT_TRUE(facts.ok()) << facts.error().message;
    facts_ = *facts;
  }
  // Whether it makes cubins for an architecture; of an `a` variant it does not say.
  bool knows(Arch arch) const { return std::ranges::count(facts_.archs, arch) > 0; }

  const Options options_ = Options::from_environment();
  const std::shared_ptr<Compiler> compiler_ = make_nvrtc_compiler(
      {.explicit_path = options_.compiler_path, .cuda_home = options_.cuda_home, .driver_cuda_version = {}});
  Compiler::Facts facts_;
};

}  // namespace normjit::testing
