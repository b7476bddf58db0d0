// SPDX-License-Identifier: Apache-2.0
// Text helpers of several stages.
#pragma once

#include <charconv>
#include <cstdint>
#include <ctime>
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

// The words of a text, with any number of spaces and commas between them.
inline std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (const std::string_view part : split(text, ','))
    for (const std::string_view word : split(part, ' '))
      if (!word.empty()) words.emplace_back(word);
  return words;
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
  constexpr std::string_view kUnits = "KkMmGg";
  int shift = 0;
  if (const auto unit = text.empty() ? kUnits.npos : kUnits.find(text.back()); unit != kUnits.npos) {
    shift = 10 * (static_cast<int>(unit) / 2 + 1);
    text.remove_suffix(1);
  }
  const std::optional<std::int64_t> count = number<std::int64_t>(text);
  if (!count || text.front() == '-' || *count > std::numeric_limits<std::int64_t>::max() >> shift)
    return std::nullopt;
  return *count << shift;
}

// Seconds since 1970 as "2026-11-21T09:30:00Z".
inline std::string timestamp(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm utc{};
  if (gmtime_r(&time, &utc) == nullptr) return "?";  // a year beyond int
  char text[64];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

}  // namespace normjit
