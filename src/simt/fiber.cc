// SPDX-License-Identifier: Apache-2.0
#include "simt/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "simt/sanitizers.h"

#ifndef NORMJIT_SIMT_USES_UCONTEXT
// Pushes the callee-saved registers, stores the stack pointer in *save, and resumes a stack that was left in
// the same way. Unlike swapcontext it makes no system call.
extern "C" void normjit_simt_switch(void** save, void* to);
asm(R"(.text
.globl normjit_simt_switch
.hidden normjit_simt_switch
.type normjit_simt_switch,@function
normjit_simt_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp,(%rdi)
  mov %rsi,%rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size normjit_simt_switch,.-normjit_simt_switch
)");
#endif

namespace normjit::simt {
namespace {

// The part of a stack that is filled with NaN: a kernel's variables.
constexpr std::size_t kPoisonedBytes = 2048;

// The stack that was left last, to learn the calling thread's.
thread_local const void** t_left_stack = nullptr;
thread_local std::size_t* t_left_bytes = nullptr;

}  // namespace

Fiber::~Fiber() {
  if (owns_thread_sanitizer_) __tsan_destroy_fiber(thread_sanitizer_);
}

void Fiber::adopt() {
  if (__tsan_get_current_fiber != nullptr) thread_sanitizer_ = __tsan_get_current_fiber();
}

void Fiber::begin(std::byte* stack, void (*entry)()) {
  stack_ = stack;
  stack_bytes_ = kStackBytes;
  if (__tsan_create_fiber != nullptr && !owns_thread_sanitizer_) {
    thread_sanitizer_ = __tsan_create_fiber(0);
    owns_thread_sanitizer_ = true;
  }
  // Or a kernel could read, unnoticed, what the fiber before left there. Sanitizers forbid this write, and
  // have their own checks.
  if (__sanitizer_start_switch_fiber == nullptr && __tsan_create_fiber == nullptr)
    std::fill_n(stack + kStackBytes - kPoisonedBytes, kPoisonedBytes, std::byte{0xff});
#ifdef NORMJIT_SIMT_USES_UCONTEXT
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
#else
  // As normjit_simt_switch leaves a stack: six registers and a return address, aligned as after a call.
  void** top = reinterpret_cast<void**>(stack + kStackBytes) - 1;
  *--top = reinterpret_cast<void*>(entry);
  stack_pointer_ = top - 6;
#endif
}

void Fiber::run_from(Fiber& from) {
  if (__sanitizer_start_switch_fiber != nullptr) {
    t_left_stack = &from.stack_;
    t_left_bytes = &from.stack_bytes_;
    __sanitizer_start_switch_fiber(&from.fake_stack_, stack_, stack_bytes_);
  }
  if (__tsan_switch_to_fiber != nullptr) __tsan_switch_to_fiber(thread_sanitizer_, 1);  // 1: orders nothing
#ifdef NORMJIT_SIMT_USES_UCONTEXT
  swapcontext(&from.context_, &context_);
#else
  normjit_simt_switch(&from.stack_pointer_, stack_pointer_);
#endif
  if (__sanitizer_finish_switch_fiber != nullptr)
    __sanitizer_finish_switch_fiber(from.fake_stack_, t_left_stack, t_left_bytes);
}

void Fiber::entered() {
  if (__sanitizer_finish_switch_fiber != nullptr)
    __sanitizer_finish_switch_fiber(nullptr, t_left_stack, t_left_bytes);
}

bool Stacks::reserve(std::size_t count) {
  if (count <= count_) return true;
  release();
  const std::size_t bytes = (count + 1) * kStackBytes;
  void* mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return false;
  mapped_ = static_cast<std::byte*>(mapped);
  mapped_bytes_ = bytes;
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(mapped);
  first_ = mapped_ + (kStackBytes - begin % kStackBytes) % kStackBytes;
  count_ = count;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (std::size_t i = 0; i < count; ++i)
    if (mprotect((*this)[i], page, PROT_NONE) != 0) {
      release();
      return false;
    }
  return true;
}

void Stacks::release() {
  // The addresses may be mapped for something else next.
  if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(mapped_, mapped_bytes_);
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
  mapped_ = first_ = nullptr;
  mapped_bytes_ = count_ = 0;
}

Stacks::~Stacks() { release(); }

}  // namespace normjit::simt
