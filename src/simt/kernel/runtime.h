// SPDX-License-Identifier: Apache-2.0
// The interface between a kernel that is compiled for the CPU and the executor. The first part of each such
// translation unit, and included by the executor; it has no includes.
#pragma once

namespace normjit::simt {

// A place in the kernel text.
struct Place {
  const char* file;
  int line;
};

// The indices of CUDA, which have one dimension here.
struct Index {
  unsigned x;
};
struct Thread {
  Index thread, block, block_size, grid;
};

// The size and alignment of every fiber's stack, so that a comparison tells whether an address is on it.
constexpr unsigned long kStackBytes = 64 << 10;

// The kernel's calls of the executor, for the running CUDA thread. Each may switch to another thread, and
// does not return after a fault.
struct Runtime {
  const Thread* (*self)();

  // Called before an access. `aligned`: it must be a multiple of its size.
  void (*access)(const void* at, unsigned long bytes, bool write, bool aligned, const void* pc);
  void (*misaligned)(const void* at, unsigned long bytes, const void* pc);

  // Shared memory of the block: one variable for each key, and the launch's dynamic memory.
  void* (*shared)(const void* key, unsigned long bytes, unsigned long alignment, Place);
  void* (*dynamic_shared)(Place);

  unsigned (*lane)();
  unsigned long long (*shuffle)(unsigned long long bits, unsigned from_lane, unsigned members, Place);
  void (*warp_barrier)(unsigned members, Place);
  void (*block_barrier)(Place);

  // Adds to a counter in global memory and returns what it was; `ordered`: with acquire and release.
  unsigned long long (*add)(unsigned long long* counter, unsigned long long n, bool ordered, const void* pc);
  // Raises a number in global memory to a value if it is less; orders nothing.
  void (*raise)(unsigned long long* number, unsigned long long value, const void* pc);
  void (*wait_until)(const unsigned long long* counter, unsigned long long value, Place, const void* pc);
  // Waits until the upper half of the number is the tag, and returns the number; orders nothing.
  unsigned long long (*gather)(const unsigned long long* publish, unsigned tag, Place, const void* pc);

  void (*copy_async)(void* shared, const void* global, int bytes, const void* pc);
  void (*copies_commit)();
  void (*copies_wait)(int left);

  void (*barrier_init)(unsigned long long* barrier, int arrivals, const void* pc);
  void (*barriers_ready)();
  void (*barrier_arrive)(unsigned long long* barrier, int bytes, Place);
  void (*barrier_wait)(unsigned long long* barrier, unsigned phase, Place);
  void (*bulk_load)(void* shared, const void* global, int bytes, unsigned long long* barrier, Place,
                    const void* pc);

  void (*cluster_enter)(Place);
  void (*cluster_entered)(Place);
  // Writes to another block's copy of the place, and counts the bytes at its copy of the barrier.
  void (*send)(void* shared, const void* value, int bytes, unsigned long long* barrier, int rank, Place,
               const void* pc);
  void (*wait_for_previous_launch)();
};

// What a module exports as normjit_simt_module.
struct ModuleTable {
  Runtime* runtime;                          // the executor fills it in before the first launch
  void (*const* kernels)(void** arguments);  // in the order of the sources
};

#ifdef NJ_HOST  // in a module
// One object under two names: constant for the kernels, so that the compiler does not report reads of it as
// their accesses.
extern const Runtime runtime __asm__("normjit_simt_runtime") __attribute__((visibility("hidden")));
extern Runtime bound_runtime __asm__("normjit_simt_runtime") __attribute__((visibility("hidden")));
Runtime bound_runtime;

// Takes the arguments as cuLaunchKernel does.
template <unsigned... kIndex>
struct Indices {};
template <unsigned kCount, unsigned... kIndex>
struct UpTo : UpTo<kCount - 1, kCount - 1, kIndex...> {};
template <unsigned... kIndex>
struct UpTo<0, kIndex...> {
  using Type = Indices<kIndex...>;
};
// An argument, brought to the stack byte by byte: to pass a large one by value compilers call memcpy, which
// is checked, and the caller's memory is no buffer of the launch.
template <class A>
union Argument {
  A value;
  unsigned char bytes[sizeof(A)];

  __attribute__((no_sanitize("thread"), no_sanitize("address"))) explicit Argument(const void* from) {
    const auto* source = static_cast<const volatile unsigned char*>(from);
    auto* target = static_cast<volatile unsigned char*>(bytes);
    for (unsigned long i = 0; i < sizeof(A); ++i) target[i] = source[i];
  }
};
template <class... A, unsigned... kIndex>
__attribute__((no_sanitize("thread"), no_sanitize("address"))) static void call(void (*kernel)(A...),
                                                                                void** arguments,
                                                                                Indices<kIndex...>) {
  kernel(Argument<A>(arguments[kIndex]).value...);
}
template <class... A>
constexpr unsigned count_of(void (*)(A...)) {
  return sizeof...(A);
}
template <auto kKernel>
__attribute__((no_sanitize("thread"), no_sanitize("address"))) static void enter(void** arguments) {
  call(kKernel, arguments, typename UpTo<count_of(kKernel)>::Type{});
}
#endif

}  // namespace normjit::simt
