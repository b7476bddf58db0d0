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

// The formats of 8 and 4 bits, likewise, but what is beyond the largest number becomes it. e4m3: 4 exponent
// bits, 3 mantissa bits, NaN instead of infinities. e5m2 is the upper half of an f16. e2m1: 2 exponent bits,
// 1 mantissa bit, in the lower half of a byte; NaN becomes 6.
float e4m3_to_float(std::uint8_t bits) noexcept;
std::uint8_t e4m3_from_double(double value) noexcept;
inline float e5m2_to_float(std::uint8_t bits) noexcept {
  return f16_to_float(static_cast<std::uint16_t>(bits << 8));
}
std::uint8_t e5m2_from_double(double value) noexcept;
float e2m1_to_float(std::uint8_t bits) noexcept;
std::uint8_t e2m1_from_double(double value) noexcept;
// NaN becomes 0.
std::int8_t s8_from_double(double value) noexcept;

// e8m0: 2^(bits - 127), and NaN. Rounded up to a power of two from 2^-127 to 2^127, which all that is not NaN
// becomes.
float e8m0_to_float(std::uint8_t bits) noexcept;
std::uint8_t e8m0_from_double(double value) noexcept;

// Reads `count` elements from number `first` on; exact for every dtype. Of e2m1, here and below, these are
// the two numbers of each byte, the one in its lower half first.
void load(DType dtype, const void* base, std::int64_t first, std::int64_t count, double* to) noexcept;
// The same of elements that are `step` apart.
void load(DType dtype, const void* base, std::int64_t first, std::int64_t count, std::int64_t step,
          double* to) noexcept;

// Writes `count` elements from number `first` on, each rounded once to nearest even, in 8 and 4 bits to the
// nearest number that there is, and in e8m0 up.
void store(DType dtype, void* base, std::int64_t first, std::int64_t count, const double* from) noexcept;

// The value after a round trip through the dtype.
double rounded(DType dtype, double value) noexcept;

// The distance between neighbouring values of the dtype at the magnitude of a finite value: one unit in the
// last place. 1 for s8.
double unit_in_last_place(DType dtype, double value) noexcept;

}  // namespace normjit::oracle
