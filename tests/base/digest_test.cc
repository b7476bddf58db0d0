// SPDX-License-Identifier: Apache-2.0
#include "normjit/base/digest.h"

#include <gtest/gtest.h>

#include <set>

namespace normjit {
namespace {

// What xxh128sum prints for the same bytes.
TEST(Digest, IsXxh3Of128Bits) {
  EXPECT_EQ(digest(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(digest("abc"), "06b05ab6733a618578af5f94892f3950");
  EXPECT_EQ(digest(std::string_view()), digest(""));
}

TEST(Digest, IsThirtyTwoLowerCaseHexadecimalDigits) {
  std::set<std::string> seen;
  std::string bytes;
  // Past 240 bytes and past 1 KiB, where the algorithm changes.
  for (int length = 0; length < 1200; ++length) {
    const std::string text = digest(bytes);
    ASSERT_EQ(text.size(), 32u);
    ASSERT_EQ(text.find_first_not_of("0123456789abcdef"), std::string::npos) << text;
    ASSERT_TRUE(seen.insert(text).second) << "two lengths share " << text;
    ASSERT_EQ(digest(bytes), text);
    bytes += '\0';
  }
}

TEST(Digest, SeesEveryBit) {
  const std::string bytes(300, 'x');
  const std::string before = digest(bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = bytes;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      ASSERT_NE(digest(flipped), before) << "byte " << i << " bit " << bit;
    }
  }
}

}  // namespace
}  // namespace normjit
