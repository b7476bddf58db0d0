// The content hash of everything that normjit names or verifies by content: templates, cache keys, cache
// entries.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace normjit {

// XXH3, 128 bits, of these bytes as 32 lower-case hexadecimal digits, most significant first: what
// `xxh128sum` prints. The same on every machine. It tells damage and difference, not malice: it is no
// cryptographic hash.
std::string digest(std::string_view bytes);

// The same of pieces one behind the other, which need not be joined for it.
std::string digest(std::span<const std::string_view> pieces);

}  // namespace normjit
