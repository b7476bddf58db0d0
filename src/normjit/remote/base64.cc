// SPDX-License-Identifier: Apache-2.0
#include "normjit/remote/base64.h"

#include <algorithm>
#include <cstdint>

namespace normjit {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

void append_base64(std::string& to, std::span<const unsigned char> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t count = std::min<std::size_t>(bytes.size() - at, 3);
    std::uint32_t group = 0;
    for (std::size_t i = 0; i < 3; ++i) group = group << 8 | (i < count ? bytes[at + i] : 0u);
    for (std::size_t i = 0; i < 4; ++i) to += i <= count ? kDigits[group >> (18 - 6 * i) & 63] : '=';
  }
}

std::string to_base64(std::span<const unsigned char> bytes) {
  std::string text;
  text.reserve(base64_size(bytes.size()));
  append_base64(text, bytes);
  return text;
}

bool from_base64(std::string_view text, std::span<unsigned char> bytes) {
  if (text.size() != base64_size(bytes.size())) return false;
  for (std::size_t at = 0; at < bytes.size(); at += 3, text.remove_prefix(4)) {
    const std::size_t count = std::min<std::size_t>(bytes.size() - at, 3);
    std::uint32_t group = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t digit = kDigits.find(text[i]);
      if (i <= count ? digit == kDigits.npos : text[i] != '=') return false;
      group = group << 6 | (i <= count ? static_cast<std::uint32_t>(digit) : 0u);
    }
    // The bits behind the last byte are 0, or several texts would stand for the same bytes.
    if ((group & ((1u << (24 - 8 * count)) - 1)) != 0) return false;
    for (std::size_t i = 0; i < count; ++i) bytes[at + i] = static_cast<unsigned char>(group >> (16 - 8 * i));
  }
  return true;
}

}  // namespace normjit
