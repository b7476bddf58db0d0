// SPDX-License-Identifier: Apache-2.0
// The state of each byte of memory that a kernel may access: whether it was written, which thread accessed it
// last, and whether a copy to it is unfinished.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "simt/clocks.h"

namespace normjit::simt {

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
