// SPDX-License-Identifier: Apache-2.0
#include "normjit/base/json.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>

#include "normjit/base/utf8.h"

namespace normjit {
namespace {

std::string escaped(char c) {
  constexpr std::string_view kRaw = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  if (const std::size_t at = kRaw.find(c); at != kRaw.npos) return {'\\', kLetters[at]};
  if (static_cast<unsigned char>(c) >= 0x20) return std::string(1, c);
  constexpr char kDigits[] = "0123456789abcdef";
  return std::string("\\u00") + kDigits[c >> 4] + kDigits[c & 15];
}

std::string quoted(std::string_view text) {
  std::string all = "\"";
  while (!text.empty()) {
    const std::size_t bytes = utf8_sequence_at(text);
    if (bytes == 0)
      all += "\xef\xbf\xbd";
    else if (bytes == 1)
      all += escaped(text[0]);
    else
      all += text.substr(0, bytes);
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return all + '"';
}

}  // namespace

Json::Json(std::string_view text) : text_(quoted(text)) {}

Json::Json(double value) {
  if (!std::isfinite(value)) {
    text_ = std::isnan(value) ? "null" : value > 0 ? "\"inf\"" : "\"-inf\"";
    return;
  }
  // No exponent for numbers of everyday size.
  const double size = std::fabs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e15);
  std::array<char, 64> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  text_.assign(digits.data(), end);
  if (text_.find_first_of(".e") == std::string::npos) text_ += ".0";
}

Json::Json(std::initializer_list<Member> members) : open_('{') {
  for (const auto& [name, value] : members) add(name, value);
}

Json& Json::add(std::string_view name, const Json& value) {
  if (open_ == 0) *this = Json('{');
  append(quoted(name) + ": " + value.enclosed());
  return *this;
}

void Json::append(const std::string& part) { text_ += (text_.empty() ? "" : ",\n") + part; }

// The enclosing value indents the lines.
std::string Json::enclosed() const {
  if (open_ == 0) return text_;
  const char close = open_ == '{' ? '}' : ']';
  if (text_.empty()) return {open_, close};
  std::string all = {open_};
  all += "\n  ";
  for (const char c : text_) all += c == '\n' ? std::string("\n  ") : std::string(1, c);
  return all + '\n' + close;
}

std::string Json::text() const { return enclosed() + "\n"; }

std::string Json::line() const {  // strings have no line breaks of their own
  const std::string lines = enclosed();
  std::string all;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i] != '\n') {
      all += lines[i];
      continue;
    }
    if (all.back() == ',') all += ' ';
    while (lines[i + 1] == ' ') ++i;
  }
  return all;
}

}  // namespace normjit
