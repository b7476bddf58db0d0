#include "normjit/base/digest.h"

// The whole of xxHash is compiled into this file, with internal linkage: no library to link, and no symbol
// that could meet a host's own copy.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace normjit {

std::string digest(std::string_view bytes) {
  XXH128_canonical_t big_endian;
  XXH128_canonicalFromHash(&big_endian, XXH3_128bits(bytes.data(), bytes.size()));
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * sizeof(big_endian.digest));
  for (const unsigned char byte : big_endian.digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace normjit
