// SPDX-License-Identifier: Apache-2.0
// Memory beside a page that nobody may touch: an access past that end is a crash, whoever makes it.
#pragma once

#include <cstddef>

namespace normjit::testing {

class GuardedMemory {
 public:
  // `bytes` of memory, `distance` bytes behind the guard page or before it. An address next to the page is as
  // aligned as a page; one that ends there as its size allows.
  enum class Side { behind_guard, before_guard };
  GuardedMemory(std::size_t bytes, Side side, std::size_t distance = 0);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_, mapped_bytes_;
  std::byte* mapping_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace normjit::testing
