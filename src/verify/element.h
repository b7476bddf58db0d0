// SPDX-License-Identifier: Apache-2.0
// Reading and writing elements of any dtype as doubles, where speed does not come from the caller's knowing
// the dtype.
#pragma once

#include <cstdint>

#include "normjit/spec.h"

namespace normjit::oracle {

// Reads `count` elements from number `first` on; exact for every dtype.
void load(DType dtype, const void* base, std::int64_t first, std::int64_t count, double* to) noexcept;

// Writes `count` elements from number `first` on, each rounded once to nearest even.
void store(DType dtype, void* base, std::int64_t first, std::int64_t count, const double* from) noexcept;

// The value after a round trip through the dtype.
double rounded(DType dtype, double value) noexcept;

// The distance between neighbouring values of the dtype at the magnitude of a finite value: one unit in the
// last place.
double unit_in_last_place(DType dtype, double value) noexcept;

}  // namespace normjit::oracle
