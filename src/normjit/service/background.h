// Work that nobody waits for: compiles of the lazy mode.
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

// A few threads, which exist only while there is something to do, block all signals and do nothing but the
// jobs. Thread-safe. In a forked child no job of its parent is under way, and what it had not done is
// forgotten: whoever asks again starts it again.
class Background {
 public:
  // So many threads at most; 0: half as many as the machine has cores, and no more than 4.
  explicit Background(int most_threads = 0) : state_(std::make_shared<State>(most_threads)) {}
  // Drops what has not begun, and waits for what has.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  using Work = std::function<bool()>;  // whether it went well
  // The job of this key: the one that waits or has failed, else a new one. Lives as long as this object. Null
  // where no thread can be started.
  const Job* start(const std::string& key, Work work);
  // The newest job of a key in this process, or null.
  const Job* find(const std::string& key) const;
  // Returns when there is nothing left to do.
  void wait();

 private:
  struct Task {
    Job* job;
    Work work;
  };
  // Shared with the threads, which may be in their last steps when the rest is gone.
  struct State {
    explicit State(int most) : most_threads(most) {}
    std::atomic<int> most_threads;  // 0: not known yet
    ForkMutex mutex;                // for all below
    std::condition_variable_any changed;
    std::deque<Task> queue;
    int threads = 0, busy = 0;
    std::uint64_t generation = fork_generation();
  };

  // In a forked child: a state without its parent's threads and tasks. `lock` holds the mutex.
  void renew_after_fork() const;
  int most_threads() const;
  static void run(const std::shared_ptr<State>& state);
  static bool start_thread(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
  // Guarded by the state's mutex. Jobs that were replaced stay, for somebody may look at them.
  mutable std::deque<Job> jobs_;
  mutable std::map<std::string, Job*> newest_;
};

}  // namespace normjit
