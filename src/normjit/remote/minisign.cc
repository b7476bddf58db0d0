// SPDX-License-Identifier: Apache-2.0
#include "normjit/remote/minisign.h"

#include <algorithm>
#include <span>

#include "normjit/base/text.h"
#include "normjit/remote/base64.h"

namespace normjit {
namespace {

constexpr std::string_view kUntrusted = "untrusted comment: ", kTrusted = "trusted comment: ";
constexpr std::string_view kLegacy = "Ed", kPrehashed = "ED", kBlake2b = "B2", kScrypt = "Sc";
constexpr std::string_view kNoPassword{"\0\0", 2};

// Takes fields off the front of bytes whose length is known.
class Fields {
 public:
  explicit Fields(std::span<const unsigned char> bytes) : rest_(bytes) {}

  std::string_view text(std::size_t size) {
    const auto field = take(size);
    return {reinterpret_cast<const char*>(field.data()), size};
  }
  template <class Array>
  void to(Array& field) {
    std::ranges::copy(take(field.size()), field.begin());
  }
  void skip(std::size_t size) { take(size); }

 private:
  std::span<const unsigned char> take(std::size_t size) {
    const auto field = rest_.first(size);
    rest_ = rest_.subspan(size);
    return field;
  }

  std::span<const unsigned char> rest_;
};

// Puts fields one behind the other into bytes of their length together.
class FieldsTo {
 public:
  explicit FieldsTo(std::span<unsigned char> bytes) : at_(bytes.data()) {}

  FieldsTo& text(std::string_view field) { return at_ = std::ranges::copy(field, at_).out, *this; }
  FieldsTo& from(std::span<const unsigned char> field) {
    return at_ = std::ranges::copy(field, at_).out, *this;
  }
  FieldsTo& skip(std::size_t size) { return at_ += size, *this; }

 private:
  unsigned char* at_;
};

// The next line without its end. False behind the last one, and for a line with a CR or 0 byte inside, of
// which programs take different parts.
bool take_line(std::string_view& rest, std::string_view& line) {
  if (rest.empty()) return false;
  const std::size_t end = rest.find('\n');
  line = rest.substr(0, end);
  rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line.find_first_of(std::string_view("\r\0", 2)) == line.npos;
}

// The line behind an untrusted comment.
bool take_commented(std::string_view& rest, std::string_view& line) {
  std::string_view comment;
  return take_line(rest, comment) && comment.starts_with(kUntrusted) && take_line(rest, line);
}

}  // namespace

// --- Public keys

Result<PublicKey> PublicKey::parse(std::string_view text) {
  std::array<unsigned char, 42> bytes;
  PublicKey key;
  Fields fields(bytes);
  if (!from_base64(text, bytes) || fields.text(2) != kLegacy)
    return Error{
        Code::BadArgument,
        "The text is not a public key: that is RW and 54 more characters, the last line of a .pub file."};
  fields.to(key.number);
  fields.to(key.point);
  return key;
}

std::string PublicKey::text() const {
  std::array<unsigned char, 42> bytes;
  FieldsTo(bytes).text(kLegacy).from(number).from(point);
  return to_base64(bytes);
}

// minisign shows the number as a little-endian integer.
std::string PublicKey::name() const {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string name;
  for (auto byte = number.rbegin(); byte != number.rend(); ++byte)
    name += {kHex[*byte >> 4], kHex[*byte & 15]};
  return name;
}

std::optional<PublicKey> parse_public_file(std::string_view text) {
  std::string_view line;
  if (!take_commented(text, line) || !text.empty()) return std::nullopt;
  const auto key = PublicKey::parse(line);
  return key ? std::optional(*key) : std::nullopt;
}

// --- Signatures

std::optional<Signature> Signature::parse(std::string_view base64) {
  std::array<unsigned char, 74> bytes;
  if (!from_base64(base64, bytes)) return std::nullopt;
  Fields fields(bytes);
  const std::string_view algorithm = fields.text(2);
  if (algorithm != kPrehashed && algorithm != kLegacy) return std::nullopt;
  Signature signature{.prehashed = algorithm == kPrehashed};
  fields.to(signature.number);
  fields.to(signature.bytes);
  return signature;
}

std::string Signature::text() const {
  std::array<unsigned char, 74> whole;
  FieldsTo(whole).text(prehashed ? kPrehashed : kLegacy).from(number).from(bytes);
  return to_base64(whole);
}

std::optional<SignatureFile> SignatureFile::parse(std::string_view text) {
  std::string_view first, comment, last;
  if (text.size() > kSignatureFileBytes || !take_commented(text, first) || !take_line(text, comment) ||
      !comment.starts_with(kTrusted) || !take_line(text, last) || !text.empty())
    return std::nullopt;
  SignatureFile file;
  const auto signature = Signature::parse(first);
  if (!signature || !from_base64(last, file.of_both)) return std::nullopt;
  file.signature = *signature;
  file.trusted_comment = comment.substr(kTrusted.size());
  return file;
}

std::string SignatureFile::text() const {
  return concat({kUntrusted, "signature from normjit secret key\n", signature.text(), "\n", kTrusted,
                 trusted_comment, "\n", to_base64(of_both), "\n"});
}

// --- Secret keys

namespace {

constexpr std::size_t kSecretBytes = 2 + 2 + 2 + 48 + 8 + 64 + 32;

}  // namespace

bool SecretKeyText::parse(std::string_view text, std::string& mistake) {
  SecretBytes<kSecretBytes> bytes;
  std::string_view line;
  if (!take_commented(text, line) || !text.empty() || !from_base64(line, bytes)) {
    mistake = "is not a secret key of minisign's format";
    return false;
  }
  Fields fields(bytes);
  const std::string_view algorithm = fields.text(2), password = fields.text(2), checked_by = fields.text(2);
  if (algorithm != kLegacy || checked_by != kBlake2b || (password != kScrypt && password != kNoPassword)) {
    mistake = "is not a secret key of minisign's format, or of a version that is not known";
    return false;
  }
  if (password != kNoPassword) {
    mistake = "is protected by a password, for which normjit does not ask";
    return false;
  }
  fields.skip(48);
  fields.to(number);
  fields.to(seed_and_point);
  fields.to(checksum);
  return true;
}

std::string SecretKeyText::text() const {
  SecretBytes<kSecretBytes> bytes;
  FieldsTo(bytes)
      .text(kLegacy)
      .text(kNoPassword)
      .text(kBlake2b)
      .skip(48)
      .from(number)
      .from(seed_and_point)
      .from(checksum);
  std::string text;
  text.reserve(2 * kSecretBytes);  // so that no copy of it is left behind
  text += kUntrusted;
  text += "normjit secret key\n";
  append_base64(text, bytes);
  text += '\n';
  return text;
}

}  // namespace normjit
