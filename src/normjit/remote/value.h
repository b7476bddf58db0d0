// SPDX-License-Identifier: Apache-2.0
// Values of a remote store: an entry file behind the signature of whom made it.
//
//   normjit-signed 1
//   key: 45AB...                                  the number of the key, for people
//   signature: RUQ...                             of the entry file, in base64
//
//   <entry file>
//
// An unsigned value is the entry file alone.
#pragma once

#include <string>
#include <string_view>

#include "normjit/remote/signature.h"

namespace normjit {

// The keys of a store for an entry's id.
std::string value_key(std::string_view id);
std::string lease_key(std::string_view id);

// The value of an entry file; unsigned without a key.
std::string seal(std::string_view entry_file, const SecretKey* key);

// The parts of a value, which they point into.
struct Sealed {
  std::string_view key, signature;  // empty: unsigned
  std::string_view entry_file;
};
// A text that does not begin as a signed value is an unsigned one.
Sealed unseal(std::string_view value);

}  // namespace normjit
