// Whether a spec is valid, at the speed of a launch.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "normjit/spec.h"
#include "normjit/spec/tables.h"

namespace normjit {

inline constexpr std::int64_t kMaxColumns = std::numeric_limits<std::int32_t>::max();

// True exactly where validate() is ok.
inline bool is_valid(const NormSpec& s) noexcept {
  const bool wide =
      s.input == DType::f64 || s.output == DType::f64 || (s.affine != Affine::none && s.weight == DType::f64);
  const double largest = wide ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  return s.columns >= 1 && s.columns <= kMaxColumns && is_in(kDTypes, s.input) && is_in(kDTypes, s.output) &&
         is_in(kDTypes, s.weight) && is_in(kAffines, s.affine) && is_in(kActivations, s.activation) &&
         s.epsilon >= 0 && s.epsilon <= largest && std::fabs(s.scale) <= largest;
}

}  // namespace normjit
