// SPDX-License-Identifier: Apache-2.0
// Jobs that run while their callers go on: the compiles of the lazy mode.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "normjit/base/fork.h"

namespace normjit {

struct Job {
  enum class State : std::uint8_t { waiting, done, failed };
  std::atomic<State> state = State::waiting;
};

// A few threads that run jobs, exist only while there are any, and block all signals. Thread-safe. A forked
// child has none of its parent's jobs that are not done, and starts them again when they are asked for.
class Background {
 public:
  // At most so many threads; 0: half as many as the machine has cores, and no more than 4.
  explicit Background(int most_threads = 0) : state_(std::make_shared<State>(most_threads)) {}
  // Drops jobs that have not begun, and waits for the others.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  using Work = std::function<bool()>;  // whether it succeeded
  // The job of this key: the one that is waiting or has failed, else a new one. Lives as long as this object.
  // Null if no thread can be started.
  const Job* start(const std::string& key, Work work);
  // The newest job of a key in this process, or null.
  const Job* find(const std::string& key) const;
  // Returns when no job is left.
  void wait();

 private:
  struct Task {
    Job* job;
    Work work;
  };
  // Shared with the threads, which may end after the Background is gone.
  struct State {
    explicit State(int most) : most_threads(most) {}
    std::atomic<int> most_threads;  // 0: not known yet
    ForkMutex mutex;                // guards all below
    std::condition_variable_any changed;
    std::deque<Task> queue;
    int threads = 0;
    std::uint64_t generation = fork_generation();
  };

  // In a forked child: a state without its parent's threads and tasks. `lock` holds the mutex.
  void renew_after_fork() const;
  int most_threads() const;
  static void run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
  // Guarded by the state's mutex. A job stays after a newer one: callers may still hold it.
  mutable std::deque<Job> jobs_;
  mutable std::map<std::string, Job*> newest_;
};

}  // namespace normjit
