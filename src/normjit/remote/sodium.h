// SPDX-License-Identifier: Apache-2.0
// libsodium's functions that normjit calls, found at run time: normjit is never linked to libsodium.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>

#include "normjit/result.h"

namespace normjit {

// One line per call: its name here, its name there, its type. Declared by hand, so that a build needs no
// header of libsodium; these have been stable since its 1.0. Each is 0 for success. Lengths are in bytes.
//   hash            out, its length, in, its length, key, its length: BLAKE2b
//   keys_of_seed    point of 32, seed and point of 64, seed of 32: of Ed25519
//   sign            signature of 64, null, message, its length, seed and point
//   verify          signature, message, its length, point
#define NORMJIT_SODIUM_CALLS(CALL)                                                                      \
  CALL(init, sodium_init, int())                                                                        \
  CALL(hash, crypto_generichash,                                                                        \
       int(unsigned char*, std::size_t, const unsigned char*, unsigned long long, const unsigned char*, \
           std::size_t))                                                                                \
  CALL(keys_of_seed, crypto_sign_ed25519_seed_keypair,                                                  \
       int(unsigned char*, unsigned char*, const unsigned char*))                                       \
  CALL(sign, crypto_sign_ed25519_detached,                                                              \
       int(unsigned char*, unsigned long long*, const unsigned char*, unsigned long long,               \
           const unsigned char*))                                                                       \
  CALL(verify, crypto_sign_ed25519_verify_detached,                                                     \
       int(const unsigned char*, const unsigned char*, unsigned long long, const unsigned char*))

// The functions of one libsodium. They take no lock, so a fork does not disturb them.
struct Sodium {
#define NORMJIT_MEMBER(name, function, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
  NORMJIT_SODIUM_CALLS(NORMJIT_MEMBER)
#undef NORMJIT_MEMBER
};

// Opens the first of these libraries that there is. CacheIo: a sentence that names all of them.
Result<Sodium> open_sodium(std::span<const char* const> sonames);

// libsodium for this process: opened by the first call, and never closed. Null, with the reason in *why,
// where it cannot be opened; the next call then tries again. Thread-safe.
const Sodium* sodium(std::string* why = nullptr);

}  // namespace normjit
