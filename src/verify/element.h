// SPDX-License-Identifier: Apache-2.0
// Reading and writing elements of any dtype as doubles, where speed does not come from the caller's knowing
// the dtype.
#pragma once

#include <bit>
#include <cstdint>

#include "normjit/spec.h"

namespace normjit::oracle {

// The 16-bit formats, exactly: every pattern has a float value, and a double is rounded once, to nearest,
// ties to even. f16 is IEEE binary16: 5 exponent bits, 10 mantissa bits.
float f16_to_float(std::uint16_t bits) noexcept;
std::uint16_t f16_from_double(double value) noexcept;

// bf16 is the upper half of an IEEE binary32: 8 exponent bits, 7 mantissa bits.
inline float bf16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
std::uint16_t bf16_from_double(double value) noexcept;

// The types of 8 bits: e4m3 has no infinities and one NaN, e5m2 is the upper half of an f16. Both take the
// largest number for all that is beyond it, and s8 does.
float e4m3_to_float(std::uint8_t bits) noexcept;
std::uint8_t e4m3_from_double(double value) noexcept;
float e5m2_to_float(std::uint8_t bits) noexcept;
std::uint8_t e5m2_from_double(double value) noexcept;
std::int8_t s8_from_double(double value) noexcept;  // NaN becomes 0

// The largest number of a type of 8 bits.
double largest_of(DType dtype) noexcept;

// Reads `count` elements from number `first` on; exact for every dtype.
void load(DType dtype, const void* base, std::int64_t first, std::int64_t count, double* to) noexcept;
// The same of elements that are `step` apart.
void load(DType dtype, const void* base, std::int64_t first, std::int64_t count, std::int64_t step,
          double* to) noexcept;

// Writes `count` elements from number `first` on, each rounded once to nearest even.
void store(DType dtype, void* base, std::int64_t first, std::int64_t count, const double* from) noexcept;

// The value after a round trip through the dtype.
double rounded(DType dtype, double value) noexcept;

// The distance between neighbouring values of the dtype at the magnitude of a finite value: one unit in the
// last place.
double unit_in_last_place(DType dtype, double value) noexcept;

}  // namespace normjit::oracle
