// SPDX-License-Identifier: Apache-2.0
// Ed25519 signatures in the formats of minisign, by libsodium, which is opened when it is first needed.
//
// A signature is of the BLAKE2b-512 digest of the bytes (minisign's "ED"), 74 bytes: algorithm, number of the
// key, signature. In a file beside the signed one (FILE.minisig) it stands with a trusted comment, which is
// signed too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "normjit/result.h"

namespace normjit {

// A public key: "RW..." with 56 characters, as the last line of minisign's .pub files.
struct PublicKey {
  std::array<unsigned char, 8> number;  // which of all keys
  std::array<unsigned char, 32> point;

  static Result<PublicKey> parse(std::string_view text);  // BadArgument
  std::string text() const;
  // Its number: 16 hexadecimal digits, upper case. minisign leaves out zeros in front.
  std::string name() const;

  friend bool operator==(const PublicKey&, const PublicKey&) = default;
};

inline constexpr std::size_t kMaxTrustedComment = 8000;  // minisign reads 8 KiB

// A secret key. Its bytes are wiped when it ends. Move only; one that was moved from has no use but its end.
class SecretKey {
 public:
  // From a file of minisign's secret key format without a password (minisign -G -W; normjit sign keygen),
  // which only its owner can read: mode 0600 or less, owned by this user or root, no link. Errors: CacheIo,
  // also without libsodium; BadArgument for a file that is not such a key, is damaged, has a password, or can
  // be read by others.
  static Result<SecretKey> read(const std::string& path);
  static Result<SecretKey> generate();  // CacheIo without libsodium

  SecretKey(SecretKey&&) noexcept;
  SecretKey& operator=(SecretKey&&) noexcept;
  ~SecretKey();

  PublicKey public_key() const;
  // The text of the key's file. Its bytes are the caller's to wipe.
  std::string file_text() const;
  // The text of the public key's file.
  std::string public_file_text() const;

  // The signature of these bytes, in base64: 100 characters.
  std::string sign(std::string_view bytes) const;
  // The text of FILE.minisig for a file of these bytes. The comment is one line of at most kMaxTrustedComment
  // bytes: line ends and 0 bytes become spaces, and what is longer is cut.
  std::string sign_file(std::string_view bytes, std::string_view trusted_comment) const;

 private:
  SecretKey() = default;
  std::array<unsigned char, 8> number_{};
  std::array<unsigned char, 64> seed_and_point_{};
};

// What came of a check of a signature.
enum class Trusted : std::uint8_t {
  yes,
  malformed,    // not a signature
  unknown_key,  // of a key that is not among these
  wrong,        // of one of these keys, and of other bytes
  unavailable,  // libsodium cannot be opened, and the signature is of one of these keys
};
// What that means for the bytes: "its signature is of other bytes".
std::string_view reason(Trusted outcome) noexcept;

// The keys of those whose entries and packs are believed. Thread-safe.
class Trust {
 public:
  Trust() = default;
  // Each is a public key ("RW..."), or the path of a .pub file. BadArgument; CacheIo.
  static Result<Trust> of(const std::vector<std::string>& keys_and_files);
  explicit Trust(std::vector<PublicKey> keys) : keys_(std::move(keys)) {}

  bool empty() const { return keys_.empty(); }
  const std::vector<PublicKey>& keys() const { return keys_; }
  // Whether one of the keys has signed these bytes. `signature`: as of SecretKey::sign; legacy ones, which
  // are not of the digest, are malformed.
  Trusted check(std::string_view bytes, std::string_view signature) const;
  // The same with the text of a .minisig file; its trusted comment counts. Takes legacy signatures too, as
  // minisign does. *trusted_comment is set, to an empty text unless the answer is yes.
  Trusted check_file(std::string_view bytes, std::string_view signature_file,
                     std::string* trusted_comment = nullptr) const;

 private:
  std::vector<PublicKey> keys_;
};

// Why libsodium cannot be used on this machine; empty: it can. Opens it.
std::string sodium_error();

}  // namespace normjit
