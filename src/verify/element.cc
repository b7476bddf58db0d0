// SPDX-License-Identifier: Apache-2.0
#include "verify/element.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace normjit::oracle {
namespace {

struct Format {
  int exponent_bits, mantissa_bits;
  std::uint32_t last;  // what all larger numbers become: infinity, or the largest number
  std::uint32_t nan;

  constexpr int smallest_exponent() const { return 2 - (1 << (exponent_bits - 1)); }  // of a normal number
};
constexpr Format kF16{5, 10, 0x7c00, 0x7e00};
constexpr Format kBf16{8, 7, 0x7f80, 0x7fc0};
constexpr Format kE4m3{4, 3, 0x7e, 0x7f};
constexpr Format kE5m2{5, 2, 0x7b, 0x7f};
constexpr Format kE2m1{2, 1, 0x7, 0x7};

std::uint32_t encode(double value, const Format& format) {
  const std::uint32_t sign = std::signbit(value) ? 1u << (format.exponent_bits + format.mantissa_bits) : 0;
  if (std::isnan(value)) return sign | format.nan;
  if (std::isinf(value)) return sign | format.last;
  if (value == 0) return sign;

  // In units of the last place of its binade the value is scaled exactly, then rounded once. Adding the unit
  // count to the exponent field lets a carry out of the mantissa raise the exponent.
  const int exponent = std::max(std::ilogb(value), format.smallest_exponent());
  const double units = std::nearbyint(std::ldexp(std::fabs(value), format.mantissa_bits - exponent));
  const double field = std::ldexp(exponent - format.smallest_exponent(), format.mantissa_bits);
  return sign | static_cast<std::uint32_t>(std::min<double>(field + units, format.last));
}

}  // namespace

float f16_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1f;
  const std::uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in a float
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24f));
  }
  const std::uint32_t wide = exponent == 0x1f ? 0xff : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

std::uint16_t f16_from_double(double value) noexcept {
  return static_cast<std::uint16_t>(encode(value, kF16));
}
std::uint16_t bf16_from_double(double value) noexcept {
  return static_cast<std::uint16_t>(encode(value, kBf16));
}
std::uint8_t e4m3_from_double(double value) noexcept {
  return static_cast<std::uint8_t>(encode(value, kE4m3));
}
std::uint8_t e5m2_from_double(double value) noexcept {
  return static_cast<std::uint8_t>(encode(value, kE5m2));
}

float e4m3_to_float(std::uint8_t bits) noexcept {
  const int exponent = bits >> 3 & 0xf, mantissa = bits & 7;
  const float magnitude = (bits & 0x7f) == 0x7f ? std::numeric_limits<float>::quiet_NaN()
                          : exponent == 0       ? std::ldexp(static_cast<float>(mantissa), -9)
                                                : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return std::copysign(magnitude, (bits & 0x80) != 0 ? -1.0f : 1.0f);
}

float e2m1_to_float(std::uint8_t bits) noexcept {
  constexpr float kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return std::copysign(kMagnitudes[bits & 7], (bits & 8) != 0 ? -1.0f : 1.0f);
}
std::uint8_t e2m1_from_double(double value) noexcept {
  return std::isnan(value) ? 7 : static_cast<std::uint8_t>(encode(value, kE2m1));
}

std::int8_t s8_from_double(double value) noexcept {
  if (std::isnan(value)) return 0;
  return static_cast<std::int8_t>(std::clamp(std::nearbyint(value), -128.0, 127.0));
}

float e8m0_to_float(std::uint8_t bits) noexcept {
  return bits == 0xff ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, bits - 127);
}

std::uint8_t e8m0_from_double(double value) noexcept {
  if (std::isnan(value)) return 0xff;
  if (!(value > 0x1p-127)) return 0;
  if (value > 0x1p127) return 0xfe;
  int exponent;
  const bool is_power = std::frexp(value, &exponent) == 0.5;
  return static_cast<std::uint8_t>(127 + exponent - is_power);
}

void load(DType dtype, const void* base, std::int64_t first, std::int64_t count, double* to) noexcept {
  load(dtype, base, first, count, 1, to);
}

void load(DType dtype, const void* base, std::int64_t first, std::int64_t count, std::int64_t step,
          double* to) noexcept {
  const auto each = [&](const auto* from, auto convert) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert(from[(first + i) * step]);
  };
  switch (dtype) {
    case DType::f16:
      return each(static_cast<const std::uint16_t*>(base), f16_to_float);
    case DType::bf16:
      return each(static_cast<const std::uint16_t*>(base), bf16_to_float);
    case DType::f32:
      return each(static_cast<const float*>(base), [](float value) { return value; });
    case DType::f64:
      return each(static_cast<const double*>(base), [](double value) { return value; });
    case DType::e4m3:
      return each(static_cast<const std::uint8_t*>(base), e4m3_to_float);
    case DType::e5m2:
      return each(static_cast<const std::uint8_t*>(base), e5m2_to_float);
    case DType::s8:
      return each(static_cast<const std::int8_t*>(base), [](std::int8_t value) { return value; });
    case DType::e2m1:
      for (std::int64_t i = first; i < first + count; ++i)
        to[i - first] = e2m1_to_float(static_cast<const std::uint8_t*>(base)[i / 2] >> (i % 2 * 4) & 0xf);
      return;
    case DType::e8m0:
      return each(static_cast<const std::uint8_t*>(base), e8m0_to_float);
  }
}

void store(DType dtype, void* base, std::int64_t first, std::int64_t count, const double* from) noexcept {
  const auto each = [&](auto* to, auto convert) {
    for (std::int64_t i = 0; i < count; ++i) to[first + i] = convert(from[i]);
  };
  switch (dtype) {
    case DType::f16:
      return each(static_cast<std::uint16_t*>(base), f16_from_double);
    case DType::bf16:
      return each(static_cast<std::uint16_t*>(base), bf16_from_double);
    case DType::f32:
      return each(static_cast<float*>(base), [](double value) { return static_cast<float>(value); });
    case DType::f64:
      return each(static_cast<double*>(base), [](double value) { return value; });
    case DType::e4m3:
      return each(static_cast<std::uint8_t*>(base), e4m3_from_double);
    case DType::e5m2:
      return each(static_cast<std::uint8_t*>(base), e5m2_from_double);
    case DType::s8:
      return each(static_cast<std::int8_t*>(base), s8_from_double);
    case DType::e2m1:
      for (std::int64_t i = first; i < first + count; ++i) {
        std::uint8_t& pair = static_cast<std::uint8_t*>(base)[i / 2];
        const int shift = static_cast<int>(i % 2 * 4);
        pair = static_cast<std::uint8_t>((pair & 0xf0 >> shift) | e2m1_from_double(from[i - first]) << shift);
      }
      return;
    case DType::e8m0:
      return each(static_cast<std::uint8_t*>(base), e8m0_from_double);
  }
}

double rounded(DType dtype, double value) noexcept {
  double element = 0;  // room and alignment for any dtype
  store(dtype, &element, 0, 1, &value);
  load(dtype, &element, 0, 1, &value);
  return value;
}

double unit_in_last_place(DType dtype, double value) noexcept {
  struct Format {
    int mantissa_bits, smallest_exponent;
  };
  if (dtype == DType::s8) return 1;
  const Format format = dtype == DType::f16    ? Format{10, -14}
                        : dtype == DType::bf16 ? Format{7, -126}
                        : dtype == DType::f32  ? Format{23, -126}
                        : dtype == DType::f64  ? Format{52, -1022}
                        : dtype == DType::e4m3 ? Format{3, -6}
                        : dtype == DType::e5m2 ? Format{2, -14}
                        : dtype == DType::e2m1 ? Format{1, 0}
                                               : Format{0, -127};
  const int exponent = value == 0 ? format.smallest_exponent : std::ilogb(value);
  return std::ldexp(1, std::max(exponent, format.smallest_exponent) - format.mantissa_bits);
}

}  // namespace normjit::oracle
