// SPDX-License-Identifier: Apache-2.0
// A use of a spec, and what finds it in a table at the speed of a launch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

#include "normjit/plan.h"
#include "normjit/spec/fields.h"

namespace normjit {

// These uses, in a service whose launches are all batch invariant if `always`.
inline Uses uses_in(Uses uses, bool always) noexcept {
  uses.batch_invariant = uses.batch_invariant || always;
  return uses;
}

// All that decides which kernel serves a launch.
struct Use {
  NormSpec spec;    // canonical
  int device = -1;  // CUDA ordinal
  RowsRegime regime = RowsRegime::many;
  Alignment alignment = Alignment::one;
  bool workspace = false;        // whether one is at hand
  bool grouped_rows = false;     // an operand needs RowsAt::n
  bool batch_invariant = false;  // the regime is `many`, whatever the rows

  // The regime of a use that may have to be batch invariant.
  static RowsRegime regime_for(const NormSpec& spec, std::int64_t rows, const DeviceProfile& device,
                               bool batch_invariant) noexcept {
    return batch_invariant ? RowsRegime::many : regime_of(spec, rows, device);
  }
};

// A use in four words: each fact of it in as many bits as its values need, at a place that is known at
// compile time. Two uses of valid specs have one key exactly if they are one use; devices count up to 65,535.
class UseKey {
  static constexpr int kWords = 4, kWord = 64;

  // The bits of each fact: the fields of the spec, then device, regime, alignment, and the three switches.
  static constexpr auto kBits = std::apply(
      [](const auto&... field) { return std::array{field.bits()..., 16, 4, 4, 1, 1, 1}; }, kFields);

 public:
  // Bits that no fact needs yet.
  static constexpr int kBitsLeft = kWords * kWord - [] {
    int used = 0;
    for (const int bits : kBits) used += bits;
    return used;
  }();
  static_assert(kBitsLeft >= 0, "the key of a use needs another word");

  explicit UseKey(const Use& use) noexcept {
    [&]<std::size_t... i>(std::index_sequence<i...>) { (put<i>(use.spec.*std::get<i>(kFields).member), ...); }
    (std::make_index_sequence<kFieldCount>());
    put<kFieldCount>(static_cast<std::uint16_t>(use.device));
    put<kFieldCount + 1>(use.regime);
    put<kFieldCount + 2>(use.alignment);
    put<kFieldCount + 3>(use.workspace);
    put<kFieldCount + 4>(use.grouped_rows);
    put<kFieldCount + 5>(use.batch_invariant);
  }

  // Word by word: a default comparison of the array calls memcmp.
  friend bool operator==(const UseKey& a, const UseKey& b) noexcept {
    std::uint64_t differ = 0;
    for (std::size_t i = 0; i < kWords; ++i) differ |= a.words_[i] ^ b.words_[i];
    return differ == 0;
  }

  // Two products of 128 bits, folded: uses that differ in one bit anywhere are far apart.
  std::uint64_t hash() const noexcept {
    return folded(words_[0] ^ 0x9e3779b97f4a7c15u, words_[3] ^ 0xbf58476d1ce4e5b9u) ^
           folded(words_[1] ^ 0x94d049bb133111ebu, words_[2] ^ 0xd6e8feb86659fd93u);
  }

 private:
  // Where each begins: in the first word that has room for all of it.
  struct Place {
    std::size_t word;
    int shift;
  };
  struct Layout {
    std::array<Place, kBits.size()> places;
    std::array<int, kWords> used;
  };
  static constexpr Layout kLayout = [] {
    Layout layout{};
    for (std::size_t i = 0; i < kBits.size(); ++i) {
      std::size_t word = 0;
      while (layout.used.at(word) + kBits[i] > kWord) ++word;
      layout.places[i] = {word, layout.used[word]};
      layout.used[word] += kBits[i];
    }
    return layout;
  }();

  template <std::size_t i, class Value>
  void put(Value value) noexcept {
    words_[kLayout.places[i].word] |= word_of(value) << kLayout.places[i].shift;
  }

  static std::uint64_t folded(std::uint64_t a, std::uint64_t b) noexcept {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }

  std::array<std::uint64_t, kWords> words_{};
};

}  // namespace normjit
