// SPDX-License-Identifier: Apache-2.0
// The content hash of templates, cache keys and cache entries.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace normjit {

// XXH3, 128 bits, as 32 lower-case hexadecimal digits, most significant first: what `xxh128sum` prints. The
// same on every machine. Not a cryptographic hash: it detects damage and difference, not malice.
std::string digest(std::string_view bytes);

// The digest of the concatenated pieces.
std::string digest(std::span<const std::string_view> pieces);

}  // namespace normjit
