// SPDX-License-Identifier: Apache-2.0
#include "verify/element.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace normjit::oracle {
namespace {

using ToFloat = float (*)(std::uint16_t);
using FromDouble = std::uint16_t (*)(double);

// Every pattern reads back as itself; a NaN stays a NaN of the same sign.
void expect_round_trips(ToFloat to_float, FromDouble from_double) {
  for (int pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const float value = to_float(bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(from_double(value)))) << pattern;
      EXPECT_EQ(from_double(value) & 0x8000, bits & 0x8000) << pattern;
    } else {
      EXPECT_EQ(from_double(value), bits) << pattern;
    }
  }
}

// Between each two neighbours: just below the middle goes down, just above goes up, the middle goes to the
// even one. The step above the largest finite value ends in infinity.
void expect_nearest_even(ToFloat to_float, FromDouble from_double, std::uint16_t infinity) {
  for (std::uint16_t low = 0; low < infinity; ++low) {
    const double below = to_float(low);
    const double step = low + 1 < infinity ? to_float(low + 1) - below : below - to_float(low - 1);
    const double middle = below + step / 2;
    const std::uint16_t even = low % 2 == 0 ? low : low + 1;
    EXPECT_EQ(from_double(middle), even) << low;
    EXPECT_EQ(from_double(-middle), even | 0x8000) << low;
    EXPECT_EQ(from_double(std::nextafter(middle, 0)), low) << low;
    EXPECT_EQ(from_double(std::nextafter(middle, 1e300)), low + 1) << low;
  }
}

TEST(F16, EveryPatternRoundTrips) { expect_round_trips(f16_to_float, f16_from_double); }
TEST(Bf16, EveryPatternRoundTrips) { expect_round_trips(bf16_to_float, bf16_from_double); }
TEST(F16, RoundsToNearestEven) { expect_nearest_even(f16_to_float, f16_from_double, 0x7c00); }
TEST(Bf16, RoundsToNearestEven) { expect_nearest_even(bf16_to_float, bf16_from_double, 0x7f80); }

TEST(F16, KnownValues) {
  EXPECT_EQ(f16_to_float(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_float(0xc000), -2.0f);
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0f);
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_float(0x0400), 0x1p-14f);
  EXPECT_TRUE(std::signbit(f16_to_float(0x8000)));
  EXPECT_EQ(f16_from_double(1e300), 0x7c00);
  EXPECT_EQ(f16_from_double(-std::numeric_limits<double>::infinity()), 0xfc00);
  EXPECT_EQ(f16_from_double(1e-300), 0x0000);
  EXPECT_EQ(f16_from_double(-1e-300), 0x8000);
}

TEST(Bf16, KnownValues) {
  EXPECT_EQ(bf16_to_float(0x3f80), 1.0f);
  EXPECT_EQ(bf16_from_double(3.14159265358979), 0x4049);
  EXPECT_EQ(bf16_from_double(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(bf16_to_float(bf16_from_double(std::nan("")))));
}

// Once from double: through float this value would first round to the middle of two f16 values and then to
// the even one.
TEST(F16, IsNotRoundedTwice) {
  const double middle = 1.0 + 0x1p-11;
  EXPECT_EQ(f16_from_double(middle), 0x3c00);
  EXPECT_EQ(f16_from_double(middle + 0x1p-40), 0x3c01);
  EXPECT_EQ(static_cast<float>(middle + 0x1p-40), static_cast<float>(middle));
}

}  // namespace
}  // namespace normjit::oracle
