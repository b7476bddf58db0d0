// Writes JSON texts, as the reports are: members in the order in which they are added, set in by two blanks.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace normjit {

// A value as its text; nested lines are set in by whoever takes the value up.
class Json {
 public:
  Json(std::string_view text);  // bytes that are not UTF-8 become U+FFFD: paths and logs may hold anything
  Json(const std::string& text) : Json(std::string_view(text)) {}
  Json(const char* text) : Json(std::string_view(text)) {}
  Json(double value);  // null where JSON has no such number
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
  std::string text() const;  // with a line break at the end

 private:
  std::string members_;
};

}  // namespace normjit
