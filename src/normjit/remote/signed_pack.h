// SPDX-License-Identifier: Apache-2.0
// Checks whether a trusted key has signed a pack.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/cache/file_system.h"
#include "normjit/cache/tier.h"
#include "normjit/remote/signature.h"
#include "normjit/result.h"

namespace normjit {

// The signature of FILE is in FILE.minisig.
inline constexpr std::string_view kSignatureSuffix = ".minisig";
inline constexpr std::int64_t kMaxSignatureBytes = 65536;  // one that minisign writes has about 300

// Whether one of these keys has signed the bytes of a pack. `pack` and `where`, of the signature, are for the
// error. Untrusted; CacheIo without libsodium.
Result<void> check_signature(const Trust& trust, std::string_view bytes, std::string_view signature,
                             std::string_view pack, std::string_view where);
// The same with the signature beside the file of the pack. CacheIo also where that cannot be read.
Result<void> check_signed(const Trust& trust, std::string_view bytes, const std::string& path,
                          FileSystem& files, bool shared);
// The same, for packs that are layers. `trusted`: as Options::trust; read when a pack is first used. Empty
// if there are none: all packs are believed.
Believes signed_by(const std::vector<std::string>& trusted, std::shared_ptr<FileSystem> files, bool shared);

}  // namespace normjit
