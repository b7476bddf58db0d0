// SPDX-License-Identifier: Apache-2.0
// A compiler for tests that fork: it has no lock and no state, so a fork cannot catch it in the middle of
// anything that a child would miss.
#pragma once

#include <chrono>
#include <thread>

#include "normjit/compiler/compiler.h"

namespace normjit::testing {

class StatelessCompiler final : public Compiler {
 public:
  Result<Binary> compile(const Source& source, Arch arch) override {
    // For a fork to catch the compile, and for further jobs to need a process.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    Binary binary;
    binary.code = source.description;
    binary.target = arch.name();
    binary.toolchain = "none";
    return binary;
  }
  Result<Facts> facts() override { return Facts{.path = "/fake/libnvrtc.so.13", .archs = {}}; }
};

}  // namespace normjit::testing
