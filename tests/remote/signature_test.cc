// SPDX-License-Identifier: Apache-2.0
// Signatures in minisign's formats. Those of the vectors were made by minisign 0.11, with a key that has no
// other use.
#include "normjit/remote/signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "normjit/remote/base64.h"
#include "normjit/remote/minisign.h"
#include "normjit/remote/secret_bytes.h"
#include "normjit/remote/sodium.h"
#include "tests/support/child.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_seed.h"

namespace normjit {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::string_view kBytes = "The bytes of a pack.\n";
constexpr std::string_view kKey = "RWQw9vlMKqDyKCi++EatpLSuiSvKHiWBP6kbEHDkZQmfs2Jvj1+bpjs8";
const std::string kPublicFile =
    "untrusted comment: minisign public key 28F2A02A4CF9F630\n"
    "RWQw9vlMKqDyKCi++EatpLSuiSvKHiWBP6kbEHDkZQmfs2Jvj1+bpjs8\n";
const std::string kSecretFile =
    "untrusted comment: minisign encrypted secret key\n"
    "RWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAMPb5TCqg8ihNFvXAyzeuhyFnW+"
    "T2kcaG6"
    "BygsTrva0OpXP4/"
    "kNi9iCi++EatpLSuiSvKHiWBP6kbEHDkZQmfs2Jvj1+bpjs8AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";
// The same key, behind the password "pw".
const std::string kPasswordFile =
    "untrusted comment: minisign encrypted secret key\n"
    "RWRTY0Iypx6w+"
    "fYsOQL15626QR39gqzPmjfXb1RC4y2hwY9fCZsAAAACAAAAAAAAAEAAAAAAfhDirufaRXWCt634aZnI0uSXSCQNdaVJRBXRZ"
    "d1IhmHj6hReAmc/y1Zx0O3ssiUnCD4CQjyKsIzWpg1YYq29ATCVgOu5E03WOJkXmJ8kyHpe9/"
    "UXtOu8Nm2BTAtwV3UjzQI3C4QzfUY=\n";
const std::string kSignatureFile =
    "untrusted comment: signature from minisign secret key\n"
    "RUQw9vlMKqDyKG3IqxU1Z30tZVhoG1sskSGZqdyOJ0MkGvVH2dOQaE+b1sWl0ORiP9clA1Yro8fatYAGmo7fQUwL+NBlm1AjTgI=\n"
    "trusted comment: made for tests\n"
    "8Vwbygw4igyPmJbq7p+yEKy7XD13XfZfws7agvJ8A9BBzvLyIkyM4x2l5H3ePKjdY5+gmsTKICRkwzDwjtyDCw==\n";
const std::string kLegacyFile =
    "untrusted comment: signature from minisign secret key\n"
    "RWQw9vlMKqDyKBeNRJPflqHW0IBGpzx4fPwyjv0XfsdV5zpodE7J/xWOTPZXFFqmeqkBLRAN118ctEUOSzxPxHbkWcVvTq2D9wQ=\n"
    "trusted comment: of an older program\n"
    "+l2NjnBSD08Ltq9NuDsYwGp1nnnhlfrDwrbv9/6kLD6+YdW5C/5SRJEk52Ad8aazHlEOtGsA9JtmhdV79+I/Bg==\n";
// Of a file without bytes, with minisign's own comment, which has tabs.
const std::string kEmptyFileSignature =
    "untrusted comment: signature from minisign secret key\n"
    "RUQw9vlMKqDyKEA0gUMIqDjdh3s/JY1r+hAEuCHBv1GAv54PB5fxXNgSHF6hNrGcPHHrmByWO7SsNXY16wRztBI+wSs3g7jG/gY=\n"
    "trusted comment: timestamp:1795650257\tfile:e\thashed\n"
    "LkCIBxOPbFwnoKKJ7gSVEDc6bBsYZebGCbyNcpC7ZewTgMC37MFvTd9ThUqlQk0fJhBklRFFmZjPxln9/pYTBg==\n";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string with_crlf(const std::string& text) {
  std::string changed;
  for (const std::string& line : lines_of(text)) changed += line + "\r\n";
  return changed;
}

Trust trust_of(std::string_view key) { return Trust({PublicKey::parse(key).value()}); }

// --- Texts, for which no libsodium is needed

TEST(Base64, HasOneTextForEachBytes) {
  std::mt19937_64 random(testing::test_seed());
  for (std::size_t size = 0; size <= 100; ++size) {
    std::vector<unsigned char> bytes(size), again(size);
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    const std::string text = to_base64(bytes);
    EXPECT_EQ(text.size(), base64_size(size));
    ASSERT_TRUE(from_base64(text, again)) << text;
    EXPECT_EQ(again, bytes);
    for (std::size_t at = 0; at < text.size(); ++at) {
      for (int c = 0; c < 256; ++c) {
        std::string changed = text;
        changed[at] = static_cast<char>(c);
        if (changed == text || !from_base64(changed, again)) continue;
        EXPECT_NE(again, bytes) << changed;
      }
    }
  }
}

TEST(Base64, RefusesWhatItDoesNotWrite) {
  std::array<unsigned char, 4> bytes;
  EXPECT_TRUE(from_base64("AAECAw==", bytes));
  for (const char* text : {"", "AAECAw", "AAECAw=", "AAECAw==A", "AAECAw==\n",
                           "AAECAx==", "AAECA===", "AAEC-w==", "AA ECAw=", "AAECAw=A", "AAECAAAA"})
    EXPECT_FALSE(from_base64(text, bytes)) << text;
  EXPECT_FALSE(from_base64({"AAECA\0==", 8}, bytes));
}

TEST(PublicKey, IsTheLastLineOfMinisignsFile) {
  const PublicKey key = PublicKey::parse(kKey).value();
  EXPECT_EQ(key.text(), kKey);
  EXPECT_EQ(key.name(), "28F2A02A4CF9F630");
  EXPECT_EQ(parse_public_file(kPublicFile), key);
  EXPECT_EQ(parse_public_file(with_crlf(kPublicFile)), key);
  EXPECT_EQ(parse_public_file(kPublicFile.substr(0, kPublicFile.size() - 1)), key);
  for (const std::string& other : {std::string(), std::string(kKey), kPublicFile + "\n", "\n" + kPublicFile,
                                   kSecretFile, kSignatureFile, kPublicFile + kPublicFile})
    EXPECT_FALSE(parse_public_file(other)) << other;
}

TEST(PublicKey, SaysWhatItShouldBe) {
  std::string other_algorithm(kKey);
  other_algorithm[1] = 'U';  // "ED"
  for (const std::string& text :
       {std::string(), std::string("RW"), std::string(kKey.substr(1)), std::string(kKey) + "A",
        " " + std::string(kKey), std::string(kKey) + "\n", other_algorithm}) {
    const auto key = PublicKey::parse(text);
    ASSERT_EQ(key.code(), Code::BadArgument) << text;
    EXPECT_THAT(key.error().message, HasSubstr("RW and 54 more"));
  }
}

TEST(SignatureFile, ReadsAndWritesWhatMinisignDoes) {
  for (const std::string& text : {kSignatureFile, kLegacyFile, kEmptyFileSignature}) {
    const auto file = SignatureFile::parse(text);
    ASSERT_TRUE(file) << text;
    EXPECT_EQ(file->signature.prehashed, text != kLegacyFile);
    EXPECT_EQ(file->signature.number, PublicKey::parse(kKey)->number);
    // But for the first comment.
    EXPECT_EQ(file->text().substr(file->text().find('\n')), text.substr(text.find('\n')));
    EXPECT_EQ(SignatureFile::parse(with_crlf(text)), file);
    EXPECT_EQ(SignatureFile::parse(text.substr(0, text.size() - 1)), file);
  }
  EXPECT_EQ(SignatureFile::parse(kSignatureFile)->trusted_comment, "made for tests");
}

TEST(SignatureFile, RefusesEverythingElse) {
  const auto lines = lines_of(kSignatureFile);
  const auto joined = [](const std::vector<std::string>& some) {
    std::string text;
    for (const std::string& line : some) text += line + "\n";
    return text;
  };
  for (std::size_t i = 0; i < 4; ++i) {
    auto fewer = lines, more = lines, longer = lines, shorter = lines;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_FALSE(SignatureFile::parse(joined(fewer))) << i;
    more.insert(more.begin() + static_cast<std::ptrdiff_t>(i), "");
    EXPECT_FALSE(SignatureFile::parse(joined(more))) << i;
    longer[i].insert(0, "A");
    EXPECT_FALSE(SignatureFile::parse(joined(longer))) << i;
    shorter[i].erase(0, 1);
    EXPECT_FALSE(SignatureFile::parse(joined(shorter))) << i;
    shorter[i] = lines[i] + "\rA";
    EXPECT_FALSE(SignatureFile::parse(joined(shorter))) << i;
  }
  EXPECT_FALSE(SignatureFile::parse(""));
  EXPECT_FALSE(SignatureFile::parse(kPublicFile));
  EXPECT_FALSE(SignatureFile::parse(kSignatureFile + "\n"));
  EXPECT_FALSE(SignatureFile::parse(kSignatureFile + "trusted comment: another\n"));
  auto huge = lines;
  huge[0] += std::string(kSignatureFileBytes, 'x');
  EXPECT_FALSE(SignatureFile::parse(joined(huge)));
}

TEST(SecretKeyText, ReadsBackWhatItWrites) {
  SecretKeyText key, again;
  std::string mistake;
  ASSERT_TRUE(key.parse(kSecretFile, mistake)) << mistake;
  EXPECT_EQ(key.text().substr(key.text().find('\n')), kSecretFile.substr(kSecretFile.find('\n')));
  ASSERT_TRUE(again.parse(with_crlf(key.text()), mistake)) << mistake;
  EXPECT_EQ(again.seed_and_point, key.seed_and_point);
  EXPECT_FALSE(again.parse(kPasswordFile, mistake));
  EXPECT_THAT(mistake, HasSubstr("password"));
  for (const std::string& text : {std::string(), kPublicFile, kSecretFile + "\n", kSecretFile.substr(0, 200),
                                  kSecretFile.substr(kSecretFile.find('\n') + 1)}) {
    EXPECT_FALSE(again.parse(text, mistake));
    EXPECT_THAT(mistake, HasSubstr("is not a secret key"));
  }
}

TEST(SecretBytes, AreWiped) {
  alignas(SecretBytes<64>) unsigned char memory[sizeof(SecretBytes<64>)];
  auto* secret = new (memory) SecretBytes<64>;
  secret->fill(7);
  secret->~SecretBytes();
  const volatile unsigned char* seen = memory;
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(seen[i], 0);
  std::string text = "a secret of more characters than a string has room for itself";
  wipe(text);
  EXPECT_EQ(text, "");
  for (std::size_t i = 0; i < text.capacity(); ++i)
    EXPECT_EQ(static_cast<const volatile char*>(text.data())[i], 0);
}

TEST(Sodium, SaysWhatWasTriedWhereThereIsNone) {
  constexpr const char* kNone[] = {"libsodium-absent.so.1", "libsodium-absent.so.2"};
  const auto none = open_sodium(kNone);
  ASSERT_EQ(none.code(), Code::CacheIo);
  EXPECT_THAT(none.error().message, AllOf(HasSubstr(kNone[0]), HasSubstr(kNone[1]), HasSubstr("install")));
  constexpr const char* kOther[] = {"libc.so.6"};
  EXPECT_THAT(open_sodium(kOther).error().message, HasSubstr("it has no sodium_init"));
}

TEST(Sodium, WithoutItNothingIsTrusted) {
  const std::vector<PublicKey> keys = {PublicKey::parse(kKey).value()};
  const SignatureFile file = *SignatureFile::parse(kSignatureFile);
  EXPECT_EQ(check_with(nullptr, keys, kBytes, file.signature), Trusted::unavailable);
  EXPECT_EQ(check_with(nullptr, keys, kBytes, file.signature, &file), Trusted::unavailable);
  EXPECT_EQ(check_with(nullptr, {}, kBytes, file.signature), Trusted::unknown_key);
}

TEST(Trust, WithoutKeysThereIsNone) {
  EXPECT_TRUE(Trust().empty());
  EXPECT_EQ(Trust().check_file(kBytes, kSignatureFile), Trusted::unknown_key);
  EXPECT_EQ(Trust().check_file(kBytes, "no signature"), Trusted::malformed);
  EXPECT_TRUE(Trust::of({})->empty());
}

// --- Files of keys

class SignatureFiles : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& text, unsigned mode) const {
    const std::string path = directory_ / name;
    std::ofstream(path, std::ios::binary) << text;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  // Expects that the error has no part of a secret.
  static std::string refusal(const std::string& path, Code code = Code::BadArgument) {
    const auto key = SecretKey::read(path);
    EXPECT_EQ(key.code(), code) << path;
    if (key) return "";
    const std::string secret = lines_of(kSecretFile)[1];
    for (std::size_t at = 70; at + 8 < secret.size(); ++at)
      EXPECT_THAT(key.error().message, Not(HasSubstr(secret.substr(at, 8))));
    return key.error().message;
  }

  TempDirectory directory_;
};

TEST_F(SignatureFiles, TrustIsOfTextsAndFiles) {
  const std::string path = file("k.pub", kPublicFile, 0644), link = directory_ / "link.pub";
  fs::create_symlink(path, link);
  const Trust trust = Trust::of({std::string(kKey), path, link}).value();
  EXPECT_EQ(trust.keys(), std::vector{PublicKey::parse(kKey).value()}) << "once is enough";
}

TEST_F(SignatureFiles, TrustSaysWhatIsNoKey) {
  const auto refusal = [](const std::string& text, Code code) {
    const auto trust = Trust::of({std::string(kKey), text});
    EXPECT_EQ(trust.code(), code) << text;
    return trust ? "" : trust.error().message;
  };
  EXPECT_THAT(refusal(directory_ / "absent.pub", Code::CacheIo),
              AllOf(HasSubstr("absent.pub"), HasSubstr("RW")));
  EXPECT_THAT(refusal(std::string(kKey.substr(1)), Code::CacheIo), HasSubstr("RW and 54 more"));
  EXPECT_THAT(refusal("", Code::CacheIo), HasSubstr("RW"));
  EXPECT_THAT(refusal(file("open.pub", kPublicFile, 0666), Code::BadArgument),
              HasSubstr("can be written by other users"));
  EXPECT_THAT(refusal(file("other.pub", kSignatureFile, 0600), Code::BadArgument),
              HasSubstr("begins with RW"));
  EXPECT_THAT(refusal(file("large.pub", std::string(100000, 'x'), 0600), Code::BadArgument),
              HasSubstr("small"));
  EXPECT_THAT(refusal(directory_.path(), Code::BadArgument), HasSubstr("not a regular file"));
}

TEST_F(SignatureFiles, ASecretKeyIsItsOwnersAlone) {
  for (const unsigned mode : {0644u, 0640u, 0604u, 0620u, 0602u, 0610u})
    EXPECT_THAT(refusal(file("k.key", kSecretFile, mode)), HasSubstr("chmod 600 " + directory_ / "k.key"));
  if (::geteuid() == 0) {
    const std::string others = file("k.key", kSecretFile, 0600);
    const int changed = ::chown(others.c_str(), 12345, static_cast<gid_t>(-1));
    if (changed != 0 && errno == EINVAL) GTEST_SKIP() << "this name space has no other user";
    ASSERT_EQ(changed, 0);
    EXPECT_THAT(refusal(others), HasSubstr("belongs to the user with the id 12345"));
  }
}

TEST_F(SignatureFiles, ASecretKeyIsARegularFile) {
  const std::string link = directory_ / "link.key", pipe = directory_ / "pipe.key";
  fs::create_symlink(file("k.key", kSecretFile, 0600), link);
  EXPECT_THAT(refusal(link), HasSubstr("symbolic link"));
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(refusal(pipe), HasSubstr("not a regular file"));
  EXPECT_THAT(refusal(directory_.path()), HasSubstr("not a regular file"));
  EXPECT_THAT(refusal("/dev/zero"), HasSubstr("not a regular file"));
  EXPECT_THAT(refusal(directory_ / "absent.key", Code::CacheIo), StartsWith("cannot open"));
}

TEST_F(SignatureFiles, AFileThatIsNoKeySaysHowToMakeOne) {
  EXPECT_THAT(refusal(file("p.key", kPasswordFile, 0600)),
              AllOf(HasSubstr("password"), HasSubstr("sign keygen")));
  for (const std::string& text : {std::string(), kPublicFile, kSecretFile.substr(0, 250),
                                  kSecretFile + kSecretFile, kSecretFile + std::string(100000, 'x')})
    EXPECT_THAT(refusal(file("k.key", text, 0600)),
                AllOf(HasSubstr("is not a secret key"), HasSubstr("sign keygen")));
}

// --- Signatures

class Signatures : public SignatureFiles {
 protected:
  void SetUp() override {
    if (const std::string error = sodium_error(); !error.empty()) GTEST_SKIP() << error;
  }
  SecretKey minisigns_key() const { return SecretKey::read(file("k.key", kSecretFile, 0600)).value(); }
};

TEST_F(Signatures, MinisignsAreTrusted) {
  const Trust trust = trust_of(kKey);
  std::string comment = "before";
  EXPECT_EQ(trust.check_file(kBytes, kSignatureFile, &comment), Trusted::yes);
  EXPECT_EQ(comment, "made for tests");
  EXPECT_EQ(trust.check_file(kBytes, with_crlf(kSignatureFile)), Trusted::yes);
  EXPECT_EQ(trust.check_file(kBytes, kLegacyFile, &comment), Trusted::yes);
  EXPECT_EQ(comment, "of an older program");
  EXPECT_EQ(trust.check_file("", kEmptyFileSignature), Trusted::yes);
  EXPECT_EQ(trust.check(kBytes, lines_of(kSignatureFile)[1]), Trusted::yes);

  EXPECT_EQ(trust.check_file("", kSignatureFile, &comment), Trusted::wrong);
  EXPECT_EQ(comment, "");
  EXPECT_EQ(trust.check_file("", kLegacyFile), Trusted::wrong);
  EXPECT_EQ(trust.check_file(kBytes, kEmptyFileSignature), Trusted::wrong);
  EXPECT_EQ(trust.check("", lines_of(kSignatureFile)[1]), Trusted::wrong);
  EXPECT_EQ(trust.check(kBytes, lines_of(kLegacyFile)[1]), Trusted::malformed)
      << "of values, only of the digest";
  EXPECT_EQ(trust.check(kBytes, kSignatureFile), Trusted::malformed);
}

TEST_F(Signatures, PartsOfTwoFilesMakeNone) {
  const auto own = lines_of(kSignatureFile), legacy = lines_of(kLegacyFile);
  const Trust trust = trust_of(kKey);
  for (unsigned from = 1; from < 7; ++from) {
    std::string mixed = own[0] + "\n";
    for (unsigned i = 1; i < 4; ++i) mixed += ((from >> (i - 1) & 1) != 0 ? own : legacy)[i] + "\n";
    EXPECT_EQ(trust.check_file(kBytes, mixed), Trusted::wrong) << mixed;
  }
  // Nor does the signature of a digest serve for the digest's own bytes.
  std::string relabelled = kSignatureFile;
  relabelled[relabelled.find("RUQ") + 1] = 'W';
  EXPECT_EQ(trust.check_file(kBytes, relabelled), Trusted::wrong);
}

TEST_F(Signatures, AKeyOfMinisignSignsAsMinisignDoes) {
  const SecretKey key = minisigns_key();
  EXPECT_EQ(key.public_key().text(), kKey);
  // Ed25519 signatures are the same each time.
  EXPECT_EQ(key.sign(kBytes), lines_of(kSignatureFile)[1]);
  const std::string file = key.sign_file(kBytes, "made for tests");
  EXPECT_EQ(file.substr(file.find('\n')), kSignatureFile.substr(kSignatureFile.find('\n')));
}

TEST_F(Signatures, ANewKeyReadsBackAndSigns) {
  const SecretKey key = SecretKey::generate().value();
  const SecretKey again = SecretKey::read(file("new.key", key.file_text(), 0600)).value();
  EXPECT_EQ(again.public_key(), key.public_key());
  EXPECT_EQ(again.file_text(), key.file_text());
  EXPECT_NE(SecretKey::generate()->public_key(), key.public_key());
  EXPECT_EQ(key.sign(kBytes).size(), 100u);
  EXPECT_EQ(again.sign(kBytes), key.sign(kBytes));
  EXPECT_EQ(SecretKey::read(file("read_only.key", key.file_text(), 0400))->public_key(), key.public_key());

  const Trust trust = Trust::of({std::string(kKey), file("new.pub", key.public_file_text(), 0644)}).value();
  std::string comment;
  EXPECT_EQ(trust.check(kBytes, key.sign(kBytes)), Trusted::yes);
  EXPECT_EQ(trust.check_file(kBytes, key.sign_file(kBytes, "c"), &comment), Trusted::yes);
  EXPECT_EQ(comment, "c");
  EXPECT_EQ(trust_of(kKey).check(kBytes, key.sign(kBytes)), Trusted::unknown_key);
  EXPECT_EQ(trust.check_file(kBytes, kSignatureFile), Trusted::yes) << "of the other key";
}

TEST_F(Signatures, OfManySizes) {
  const SecretKey key = SecretKey::generate().value();
  const Trust trust({key.public_key()});
  for (const std::size_t size : {0, 1, 63, 64, 65, 127, 128, 129, 1000, 1 << 20}) {
    const std::string bytes(size, 'b');
    EXPECT_EQ(trust.check(bytes, key.sign(bytes)), Trusted::yes) << size;
    EXPECT_EQ(trust.check(bytes + 'b', key.sign(bytes)), Trusted::wrong) << size;
  }
}

TEST_F(Signatures, ACommentIsOneLine) {
  const SecretKey key = SecretKey::generate().value();
  const Trust trust({key.public_key()});
  std::string comment;
  EXPECT_EQ(trust.check_file(kBytes, key.sign_file(kBytes, std::string_view("a\nb\rc\0d", 7)), &comment),
            Trusted::yes);
  EXPECT_EQ(comment, "a b c d");
  EXPECT_EQ(trust.check_file(kBytes, key.sign_file(kBytes, std::string(100000, 'x')), &comment),
            Trusted::yes);
  EXPECT_EQ(comment, std::string(kMaxTrustedComment, 'x'));
  EXPECT_EQ(trust.check_file(kBytes, key.sign_file(kBytes, ""), &comment), Trusted::yes);
  EXPECT_EQ(comment, "");
}

TEST_F(Signatures, TwoKeysMayHaveOneNumber) {
  const SecretKey key = SecretKey::generate().value();
  PublicKey other = SecretKey::generate()->public_key();
  other.number = key.public_key().number;
  EXPECT_EQ(Trust({other}).check(kBytes, key.sign(kBytes)), Trusted::wrong);
  EXPECT_EQ(Trust({other, key.public_key()}).check(kBytes, key.sign(kBytes)), Trusted::yes);
  EXPECT_EQ(Trust({key.public_key(), other}).check_file(kBytes, key.sign_file(kBytes, "")), Trusted::yes);
}

TEST_F(Signatures, AMovedKeyLeavesNothingBehind) {
  SecretKey from = SecretKey::generate().value();
  const PublicKey made = from.public_key();
  SecretKey to = std::move(from);
  EXPECT_EQ(to.public_key(), made);
  EXPECT_EQ(from.public_key().point, PublicKey().point);
  from = std::move(to);
  EXPECT_EQ(from.public_key(), made);
}

TEST_F(Signatures, ADamagedSecretKeyIsRefused) {
  const SecretKey key = minisigns_key();
  const std::string text = key.file_text();  // with a checksum
  const std::size_t first = text.find('\n') + 1, number = first + (2 + 2 + 2 + 48) / 3 * 4;
  for (std::size_t at = number; at + 2 < text.size(); ++at) {
    std::string changed = text;
    changed[at] = changed[at] == 'A' ? 'B' : 'A';
    EXPECT_NE(refusal(file("k.key", changed, 0600)), "") << at;
  }
  // That of minisign has none, so its number is not checked, but the point is.
  for (std::size_t at = number + 12; at < number + 12 + 64 / 3 * 4; ++at) {
    std::string changed = kSecretFile;
    const std::size_t there = at + (kSecretFile.find('\n') + 1 - first);
    changed[there] = changed[there] == 'A' ? 'B' : 'A';
    EXPECT_THAT(refusal(file("k.key", changed, 0600)), HasSubstr("damaged")) << at;
  }
}

// Each is of one change to a signature, a key or the bytes.
TEST_F(Signatures, TenThousandChangesAreNoticed) {
  std::mt19937_64 random(testing::test_seed());
  const auto below = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  // Flips a bit, replaces, removes, adds or repeats.
  const auto changed = [&](std::string text) {
    const std::size_t at = below(text.size());
    switch (below(5)) {
      case 0:
        text[at] = static_cast<char>(text[at] ^ 1 << below(8));
        break;
      case 1:
        text[at] = static_cast<char>(below(256));
        break;
      case 2:
        text.erase(at, 1 + below(8));
        break;
      case 3:
        text.insert(at, 1, static_cast<char>(below(256)));
        break;
      default:
        text.insert(at, text.substr(below(text.size()), 1 + below(8)));
        break;
    }
    return text;
  };
  // What stays the same signature: minisign and these readers take CR LF, and a last line without an end.
  const auto meaning = [](std::string text) {
    for (std::size_t at = 0; (at = text.find("\r\n", at)) != text.npos;) text.erase(at, 1);
    if (text.ends_with('\r')) text.pop_back();
    if (text.ends_with('\n')) text.pop_back();
    return text;
  };
  const SecretKey key = SecretKey::generate().value();
  const Trust trust({key.public_key()});
  const std::string public_text = key.public_key().text(), bytes(kBytes);
  int parsed = 0;
  for (int i = 0; i < 10000; ++i) {
    const bool legacy = below(4) == 0;
    const Trust& trusted = legacy ? trust_of(kKey) : trust;
    const std::string file = legacy ? kLegacyFile : key.sign_file(bytes, "a comment that is trusted");
    const std::string comment = file.substr(0, file.find('\n') + 1), rest = file.substr(comment.size());
    const std::string value = key.sign(bytes);
    switch (below(4)) {
      case 0: {
        const std::string other = changed(rest);
        if (meaning(other) == meaning(rest)) break;
        EXPECT_NE(trusted.check_file(bytes, comment + other), Trusted::yes) << other;
        break;
      }
      case 1: {
        const std::string other = changed(value);
        if (other == value) break;
        const Trusted outcome = trust.check(bytes, other);
        EXPECT_NE(outcome, Trusted::yes) << other;
        parsed += outcome != Trusted::malformed;
        break;
      }
      case 2: {
        const std::string other = changed(bytes);
        if (other == bytes) break;
        EXPECT_EQ(trust.check(other, value), Trusted::wrong) << other;
        EXPECT_EQ(trusted.check_file(other, file), Trusted::wrong) << other;
        break;
      }
      default: {
        const std::string other = changed(public_text);
        const auto other_key = PublicKey::parse(other);
        if (!other_key || other == public_text) break;
        EXPECT_NE(Trust({*other_key}).check(bytes, value), Trusted::yes) << other;
        ++parsed;
        break;
      }
    }
  }
  EXPECT_GT(parsed, 500) << "nothing but malformed texts was tried";
}

TEST_F(Signatures, AreCheckedByManyThreadsAndAfterAFork) {
  NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
  const SecretKey key = minisigns_key();
  const Trust trust = trust_of(kKey);
  const auto is_right = [&] {
    return trust.check(kBytes, key.sign(kBytes)) == Trusted::yes && SecretKey::generate().ok();
  };
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) right += is_right();
    });
  EXPECT_EQ(testing::done_children(20, 4, [&](int) { return is_right(); }), 20);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 200);
}

// --- minisign itself

class Minisign : public Signatures {
 protected:
  void SetUp() override {
    Signatures::SetUp();
    if (::system("command -v minisign >/dev/null") != 0) GTEST_SKIP() << "minisign is not installed";
  }
  // Runs it in the directory of the test, and expects this answer of it.
  void expect(bool success, const std::string& arguments) const {
    const std::string command =
        "cd '" + directory_.path() + "' && minisign " + arguments + " >/dev/null 2>&1 </dev/null";
    EXPECT_EQ(::system(command.c_str()) == 0, success) << arguments;
  }
  std::string text_of(const std::string& name) const {
    std::ifstream in(directory_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST_F(Minisign, TakesWhatIsMadeHere) {
  const SecretKey key = SecretKey::generate().value();
  file("bytes", std::string(kBytes), 0644);
  file("k.pub", key.public_file_text(), 0644);
  file("k.key", key.file_text(), 0600);
  file("bytes.minisig", key.sign_file(kBytes, "of normjit"), 0644);
  expect(true, "-V -p k.pub -m bytes");
  expect(true, "-V -H -P " + key.public_key().text() + " -m bytes");
  file("bytes.minisig", key.sign_file("other bytes", "of normjit"), 0644);
  expect(false, "-V -p k.pub -m bytes");
  // It signs with the key of this file, too.
  expect(true, "-S -s k.key -m bytes -t 'of minisign'");
  std::string comment;
  EXPECT_EQ(Trust({key.public_key()}).check_file(kBytes, text_of("bytes.minisig"), &comment), Trusted::yes);
  EXPECT_EQ(comment, "of minisign");
}

TEST_F(Minisign, ItsKeysAndSignaturesAreTakenHere) {
  expect(true, "-G -W -p k.pub -s k.key");
  file("bytes", std::string(kBytes), 0644);
  expect(true, "-S -s k.key -m bytes");
  expect(true, "-S -l -s k.key -m bytes -x bytes.legacy");
  const auto key = SecretKey::read(directory_ / "k.key");
  ASSERT_TRUE(key.ok()) << key.error().message;
  const Trust trust = Trust::of({directory_ / "k.pub"}).value();
  const std::string name = trust.keys().at(0).name();
  EXPECT_THAT(text_of("k.pub"), HasSubstr(" " + name.substr(name.find_first_not_of('0')) + "\n"))
      << "minisign shows no zeros in front";
  EXPECT_EQ(key->public_key(), trust.keys().at(0));
  for (const char* name : {"bytes.minisig", "bytes.legacy"}) {
    EXPECT_EQ(trust.check_file(kBytes, text_of(name)), Trusted::yes) << name;
    EXPECT_EQ(trust.check_file("other bytes", text_of(name)), Trusted::wrong) << name;
  }
  file("bytes.minisig", key->sign_file(kBytes, "of normjit"), 0644);
  expect(true, "-V -p k.pub -m bytes");
}

}  // namespace
}  // namespace normjit
