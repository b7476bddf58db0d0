// SPDX-License-Identifier: Apache-2.0
// Faults of the processor, and the time limit, while a launch runs on the calling thread.
#pragma once

#include <signal.h>
#include <time.h>

#include <chrono>

namespace normjit::simt {

// Delivered when a launch has used up its processor time.
inline const int kTimeIsUp = SIGVTALRM;

// During its lifetime SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE and kTimeIsUp of this thread go to
// Execution::current(). Other threads' signals go to the handlers before.
class SignalScope {
 public:
  explicit SignalScope(std::chrono::milliseconds time_limit);
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

 private:
  stack_t before_{};
  timer_t timer_{};
  bool has_timer_ = false;
};

}  // namespace normjit::simt
