// SPDX-License-Identifier: Apache-2.0
#include "verify/element.h"

#include <algorithm>
#include <cmath>

#include "verify/float16.h"

namespace normjit::oracle {

void load(DType dtype, const void* base, std::int64_t first, std::int64_t count, double* to) noexcept {
  const auto each = [&](const auto* from, auto convert) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert(from[first + i]);
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
  }
}

double rounded(DType dtype, double value) noexcept {
  double element;  // room and alignment for any dtype
  store(dtype, &element, 0, 1, &value);
  load(dtype, &element, 0, 1, &value);
  return value;
}

double unit_in_last_place(DType dtype, double value) noexcept {
  struct Format {
    int mantissa_bits, smallest_exponent;
  };
  const Format format = dtype == DType::f16    ? Format{10, -14}
                        : dtype == DType::bf16 ? Format{7, -126}
                        : dtype == DType::f32  ? Format{23, -126}
                                               : Format{52, -1022};
  const int exponent = value == 0 ? format.smallest_exponent : std::ilogb(value);
  return std::ldexp(1, std::max(exponent, format.smallest_exponent) - format.mantissa_bits);
}

}  // namespace normjit::oracle
