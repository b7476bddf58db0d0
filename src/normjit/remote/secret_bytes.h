// SPDX-License-Identifier: Apache-2.0
// Memory for secrets, which is overwritten before it is given back.
#pragma once

#include <string.h>

#include <array>
#include <cstddef>
#include <string>

namespace normjit {

// All zero at first. Neither copied nor moved.
template <std::size_t size>
class SecretBytes : public std::array<unsigned char, size> {
 public:
  SecretBytes() { this->fill(0); }
  ~SecretBytes() { explicit_bzero(this->data(), size); }
  SecretBytes(const SecretBytes&) = delete;
  SecretBytes& operator=(const SecretBytes&) = delete;
};

// Overwrites a text, spare capacity included.
inline void wipe(std::string& text) {
  text.resize(text.capacity());
  explicit_bzero(text.data(), text.size());
  text.clear();
}

}  // namespace normjit
