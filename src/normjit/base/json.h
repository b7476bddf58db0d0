// SPDX-License-Identifier: Apache-2.0
// Writes JSON: members in the order in which they are added, indented by two spaces.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace normjit {

// A value as its text; the enclosing value indents its lines.
class Json {
 public:
  Json(std::string_view text);  // invalid UTF-8, as paths and logs may hold, becomes U+FFFD
  Json(const std::string& text) : Json(std::string_view(text)) {}
  Json(const char* text) : Json(std::string_view(text)) {}
  Json(double value);  // null for infinities and NaN
  Json(bool value) : text_(value ? "true" : "false") {}
  template <std::integral Number>
  requires(!std::same_as<Number, bool>) Json(Number value) : text_(std::to_string(value)) {}
  static Json array(const std::vector<Json>& elements);

  const std::string& text() const { return text_; }

 private:
  friend class JsonObject;
  Json() = default;
  std::string text_;
};

class JsonObject {
 public:
  JsonObject& add(std::string_view name, const Json& value);
  operator Json() const;
  std::string text() const;  // ends with a line break

 private:
  std::string members_;
};

}  // namespace normjit
