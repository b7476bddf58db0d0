// SPDX-License-Identifier: Apache-2.0
#include "tests/support/guarded_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace normjit::testing {

GuardedMemory::GuardedMemory(std::size_t bytes, Side side, std::size_t distance) : bytes_(bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t usable = (bytes + distance + page - 1) / page * page;
  mapped_bytes_ = usable + page;
  void* const mapping =
      mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<std::byte*>(mapping);
  const bool in_front = side == Side::behind_guard;
  if (mprotect(in_front ? mapping_ : mapping_ + usable, page, PROT_NONE) != 0) throw std::bad_alloc();
  data_ = in_front ? mapping_ + page + distance : mapping_ + usable - distance - bytes;
}

GuardedMemory::~GuardedMemory() { munmap(mapping_, mapped_bytes_); }

}  // namespace normjit::testing
