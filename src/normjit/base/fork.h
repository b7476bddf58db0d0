// What a fork, and the end of the process, must find in order.
//
// A fork copies one thread. A lock that another thread held stays held in the child for good, and what it was
// in the middle of is never ended there. So a fork takes every ForkSafe lock and waits until nobody is behind
// the ForkGate; then the child can do whatever its parent could. Handlers for this are registered when the
// library is loaded.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <memory>
#include <mutex>

namespace normjit {

// Which process of a line of forks this is: 1 in the first, in a child one more than in its parent. Unlike a
// process id it never comes again. What is bound to a process remembers it. Costs a load.
std::uint64_t fork_generation() noexcept;

// A std::shared_mutex where readers do not overtake a writer who waits, so that a fork need not wait for a
// gap between them: with 8 threads reading at full speed it came after 1 s, here after 10 ms. In exchange a
// thread must not read twice at once.
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

// A lock in the list of those that a fork takes.
class ForkLock {
 public:
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;

 protected:
  ForkLock() = default;
  ~ForkLock() = default;
  // By the most derived class: a fork may come right behind the first and right before the second.
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

// A mutex that is free in a forked child, with what it guards whole. In exchange it
// must be a leaf: nothing else is locked, made ForkSafe or destroyed, waited for, called back, read from a
// file or asked of a driver while it is held, for a fork waits for every holder.
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
  // Unlocking would not do: a pthread_rwlock_t knows its writer by a thread id, which is another here.
  void renew() noexcept override { std::construct_at(&mutex_); }

  Mutex mutex_;
};
using ForkMutex = ForkSafe<std::mutex>;
using ForkSharedMutex = ForkSafe<WritersFirstMutex>;

// A pass for code that neither a fork nor the end of the process may cut in two: calls of NVRTC, and of the
// loader, whose own locks a fork would copy. A fork waits until all have left, and lets nobody in meanwhile.
// A thread that has a pass gets more at once. Behind the gate nothing of the host is called or waited for.
class ForkGate {
 public:
  ForkGate() noexcept;
  ~ForkGate();
  ForkGate(const ForkGate&) = delete;
  ForkGate& operator=(const ForkGate&) = delete;

  // False once the process is exiting: what the gate protects is about to be torn down and must not be begun.
  explicit operator bool() const noexcept { return open_; }

  // Makes the end of the process close the gate for good, and wait up to 10 seconds for those behind it,
  // before it runs any exit handler that is registered by now. To be called behind the gate whenever a
  // library may have registered one; costs a few bytes each time.
  static void close_at_exit() noexcept;

 private:
  bool open_;
};

}  // namespace normjit
