// SPDX-License-Identifier: Apache-2.0
// The 16-bit floating-point formats, exactly: every pattern has a float value, and a double is rounded once,
// to nearest, ties to even.
#pragma once

#include <bit>
#include <cstdint>

namespace normjit::oracle {

// IEEE binary16: 5 exponent bits, 10 mantissa bits.
float f16_to_float(std::uint16_t bits) noexcept;
std::uint16_t f16_from_double(double value) noexcept;

// The upper half of an IEEE binary32: 8 exponent bits, 7 mantissa bits.
inline float bf16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
std::uint16_t bf16_from_double(double value) noexcept;

}  // namespace normjit::oracle
