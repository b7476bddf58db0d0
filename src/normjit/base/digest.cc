// SPDX-License-Identifier: Apache-2.0
#include "normjit/base/digest.h"

// xxHash is compiled into this file with internal linkage: no library to link, no clash with a host's copy.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace normjit {
namespace {

std::string text_of(XXH128_hash_t hash) {
  XXH128_canonical_t big_endian;
  XXH128_canonicalFromHash(&big_endian, hash);
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * sizeof(big_endian.digest));
  for (const unsigned char byte : big_endian.digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

std::string digest(std::string_view bytes) { return text_of(XXH3_128bits(bytes.data(), bytes.size())); }

}  // namespace normjit
