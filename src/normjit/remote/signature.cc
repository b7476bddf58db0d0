// SPDX-License-Identifier: Apache-2.0
#include "normjit/remote/signature.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "normjit/base/text.h"
#include "normjit/cache/read_file.h"
#include "normjit/cache/system_call.h"
#include "normjit/remote/minisign.h"
#include "normjit/remote/secret_bytes.h"
#include "normjit/remote/sodium.h"

namespace normjit {
namespace {

using Digest = std::array<unsigned char, 64>;

std::span<const unsigned char> bytes_of(std::string_view text) {
  return {reinterpret_cast<const unsigned char*>(text.data()), text.size()};
}

// BLAKE2b of as many bytes as `to` has. Fails for no length that occurs here.
template <std::size_t size>
void hash(const Sodium& sodium, std::span<const unsigned char> bytes, std::array<unsigned char, size>& to) {
  sodium.hash(to.data(), size, bytes.data(), bytes.size(), nullptr, 0);
}

bool verify(const Sodium& sodium, std::span<const unsigned char> message,
            const std::array<unsigned char, 64>& signature, const PublicKey& key) {
  return sodium.verify(signature.data(), message.data(), message.size(), key.point.data()) == 0;
}

// What the last signature of a .minisig file signs.
std::string both(const Signature& signature, std::string_view trusted_comment) {
  std::string message(reinterpret_cast<const char*>(signature.bytes.data()), signature.bytes.size());
  return message.append(trusted_comment);
}

// Those of the keys that say by their number that they have made this signature. Nothing keeps two keys from
// having the same number.
std::vector<PublicKey> keys_of(const Signature& signature, const std::vector<PublicKey>& keys) {
  std::vector<PublicKey> named;
  std::ranges::copy_if(keys, std::back_inserter(named),
                       [&](const PublicKey& key) { return key.number == signature.number; });
  return named;
}

}  // namespace

Trusted check_with(const Sodium* sodium, const std::vector<PublicKey>& keys, std::string_view bytes,
                   const Signature& signature, const SignatureFile* file) {
  const std::vector<PublicKey> named = keys_of(signature, keys);
  if (named.empty()) return Trusted::unknown_key;
  if (sodium == nullptr) return Trusted::unavailable;
  std::span<const unsigned char> message = bytes_of(bytes);
  Digest digest;
  if (signature.prehashed) {
    hash(*sodium, message, digest);
    message = digest;
  }
  for (const PublicKey& key : named) {
    if (!verify(*sodium, message, signature.bytes, key)) continue;
    if (file == nullptr ||
        verify(*sodium, bytes_of(both(signature, file->trusted_comment)), file->of_both, key))
      return Trusted::yes;
  }
  return Trusted::wrong;
}

namespace {

using Checksum = std::array<unsigned char, 32>;

Checksum checksum_of(const Sodium& sodium, std::span<const unsigned char> number,
                     std::span<const unsigned char> seed_and_point) {
  SecretBytes<2 + 8 + 64> message;
  message[0] = 'E', message[1] = 'd';
  std::ranges::copy(number, message.begin() + 2);
  std::ranges::copy(seed_and_point, message.begin() + 10);
  Checksum checksum;
  hash(sodium, message, checksum);
  return checksum;
}

Error no_sodium(std::string why) { return {Code::CacheIo, std::move(why)}; }

constexpr std::string_view kMakeOne =
    "; make a key without a password with `normjit sign keygen` or `minisign -G -W`";

class Descriptor {
 public:
  explicit Descriptor(int file) : file_(file) {}
  ~Descriptor() {
    if (file_ >= 0) close(file_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return file_; }

 private:
  int file_;
};

// Why nobody else knows this secret; or why that is not so.
Result<void> check_secrecy(const std::string& path, const struct stat& facts) {
  if (!S_ISREG(facts.st_mode))
    return Error{Code::BadArgument, path + " is not a regular file: name that of a secret key"};
  if (facts.st_uid != 0 && facts.st_uid != geteuid())
    return Error{Code::BadArgument,
                 concat({"the secret key ", path, " belongs to the user with the id ", shortest(facts.st_uid),
                         "; it must be this user's or root's: make a copy of your own"})};
  if ((facts.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return Error{Code::BadArgument, concat({"the secret key ", path,
                                            " can be used by other users; take that away with chmod 600 ",
                                            path, ", and if they may have read it, make a new key"})};
  return {};
}

}  // namespace

std::string sodium_error() {
  std::string why;
  sodium(&why);
  return why;
}

// --- Secret keys

Result<SecretKey> SecretKey::read(const std::string& path) {
  // Waits for no FIFO.
  const Descriptor file(
      uninterrupted([&] { return open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK); }));
  if (file.get() < 0 && errno == ELOOP)
    return Error{Code::BadArgument, path + " is a symbolic link: name the file of the secret key itself"};
  if (file.get() < 0) return io_error("open", path, errno);
  struct stat facts = {};
  if (fstat(file.get(), &facts) < 0) return io_error("stat", path, errno);
  if (auto secret = check_secrecy(path, facts); !secret) return secret.error();

  SecretBytes<4096> bytes;  // a key has about 260
  std::size_t size = 0;
  while (size < bytes.size()) {
    const long got =
        uninterrupted([&] { return ::read(file.get(), bytes.data() + size, bytes.size() - size); });
    if (got < 0) return io_error("read", path, errno);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  SecretKeyText text;
  std::string mistake;
  if (!text.parse({reinterpret_cast<const char*>(bytes.data()), size}, mistake))
    return Error{Code::BadArgument, concat({path, " ", mistake, kMakeOne})};

  std::string why;
  const Sodium* const sodium = normjit::sodium(&why);
  if (sodium == nullptr) return no_sodium(why);
  // A key whose point is not of its seed would betray the seed by its signatures.
  PublicKey made;
  SecretBytes<64> again;
  sodium->keys_of_seed(made.point.data(), again.data(), text.seed_and_point.data());
  const bool is_unchecked = text.checksum == Checksum{};
  if (again != text.seed_and_point ||
      (!is_unchecked && text.checksum != checksum_of(*sodium, text.number, text.seed_and_point)))
    return Error{Code::BadArgument,
                 concat({path, " is a damaged secret key: its checksum does not match", kMakeOne})};
  SecretKey key;
  key.number_ = text.number;
  std::ranges::copy(text.seed_and_point, key.seed_and_point_.begin());
  return key;
}

Result<SecretKey> SecretKey::generate() {
  std::string why;
  const Sodium* const sodium = normjit::sodium(&why);
  if (sodium == nullptr) return no_sodium(why);
  SecretBytes<32 + 8> random;
  if (uninterrupted([&] { return getrandom(random.data(), random.size(), 0); }) != std::ssize(random))
    return io_error("get random bytes for", "a key", errno);
  SecretKey key;
  PublicKey made;
  sodium->keys_of_seed(made.point.data(), key.seed_and_point_.data(), random.data());
  std::copy_n(random.begin() + 32, 8, key.number_.begin());
  return key;
}

SecretKey::SecretKey(SecretKey&& from) noexcept { *this = std::move(from); }

SecretKey& SecretKey::operator=(SecretKey&& from) noexcept {
  if (this == &from) return *this;
  number_ = from.number_;
  seed_and_point_ = from.seed_and_point_;
  explicit_bzero(from.seed_and_point_.data(), from.seed_and_point_.size());
  return *this;
}

SecretKey::~SecretKey() { explicit_bzero(seed_and_point_.data(), seed_and_point_.size()); }

PublicKey SecretKey::public_key() const {
  PublicKey key{.number = number_, .point = {}};
  std::copy_n(seed_and_point_.begin() + 32, 32, key.point.begin());
  return key;
}

std::string SecretKey::file_text() const {
  SecretKeyText text;
  text.number = number_;
  std::ranges::copy(seed_and_point_, text.seed_and_point.begin());
  text.checksum = checksum_of(*sodium(), number_, seed_and_point_);  // there is one, since there is a key
  return text.text();
}

std::string SecretKey::public_file_text() const {
  const PublicKey key = public_key();
  return concat({"untrusted comment: normjit public key ", key.name(), "\n", key.text(), "\n"});
}

namespace {

void sign_message(std::span<const unsigned char> message, const std::array<unsigned char, 64>& seed_and_point,
                  std::array<unsigned char, 64>& signature) {
  sodium()->sign(signature.data(), nullptr, message.data(), message.size(), seed_and_point.data());
}

Signature sign_bytes(std::string_view bytes, const std::array<unsigned char, 8>& number,
                     const std::array<unsigned char, 64>& seed_and_point) {
  Signature signature{.number = number};
  Digest digest;
  hash(*sodium(), bytes_of(bytes), digest);
  sign_message(digest, seed_and_point, signature.bytes);
  return signature;
}

}  // namespace

std::string SecretKey::sign(std::string_view bytes) const {
  return sign_bytes(bytes, number_, seed_and_point_).text();
}

std::string SecretKey::sign_file(std::string_view bytes, std::string_view trusted_comment) const {
  SignatureFile file{.signature = sign_bytes(bytes, number_, seed_and_point_), .trusted_comment = {}};
  file.trusted_comment = trusted_comment.substr(0, kMaxTrustedComment);
  std::ranges::replace_if(
      file.trusted_comment, [](char c) { return c == '\n' || c == '\r' || c == '\0'; }, ' ');
  sign_message(bytes_of(both(file.signature, file.trusted_comment)), seed_and_point_, file.of_both);
  return file.text();
}

// --- Trust

namespace {

constexpr std::int64_t kPublicFileBytes = 4096;  // a public key's file has about 110

Result<PublicKey> key_of(const std::string& key_or_file, FileSystem& files) {
  if (auto key = PublicKey::parse(key_or_file)) return key;
  OpenFile file(files, key_or_file, /*shared=*/false, OpenFile::Links::follow);
  std::string text;
  if (file.read_all(kPublicFileBytes, text)) {
    if (const auto key = parse_public_file(text)) return *key;
    return Error{
        Code::BadArgument,
        key_or_file +
            " is not a public key's file: that has a line of comment, and a line that begins with RW"};
  }
  const std::string& why = file.trouble().error;
  switch (file.trouble().kind) {
    case Lookup::Kind::absent:
    case Lookup::Kind::unreadable:
      return Error{
          Code::CacheIo,
          concat({"a trusted key is RW and 54 more characters, or a .pub file, and this is neither: ", why})};
    case Lookup::Kind::untrusted:
      return Error{
          Code::BadArgument,
          concat({"the trusted key ", why,
                  ", who could replace it; make this user or root its owner, and remove the write permission "
                  "of other users"})};
    default:
      return Error{Code::BadArgument, concat({"a trusted key is a text or a small file: ", why})};
  }
}

}  // namespace

Result<Trust> Trust::of(const std::vector<std::string>& keys_and_files) {
  std::vector<PublicKey> keys;
  const auto files = make_posix_file_system();
  for (const std::string& each : keys_and_files) {
    const auto key = key_of(each, *files);
    if (!key) return key.error();
    if (std::ranges::find(keys, *key) == keys.end()) keys.push_back(*key);
  }
  return Trust(std::move(keys));
}

Trusted Trust::check(std::string_view bytes, std::string_view signature) const {
  const auto parsed = Signature::parse(signature);
  if (!parsed || !parsed->prehashed) return Trusted::malformed;
  return check_with(sodium(), keys_, bytes, *parsed);
}

Trusted Trust::check_file(std::string_view bytes, std::string_view signature_file,
                          std::string* trusted_comment) const {
  if (trusted_comment != nullptr) trusted_comment->clear();
  const auto parsed = SignatureFile::parse(signature_file);
  if (!parsed) return Trusted::malformed;
  const Trusted outcome = check_with(sodium(), keys_, bytes, parsed->signature, &*parsed);
  if (outcome == Trusted::yes && trusted_comment != nullptr) *trusted_comment = parsed->trusted_comment;
  return outcome;
}

std::string_view reason(Trusted outcome) noexcept {
  switch (outcome) {
    case Trusted::yes:
      return "its signature is right";
    case Trusted::malformed:
      return "its signature is none of minisign's format";
    case Trusted::unknown_key:
      return "its signature is of a key that is not trusted";
    case Trusted::wrong:
      return "its signature is of other bytes";
    case Trusted::unavailable:
      return "its signature cannot be checked without libsodium";
  }
  return "";
}

}  // namespace normjit
