// SPDX-License-Identifier: Apache-2.0
#include "simt/signals.h"

#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <mutex>

#include "simt/execution.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace normjit::simt {
namespace {

const int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, kTimeIsUp};
struct sigaction g_before[std::size(kSignals)];

const void* instruction_of(const void* context) {
  const auto* machine = &static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return reinterpret_cast<const void*>(machine->gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<const void*>(machine->pc);
#else
  (void)machine;
  return nullptr;
#endif
}

void on_signal(int signal, siginfo_t* info, void* context) {
  // Returns only if the executor's own code was interrupted; else it leaves the fiber for good, and with it
  // the signal's stack. SA_NODEFER keeps the signal unblocked.
  if (Execution* execution = Execution::current())
    execution->on_signal(signal, info->si_addr, instruction_of(context));
  if (signal == kTimeIsUp) return;
  for (std::size_t i = 0; i < std::size(kSignals); ++i)
    if (kSignals[i] == signal)
      sigaction(signal, &g_before[i], nullptr);  // the fault recurs, for the handler before
}

void install() {
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &g_before[i]);
}

constexpr std::size_t kSignalStack = 64 << 10;

}  // namespace

SignalScope::SignalScope(std::chrono::milliseconds time_limit) {
  static std::once_flag once;
  std::call_once(once, install);
  // Not the fiber's stack, which may have overflowed.
  thread_local std::unique_ptr<std::array<std::byte, kSignalStack>> stack;
  if (!stack) stack = std::make_unique<std::array<std::byte, kSignalStack>>();
  stack_t own{};
  own.ss_sp = stack->data();
  own.ss_size = kSignalStack;
  sigaltstack(&own, &before_);

  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = kTimeIsUp;
  event.sigev_notify_thread_id = static_cast<pid_t>(syscall(SYS_gettid));
  has_timer_ = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_) == 0;
  itimerspec limit{};
  limit.it_value.tv_sec = time_limit.count() / 1000;
  limit.it_value.tv_nsec = time_limit.count() % 1000 * 1000000;
  limit.it_interval.tv_nsec = 100 * 1000000;  // repeated, in case the first was ignored
  if (has_timer_) timer_settime(timer_, 0, &limit, nullptr);
}

SignalScope::~SignalScope() {
  if (has_timer_) timer_delete(timer_);
  sigaltstack(&before_, nullptr);
}

}  // namespace normjit::simt
