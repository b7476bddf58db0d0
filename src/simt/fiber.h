// SPDX-License-Identifier: Apache-2.0
// Stacks to switch between: one for each CUDA thread, and that of the launch's caller.
#pragma once

#include <cstddef>

#include "simt/kernel/runtime.h"

#if !defined(__x86_64__) || defined(NORMJIT_SIMT_UCONTEXT)
#include <ucontext.h>
#define NORMJIT_SIMT_USES_UCONTEXT 1
#endif

namespace normjit::simt {

// A suspended stack. Neither copied nor moved while in use.
class Fiber {
 public:
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Makes this the calling thread's own stack.
  void adopt();
  // Makes this begin with `entry`, which must never return, on a stack of kStackBytes at `stack`.
  void begin(std::byte* stack, void (*entry)());
  // Switches from the running fiber, `from`, to this one; returns when `from` is resumed.
  void run_from(Fiber& from);
  // `entry` calls this first.
  static void entered();
  bool stack_holds(const void* address) const {
    const auto* at = static_cast<const std::byte*>(address);
    const auto* begin = static_cast<const std::byte*>(stack_);
    return at >= begin && at < begin + stack_bytes_;
  }

 private:
#ifdef NORMJIT_SIMT_USES_UCONTEXT
  ucontext_t context_;
#else
  void* stack_pointer_ = nullptr;
#endif
  const void* stack_ = nullptr;  // of the calling thread: known to AddressSanitizer only
  std::size_t stack_bytes_ = 0;
  // For the sanitizers.
  void* thread_sanitizer_ = nullptr;
  void* fake_stack_ = nullptr;
  bool owns_thread_sanitizer_ = false;
};

// Memory for `count` stacks of kStackBytes, each aligned to that, with a guard page at its end.
class Stacks {
 public:
  // Grows to `count`; false if there is no memory for that.
  bool reserve(std::size_t count);
  Stacks() = default;
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  std::byte* operator[](std::size_t index) const { return first_ + index * kStackBytes; }

 private:
  void release();
  std::byte* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::byte* first_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace normjit::simt
