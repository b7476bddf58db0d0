// SPDX-License-Identifier: Apache-2.0
#include "normjit/base/text.h"

#include <gtest/gtest.h>

namespace normjit {
namespace {

TEST(BytesFrom, ReadsWhatPeopleWrite) {
  EXPECT_EQ(bytes_from("0"), 0);
  EXPECT_EQ(bytes_from("4097"), 4097);
  EXPECT_EQ(bytes_from("1K"), 1024);
  EXPECT_EQ(bytes_from("256M"), std::int64_t{256} << 20);
  EXPECT_EQ(bytes_from("3g"), std::int64_t{3} << 30);
  EXPECT_EQ(bytes_from("0m"), 0);
}

TEST(BytesFrom, GoesToTheLastByteThatFits) {
  EXPECT_EQ(bytes_from("9223372036854775807"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(bytes_from("9223372036854775808"), std::nullopt);
  EXPECT_EQ(bytes_from("8589934591G"), std::int64_t{8589934591} << 30);
  EXPECT_EQ(bytes_from("8589934592G"), std::nullopt);
}

TEST(WordsOf, StandBetweenSpacesAndCommas) {
  EXPECT_EQ(words_of("one, two,three  four ,"), (std::vector<std::string>{"one", "two", "three", "four"}));
  for (const char* none : {"", " ", ",", " , ,"}) EXPECT_TRUE(words_of(none).empty()) << '"' << none << '"';
}

TEST(BytesFrom, RefusesEverythingElse) {
  for (const char* text :
       {"", " ", "M", "-1", "-0", "-1K", "+1", "1.5G", "1 K", " 1", "1 ", "1KB", "1KK", "0x10", "1T"})
    EXPECT_EQ(bytes_from(text), std::nullopt) << '"' << text << '"';
}

}  // namespace
}  // namespace normjit
