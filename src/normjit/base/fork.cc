#include "normjit/base/fork.h"

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace normjit {
namespace {

constexpr int kSecondsForExit = 10;

// All of this is there before the first constructor runs and after the last destructor.
constinit std::uint64_t g_generation = 1;  // written by a child's only thread

constinit std::mutex g_list;
constinit ForkLock* g_first = nullptr;

constinit WritersFirstMutex g_gate;  // those behind it are its readers
constinit std::atomic<bool> g_exiting = false;
thread_local int t_passes = 0;

// Calls done() when nobody is behind the gate, or has been asked to wait for long enough.
template <class Done>
void when_all_are_out(const Done& done) {
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += kSecondsForExit;
  const bool out = t_passes == 0 && g_gate.try_lock_until(until);  // exit() may be called behind the gate
  done();
  if (out) g_gate.unlock();
}

void close_gate() {
  g_exiting = true;
  when_all_are_out([] {});
}

// exit() destroys its thread's thread_local objects before it runs the first handler. In the main thread this
// one puts our handler on top at a moment when nobody behind the gate can put another over it: NVRTC 13.0
// registers 3,331 while it is opened, and an exit in the middle of them, or of a first compile, crashed.
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
  // The gate first: those behind it take locks on their way out. Who forks behind the gate is no obstacle to
  // itself.
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
    g_exiting = false;  // another thread's exit is none of the child
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

// Asked twice: before, so that nobody waits behind an exit, and behind the gate, where the exit waits for us.
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
  std::atexit(close_gate);  // what is registered last runs first
}

}  // namespace normjit
