// SPDX-License-Identifier: Apache-2.0
#include "verify/foreign_text.h"

#include "normjit/base/text.h"

namespace normjit::oracle {
namespace {

std::string hexadecimal(char c) {
  constexpr char kDigits[] = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  return {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
}

// Without the control characters of ASCII and of Unicode's second block, which UTF-8 writes as c2 80 to c2
// 9f; but with those in `kept`.
std::string escaped(std::string_view text, std::string_view kept) {
  std::string clean;
  clean.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : '\0');
    if (byte == 0xc2 && next >= 0x80 && next <= 0x9f) {
      clean += hexadecimal(text[i]) + hexadecimal(text[i + 1]);
      ++i;
    } else if ((byte >= 0x20 && byte != 0x7f) || kept.find(text[i]) != kept.npos) {
      clean += text[i];
    } else {
      clean += text[i] == '\n'   ? "\\n"
               : text[i] == '\t' ? "\\t"
               : text[i] == '\r' ? "\\r"
                                 : hexadecimal(text[i]);
    }
  }
  return clean;
}

}  // namespace

std::string shown(std::string_view text, std::size_t longest) {
  if (text.size() <= longest) return escaped(text, {});
  std::size_t end = longest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // between two characters
  return concat({escaped(text.substr(0, end), {}), "... (", shortest(text.size()), " bytes)"});
}

std::string printable(std::string_view message) { return escaped(message, "\n\t"); }

}  // namespace normjit::oracle
