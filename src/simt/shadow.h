// What is known of each byte of memory that a kernel may touch: whether it was written, who accessed it last,
// and whether a copy is still on its way there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "simt/clocks.h"

namespace normjit::simt {

// A memory access of a CUDA thread, or of a copy in its name.
struct Access {
  Clocks::Thread thread = 0;
  Clocks::Time time = 0;
  const void* pc = nullptr;  // behind the call that it was reported by
  bool write = false;
  bool atomic = false;
};

// How two accesses of the same memory got into each other's way.
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

  // Starts over for this memory, of which every `granule` bytes share a cell. `written`: all of it counts as
  // written before. The kernel's code is within 4 GiB of `code`. False if there is no memory for the shadow.
  bool cover(const void* begin, std::size_t bytes, std::size_t granule, bool written, const void* code);

  bool holds(const void* at) const {
    const auto* byte = static_cast<const std::byte*>(at);
    return byte >= begin_ && byte < begin_ + bytes_;
  }

  // Records an access, all of which lies inside, and says what it conflicts with.
  Conflict record(const void* at, std::size_t bytes, const Access& access, const Clocks& clocks);
  // From now on a copy is under way to these bytes: nobody may touch them.
  void pend(const void* at, std::size_t bytes);
  // The copy has arrived, and counts as this write.
  void land(const void* at, std::size_t bytes, const Access& as);
  // Nobody has written these bytes, and nobody accessed them.
  void forget(const void* at, std::size_t bytes);

 private:
  struct Mark {
    Clocks::Thread thread = 0;
    Clocks::Time time = 0;   // 0: none
    std::uint32_t code = 0;  // how far its pc is from code_
  };
  // All zeros: nobody has accessed it.
  struct Cell {
    Mark write;
    Mark read[2];  // the last one, and one that is not ordered before it
    std::uint32_t generation = 0;
    bool pending = false, written = false, atomic_write = false;
  };

  struct Cells {
    Cell* first;
    std::size_t count;
    Cell* begin() const { return first; }
    Cell* end() const { return first + count; }
  };
  // Those of these bytes, each begun anew if it was last used before cover().
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
