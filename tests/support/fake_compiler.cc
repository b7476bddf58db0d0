// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_compiler.h"

#include <utility>

#include "normjit/base/text.h"

namespace normjit {

Result<Binary> FakeCompiler::compile(const Source& source, Arch arch) {
  std::unique_lock lock(mutex_);
  calls_.push_back({.text = source.text, .kernel = source.kernel, .arch = arch});
  changed_.notify_all();
  changed_.wait(lock, [this] { return !held_; });
  if (error_) return *error_;
  Binary binary;
  binary.code = concat({"fake code of ", source.kernel, " for ", arch.name(), "\n", source.text});
  binary.target = arch.name();
  binary.toolchain = "nvrtc 13.0";
  binary.registers = 32;
  binary.spill_bytes = 0;
  binary.shared_bytes = 0;
  return binary;
}

Result<Compiler::Facts> FakeCompiler::facts() {
  const std::lock_guard lock(mutex_);
  if (error_) return *error_;
  return Facts{.path = "/fake/libnvrtc.so.13",
               .major = 13,
               .minor = 0,
               .archs = {{.number = 80}, {.number = 90}, {.number = 100}}};
}

std::vector<FakeCompiler::Call> FakeCompiler::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

void FakeCompiler::fail(Error error) {
  const std::lock_guard lock(mutex_);
  error_ = std::move(error);
}

void FakeCompiler::succeed() {
  const std::lock_guard lock(mutex_);
  error_.reset();
}

void FakeCompiler::hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void FakeCompiler::release() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  changed_.notify_all();
}

void FakeCompiler::wait_for_calls(std::size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return calls_.size() >= count; });
}

}  // namespace normjit
