// SPDX-License-Identifier: Apache-2.0
// The content hash of templates, cache keys and cache entries.
#pragma once

#include <string>
#include <string_view>

namespace normjit {

// XXH3, 128 bits, as 32 lower-case hexadecimal digits, most significant first: what `xxh128sum` prints. The
// same on every machine. Not a cryptographic hash: it detects damage and difference, not malice.
std::string digest(std::string_view bytes);

}  // namespace normjit
