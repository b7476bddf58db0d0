// SPDX-License-Identifier: Apache-2.0
// Forked children that a test runs code in.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <new>
#include <string>

#include "tests/support/sanitizers.h"

// The fork of a process that has threads leaves a sanitizer's own locks locked: those of AddressSanitizer's
// allocator, and all of ThreadSanitizer.
#if defined(NORMJIT_THREAD_SANITIZER) || defined(NORMJIT_ADDRESS_SANITIZER)
#define NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED() \
  GTEST_SKIP() << "The sanitizer does not survive the fork of a process that has threads."
#else
#define NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED() static_cast<void>(0)
#endif

namespace normjit::testing {

enum class Ending { immediate, exit_handlers };

// Starts a child that runs body() -> bool and ends with status 0 if that is true; by _exit, or by exit, which
// runs exit handlers. A child that is not done after so many seconds is killed.
template <class Body>
pid_t start_child(const Body& body, Ending ending = Ending::immediate, unsigned seconds = 20) {
  std::fflush(nullptr);  // else every child could repeat what is still in the buffers
  const pid_t child = ::fork();
  if (child != 0) return child;
  std::signal(SIGALRM, SIG_DFL);
  ::alarm(seconds);
  const int status = body() ? 0 : 1;
  if (ending == Ending::exit_handlers) std::exit(status);
  ::_exit(status);
}

// Waits for a child: "done", "failed", "hung", or what signal has ended it.
inline std::string outcome_of(pid_t child) {
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return "not started";
  if (WIFSIGNALED(status))
    return WTERMSIG(status) == SIGALRM ? "hung" : "signal " + std::to_string(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "done" : "failed";
}

template <class Body>
std::string outcome_in_child(const Body& body, Ending ending = Ending::immediate) {
  return outcome_of(start_child(body, ending));
}

// Forks so many children, some of them at once, each for body(i) -> bool. How many of them are done; each of
// the others is a failure of the test.
template <class Body>
int done_children(int children, std::size_t at_once, const Body& body) {
  int done = 0;
  std::deque<pid_t> running;
  const auto reap = [&] {
    const std::string outcome = outcome_of(running.front());
    running.pop_front();
    if (outcome == "done")
      ++done;
    else
      ADD_FAILURE() << outcome;
  };
  for (int i = 0; i < children; ++i) {
    if (running.size() == at_once) reap();
    running.push_back(start_child([&] { return body(i); }));
  }
  while (!running.empty()) reap();
  return done;
}

// A T that the children forked from now on share with this process.
template <class T>
class Shared {
 public:
  Shared()
      : value_(new (::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                   T{}) {}
  ~Shared() { ::munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

}  // namespace normjit::testing
