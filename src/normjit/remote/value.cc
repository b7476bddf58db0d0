// SPDX-License-Identifier: Apache-2.0
#include "normjit/remote/value.h"

#include "normjit/base/text.h"
#include "normjit/cache/entry.h"

namespace normjit {
namespace {

constexpr std::string_view kFormat = "normjit-signed 1\n", kKey = "key: ", kSignature = "signature: ";

}  // namespace

std::string value_key(std::string_view id) { return concat({"nj1:", id}); }
std::string lease_key(std::string_view id) { return concat({"nj1:", id, ":lease"}); }

std::string seal(std::string_view entry_file, const SecretKey* key) {
  if (key == nullptr) return std::string(entry_file);
  return concat(
      {kFormat, kKey, key->public_key().name(), "\n", kSignature, key->sign(entry_file), "\n\n", entry_file});
}

Sealed unseal(std::string_view value) {
  Sealed sealed;
  std::string_view rest = value;
  if (take_prefix(rest, kFormat) && take_field(rest, kKey, sealed.key) &&
      take_field(rest, kSignature, sealed.signature) && take_prefix(rest, "\n")) {
    sealed.entry_file = rest;
    return sealed;
  }
  return {.key = {}, .signature = {}, .entry_file = value};
}

}  // namespace normjit
