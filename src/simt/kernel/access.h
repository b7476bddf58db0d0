// SPDX-License-Identifier: Apache-2.0
// The second part of a checked translation unit: the functions that the compiler calls before each access to
// memory that other threads may see (-fsanitize=thread; no sanitizer is linked). They have other names here,
// because compilers know the real ones.

#define NJ_HOOK(name, symbol, ...)                                                                   \
  extern "C" __attribute__((visibility("hidden"))) void normjit_##name(__VA_ARGS__) __asm__(symbol); \
  extern "C" __attribute__((visibility("hidden"), used, noinline,                                    \
                            no_sanitize("thread"))) void normjit_##name(__VA_ARGS__)

namespace normjit::simt {
// Ignores the thread's own stack.
__attribute__((always_inline, no_sanitize("thread"))) static inline void saw(const void* at,
                                                                             unsigned long bytes, bool write,
                                                                             bool aligned, const void* pc) {
  const unsigned long here = reinterpret_cast<unsigned long>(__builtin_frame_address(0));
  if ((here ^ reinterpret_cast<unsigned long>(at)) >= kStackBytes)
    runtime.access(at, bytes, write, aligned, pc);
}
}  // namespace normjit::simt

#define NJ_SAW(bytes, write, aligned) \
  normjit::simt::saw(at, bytes, write, aligned, __builtin_return_address(0))
#define NJ_HOOKS(n)                                                                                   \
  NJ_HOOK(read##n, "__tsan_read" #n, const void* at) { NJ_SAW(n, false, true); }                      \
  NJ_HOOK(write##n, "__tsan_write" #n, const void* at) { NJ_SAW(n, true, true); }                     \
  NJ_HOOK(unaligned_read##n, "__tsan_unaligned_read" #n, const void* at) { NJ_SAW(n, false, false); } \
  NJ_HOOK(unaligned_write##n, "__tsan_unaligned_write" #n, const void* at) { NJ_SAW(n, true, false); }
NJ_HOOKS(1)
NJ_HOOKS(2)
NJ_HOOKS(4)
NJ_HOOKS(8)
NJ_HOOKS(16)
NJ_HOOK(read_range, "__tsan_read_range", const void* at, unsigned long bytes) { NJ_SAW(bytes, false, false); }
NJ_HOOK(write_range, "__tsan_write_range", const void* at, unsigned long bytes) {
  NJ_SAW(bytes, true, false);
}
NJ_HOOK(init, "__tsan_init", void) {}
NJ_HOOK(entry, "__tsan_func_entry", void*) {}
NJ_HOOK(exit, "__tsan_func_exit", void) {}
// Larger copies are calls. Written so that the compiler does not turn the loops into calls of themselves.
#define NJ_COPY(name, symbol)                                                                            \
  extern "C" __attribute__((visibility("hidden"))) void* normjit_##name(void*, const void*,              \
                                                                        unsigned long) __asm__(symbol);  \
  extern "C"                                                                                             \
      __attribute__((visibility("hidden"), used, noinline, no_sanitize("thread"))) void* normjit_##name( \
          void* at, const void* from, unsigned long bytes) {                                             \
    normjit::simt::saw(from, bytes, false, false, __builtin_return_address(0));                          \
    NJ_SAW(bytes, true, false);                                                                          \
    const auto* source = static_cast<const volatile unsigned char*>(from);                               \
    auto* target = static_cast<volatile unsigned char*>(at);                                             \
    for (unsigned long i = 0; i < bytes; ++i) target[i] = source[i];                                     \
    return at;                                                                                           \
  }
#define NJ_FILL(name, symbol)                                                                                \
  extern "C"                                                                                                 \
      __attribute__((visibility("hidden"))) void* normjit_##name(void*, int, unsigned long) __asm__(symbol); \
  extern "C"                                                                                                 \
      __attribute__((visibility("hidden"), used, noinline, no_sanitize("thread"))) void* normjit_##name(     \
          void* at, int byte, unsigned long bytes) {                                                         \
    NJ_SAW(bytes, true, false);                                                                              \
    auto* target = static_cast<volatile unsigned char*>(at);                                                 \
    for (unsigned long i = 0; i < bytes; ++i) target[i] = static_cast<unsigned char>(byte);                  \
    return at;                                                                                               \
  }
NJ_COPY(memcpy, "memcpy")
NJ_FILL(memset, "memset")
NJ_COPY(tsan_memcpy, "__tsan_memcpy")
NJ_FILL(tsan_memset, "__tsan_memset")

#undef NJ_COPY
#undef NJ_FILL
#undef NJ_HOOK
#undef NJ_HOOKS
#undef NJ_SAW
