// SPDX-License-Identifier: Apache-2.0
// Which accesses are ordered: vector clocks. Each thread has its own time, and knows for every other thread
// up to which time that thread's accesses happened before. Only barriers, arrivals and waits spread this
// knowledge, whatever the order in which the threads really ran.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace normjit::simt {

class Clocks {
 public:
  using Thread = std::uint32_t;
  using Time = std::uint32_t;
  // What a publication hands over: a time of each thread. Null: nothing.
  using Knowledge = std::shared_ptr<const std::vector<Time>>;

  // Starts over, with so many threads; times begin at 1.
  void reset(std::size_t threads);
  // Reuses the number for a new thread, which is not ordered after the old one.
  void begin(Thread thread);

  Time now(Thread thread) const { return threads_[thread].own; }
  // Whether what `who` did at `when` happened before what `observer` does now.
  bool ordered(Thread who, Time when, Thread observer) const {
    const State& state = threads_[observer];
    return (who == observer && when >= state.begun) || (state.known && (*state.known)[who] >= when);
  }

  // Adds what a thread knows, its own time included, to `to`.
  void release(Thread thread, Knowledge& to);
  void acquire(Thread thread, const Knowledge& from);
  void merge(Knowledge& into, const Knowledge& from) const { into = merged(into, from); }
  // A barrier of these threads: afterwards each knows what any of them knew.
  void meet(std::span<const Thread> threads);
  // A helper does one thing for `thread`, now: a copy. Adds what both know to `knowledge`; returns the time
  // of the helper.
  Time send(Thread thread, Thread helper, Knowledge& knowledge);

 private:
  struct State {
    Knowledge known;  // without its own entry
    Time own = 1, begun = 1;
  };
  std::shared_ptr<std::vector<Time>> copied(const Knowledge& known) const;
  Knowledge merged(const Knowledge& a, const Knowledge& b) const;

  std::vector<State> threads_;
};

}  // namespace normjit::simt
