// SPDX-License-Identifier: Apache-2.0
#include "verify/foreign_text.h"

#include <algorithm>

#include "normjit/base/text.h"

namespace normjit::oracle {
namespace {

std::string hexadecimal(char c) {
  constexpr char kDigits[] = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  return {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
}

// A control character, with its reader's name for it.
std::string spelled(char c) {
  return c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\r' ? "\\r" : hexadecimal(c);
}

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// The beginning of the text, as whole characters that take at most `longest` bytes. Without the control
// characters of ASCII and of Unicode's second block, which UTF-8 writes as c2 80 to c2 9f; but with those in
// `kept`. Removes from the text what it returns.
std::string escaped(std::string_view& text, std::string_view kept, std::size_t longest) {
  std::string clean;
  clean.reserve(std::min(text.size(), longest));
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text[0]);
    const auto next = static_cast<unsigned char>(text.size() > 1 ? text[1] : '\0');
    std::string one;
    std::size_t bytes = 1;
    if (byte == 0xc2 && next >= 0x80 && next <= 0x9f) {
      one = hexadecimal(text[0]) + hexadecimal(text[1]);
      bytes = 2;
    } else if ((byte >= 0x20 && byte != 0x7f) || kept.find(text[0]) != kept.npos) {
      while (bytes < text.size() && continues(text[bytes])) ++bytes;
      one = text.substr(0, bytes);
    } else {
      one = spelled(text[0]);
    }
    if (one.size() > longest - clean.size()) break;
    clean += one;
    text.remove_prefix(bytes);
  }
  return clean;
}

}  // namespace

std::string shown(std::string_view text, std::size_t longest) {
  std::string_view rest = text;
  const std::string clean = escaped(rest, {}, longest);
  return rest.empty() ? clean : concat({clean, "... (", shortest(text.size()), " bytes)"});
}

std::string printable(std::string_view message) { return escaped(message, "\n\t", message.npos); }

}  // namespace normjit::oracle
