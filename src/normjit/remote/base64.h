// SPDX-License-Identifier: Apache-2.0
// Base64 of RFC 4648, with padding.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace normjit {

// The number of characters for so many bytes.
constexpr std::size_t base64_size(std::size_t bytes) { return (bytes + 2) / 3 * 4; }

// Appends the text of these bytes. Makes no copy of them but that text.
void append_base64(std::string& to, std::span<const unsigned char> bytes);
std::string to_base64(std::span<const unsigned char> bytes);

// Reads exactly bytes.size() bytes. False for any other text, also for one that to_base64 does not write: of
// another length, with spaces or line ends, or with bits behind the last byte. The bytes are then undefined.
bool from_base64(std::string_view text, std::span<unsigned char> bytes);

}  // namespace normjit
