// SPDX-License-Identifier: Apache-2.0
#include "normjit/base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace normjit {
namespace {

// What another implementation writes.
using Other = nlohmann::ordered_json;
std::string text_of(const Other& json) { return json.dump(2, ' ', false, Other::error_handler_t::replace); }

TEST(Json, ObjectsAndArraysAreIndented) {
  const Json inner = {{"a", 1}, {"list", Json::array(std::vector<Json>{"x", true})}};
  const Json json = {{"none", Json::array(std::vector<Json>())}, {"null", nullptr}, {"inner", inner}};
  EXPECT_EQ(
      json.text(),
      text_of({{"none", Other::array()}, {"null", nullptr}, {"inner", {{"a", 1}, {"list", {"x", true}}}}}) +
          "\n");
}

TEST(Json, ALineHasTheSameValues) {
  const Json json = {{"list", Json::array(std::vector<Json>{"two  spaces\n  x", 2})},
                     {"none", Json::array(std::vector<Json>())},
                     {"inner", {{"a", 1}, {"b", false}}}};
  EXPECT_EQ(json.line(), R"({"list": ["two  spaces\n  x", 2], "none": [], "inner": {"a": 1, "b": false}})");
  EXPECT_EQ(Json("text").line(), "\"text\"");
}

TEST(Json, MembersAreAddedAtTheEnd) {
  Json json;
  EXPECT_EQ(json.line(), "null");
  json.add("a", 1).add("b", Json({{"c", 2}}));
  EXPECT_EQ(json.line(), R"({"a": 1, "b": {"c": 2}})");
}

TEST(Json, ArraysAreOfWhatIsMadeOfEachElement) {
  const std::vector<std::string> texts = {"a", "bc"};
  EXPECT_EQ(Json::array(texts).line(), R"(["a", "bc"])");
  EXPECT_EQ(Json::array(texts, &std::string::size).line(), "[1, 2]");
}

TEST(Json, NumbersReadBackToTheSameValue) {
  const double values[] = {0.0,
                           -0.0,
                           1.0,
                           -1.5,
                           0.1,
                           1e-4,
                           9.9e-5,
                           1e-5,
                           123456.,
                           1e14,
                           1e15,
                           1e16,
                           1e300,
                           5e-324,
                           0.025588,
                           2.049351147,
                           std::numeric_limits<double>::max()};
  for (const double value : values) {
    const std::string text = Json(value).line();
    EXPECT_EQ(Other::parse(text).get<double>(), value) << text;
    EXPECT_TRUE(Other::parse(text).is_number_float()) << text;
  }
  EXPECT_EQ(Json(12.0).line(), "12.0");
  EXPECT_EQ(Json(std::nan("")).line(), "null");
  EXPECT_EQ(Json(-std::numeric_limits<double>::infinity()).line(), "\"-inf\"");
  EXPECT_EQ(Json(std::numeric_limits<double>::infinity()).line(), "\"inf\"");
  EXPECT_EQ(Json(std::numeric_limits<std::int64_t>::min()).line(), "-9223372036854775808");
  EXPECT_EQ(Json(std::numeric_limits<std::uint64_t>::max()).line(), "18446744073709551615");
  EXPECT_EQ(Json(false).line(), "false");
}

TEST(Json, TextsAreEscapedAndMended) {
  const std::string texts[] = {"",
                               "plain",
                               "\"\\/\b\f\n\r\t\x01\x1f\x7f",
                               std::string("a\0b", 3),
                               "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80",
                               "\xed\x95\x9c \xef\xbf\xbf \xf4\x8f\xbf\xbf"};
  for (const std::string& text : texts) EXPECT_EQ(Json(text).line(), text_of(Other(text)));
  // Bytes that are not UTF-8: what is read is a JSON text all the same.
  for (const char* text : {"\xff", "a\x80z", "\xc3", "\xc3(", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                           "\xf5\x80\x80\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    const Other read = Other::parse(Json(text).line(), nullptr, false);
    ASSERT_TRUE(read.is_string()) << text;
    EXPECT_NE(read.get<std::string>().find("\xef\xbf\xbd"), std::string::npos);
  }
}

TEST(Json, AnyBytesMakeAText) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(random() % 12, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    EXPECT_TRUE(Other::parse(Json({{bytes, bytes}}).line(), nullptr, false).is_object());
  }
}

}  // namespace
}  // namespace normjit
