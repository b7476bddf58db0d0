// Text helpers that several stages use.
#pragma once

#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace normjit {

inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0;;) {
    const std::size_t end = text.find(separator, at);
    parts.push_back(text.substr(at, end - at));
    if (end == std::string_view::npos) return parts;
    at = end + 1;
  }
}

// Joins the parts of a message.
inline std::string concat(std::initializer_list<std::string_view> parts) {
  std::string whole;
  for (std::string_view part : parts) whole += part;
  return whole;
}

// The shortest decimal that reads back to the same value ("1e-05", "4194304").
template <class Number>
std::string shortest(Number value) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

// Parses the whole text as a number, or nothing. Independent of the locale.
template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Parses a number of bytes: digits and an optional K, M or G, in either case, for powers of 1024 ("256M").
// Nothing for any other text, also for a negative number and on overflow.
inline std::optional<std::int64_t> bytes_from(std::string_view text) {
  int shift = 0;
  switch (text.empty() ? '\0' : text.back()) {
    case 'K':
    case 'k':
      shift = 10;
      break;
    case 'M':
    case 'm':
      shift = 20;
      break;
    case 'G':
    case 'g':
      shift = 30;
      break;
  }
  if (shift != 0) text.remove_suffix(1);
  const std::optional<std::int64_t> count = number<std::int64_t>(text);
  if (!count || text.front() == '-' || *count > std::numeric_limits<std::int64_t>::max() >> shift)
    return std::nullopt;
  return *count << shift;
}

}  // namespace normjit
