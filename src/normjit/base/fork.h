// SPDX-License-Identifier: Apache-2.0
// Keeps locks and guarded state consistent across fork() and at process exit.
//
// fork() copies only the calling thread: a lock that another thread holds stays locked in the child forever,
// and the work of that thread is never finished there. So a fork takes every ForkSafe lock and waits until no
// thread is inside the ForkGate. The child can then do everything that its parent could. The handlers are
// registered when the library is loaded.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <memory>
#include <mutex>

namespace normjit {

// The number of forks between this process and the first one, plus 1. Unlike a process id it is never reused,
// so it distinguishes a child from its parent. Costs a load.
std::uint64_t fork_generation() noexcept;

// A std::shared_mutex that prefers writers, so that readers do not starve a fork: with 8 threads that read at
// full speed it waits 10 ms instead of 1 s. In exchange a thread must not lock it shared twice.
class WritersFirstMutex {
 public:
  void lock() noexcept { pthread_rwlock_wrlock(&lock_); }
  bool try_lock() noexcept { return pthread_rwlock_trywrlock(&lock_) == 0; }
  bool try_lock_until(const timespec& time) noexcept {
    return pthread_rwlock_timedwrlock(&lock_, &time) == 0;
  }
  void unlock() noexcept { pthread_rwlock_unlock(&lock_); }
  void lock_shared() noexcept { pthread_rwlock_rdlock(&lock_); }
  void unlock_shared() noexcept { pthread_rwlock_unlock(&lock_); }

 private:
  pthread_rwlock_t lock_ = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
};

// A lock that a fork takes.
class ForkLock {
 public:
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;

 protected:
  ForkLock() = default;
  ~ForkLock() = default;
  // Called by the most derived class, since a fork may come right after enlist() and right before withdraw().
  void enlist() noexcept;
  void withdraw() noexcept;

 private:
  friend struct ForkHandlers;
  virtual void take() noexcept = 0;
  virtual void give_back() noexcept = 0;
  virtual void renew() noexcept = 0;  // in the child, in place of give_back()

  ForkLock* next_ = nullptr;
  ForkLock* previous_ = nullptr;
};

// A mutex that is unlocked in a forked child, with consistent data behind it. Hold it for memory accesses
// only, since a fork waits for every holder: no other lock, no wait, no callback, no file or driver call, and
// no construction or destruction of a ForkSafe.
template <class Mutex>
class ForkSafe final : ForkLock {
 public:
  ForkSafe() noexcept { enlist(); }
  ~ForkSafe() { withdraw(); }

  void lock() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }
  void lock_shared() { mutex_.lock_shared(); }
  void unlock_shared() { mutex_.unlock_shared(); }

 private:
  void take() noexcept override { mutex_.lock(); }
  void give_back() noexcept override { mutex_.unlock(); }
  // Not by unlocking: a pthread_rwlock_t stores its writer's thread id, which differs in the child.
  void renew() noexcept override { std::construct_at(&mutex_); }

  Mutex mutex_;
};
using ForkMutex = ForkSafe<std::mutex>;
using ForkSharedMutex = ForkSafe<WritersFirstMutex>;

// A scope that neither a fork nor the end of the process interrupts, for calls of NVRTC and of the loader: a
// fork would copy their locks. A fork waits until all threads have left the gate, and no other thread enters
// meanwhile. Scopes nest within a thread. Inside, call no host code and do not wait for any.
class ForkGate {
 public:
  ForkGate() noexcept;
  ~ForkGate();
  ForkGate(const ForkGate&) = delete;
  ForkGate& operator=(const ForkGate&) = delete;

  // False once the process is exiting: the libraries are being torn down and must not be called.
  explicit operator bool() const noexcept { return open_; }

  // Registers an exit handler that closes the gate for good and waits up to 10 seconds for the threads
  // inside. It runs before every exit handler registered so far: call it inside the gate whenever a library
  // may have registered one. Costs a few bytes each time.
  static void close_at_exit() noexcept;

 private:
  bool open_;
};

}  // namespace normjit
