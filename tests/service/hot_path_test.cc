// SPDX-License-Identifier: Apache-2.0
// What a launch does not do: allocate, or take a lock. Both are counted in the whole program, for each
// thread.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "normjit/driver/cuda_driver.h"
#include "normjit/service.h"
#include "tests/support/counting_cuda.h"
#include "tests/support/fake_compiler.h"

namespace {

constinit thread_local int t_allocations = 0, t_locks = 0;

void* counted(void* memory) {
  ++t_allocations;
  return memory != nullptr ? memory : throw std::bad_alloc();
}

// The function of this name behind the one here.
template <class Lock>
int next(const char* name, std::atomic<int (*)(Lock*)>& found, Lock* lock) {
  ++t_locks;
  if (found == nullptr) found = reinterpret_cast<int (*)(Lock*)>(::dlsym(RTLD_NEXT, name));
  return found.load()(lock);
}

}  // namespace

// Never inlined, or the compiler sees free() take what new has given.
[[gnu::noinline]] void* operator new(std::size_t bytes) { return counted(std::malloc(bytes)); }
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto to = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(to, (bytes + to - 1) / to * to));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

extern "C" {
int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static constinit std::atomic<int (*)(pthread_mutex_t*)> found = nullptr;
  return next("pthread_mutex_lock", found, mutex);
}
int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  static constinit std::atomic<int (*)(pthread_rwlock_t*)> found = nullptr;
  return next("pthread_rwlock_rdlock", found, lock);
}
int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  static constinit std::atomic<int (*)(pthread_rwlock_t*)> found = nullptr;
  return next("pthread_rwlock_wrlock", found, lock);
}
}

namespace normjit::testing {
namespace {

void* memory(std::uintptr_t number) { return reinterpret_cast<void*>(number << 30); }

TEST(HotPath, ALaunchAllocatesNothingAndTakesNoLock) {
  Service service(Options{}, {.compiler = std::make_shared<FakeCompiler>(),
                              .driver = std::make_shared<CudaDriver>(counting_cuda),
                              .files = {},
                              .embedded = ""});
  const Tensors tensors{.x = memory(1), .y = memory(2), .rows = 200, .workspace = memory(3)};
  for (const std::int64_t columns : {64, 5000, 300001, 1 << 20}) {
    const NormSpec spec{.columns = columns};
    int allocations = t_allocations, locks = t_locks;
    const Kernel kernel = service.prepare(spec).value();
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(service.layer_norm(spec, tensors, nullptr).ok());
    EXPECT_GT(t_allocations, allocations) << "or nothing is counted";
    EXPECT_GT(t_locks, locks);

    allocations = t_allocations, locks = t_locks;
    int failed = 0;
    for (int i = 0; i < 1000; ++i) {
      failed += !kernel.launch(tensors, nullptr, {.overlap_previous = i % 2 == 0}).ok();
      failed += !service.layer_norm(spec, tensors, nullptr).ok();
    }
    EXPECT_EQ(t_allocations, allocations);
    EXPECT_EQ(t_locks, locks);
    EXPECT_EQ(failed, 0);
  }
}

}  // namespace
}  // namespace normjit::testing
