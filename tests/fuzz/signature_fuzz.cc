// SPDX-License-Identifier: Apache-2.0
// Texts of minisign: public keys, signatures, and secret keys; and values of a remote store.
#include "normjit/remote/minisign.h"
#include "normjit/remote/value.h"
#include "tests/fuzz/fuzz.h"

using namespace normjit;

namespace {

void read_public_key(std::string_view input) {
  const Result<PublicKey> key = PublicKey::parse(input);
  if (!key) fuzz::expect_message(key.error().message);
  if (key) fuzz::expect(key->text() == input, "a public key has one text", input);
  if (const auto in_file = parse_public_file(input)) {
    fuzz::expect(input.find(in_file->text()) != input.npos, "a key's file has its text", input);
    fuzz::expect(in_file->name().size() == 16, "a number has 16 digits", in_file->name());
    const Result<PublicKey> again = PublicKey::parse(in_file->text());
    fuzz::expect(again.ok() && *again == *in_file, "a public key reads back", in_file->text());
  }
}

void read_signature(std::string_view input) {
  if (const auto signature = Signature::parse(input))
    fuzz::expect(signature->text() == input, "a signature has one text", input);
  const auto file = SignatureFile::parse(input);
  // A key with the number of the signature, so that it is looked at; no key has made it.
  const Trust trust(
      {PublicKey{.number = file ? file->signature.number : decltype(PublicKey::number){}, .point = {}}});
  std::string comment = "before";
  const Trusted outcome = trust.check_file("bytes", input, &comment);
  fuzz::expect(outcome != Trusted::yes && comment.empty(), "no signature is right by chance", input);
  fuzz::expect(trust.check("bytes", input) != Trusted::yes, "no value is signed by chance", input);
  fuzz::expect((outcome == Trusted::malformed) == !file, "what is read is checked", input);
  if (!file) return;
  fuzz::expect(file->trusted_comment.find_first_of("\n\r") == std::string::npos, "a comment is one line",
               input);
  const std::string text = file->text();
  fuzz::expect(SignatureFile::parse(text) == file, "a signature's file reads back", text);
}

void read_secret_key(std::string_view input) {
  SecretKeyText key, again;
  std::string mistake;
  if (!key.parse(input, mistake)) return fuzz::expect_message(mistake);
  const std::string text = key.text();
  fuzz::expect(again.parse(text, mistake), "a secret key's file reads back", text);
  fuzz::expect(again.number == key.number && again.seed_and_point == key.seed_and_point &&
                   again.checksum == key.checksum,
               "and is the same key", text);
}

void read_value(std::string_view input) {
  const Sealed sealed = unseal(input);
  fuzz::expect(input.ends_with(sealed.entry_file), "the entry ends a value", input);
  fuzz::expect(!sealed.signature.empty() || sealed.entry_file == input || input.find("signature: \n") != input.npos,
               "an unsigned value is all entry", input);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  read_public_key(input);
  read_signature(input);
  read_secret_key(input);
  read_value(input);
  return 0;
}
