// A use of a spec, and what finds it in a table at the speed of a launch.
#pragma once

#include <bit>
#include <cstdint>

#include "normjit/plan.h"

namespace normjit {

// All that decides which kernel serves a launch.
struct Use {
  NormSpec spec;    // canonical
  int device = -1;  // CUDA ordinal
  RowsRegime regime = RowsRegime::many;
  Alignment alignment = Alignment::one;
  bool workspace = false;  // whether one is at hand
};

// A use in four words. Two uses of valid specs have one key exactly if they are one use; devices count up to
// 65,535.
class UseKey {
 public:
  explicit UseKey(const Use& use) noexcept {
    const NormSpec& s = use.spec;
    const auto word = [](auto value) { return static_cast<std::uint64_t>(value); };
    columns_ = word(s.columns);
    kinds_ =
        word(s.input) | word(s.output) << 8 | word(s.weight) << 16 | word(s.affine) << 24 |
        word(s.activation) << 32 |
        (word(s.statistics) | word(use.workspace) << 1 | word(use.regime) << 2 | word(use.alignment) << 4)
            << 40 |
        word(use.device) << 48;
    epsilon_ = std::bit_cast<std::uint64_t>(s.epsilon);
    scale_ = std::bit_cast<std::uint64_t>(s.scale);
  }

  friend bool operator==(const UseKey&, const UseKey&) = default;

  // Two products of 128 bits, folded: uses that differ in one bit anywhere are far apart.
  std::uint64_t hash() const noexcept {
    return folded(columns_ ^ 0x9e3779b97f4a7c15u, kinds_ ^ 0xbf58476d1ce4e5b9u) ^
           folded(epsilon_ ^ 0x94d049bb133111ebu, scale_ ^ 0xd6e8feb86659fd93u);
  }

 private:
  static std::uint64_t folded(std::uint64_t a, std::uint64_t b) noexcept {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }

  std::uint64_t columns_, kinds_, epsilon_, scale_;
};

}  // namespace normjit
