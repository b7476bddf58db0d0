// SPDX-License-Identifier: Apache-2.0
// Threads of the library's own, which leave the host's signals alone.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace normjit {

// Runs body() on a detached thread that blocks all signals: a thread inherits the mask of the thread that
// starts it. False if the system starts no thread, or memory is exhausted. body() throws nothing.
template <class Body>
bool start_thread(Body&& body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    std::thread(std::forward<Body>(body)).detach();
  } catch (...) {  // std::system_error, std::bad_alloc
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace normjit
