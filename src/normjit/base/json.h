// SPDX-License-Identifier: Apache-2.0
// Writes JSON, for the library and the tool.
#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

namespace normjit {

// A value. An object is {{"name", value}, ...}, with its members in this order.
class Json {
 public:
  struct Member;

  Json() : text_("null") {}
  Json(std::nullptr_t) : Json() {}
  Json(std::string_view text);  // invalid UTF-8, as paths and logs may hold, becomes U+FFFD
  Json(const std::string& text) : Json(std::string_view(text)) {}
  Json(const char* text) : Json(std::string_view(text)) {}
  Json(double value);  // null for NaN, "inf" and "-inf" for infinities: JSON has no such numbers
  Json(std::same_as<bool> auto value) : text_(value ? "true" : "false") {}
  template <std::integral Number>
  requires(!std::same_as<Number, bool>) Json(Number value) : text_(std::to_string(value)) {}
  Json(std::initializer_list<Member> members);

  // An array of what `to_json` makes of each element.
  template <class Range, class ToJson = std::identity>
  static Json array(const Range& elements, const ToJson& to_json = {}) {
    Json all('[');
    for (const auto& element : elements) all.append(Json(std::invoke(to_json, element)).enclosed());
    return all;
  }

  // Adds a member to an object; null becomes one.
  Json& add(std::string_view name, const Json& value);

  std::string text() const;  // indented by two spaces; ends with a line break
  std::string line() const;  // in one line, without its end

 private:
  explicit Json(char open) : open_(open) {}
  void append(const std::string& part);
  std::string enclosed() const;

  char open_ = 0;     // '{' and '[' of objects and arrays
  std::string text_;  // what is inside of them: a line or more for each part
};

struct Json::Member {
  std::string_view name;
  Json value;
};

}  // namespace normjit
