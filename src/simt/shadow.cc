#include "simt/shadow.h"

#include <sys/mman.h>

#include <algorithm>

namespace normjit::simt {

Shadow::~Shadow() { release(); }

void Shadow::release() {
  if (cells_ != nullptr) munmap(cells_, mapped_bytes_);
  cells_ = nullptr;
}

bool Shadow::cover(const void* begin, std::size_t bytes, std::size_t granule, bool written) {
  begin_ = static_cast<const std::byte*>(begin);
  bytes_ = bytes;
  granule_ = granule;
  written_ = written;
  release();
  // Mapped memory is zero, and costs nothing where it is never touched.
  mapped_bytes_ = (bytes / granule + 2) * sizeof(Cell);
  void* mapped = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return false;
  cells_ = static_cast<Cell*>(mapped);
  return true;
}

Shadow::Cell* Shadow::cells(const void* at, std::size_t bytes, std::size_t& count) const {
  const std::size_t first = static_cast<std::size_t>(static_cast<const std::byte*>(at) - begin_);
  count = (first + bytes - 1) / granule_ - first / granule_ + 1;
  return cells_ + first / granule_;
}

Conflict Shadow::record(const void* at, std::size_t bytes, const Access& access, const Clocks& clocks) {
  std::size_t count;
  Cell* const first = cells(at, bytes, count);
  const Mark mark{access.thread, access.time, access.pc};
  Conflict conflict;
  const auto found = [&](Conflict::Kind kind, const Cell& cell, const Mark& earlier, bool write) {
    const auto* byte = begin_ + (&cell - cells_) * static_cast<std::ptrdiff_t>(granule_);
    conflict = {kind,
                {earlier.thread, earlier.time, earlier.pc, write, false},
                std::max(byte, static_cast<const std::byte*>(at))};
    return conflict;
  };
  const auto unordered = [&](const Mark& mark) {
    return mark.time != 0 && !clocks.ordered(mark.thread, mark.time, access.thread);
  };
  for (Cell* cell = first; cell != first + count; ++cell) {
    if (cell->pending) return found(Conflict::Kind::pending, *cell, cell->write, true);
    if (!access.write && !cell->written && !written_)
      return found(Conflict::Kind::unwritten, *cell, {}, false);
    if (unordered(cell->write) && !(access.atomic && cell->atomic_write))
      return found(Conflict::Kind::race, *cell, cell->write, true);
    if (!access.write || access.atomic) {
      if (cell->read[0].time != 0 && cell->read[0].thread != access.thread && unordered(cell->read[0]))
        cell->read[1] = cell->read[0];
      cell->read[0] = mark;
      if (!access.write) continue;
    } else {
      for (const Mark& read : cell->read)
        if (unordered(read)) return found(Conflict::Kind::race, *cell, read, false);
      cell->read[0] = cell->read[1] = {};
    }
    cell->write = mark;
    cell->written = true;
    cell->atomic_write = access.atomic;
  }
  return conflict;
}

void Shadow::pend(const void* at, std::size_t bytes) {
  std::size_t count;
  Cell* const first = cells(at, bytes, count);
  for (Cell* cell = first; cell != first + count; ++cell) cell->pending = true;
}

void Shadow::land(const void* at, std::size_t bytes, const Access& as) {
  std::size_t count;
  Cell* const first = cells(at, bytes, count);
  for (Cell* cell = first; cell != first + count; ++cell) {
    *cell = {};
    cell->write = {as.thread, as.time, as.pc};
    cell->written = true;
  }
}

const std::byte* Shadow::first_unready(const void* at, std::size_t bytes, const Clocks::Time* ready,
                                       std::size_t threads, Access& writer) const {
  std::size_t count;
  const Cell* const first = cells(at, bytes, count);
  for (const Cell* cell = first; cell != first + count; ++cell)
    if (const Mark& mark = cell->write;
        mark.time != 0 && mark.thread < threads && ready[mark.thread] < mark.time) {
      writer = {mark.thread, mark.time, mark.pc, true, false};
      return begin_ + (cell - cells_) * static_cast<std::ptrdiff_t>(granule_);
    }
  return nullptr;
}

void Shadow::forget(const void* at, std::size_t bytes) {
  if (bytes == 0) return;
  std::size_t count;
  Cell* const first = cells(at, bytes, count);
  std::fill(first, first + count, Cell{});
}

}  // namespace normjit::simt
