// SPDX-License-Identifier: Apache-2.0
// The types of 8 and 4 bits.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "verify/element.h"

namespace normjit::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double value_of(DType dtype, std::uint8_t bits) {
  double value;
  load(dtype, &bits, 0, 1, &value);
  return value;
}
int bits_of(DType dtype, double value) {
  std::uint8_t bits = 0xa5;
  store(dtype, &bits, 0, 1, &value);
  return bits;
}

struct Float8 {
  DType dtype;
  int exponent_bits, mantissa_bits;
  int largest;   // its bits
  int infinity;  // likewise; beyond every pattern: there is none
};
constexpr Float8 kFloats[] = {{DType::e4m3, 4, 3, 0x7e, 0x100}, {DType::e5m2, 5, 2, 0x7b, 0x7c}};

// By the definition of the formats.
double decoded(const Float8& format, int bits) {
  const int magnitude = bits & 0x7f, mantissa_values = 1 << format.mantissa_bits;
  const int exponent = magnitude / mantissa_values, mantissa = magnitude % mantissa_values;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const double fraction = static_cast<double>(mantissa) / mantissa_values;
  const double value = magnitude == format.infinity ? kInfinity
                       : magnitude > format.largest ? std::nan("")
                       : exponent == 0              ? std::ldexp(fraction, 1 - bias)
                                                    : std::ldexp(1 + fraction, exponent - bias);
  return (bits & 0x80) != 0 ? -value : value;
}

TEST(Float8, EveryPatternIsWhatTheFormatSaysAndRoundTrips) {
  for (const Float8& format : kFloats)
    for (int bits = 0; bits < 256; ++bits) {
      const double expected = decoded(format, bits);
      const double value = value_of(format.dtype, static_cast<std::uint8_t>(bits));
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(value)) << name(format.dtype) << " " << bits;
        EXPECT_TRUE(std::isnan(rounded(format.dtype, value))) << bits;
        continue;
      }
      EXPECT_EQ(value, expected) << name(format.dtype) << " " << bits;
      EXPECT_EQ(std::signbit(value), bits >= 0x80) << bits;
      const int stored = std::isinf(value) ? format.largest | (bits & 0x80) : bits;
      EXPECT_EQ(bits_of(format.dtype, value), stored) << name(format.dtype) << " " << bits;
    }
}

// Between each two neighbours, as for 16 bits.
TEST(Float8, RoundToNearestEven) {
  for (const Float8& format : kFloats)
    for (int low = 0; low < format.largest; ++low) {
      const double below = decoded(format, low), middle = (below + decoded(format, low + 1)) / 2;
      const int even = low % 2 == 0 ? low : low + 1;
      EXPECT_EQ(bits_of(format.dtype, middle), even) << low;
      EXPECT_EQ(bits_of(format.dtype, -middle), even | 0x80) << low;
      EXPECT_EQ(bits_of(format.dtype, std::nextafter(middle, 0)), low) << low;
      EXPECT_EQ(bits_of(format.dtype, std::nextafter(middle, kInfinity)), low + 1) << low;
      if (low > 0) {
        EXPECT_EQ(unit_in_last_place(format.dtype, below), decoded(format, low + 1) - below) << low;
      }
    }
}

TEST(Float8, SaturateAndKeepNaN) {
  for (const Float8& format : kFloats) {
    const double largest = decoded(format, format.largest);
    EXPECT_EQ(largest, format.dtype == DType::e4m3 ? 448 : 57344);
    for (const double beyond :
         {largest, std::nextafter(largest, kInfinity), 1.2 * largest, 1e300, kInfinity}) {
      EXPECT_EQ(bits_of(format.dtype, beyond), format.largest) << beyond;
      EXPECT_EQ(bits_of(format.dtype, -beyond), format.largest | 0x80) << beyond;
    }
    EXPECT_TRUE(std::isnan(rounded(format.dtype, std::nan(""))));
    EXPECT_EQ(bits_of(format.dtype, -0.0), 0x80);
    EXPECT_EQ(bits_of(format.dtype, -1e-300), 0x80);
    EXPECT_TRUE(std::isnan(value_of(format.dtype, 0xff))) << "what outputs are poisoned with";
  }
}

TEST(S8, RoundsSaturatesAndHasNoNaN) {
  for (int value = -128; value < 128; ++value) {
    EXPECT_EQ(bits_of(DType::s8, value), value & 0xff);
    EXPECT_EQ(value_of(DType::s8, static_cast<std::uint8_t>(value)), value);
    EXPECT_EQ(unit_in_last_place(DType::s8, value), 1);
    if (value == 127) continue;
    EXPECT_EQ(rounded(DType::s8, value + 0.5), value % 2 == 0 ? value : value + 1) << value;
    EXPECT_EQ(rounded(DType::s8, std::nextafter(value + 0.5, -kInfinity)), value);
    EXPECT_EQ(rounded(DType::s8, std::nextafter(value + 0.5, kInfinity)), value + 1);
  }
  for (const double beyond : {127.4, 127.5, 128.0, 1e300, kInfinity}) {
    EXPECT_EQ(rounded(DType::s8, beyond), 127) << beyond;
    EXPECT_EQ(rounded(DType::s8, -beyond - 1), -128) << beyond;
  }
  EXPECT_EQ(bits_of(DType::s8, std::nan("")), 0);
}

constexpr double kOf4Bits[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

TEST(E2m1, IsTwoToAByte) {
  for (int low = 0; low < 16; ++low)
    for (int high = 0; high < 16; ++high) {
      const auto byte = static_cast<std::uint8_t>(low | high << 4);
      double pair[2];
      load(DType::e2m1, &byte, 0, 2, pair);
      EXPECT_EQ(pair[0], (low < 8 ? 1 : -1) * kOf4Bits[low % 8]);
      EXPECT_EQ(pair[1], (high < 8 ? 1 : -1) * kOf4Bits[high % 8]);
      EXPECT_EQ(std::signbit(pair[0]), low >= 8);
      std::uint8_t stored = 0xa5;
      store(DType::e2m1, &stored, 1, 1, pair + 1);
      EXPECT_EQ(stored, 5 | high << 4) << "its neighbour stays";
      store(DType::e2m1, &stored, 0, 1, pair);
      EXPECT_EQ(stored, byte);
    }
}

TEST(E2m1, RoundsToNearestEvenSaturatesAndHasNoNaN) {
  for (int low = 0; low < 7; ++low) {
    const double below = kOf4Bits[low], above = kOf4Bits[low + 1], middle = (below + above) / 2;
    for (const double sign : {1, -1}) {
      EXPECT_EQ(rounded(DType::e2m1, sign * middle), sign * (low % 2 == 0 ? below : above)) << middle;
      EXPECT_EQ(rounded(DType::e2m1, sign * std::nextafter(middle, 0)), sign * below) << middle;
      EXPECT_EQ(rounded(DType::e2m1, sign * std::nextafter(middle, kInfinity)), sign * above) << middle;
    }
    if (low > 0) {
      EXPECT_EQ(unit_in_last_place(DType::e2m1, below), above - below) << below;
    }
  }
  for (const double beyond : {6.0, 7.0, 8.0, 1e300, kInfinity}) {
    EXPECT_EQ(rounded(DType::e2m1, beyond), 6);
    EXPECT_EQ(rounded(DType::e2m1, -beyond), -6);
  }
  EXPECT_EQ(rounded(DType::e2m1, std::nan("")), 6);
  EXPECT_EQ(rounded(DType::e2m1, -std::nan("")), 6);
  EXPECT_TRUE(std::signbit(rounded(DType::e2m1, -0.1)));
}

TEST(E8m0, IsAPowerOfTwoOrNaN) {
  double power = 0x1p-127;
  for (int bits = 0; bits < 255; ++bits, power *= 2) {
    EXPECT_EQ(value_of(DType::e8m0, static_cast<std::uint8_t>(bits)), power) << bits;
    EXPECT_EQ(bits_of(DType::e8m0, power), bits);
    EXPECT_EQ(bits_of(DType::e8m0, std::nextafter(power, 0)), bits) << "up";
    EXPECT_EQ(bits_of(DType::e8m0, std::nextafter(power, kInfinity)), bits == 254 ? 254 : bits + 1) << "up";
    EXPECT_EQ(unit_in_last_place(DType::e8m0, power), power);
  }
  EXPECT_TRUE(std::isnan(value_of(DType::e8m0, 255))) << "what outputs are poisoned with";
  EXPECT_EQ(bits_of(DType::e8m0, std::nan("")), 255);
}

TEST(E8m0, EndsAtItsLargestAndSmallest) {
  for (const double beyond : {1e39, 1e300, kInfinity}) EXPECT_EQ(bits_of(DType::e8m0, beyond), 254);
  for (const double below : {0x1p-128, 1e-300, 0.0, -0.0, -1.0, -kInfinity})
    EXPECT_EQ(bits_of(DType::e8m0, below), 0) << below;
}

TEST(Float8, StandBesideEachOther) {
  const std::vector<double> values = {0, 1, -2, 0.5, 448};
  for (const DType dtype : {DType::e4m3, DType::e5m2, DType::s8}) {
    std::vector<std::uint8_t> bytes(7, 0xff);
    store(dtype, bytes.data(), 1, 5, values.data());
    EXPECT_EQ(bytes.front(), 0xff);
    EXPECT_EQ(bytes.back(), 0xff);
    double back[3];
    load(dtype, bytes.data() + 1, 0, 3, 2, back);
    EXPECT_EQ(back[0], 0);
    EXPECT_EQ(back[1], -2);
    EXPECT_EQ(back[2], dtype == DType::s8 ? 127 : 448);
  }
}

}  // namespace
}  // namespace normjit::oracle
