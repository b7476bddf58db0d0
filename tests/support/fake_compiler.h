// SPDX-License-Identifier: Apache-2.0
// A compiler that compiles nothing: it remembers what it was asked for, and can fail or stand still.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "normjit/compiler/compiler.h"

namespace normjit {

// Thread-safe, as every Compiler.
class FakeCompiler : public Compiler {
 public:
  struct Call {
    std::string text;  // of the source
    std::string kernel;
    Arch arch;
  };

  // A binary that is a function of source and architecture, and never real machine code.
  Result<Binary> compile(const Source& source, Arch arch) override;
  // "/fake/libnvrtc.so.13", version 13.0, architectures 80, 90 and 100.
  Result<Facts> facts() override;

  // Every compile so far, the failed and the lookup ones included.
  std::vector<Call> calls() const;

  // Makes compile() and facts() return this error; succeed() ends it.
  void fail(Error error);
  void succeed();

  // Makes every compile stand still, from the next one on, until release().
  void hold();
  void release();
  // Returns when so many compiles have begun, lookup ones included.
  void wait_for_calls(std::size_t count);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Call> calls_;
  std::optional<Error> error_;
  bool held_ = false;
};

}  // namespace normjit
