// SPDX-License-Identifier: Apache-2.0
// Which accesses are ordered, and the state of each byte of memory that a kernel may access: whether it was
// written, which thread accessed it last, and whether a copy to it is unfinished.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace normjit::simt {

// Vector clocks. Each thread has its own time, and knows for every other thread up to which time that
// thread's accesses happened before. Only barriers, arrivals and waits spread this knowledge, whatever the
// order in which the threads really ran.
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

// A memory access of a CUDA thread or of the copy engine.
struct Access {
  Clocks::Thread thread = 0;
  Clocks::Time time = 0;
  const void* pc = nullptr;  // the return address of the call that reported it
  bool write = false;
  bool atomic = false;
};

// What an access conflicts with.
struct Conflict {
  enum class Kind { none, unwritten, pending, race } kind = Kind::none;
  Access earlier;                 // of a race
  const std::byte* at = nullptr;  // the first byte concerned
};

// The shadow of one piece of memory. Not thread-safe.
class Shadow {
 public:
  Shadow() = default;
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  // Starts over for this memory, in cells of `granule` bytes. `written`: all of it counts as written. The
  // kernel's code is within 4 GiB of `code`. False if there is no memory for the shadow.
  bool cover(const void* begin, std::size_t bytes, std::size_t granule, bool written, const void* code);

  bool holds(const void* at) const {
    const auto* byte = static_cast<const std::byte*>(at);
    return byte >= begin_ && byte < begin_ + bytes_;
  }

  // Records an access, which lies inside, and returns its conflict.
  Conflict record(const void* at, std::size_t bytes, const Access& access, const Clocks& clocks);
  // A copy to these bytes begins: they must not be accessed until land().
  void pend(const void* at, std::size_t bytes);
  // The copy has ended, and counts as this write.
  void land(const void* at, std::size_t bytes, const Access& as);
  // Makes these bytes unwritten and never accessed.
  void forget(const void* at, std::size_t bytes);

 private:
  struct Mark {
    Clocks::Thread thread = 0;
    Clocks::Time time = 0;   // 0: none
    std::uint32_t code = 0;  // how far its pc is from code_
  };
  // All zeros: never accessed.
  struct Cell {
    Mark write;
    Mark read[2];  // the last one, and another that is not ordered before it
    std::uint32_t generation = 0;
    bool pending = false, written = false, atomic_write = false;
  };

  struct Cells {
    Cell* first;
    std::size_t count;
    Cell* begin() const { return first; }
    Cell* end() const { return first + count; }
  };
  // The cells of these bytes; those from before cover() are cleared first.
  Cells cells(const void* at, std::size_t bytes) const;
  Mark mark(const Access& access) const;
  Access access(const Mark& mark, bool write) const;
  const std::byte* address(const Cell& cell) const;
  void release();

  const std::byte* begin_ = nullptr;
  std::size_t bytes_ = 0, granule_ = 1;
  bool written_ = false;
  const char* code_ = nullptr;
  Cell* cells_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::uint32_t generation_ = 0;
};

}  // namespace normjit::simt
