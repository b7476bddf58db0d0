// SPDX-License-Identifier: Apache-2.0
// Whether a spec is valid, at the speed of a launch.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "normjit/spec/fields.h"

namespace normjit {

// Only the schedules that hold a row on chip, warp_rows and block_row, compute the root mean square or a
// residual so far. Every device has room for rows of this many columns (tests/plan/choices_test.cc).
inline constexpr std::int64_t kMaxHeldColumns = 16384;

// Whether a spec is computed in f64.
inline bool is_wide(const NormSpec& s) noexcept {
  return s.input == DType::f64 || s.output == DType::f64 ||
         (s.affine != Affine::none && s.weight == DType::f64);
}

// Whether a spec is served only by schedules that hold a row on chip.
inline bool is_held(const NormSpec& s) noexcept {
  return s.norm != Norm::layer || s.residual != Residual::none;
}

// The largest number of the compute type.
inline double largest_number(const NormSpec& s) noexcept {
  return is_wide(s) ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
}

// True exactly if validate() is ok.
inline bool is_valid(const NormSpec& s) noexcept {
  const double largest = largest_number(s);
  bool valid = s.columns >= 1 && s.columns <= (is_held(s) ? kMaxHeldColumns : kMaxColumns) &&
               s.epsilon >= 0 && (!s.sum || s.residual != Residual::none);
  each_field([&](const auto& field) {
    const auto value = s.*field.member;
    if constexpr (std::is_enum_v<decltype(value)>) valid = valid && is_in_set(value);
    if constexpr (std::is_same_v<decltype(value), const double>) valid = valid && std::fabs(value) <= largest;
  });
  return valid;
}

// canonical(), inline.
[[gnu::always_inline]] inline NormSpec canonical_now(const NormSpec& spec) noexcept {
  NormSpec same = spec;
  each_field([&](const auto& field) __attribute__((always_inline)) {
    if (!field.has_meaning(same)) same.*field.member = field.default_for(same);
  });
  same.epsilon += 0.0;  // -0 becomes 0
  return same;
}

}  // namespace normjit
