// SPDX-License-Identifier: Apache-2.0
#include "simt/shadow.h"

#include <sys/mman.h>

#include <algorithm>
#include <vector>

namespace normjit::simt {

void Clocks::reset(std::size_t threads) { threads_.assign(threads, State{}); }

void Clocks::begin(Thread thread) {
  State& state = threads_[thread];
  state.known = nullptr;
  state.begun = ++state.own;
}

std::shared_ptr<std::vector<Clocks::Time>> Clocks::copied(const Knowledge& known) const {
  return known ? std::make_shared<std::vector<Time>>(*known)
               : std::make_shared<std::vector<Time>>(threads_.size(), 0);
}

Clocks::Knowledge Clocks::merged(const Knowledge& a, const Knowledge& b) const {
  if (!a || a == b) return b;
  if (!b) return a;
  const auto all = copied(a);
  for (std::size_t i = 0; i < all->size(); ++i) (*all)[i] = std::max((*all)[i], (*b)[i]);
  return all;
}

void Clocks::release(Thread thread, Knowledge& to) {
  State& state = threads_[thread];
  const auto all = copied(merged(to, state.known));
  (*all)[thread] = std::max((*all)[thread], state.own++);
  to = all;
}

void Clocks::acquire(Thread thread, const Knowledge& from) {
  threads_[thread].known = merged(threads_[thread].known, from);
}

// Threads that met before share what they know, so that there is little to merge.
void Clocks::meet(std::span<const Thread> threads) {
  Knowledge known, last;
  for (const Thread thread : threads) {
    const Knowledge& one = threads_[thread].known;
    if (one == last) continue;
    known = merged(known, one);
    last = one;
  }
  const auto all = copied(known);
  for (const Thread thread : threads) (*all)[thread] = std::max((*all)[thread], threads_[thread].own++);
  const Knowledge shared = all;
  for (const Thread thread : threads) threads_[thread].known = shared;
}

Clocks::Time Clocks::send(Thread thread, Thread helper, Knowledge& knowledge) {
  release(thread, knowledge);
  const Time when = threads_[helper].own++;
  const auto all = copied(knowledge);
  (*all)[helper] = when;
  knowledge = all;
  threads_[helper].known = merged(threads_[helper].known, knowledge);
  return when;
}

namespace {

// Mappings for reuse: making one takes longer than most kernels run. Cells of an earlier generation count as
// zero, so that none need be cleared.
struct Spare {
  void* mapped;
  std::size_t bytes;
};
class Spares {
 public:
  ~Spares() {
    for (const Spare& spare : spares_) munmap(spare.mapped, spare.bytes);
  }
  // At least so many bytes, or null.
  void* take(std::size_t& bytes) {
    const auto enough = [&](const Spare& spare) { return spare.bytes >= bytes; };
    if (const auto found = std::find_if(spares_.begin(), spares_.end(), enough); found != spares_.end()) {
      const Spare spare = *found;
      spares_.erase(found);
      bytes = spare.bytes;
      return spare.mapped;
    }
    void* mapped =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return mapped == MAP_FAILED ? nullptr : mapped;
  }
  void give(void* mapped, std::size_t bytes) {
    constexpr std::size_t kMost = 16, kLargest = 64 << 20;
    if (bytes <= kLargest)
      spares_.push_back({mapped, bytes});
    else
      munmap(mapped, bytes);
    if (spares_.size() <= kMost) return;
    munmap(spares_.front().mapped, spares_.front().bytes);
    spares_.erase(spares_.begin());
  }

 private:
  std::vector<Spare> spares_;
};
thread_local Spares t_spares;
thread_local std::uint32_t t_generation = 0;

}  // namespace

Shadow::~Shadow() { release(); }

void Shadow::release() {
  if (cells_ != nullptr) t_spares.give(cells_, mapped_bytes_);
  cells_ = nullptr;
}

bool Shadow::cover(const void* begin, std::size_t bytes, std::size_t granule, bool written,
                   const void* code) {
  release();
  begin_ = static_cast<const std::byte*>(begin);
  bytes_ = bytes;
  granule_ = granule;
  written_ = written;
  code_ = static_cast<const char*>(code);
  generation_ = ++t_generation;
  mapped_bytes_ = (bytes / granule + 2) * sizeof(Cell);
  cells_ = static_cast<Cell*>(t_spares.take(mapped_bytes_));
  return cells_ != nullptr;
}

Shadow::Cells Shadow::cells(const void* at, std::size_t bytes) const {
  const auto first = static_cast<std::size_t>(static_cast<const std::byte*>(at) - begin_);
  const Cells cells{cells_ + first / granule_, (first + bytes - 1) / granule_ - first / granule_ + 1};
  for (Cell& cell : cells)
    if (cell.generation != generation_) {
      cell = {};
      cell.generation = generation_;
    }
  return cells;
}

Shadow::Mark Shadow::mark(const Access& access) const {
  return {access.thread, access.time,
          static_cast<std::uint32_t>(static_cast<const char*>(access.pc) - code_)};
}

Access Shadow::access(const Mark& mark, bool write) const {
  return {mark.thread, mark.time, code_ + mark.code, write, false};
}

const std::byte* Shadow::address(const Cell& cell) const {
  return begin_ + (&cell - cells_) * static_cast<std::ptrdiff_t>(granule_);
}

Conflict Shadow::record(const void* at, std::size_t bytes, const Access& access, const Clocks& clocks) {
  const Mark own = mark(access);
  const auto conflict = [&](Conflict::Kind kind, const Cell& cell, const Mark& earlier, bool write) {
    return Conflict{kind, this->access(earlier, write),
                    std::max(address(cell), static_cast<const std::byte*>(at))};
  };
  const auto unordered = [&](const Mark& mark) {
    return mark.time != 0 && !clocks.ordered(mark.thread, mark.time, access.thread);
  };
  for (Cell& cell : cells(at, bytes)) {
    if (cell.pending) return conflict(Conflict::Kind::pending, cell, cell.write, true);
    if (!access.write && !cell.written && !written_)
      return conflict(Conflict::Kind::unwritten, cell, {}, false);
    if (unordered(cell.write) && !(access.atomic && cell.atomic_write))
      return conflict(Conflict::Kind::race, cell, cell.write, true);
    if (!access.write) {
      if (access.atomic) continue;  // does not conflict with atomic writes
      if (unordered(cell.read[0])) cell.read[1] = cell.read[0];
      cell.read[0] = own;
      continue;
    }
    for (const Mark& read : cell.read)
      if (unordered(read)) return conflict(Conflict::Kind::race, cell, read, false);
    cell.read[0] = cell.read[1] = {};
    cell.write = own;
    cell.written = true;
    cell.atomic_write = access.atomic;
  }
  return {};
}

void Shadow::pend(const void* at, std::size_t bytes) {
  for (Cell& cell : cells(at, bytes)) cell.pending = true;
}

void Shadow::land(const void* at, std::size_t bytes, const Access& as) {
  for (Cell& cell : cells(at, bytes)) {
    cell.write = mark(as);
    cell.read[0] = cell.read[1] = {};
    cell.pending = cell.atomic_write = false;
    cell.written = true;
  }
}

void Shadow::forget(const void* at, std::size_t bytes) {
  if (bytes == 0) return;
  for (Cell& cell : cells(at, bytes)) {
    cell = {};
    cell.generation = generation_;
  }
}

}  // namespace normjit::simt
