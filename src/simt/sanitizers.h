// SPDX-License-Identifier: Apache-2.0
// Tells ThreadSanitizer and AddressSanitizer about fibers. Their functions exist only in programs that are
// built with one of them; else these calls do nothing.
#pragma once

#include <cstddef>

extern "C" {
#define NORMJIT_WEAK __attribute__((weak))
NORMJIT_WEAK void* __tsan_create_fiber(unsigned flags);
NORMJIT_WEAK void __tsan_destroy_fiber(void* fiber);
NORMJIT_WEAK void* __tsan_get_current_fiber();
NORMJIT_WEAK void __tsan_switch_to_fiber(void* fiber, unsigned flags);
NORMJIT_WEAK void __tsan_acquire(void* address);
NORMJIT_WEAK void __tsan_release(void* address);
NORMJIT_WEAK void AnnotateIgnoreReadsBegin(const char* file, int line);
NORMJIT_WEAK void AnnotateIgnoreReadsEnd(const char* file, int line);
NORMJIT_WEAK void AnnotateIgnoreWritesBegin(const char* file, int line);
NORMJIT_WEAK void AnnotateIgnoreWritesEnd(const char* file, int line);
NORMJIT_WEAK void __sanitizer_start_switch_fiber(void** fake_stack, const void* stack, std::size_t bytes);
NORMJIT_WEAK void __sanitizer_finish_switch_fiber(void* fake_stack, const void** stack, std::size_t* bytes);
NORMJIT_WEAK void __asan_unpoison_memory_region(const volatile void* begin, std::size_t bytes);
#undef NORMJIT_WEAK
}

namespace normjit::simt {

// Tells ThreadSanitizer the order of the kernels' accesses: those before order_before() happen before those
// after a later order_after() of the same address.
inline void order_before(const void* what) {
  if (__tsan_release != nullptr) __tsan_release(const_cast<void*>(what));
}
inline void order_after(const void* what) {
  if (__tsan_acquire != nullptr) __tsan_acquire(const_cast<void*>(what));
}

// Hides the executor's own accesses from ThreadSanitizer.
class Unseen {
 public:
  Unseen() {
    if (AnnotateIgnoreReadsBegin == nullptr) return;
    AnnotateIgnoreReadsBegin("", 0);
    AnnotateIgnoreWritesBegin("", 0);
  }
  ~Unseen() {
    if (AnnotateIgnoreReadsEnd == nullptr) return;
    AnnotateIgnoreReadsEnd("", 0);
    AnnotateIgnoreWritesEnd("", 0);
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};

}  // namespace normjit::simt
