// SPDX-License-Identifier: Apache-2.0
// The texts of minisign 0.11: https://jedisct1.github.io/minisign/. Reading them needs no libsodium.
//
//   FILE.pub      untrusted comment: ...
//                 base64 of: "Ed", number of the key (8), point (32)
//   FILE.key      untrusted comment: ...
//                 base64 of: "Ed", how the password is used (2; 0: there is none), "B2", salt and limits of
//                 that (48), number (8), seed and point (64), checksum (32)
//   FILE.minisig  untrusted comment: ...
//                 base64 of: "ED" or "Ed", number (8), signature (64)
//                 trusted comment: ...
//                 base64 of the signature of signature and trusted comment (64)
//
// "ED" signs the BLAKE2b-512 digest of the bytes, "Ed", as older programs do, the bytes themselves. The
// checksum is the BLAKE2b-256 digest of "Ed", number, seed and point; minisign -W leaves it 0. As minisign
// does, these readers take lines that end with CR LF, and a last line without an end. They refuse text behind
// the last line.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/remote/secret_bytes.h"
#include "normjit/remote/signature.h"

namespace normjit {

struct Sodium;

inline constexpr std::size_t kSignatureFileBytes = std::size_t{16}
                                                   << 10;  // more than minisign writes or reads

struct Signature {
  bool prehashed = true;  // "ED"
  std::array<unsigned char, 8> number{};
  std::array<unsigned char, 64> bytes{};

  static std::optional<Signature> parse(std::string_view base64);
  std::string text() const;

  friend bool operator==(const Signature&, const Signature&) = default;
};

struct SignatureFile {
  Signature signature;
  std::string trusted_comment;  // without what it begins with
  std::array<unsigned char, 64> of_both{};

  static std::optional<SignatureFile> parse(std::string_view text);
  std::string text() const;

  friend bool operator==(const SignatureFile&, const SignatureFile&) = default;
};

// Whether one of the keys has made this signature of these bytes: yes, wrong, unknown_key or unavailable.
// `file`: the file of the signature, whose trusted comment then counts too. `sodium`: may be null.
Trusted check_with(const Sodium* sodium, const std::vector<PublicKey>& keys, std::string_view bytes,
                   const Signature& signature, const SignatureFile* file = nullptr);

// The key of a .pub file.
std::optional<PublicKey> parse_public_file(std::string_view text);

// What a secret key's file holds.
struct SecretKeyText {
  std::array<unsigned char, 8> number{};
  SecretBytes<64> seed_and_point;
  std::array<unsigned char, 32> checksum{};

  // False, with what it is instead: "is not ...". The sentence has nothing of the text.
  bool parse(std::string_view text, std::string& mistake);
  // Overwrite it after use.
  std::string text() const;
};

}  // namespace normjit
