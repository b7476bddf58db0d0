// SPDX-License-Identifier: Apache-2.0
// Conformance kernels for conversions, rounding and approximations, over all patterns of 16 bits and
// thousands of longer ones.
#include <bit>
#include <cmath>

#include "normjit/base/text.h"
#include "tests/support/conformance_kernels.h"
#include "verify/element.h"

namespace normjit::testing {
namespace {

using Type = Comparison::Type;

// ---- Inputs ----

std::vector<std::uint16_t> all_halves() {
  std::vector<std::uint16_t> all(1 << 16);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  return all;
}

// All of them in the high half of a word, with something else in the low half.
std::vector<std::uint32_t> pairs_of_halves() {
  std::vector<std::uint32_t> all(1 << 16);
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i << 16 | (i * 7919 & 0xffff);
  return all;
}

// Of every exponent, zero and infinity's among them, both signs: the first and last fractions, those around
// the middle, and some in between. Then any bits.
template <class Float, class Bits>
std::vector<Float> patterns(int fraction_bits, Bits exponents, std::uint64_t seed) {
  const Bits one = 1, middle = one << (fraction_bits - 1), all = (one << fraction_bits) - 1;
  const auto random = values_of<Bits>(random_bytes((exponents * 4 + 4096) * sizeof(Bits), seed));
  std::vector<Float> values;
  std::size_t next = 0;
  for (Bits exponent = 0; exponent < exponents; ++exponent) {
    Bits fractions[] = {0, 1, 2, middle - 1, middle, middle + 1, all - 1, all, 0, 0, 0, 0};
    for (int i = 8; i < 12; ++i) fractions[i] = random[next++] & all;
    for (const Bits fraction : fractions)
      for (const Bits sign : {Bits{0}, one})
        values.push_back(
            std::bit_cast<Float>(sign << (8 * sizeof(Bits) - 1) | exponent << fraction_bits | fraction));
  }
  for (; next < random.size(); ++next) values.push_back(std::bit_cast<Float>(random[next]));
  return values;
}
std::vector<float> f32_patterns() { return patterns<float, std::uint32_t>(23, 256, 11); }
std::vector<double> f64_patterns() { return patterns<double, std::uint64_t>(52, 2048, 12); }

// What rounds to f16: every finite f16, the middle to its neighbour, and what lies next to that.
std::vector<float> around_halves() {
  std::vector<float> values = f32_patterns();
  for (std::uint16_t half = 0; half < 0x7c00; ++half) {
    const float value = oracle::f16_to_float(half);
    // Beyond the largest one as if there were another: from that middle on, all is infinity.
    const float above = half < 0x7bff ? oracle::f16_to_float(half + 1) : 65536.0f;
    const float middle = value + (above - value) / 2;
    for (const float near : {value, std::nextafter(middle, 0.0f), middle, std::nextafter(middle, above)})
      values.push_back(half % 3 == 0 ? -near : near);
  }
  return values;
}

// What rounds to bf16: the last bits that decide, behind every third pattern.
std::vector<float> around_bhalves() {
  std::vector<float> values = f32_patterns();
  for (std::uint32_t high = 0; high < 0x10000; high += 3)
    for (const std::uint32_t low : {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff})
      values.push_back(std::bit_cast<float>(high << 16 | low));
  return values;
}

// What rounds to e4m3, e5m2 or e2m1, in pairs: all of their numbers, middles between neighbours, and what
// lies next to these; and what is beyond the largest.
std::vector<float> around_bytes() {
  std::vector<float> values = f32_patterns();
  for (const auto to_float : {oracle::e4m3_to_float, oracle::e5m2_to_float})
    for (std::uint8_t byte = 0; byte < 0x7e; ++byte) {
      const float value = to_float(byte), above = to_float(byte + 1);
      if (!std::isfinite(above)) continue;
      const float middle = value + (above - value) / 2;
      for (const float near : {value, std::nextafter(middle, 0.0f), middle, std::nextafter(middle, above)})
        for (const float sign : {1.0f, -1.0f}) values.push_back(sign * near);
    }
  for (int quarter = -40; quarter < 40; ++quarter)
    for (const float near : {-0.001f, 0.0f, 0.001f}) values.push_back(static_cast<float>(quarter) / 4 + near);
  for (int whole = -260; whole < 260; ++whole)
    for (const float near : {0.0f, 0.4999f, 0.5f, 0.5001f})
      values.push_back(static_cast<float>(whole) + near);
  if (values.size() % 2 != 0) values.push_back(0);
  return values;
}

// What rounds to f32: floats, middles between neighbours, and what lies next to both; doubles that no float
// holds.
std::vector<double> around_floats() {
  std::vector<double> values = f64_patterns();
  for (const float value : f32_patterns()) {
    const double exact = value;
    const double middle = exact + (std::nextafter(value, 1e38f) - exact) / 2;
    for (const double near : {exact, std::nextafter(exact, 0.0), std::nextafter(exact, 1e300), middle,
                              std::nextafter(middle, 0.0), std::nextafter(middle, 1e300)})
      values.push_back(near);
  }
  return values;
}

struct Factors {
  std::uint64_t a, b;
};

// Of every length, and those that only just carry.
std::vector<Factors> factors() {
  const auto random = values_of<std::uint64_t>(random_bytes(8 * 8192, 14));
  std::vector<Factors> all;
  for (std::size_t i = 0; i + 1 < random.size(); ++i) {
    const std::uint64_t a = random[i] >> i % 64, b = random[i + 1] >> i / 64 % 64;
    all.push_back({a, b});
    if (b > 0) all.push_back({a, ~std::uint64_t{0} / b + i % 3});
  }
  return all;
}

template <class Float>
struct Terms {
  Float a, b, c;
};

// Sums that cancel what the product was rounded to, and any others.
template <class Float>
std::vector<Terms<Float>> terms(const std::vector<Float>& values) {
  std::vector<Terms<Float>> all;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Float a = values[i], b = values[(i * 7919 + 13) % values.size()];
    for (const Float c : {-(a * b), values[(i * 104729 + 5) % values.size()]}) all.push_back({a, b, c});
  }
  return all;
}

struct Limited {
  float value, limit;
};

// Which of two zeros is taken is open.
std::vector<Limited> limited() {
  const std::vector<float> values = f32_patterns();
  std::vector<Limited> all;
  for (std::size_t i = 0; i < values.size(); ++i)
    for (const float limit : {values[(i * 7919 + 13) % values.size()], values[i], 0.0f, 13.0f})
      if (!std::isnan(limit) && (values[i] != 0 || limit != 0)) all.push_back({values[i], limit});
  return all;
}

// Magnitudes, and numbers of either sign.
std::vector<Limited> magnitudes() {
  const std::vector<float> values = f32_patterns();
  std::vector<Limited> all;
  for (std::size_t i = 0; i < values.size(); ++i)
    for (const float number : {values[(i * 7919 + 13) % values.size()], values[i], -values[i], -0.0f})
      all.push_back({std::fabs(values[i]), number});
  return all;
}

// Normal numbers whose inverses are normal numbers, and NaN.
std::vector<float> invertible() {
  std::vector<float> values = f32_patterns();
  for (const std::uint32_t bits : values_of<std::uint32_t>(random_bytes(4 * 50000, 15)))
    values.push_back(std::bit_cast<float>(bits));
  std::erase_if(values, [](float value) {
    return !std::isnan(value) && (std::fpclassify(value) != FP_NORMAL || std::fabs(value) > 0x1p126f);
  });
  return values;
}

// Normal numbers, whose reciprocals are f32.
std::vector<double> tail_denominators() {
  std::vector<double> values;
  for (const float value : invertible())
    if (std::isnormal(1 / value)) values.push_back(value * 1.000000123);
  return values;
}

struct Scaled {
  double value, power;
};

// Every power that leaves a normal number one.
std::vector<Scaled> scaled() {
  std::vector<Scaled> values;
  for (const double value : f64_patterns()) {
    if (!std::isnormal(value)) continue;
    for (const int power : {-1021, -969, -500, -97, -1, 0, 1, 128, 1000}) {
      const int exponent = std::ilogb(value) + power;
      if (exponent >= -1022 && exponent <= 1023) values.push_back({value, static_cast<double>(power)});
    }
  }
  return values;
}

// Exponents that give a number besides zero and infinity, densely, and all others.
std::vector<float> exponents() {
  std::vector<float> values = f32_patterns();
  const auto random = values_of<std::uint32_t>(random_bytes(4 * 20000, 13));
  for (const std::uint32_t bits : random)
    values.push_back(static_cast<float>(bits) * 0x1p-32f * 300.0f - 160.0f);
  for (int i = -150; i <= 130; ++i) values.push_back(static_cast<float>(i));
  return values;
}

// ---- Promises ----

float odd(double value) {
  const float nearest = static_cast<float>(value);
  if (std::isnan(value) || nearest == value) return nearest;
  const float truncated = std::fabs(nearest) > std::fabs(value) ? std::nextafter(nearest, 0.0f) : nearest;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(truncated) | 1);
}

float flushed(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

float unchanged(float value) { return value; }
float f32_rsqrt(float value) { return static_cast<float>(1 / std::sqrt(double{value})); }
double f64_rsqrt(double value) { return 1 / std::sqrt(value); }
float reciprocal(float value) { return flushed(1 / flushed(value)); }
float inverse(float value) { return 1 / value; }
float double_reciprocal(double value) { return static_cast<float>(1 / value); }
double times_power_of_2(Scaled x) { return std::ldexp(x.value, static_cast<int>(x.power)); }
float exp2_of(float value) { return flushed(static_cast<float>(std::exp2(double{flushed(value)}))); }

float high_bf16(std::uint32_t pair) { return oracle::bf16_to_float(static_cast<std::uint16_t>(pair >> 16)); }
template <class Float>
Float fused(Terms<Float> x) {
  return std::fma(x.a, x.b, x.c);
}

float four_signed(Terms<float> x) {
  const float number = fused(x);
  return std::isnan(number) ? 4.0f : std::copysign(4.0f, number);
}

std::uint64_t high_product(Factors x) {
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(x.a) * x.b >> 64);
}

// The first of a pair in the low half.
struct FloatPair {
  float first, second;
};
template <auto kRounded>
std::uint16_t pair_of(FloatPair x) {
  const auto byte = [](float value) { return static_cast<std::uint8_t>(kRounded(value)); };
  return static_cast<std::uint16_t>(byte(x.first) | byte(x.second) << 8);
}
std::uint16_t byte_of(FloatPair x) {
  return static_cast<std::uint16_t>(oracle::e2m1_from_double(x.first) | oracle::e2m1_from_double(x.second)
                                                                            << 4);
}

std::uint32_t joined(std::uint32_t halves) { return halves; }
float max_nan(Limited x) { return std::isnan(x.value) ? x.value : std::fmax(x.value, x.limit); }
float min_nan(Limited x) { return std::isnan(x.value) ? x.value : std::fmin(x.value, x.limit); }
float larger_magnitude(Limited x) {
  const float size = std::fabs(x.limit);
  return std::isnan(x.value) || std::isnan(size) ? std::nanf("") : std::fmax(x.value, size);
}
double f64_at_least(double value) { return std::isnan(value) ? value : std::fmax(value, 1.5); }

// The promise kPromise, for every element of x.
template <class X, auto kPromise>
Bytes mapped(const ConformanceKernel& kernel) {
  std::vector<decltype(kPromise(X{}))> y;
  for (const X value : values_of<X>(kernel.x)) y.push_back(kPromise(value));
  return bytes_of(y);
}

// ---- The table ----

// on.y[i] = expression, in which on.x[i] stands.
std::string mapping(std::string_view name, std::string_view expression) {
  return concat(
      {"namespace normjit {\n\nconstexpr int kThreads = 256;\n\nNJ_KERNEL(", name,
       ", kThreads) {\n"
       "  const long long step = gridDim.x * kThreads;\n"
       "  for (long long i = blockIdx.x * kThreads + threadIdx.x; i < on.rows; i += step) on.y[i] = ",
       expression, ";\n}\n\n}  // namespace normjit\n"});
}

template <class X>
ConformanceKernel on_numbers(const char* name, std::string_view expression, std::string_view input,
                             std::string_view output, const std::vector<X>& x, std::size_t element_bytes,
                             Comparison comparison, Bytes (*expected)(const ConformanceKernel&)) {
  return {.name = name,
          .kernel = name,
          .input = input,
          .output = output,
          .text = mapping(name, expression),
          .shape = {.threads = 256},
          .blocks = 4,
          .x = bytes_of(x),
          .rows = static_cast<long long>(x.size()),
          .y_bytes = x.size() * element_bytes,
          .comparison = comparison,
          .expected = expected};
}

// Of which only some architectures have the instruction.
ConformanceKernel pairs_of_bytes(const char* name, std::string_view expression, Arch oldest,
                                 Comparison comparison, Bytes (*expected)(const ConformanceKernel&)) {
  ConformanceKernel kernel =
      on_numbers(name, expression, "float", "unsigned short", around_bytes(), 1, comparison, expected);
  kernel.oldest = oldest;
  kernel.rows /= 2;
  return kernel;
}

ConformanceKernel e2m1_rounded() {
  ConformanceKernel kernel =
      pairs_of_bytes("e2m1_rounded", "hw::f32x2_to_e2m1x2(on.x[2 * i], on.x[2 * i + 1])", Arch{.number = 100},
                     {}, mapped<FloatPair, byte_of>);
  kernel.own_target = true;
  return kernel;
}

}  // namespace

std::vector<ConformanceKernel> numbers_kernels() {
  return {
      on_numbers("f16_widened", "hw::f16_to_f32(on.x[i])", "unsigned short", "float", all_halves(), 4,
                 {Type::f32}, mapped<std::uint16_t, oracle::f16_to_float>),
      on_numbers("bf16_widened", "hw::bf16_to_f32(on.x[i])", "unsigned short", "float", all_halves(), 4,
                 {Type::f32}, mapped<std::uint16_t, oracle::bf16_to_float>),
      on_numbers("high_bf16_widened", "hw::high_bf16_to_f32(on.x[i])", "unsigned", "float", pairs_of_halves(),
                 4, {Type::f32}, mapped<std::uint32_t, high_bf16>),
      on_numbers("halves_joined", "hw::word_of(on.x[2 * i], on.x[2 * i + 1])", "unsigned short", "unsigned",
                 pairs_of_halves(), 4, {}, mapped<std::uint32_t, joined>),
      on_numbers("f16_rounded", "hw::f32_to_f16(on.x[i])", "float", "unsigned short", around_halves(), 2,
                 {Type::f16}, mapped<float, oracle::f16_from_double>),
      on_numbers("bf16_rounded", "hw::f32_to_bf16(on.x[i])", "float", "unsigned short", around_bhalves(), 2,
                 {Type::bf16}, mapped<float, oracle::bf16_from_double>),
      pairs_of_bytes("e4m3_rounded", "hw::f32x2_to_e4m3x2(on.x[2 * i], on.x[2 * i + 1])", Arch{.number = 90},
                     {Type::e4m3}, mapped<FloatPair, pair_of<oracle::e4m3_from_double>>),
      pairs_of_bytes("e5m2_rounded", "hw::f32x2_to_e5m2x2(on.x[2 * i], on.x[2 * i + 1])", Arch{.number = 90},
                     {Type::e5m2}, mapped<FloatPair, pair_of<oracle::e5m2_from_double>>),
      e2m1_rounded(),
      pairs_of_bytes("s8_rounded", "hw::f32x2_to_s8x2(on.x[2 * i], on.x[2 * i + 1])", Arch{.number = 75}, {},
                     mapped<FloatPair, pair_of<oracle::s8_from_double>>),
      on_numbers("f32_rounded_to_odd", "hw::round_to_odd(on.x[i])", "float", "float", f32_patterns(), 4,
                 {Type::f32}, mapped<float, unchanged>),
      on_numbers("f64_rounded_to_odd", "hw::round_to_odd(on.x[i])", "double", "float", around_floats(), 4,
                 {Type::f32}, mapped<double, odd>),
      // The instruction's error is at most 2 ulp of the exact root.
      on_numbers("f32_rsqrt", "hw::rsqrt(on.x[i])", "float", "float", f32_patterns(), 4, {Type::f32, 2},
                 mapped<float, f32_rsqrt>),
      // A correct root and a correct division on both sides.
      on_numbers("f64_rsqrt", "hw::rsqrt(on.x[i])", "double", "double", f64_patterns(), 8, {Type::f64},
                 mapped<double, f64_rsqrt>),
      on_numbers("high_product", "hw::multiply_high(on.x[2 * i], on.x[2 * i + 1])", "unsigned long long",
                 "unsigned long long", factors(), 8, {}, mapped<Factors, high_product>),
      on_numbers("f32_fused", "hw::fma(on.x[3 * i], on.x[3 * i + 1], on.x[3 * i + 2])", "float", "float",
                 terms<float>(f32_patterns()), 4, {Type::f32}, mapped<Terms<float>, fused<float>>),
      on_numbers("f64_fused", "hw::fma(on.x[3 * i], on.x[3 * i + 1], on.x[3 * i + 2])", "double", "double",
                 terms<double>(f64_patterns()), 8, {Type::f64}, mapped<Terms<double>, fused<double>>),
      // Of what arithmetic makes, NaN too.
      on_numbers("f32_signed", "hw::with_sign_of(4, hw::fma(on.x[3 * i], on.x[3 * i + 1], on.x[3 * i + 2]))",
                 "float", "float", terms<float>(f32_patterns()), 4, {Type::f32},
                 mapped<Terms<float>, four_signed>),
      on_numbers("f32_at_least", "hw::max_nan(on.x[2 * i], on.x[2 * i + 1])", "float", "float", limited(), 4,
                 {Type::f32}, mapped<Limited, max_nan>),
      on_numbers("f32_at_most", "hw::min_nan(on.x[2 * i], on.x[2 * i + 1])", "float", "float", limited(), 4,
                 {Type::f32}, mapped<Limited, min_nan>),
      on_numbers("f64_at_least", "hw::max_nan(on.x[i], 1.5)", "double", "double", f64_patterns(), 8,
                 {Type::f64}, mapped<double, f64_at_least>),
      on_numbers("f32_larger_magnitude", "hw::larger_magnitude(on.x[2 * i], on.x[2 * i + 1])", "float",
                 "float", magnitudes(), 4, {Type::f32}, mapped<Limited, larger_magnitude>),
      on_numbers("f32_inverse", "hw::reciprocal(on.x[i])", "float", "float", invertible(), 4, {Type::f32},
                 mapped<float, inverse>),
      // The instructions' errors are at most 1 and 2 ulp.
      on_numbers("f32_reciprocal", "hw::rcp_approx(on.x[i])", "float", "float", f32_patterns(), 4,
                 {Type::f32, 1}, mapped<float, reciprocal>),
      on_numbers("f32_exp2", "hw::exp2_approx(on.x[i])", "float", "float", exponents(), 4, {Type::f32, 2},
                 mapped<float, exp2_of>),
      // About 20 bits of it.
      on_numbers("f64_reciprocal", "static_cast<float>(hw::rcp_approx(on.x[i]))", "double", "float",
                 tail_denominators(), 4, {Type::f32, 16}, mapped<double, double_reciprocal>),
      on_numbers("f64_scaled", "hw::times_power_of_2(on.x[2 * i], on.x[2 * i + 1] + 0x1.8p52)", "double",
                 "double", scaled(), 8, {Type::f64}, mapped<Scaled, times_power_of_2>),
  };
}

}  // namespace normjit::testing
