// Which accesses are ordered: vector clocks. Each thread has a time of its own and knows, of every other
// thread, up to which time that one's accesses lie behind it. Barriers, arrivals and waits spread the
// knowledge; nothing else orders anything, however it happened to run.
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
  // What is known when something has been published; empty: nothing.
  using Knowledge = std::shared_ptr<const std::vector<Time>>;

  // Forgets all; times begin at 1.
  void reset(std::size_t threads);
  // Somebody new goes by this number, who knows nothing of what was done under it before.
  void begin(Thread thread);

  Time now(Thread thread) const { return threads_[thread].own; }
  // Whether what `who` did at `when` lies behind `observer`.
  bool ordered(Thread who, Time when, Thread observer) const {
    const State& state = threads_[observer];
    return (who == observer && when >= state.begun) || (state.known && (*state.known)[who] >= when);
  }

  // Adds what a thread knows, itself included, to `to`.
  void release(Thread thread, Knowledge& to);
  void acquire(Thread thread, const Knowledge& from);
  void merge(Knowledge& into, const Knowledge& from) const { into = merged(into, from); }
  // A barrier of these threads: afterwards each knows what any of them knew.
  void meet(std::span<const Thread> threads);
  // What a helper of `thread` knows that does one thing for it, now: a copy. Its time, of its own, is the
  // result.
  Time send(Thread thread, Thread helper, Knowledge& knowledge);

 private:
  struct State {
    Knowledge known;  // its own entry is not up to date
    Time own = 1, begun = 1;
  };
  std::shared_ptr<std::vector<Time>> copied(const Knowledge& known) const;
  Knowledge merged(const Knowledge& a, const Knowledge& b) const;

  std::vector<State> threads_;
};

}  // namespace normjit::simt
