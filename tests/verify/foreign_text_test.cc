// SPDX-License-Identifier: Apache-2.0
#include "verify/foreign_text.h"

#include <gtest/gtest.h>

namespace normjit::oracle {
namespace {

using namespace std::string_view_literals;

TEST(ForeignText, ControlCharactersAreSpelledOut) {
  EXPECT_EQ(shown("a\x1b[31m\n\r\t\x7f\0b"sv), R"(a\x1b[31m\n\r\t\x7f\x00b)");
  EXPECT_EQ(shown("\xc2\x9b"
                  "2J"),
            R"(\xc2\x9b2J)")
      << "CSI of Unicode";
  EXPECT_EQ(shown("gr\xc3\xbc\xc3\x9f, \xc2\xa0"), "gr\xc3\xbc\xc3\x9f, \xc2\xa0");
  EXPECT_EQ(shown(""), "");
}

TEST(ForeignText, LongTextsAreCutBetweenCharacters) {
  EXPECT_EQ(shown(std::string(200, 'a')), std::string(200, 'a'));
  EXPECT_EQ(shown(std::string(3'000'000, 'a')), std::string(200, 'a') + "... (3000000 bytes)");
  EXPECT_EQ(shown("123\xc3\xbc"
                  "456",
                  4),
            "123... (8 bytes)");
}

TEST(ForeignText, WhatIsShownIsShortAlsoWhereItIsSpelledOut) {
  EXPECT_EQ(shown("ab\x1b\x1b", 6), R"(ab\x1b... (4 bytes))");
  EXPECT_EQ(shown("ab\x1b", 6), R"(ab\x1b)") << "which fits";
  EXPECT_LT(shown(std::string(200, '\x1b')).size(), 220u);
  EXPECT_EQ(shown("a\xc2\x9b", 8), "a... (3 bytes)") << "one character";
}

TEST(ForeignText, MessagesKeepTheirLines) {
  EXPECT_EQ(printable("first\n\tsecond \x1b[2J\0."sv), "first\n\tsecond \\x1b[2J\\x00.");
  EXPECT_EQ(printable(std::string(1000, 'a')).size(), 1000u);
}

}  // namespace
}  // namespace normjit::oracle
