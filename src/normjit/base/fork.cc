// SPDX-License-Identifier: Apache-2.0
#include "normjit/base/fork.h"

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace normjit {
namespace {

constexpr int kSecondsForExit = 10;

// Constant-initialised and trivially destroyed: usable before the first constructor and after the last
// destructor.
constinit std::uint64_t g_generation = 1;  // written only in a child, by its only thread

constinit std::mutex g_list;
constinit ForkLock* g_first = nullptr;

constinit WritersFirstMutex g_gate;  // threads inside the ForkGate are its readers
constinit std::atomic<bool> g_exiting = false;
thread_local int t_passes = 0;

// Calls done() once no thread is inside the gate, or after kSecondsForExit.
template <class Done>
void when_all_are_out(const Done& done) {
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += kSecondsForExit;
  const bool out = t_passes == 0 && g_gate.try_lock_until(until);  // exit() may be called inside
  done();
  if (out) g_gate.unlock();
}

void close_gate() {
  g_exiting = true;
  when_all_are_out([] {});
}

// exit() destroys its thread's thread_local objects before it runs the first handler. This object of the main
// thread then registers our handler last, when no thread inside the gate can register another. NVRTC 13.0
// registers 3,331 handlers while it is opened; an exit in the middle of that, or of a first compile, crashed.
struct MainThreadEnds {
  ~MainThreadEnds() { when_all_are_out(ForkGate::close_at_exit); }
};

void watch_main_thread() {
  if (gettid() != getpid()) return;
  thread_local const MainThreadEnds t_end;
  static_cast<void>(t_end);
}

}  // namespace

std::uint64_t fork_generation() noexcept { return g_generation; }

struct ForkHandlers {
  // The gate comes first, because threads inside it take locks on their way out. A thread that forks inside
  // the gate gives up its own pass meanwhile.
  static void before() {
    if (t_passes > 0) g_gate.unlock_shared();
    g_gate.lock();
    g_list.lock();
    for (ForkLock* lock = g_first; lock != nullptr; lock = lock->next_) lock->take();
  }

  static void in_parent() {
    for (ForkLock* lock = g_first; lock != nullptr; lock = lock->next_) lock->give_back();
    g_list.unlock();
    g_gate.unlock();
    if (t_passes > 0) g_gate.lock_shared();
  }

  static void in_child() {
    ++g_generation;
    for (ForkLock* lock = g_first; lock != nullptr; lock = lock->next_) lock->renew();
    std::construct_at(&g_list);
    std::construct_at(&g_gate);
    g_exiting = false;  // the exit of another thread does not reach the child
    watch_main_thread();
    if (t_passes > 0) g_gate.lock_shared();
  }
};

namespace {
[[maybe_unused]] const int g_registered =
    (watch_main_thread(),
     pthread_atfork(ForkHandlers::before, ForkHandlers::in_parent, ForkHandlers::in_child));
}

void ForkLock::enlist() noexcept {
  const std::lock_guard lock(g_list);
  next_ = g_first;
  if (next_ != nullptr) next_->previous_ = this;
  g_first = this;
}

void ForkLock::withdraw() noexcept {
  const std::lock_guard lock(g_list);
  if (next_ != nullptr) next_->previous_ = previous_;
  (previous_ != nullptr ? previous_->next_ : g_first) = next_;
}

// g_exiting is read twice: before the lock, so that no thread waits for an exit to end, and inside, where the
// exit waits for this thread.
ForkGate::ForkGate() noexcept : open_(t_passes > 0 || !g_exiting) {
  if (open_ && t_passes == 0) {
    watch_main_thread();
    g_gate.lock_shared();
    open_ = !g_exiting;
    if (!open_) g_gate.unlock_shared();
  }
  t_passes += open_;
}

ForkGate::~ForkGate() {
  t_passes -= open_;
  if (open_ && t_passes == 0) g_gate.unlock_shared();
}

void ForkGate::close_at_exit() noexcept {
  std::atexit(close_gate);  // the last one registered runs first
}

}  // namespace normjit
