// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same everywhere, which those of the standard library's distributions are not.
#pragma once

#include <cstdint>
#include <iterator>

namespace normjit::cli {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}

  // 0 .. sides - 1. The remainder favours small numbers by less than one part in 2^35 here.
  std::int64_t roll(std::int64_t sides) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(sides));
  }
  // A number from `least` to `least` * 2^octaves - 1, each octave as likely as any other.
  std::int64_t by_octave(std::int64_t least, int octaves) {
    const std::int64_t begin = least << roll(octaves);
    return begin + roll(begin);
  }
  template <class T, std::size_t n>
  const T& one_of(const T (&values)[n]) {
    return values[roll(n)];
  }

 private:
  std::uint64_t next() {  // SplitMix64
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }

  std::uint64_t state_;
};

}  // namespace normjit::cli
