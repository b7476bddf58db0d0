// SPDX-License-Identifier: Apache-2.0
#include "normjit/result.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>

namespace normjit {
namespace {

// The header is the list of codes, as in "  BadRank = 100,": each must have its name and its message.
TEST(Code, EveryOneHasANameAndAMessage) {
  std::ifstream header(NORMJIT_SOURCE_DIR "/src/normjit/result.h");
  int seen = 0;
  for (std::string line; std::getline(header, line);) {
    std::istringstream words(line);
    std::string name, equals;
    int number = 0;
    if (!(words >> name >> equals >> number) || equals != "=" || words.peek() != ',') continue;
    EXPECT_EQ(code_name(Code{number}), name);
    EXPECT_STRNE(Status{.code = Code{number}}.message(), Status{.code = Code{-1}}.message()) << line;
    ++seen;
  }
  EXPECT_GE(seen, 34) << "the enumeration in result.h was not read";
}

TEST(Code, OneFromElsewhereIsUnknown) {
  EXPECT_EQ(code_name(Code{12345}), "Unknown");
  EXPECT_NE(Status{.code = Code{12345}}.message(), nullptr);
}

TEST(Result, HoldsAValueOrAnError) {
  const Result<int> good = 7;
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(good.code(), Code::Ok);
  EXPECT_EQ(good.value(), 7);
  const Result<int> bad = Error{Code::BadRows, "the rows are wrong"};
  EXPECT_FALSE(bad);
  EXPECT_EQ(bad.code(), Code::BadRows);
  EXPECT_EQ(bad.error().message, "the rows are wrong");
}

TEST(Result, MovesItsValueOut) {
  Result<std::unique_ptr<int>> held = std::make_unique<int>(3);
  const std::unique_ptr<int> out = std::move(held).value();
  EXPECT_EQ(*out, 3);
}

TEST(Result, OnlyValueThrows) {
  const Result<int> bad = Error{Code::NoDriver, "there is no driver"};
  try {
    (void)bad.value();
    FAIL() << "value() of an error returned";
  } catch (const Exception& exception) {
    EXPECT_EQ(exception.code(), Code::NoDriver);
    EXPECT_STREQ(exception.what(), "NoDriver: there is no driver");
  }
}

TEST(Result, OfVoid) {
  EXPECT_TRUE(Result<void>().ok());
  EXPECT_NO_THROW(Result<void>().value());
  const Result<void> bad = Error{Code::CacheIo, "the disk is full"};
  EXPECT_FALSE(bad.ok());
  EXPECT_THROW(bad.value(), Exception);
}

TEST(Status, IsTrivialAndFitsInARegister) {
  static_assert(std::is_trivially_copyable_v<Status> && sizeof(Status) <= 8);
  EXPECT_TRUE(Status{}.ok());
  EXPECT_FALSE(Status{.code = Code::Misaligned});
}

}  // namespace
}  // namespace normjit
