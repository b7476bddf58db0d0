// SPDX-License-Identifier: Apache-2.0
#include "normjit/cache/entry.h"

#include <gtest/gtest.h>

#include <random>

#include "normjit/base/digest.h"

namespace normjit {
namespace {

Entry sample() {
  Entry entry{
      .identity = "source=0123 options=-O3 arch=sm_90",
      .facts = {{"spec", "layernorm/cols=64/f32/eps=1e-05/wb"}, {"toolchain", "nvrtc 13.0"}, {"note", ""}},
      .body =
          "\x7f"
          "ELF\n\n"};
  for (int i = 0; i < 300; ++i) entry.body += static_cast<char>(i);
  return entry;
}

// A file with a right checksum over whatever `covered` says.
std::string sealed(const std::string& covered) {
  return "normjit-entry 1\nchecksum: " + digest(covered) + "\n" + covered;
}

void expect_refused(const std::string& file, const std::string& reason) {
  const Result<Entry> entry = decode(file);
  ASSERT_FALSE(entry.ok());
  EXPECT_EQ(entry.code(), Code::CacheIo);
  EXPECT_NE(entry.error().message.find(reason), std::string::npos) << entry.error().message;
}

TEST(Entry, ReadsBackAsWritten) {
  const Result<Entry> entry = decode(encode(sample()));
  ASSERT_TRUE(entry.ok()) << entry.error().message;
  EXPECT_EQ(*entry, sample());
}

TEST(Entry, ReadsBackWithoutFactsAndBody) {
  const Entry bare{.identity = "i", .facts = {}, .body = ""};
  const Result<Entry> entry = decode(encode(bare));
  ASSERT_TRUE(entry.ok()) << entry.error().message;
  EXPECT_EQ(*entry, bare);
}

TEST(Entry, HeaderIsTextThatHeadShows) {
  const std::string file =
      encode({.identity = "what it is", .facts = {{"plan", "threads=256"}}, .body = "BODY"});
  const std::string covered = "bytes: 4\nidentity: what it is\nplan: threads=256\n\nBODY";
  EXPECT_EQ(file, "normjit-entry 1\nchecksum: " + digest(covered) + "\n" + covered);
}

TEST(Entry, EncodingIsDeterministic) { EXPECT_EQ(encode(sample()), encode(sample())); }

TEST(Entry, IdIsTheDigestOfFormatAndIdentity) {
  EXPECT_EQ(entry_id("some identity"), digest("normjit-entry 1\nsome identity"));
  EXPECT_NE(entry_id("a"), entry_id("b"));
}

TEST(Entry, BodyKeepsTheBufferThatWasVerified) {
  std::string file = encode(sample());
  const char* buffer = file.data();
  const Result<Entry> entry = decode(std::move(file));
  ASSERT_TRUE(entry.ok());
  EXPECT_EQ(entry->body.data(), buffer);
}

TEST(Entry, LineBreaksCannotForgeHeaderLines) {
  Entry entry = sample();
  entry.facts = {
      {"log", "one\ntwo: 2\n\nBODY"}, {"nul", std::string("a\0b\r\tc\x7f", 7)}, {"bad\n\nkey", "v"}};
  const Result<Entry> read = decode(encode(entry));
  ASSERT_TRUE(read.ok()) << read.error().message;
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"log", "one two: 2  BODY"}, {"nul", "a b  c "}, {"bad  key", "v"}};
  EXPECT_EQ(read->facts, expected);
  EXPECT_EQ(read->body, entry.body);
}

TEST(Entry, IdentityWithALineBreakDoesNotReadBackAsItself) {
  const Result<Entry> read = decode(encode({.identity = "a\nb", .facts = {}, .body = ""}));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->identity, "a b");
}

TEST(Entry, FactsMayHoldColonsAndUtf8) {
  Entry entry = sample();
  entry.facts = {
      {"plan", "a: b: c"}, {"toolchain", "\xC3\xBC \xF0\x9F\x90\xA2"}, {"bytes", "7"}, {"identity", "x"}};
  const Result<Entry> read = decode(encode(entry));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, entry);
}

TEST(Entry, EveryTruncationIsRefused) {
  const std::string file = encode(sample());
  for (std::size_t length = 0; length < file.size(); ++length) {
    const Result<Entry> entry = decode(file.substr(0, length));
    ASSERT_FALSE(entry.ok()) << "cut to " << length << " of " << file.size() << " bytes";
    ASSERT_EQ(entry.code(), Code::CacheIo);
  }
}

TEST(Entry, EveryFlippedBitIsRefused) {
  const std::string file = encode(sample());
  for (std::size_t i = 0; i < file.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = file;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      ASSERT_FALSE(decode(flipped).ok()) << "byte " << i << " bit " << bit;
    }
  }
}

TEST(Entry, EveryInsertedAndRemovedByteIsRefused) {
  const std::string file = encode(sample());
  for (std::size_t i = 0; i <= file.size(); ++i) {
    for (const char byte : {'\n', '\0', '0', ' '}) {
      std::string longer = file;
      longer.insert(i, 1, byte);
      ASSERT_FALSE(decode(longer).ok()) << "inserted " << int(byte) << " at " << i;
    }
    if (i == file.size()) break;
    std::string shorter = file;
    shorter.erase(i, 1);
    ASSERT_FALSE(decode(shorter).ok()) << "removed byte " << i;
  }
}

TEST(Entry, RandomBytesAreRefused) {
  std::mt19937 random(20);
  for (int round = 0; round < 2000; ++round) {
    std::string noise(random() % 400, '\0');
    for (char& byte : noise) byte = static_cast<char>(random());
    ASSERT_FALSE(decode(noise).ok());
    ASSERT_FALSE(decode("normjit-entry 1\n" + noise).ok());
    ASSERT_FALSE(decode("normjit-entry 1\nchecksum: " + noise).ok());
  }
}

// Behind a right checksum stands whatever the writer wrote: still no undefined behaviour, and no nonsense
// accepted.
TEST(Entry, RandomBytesBehindARightChecksumAreHarmless) {
  std::mt19937 random(21);
  const std::string alphabet = ":\n a1-+";
  for (int round = 0; round < 5000; ++round) {
    std::string noise(random() % 40, '\0');
    for (char& byte : noise) byte = alphabet[random() % alphabet.size()];
    EXPECT_FALSE(decode(sealed(noise)).ok());
    static_cast<void>(decode(sealed("bytes: 3\nidentity: " + noise)));
  }
}

TEST(Entry, SaysWhatIsWrong) {
  expect_refused("", "format version");
  expect_refused(
      "\x7f"
      "ELF",
      "format version");
  expect_refused("normjit-entry 2\n", "format version");
  expect_refused("normjit-entry 1\n", "checksum");
  expect_refused(encode(sample()) + "x", "checksum");
}

TEST(Entry, MalformedHeadersAreRefusedBehindARightChecksum) {
  EXPECT_TRUE(decode(sealed("bytes: 1\nidentity: i\nfact: f\n\nB")).ok());
  expect_refused(sealed(""), "malformed");
  expect_refused(sealed("bytes: 1"), "malformed");
  expect_refused(sealed("bytes: 1\n"), "malformed");
  expect_refused(sealed("identity: i\nbytes: 1\n\nB"), "malformed");
  expect_refused(sealed("bytes: 1\nidentity: i\nB"), "malformed");
  expect_refused(sealed("bytes: 1\nidentity: i\nno colon\n\nB"), "malformed");
  expect_refused(sealed("bytes: 1\nidentity: i\nfact: f\n"), "malformed");
  for (const char* size : {"", "0", "2", "01", "+1", "-1", " 1", "1 ", "0x1", "18446744073709551617"}) {
    expect_refused(sealed(std::string("bytes: ") + size + "\nidentity: i\n\nB"), "size");
  }
}

}  // namespace
}  // namespace normjit
