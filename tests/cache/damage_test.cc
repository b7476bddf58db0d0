// SPDX-License-Identifier: Apache-2.0
// Every truncation and every changed byte of entries and packs: a miss, or what is sound, and never a wrong
// body.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "normjit/base/digest.h"
#include "normjit/cache/cache.h"
#include "normjit/cache/file_names.h"
#include "normjit/cache/pack.h"
#include "tests/support/temp_directory.h"

namespace normjit {
namespace {

namespace fs = std::filesystem;
using Kind = Lookup::Kind;

Entry entry_of(const std::string& identity, std::size_t bytes = 60) {
  return {.identity = identity,
          .facts = {{"plan", "threads=256"}, {"registers", "32"}},
          .body = identity + std::string(bytes, 'x')};
}

void write(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

std::string flipped(std::string bytes, std::size_t at, int bit) {
  bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
  return bytes;
}

class DamageTest : public ::testing::Test {
 protected:
  const TempDirectory temp_ = TempDirectory::in_memory();
  const std::shared_ptr<FileSystem> files_ = make_posix_file_system();
};

TEST_F(DamageTest, OfAnEntryIsAMiss) {
  const std::string sound = encode(entry_of("a"));
  const std::string path = temp_ / file_name(entry_id("a"), kEntrySuffix);
  const std::string aside = temp_ / file_name(entry_id("a"), kDamagedSuffix);
  Directory directory(temp_.path(), files_, nullptr);
  Entry found;
  const auto expect_miss = [&](std::string_view bytes) {
    write(path, bytes);
    EXPECT_FALSE(directory.find("a", found));
    EXPECT_EQ(found, Entry());
    EXPECT_FALSE(fs::exists(path)) << "moved aside";
    EXPECT_TRUE(fs::exists(aside));
  };
  for (std::size_t bytes = 0; bytes < sound.size(); ++bytes) {
    SCOPED_TRACE("cut to " + std::to_string(bytes));
    expect_miss(std::string_view(sound).substr(0, bytes));
  }
  for (std::size_t at = 0; at < sound.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      SCOPED_TRACE("bit " + std::to_string(bit) + " of byte " + std::to_string(at));
      expect_miss(flipped(sound, at, bit));
    }
  expect_miss(sound + "x");
  expect_miss(sound + sound);
  write(path, sound);
  ASSERT_TRUE(directory.find("a", found));
  EXPECT_EQ(found, entry_of("a"));
}

TEST_F(DamageTest, OfAnEntryOfTheUsualSizeIsSeen) {
  std::mt19937 random(7);
  Entry entry = entry_of("a", 12'000);
  for (char& byte : entry.body) byte = static_cast<char>(random());
  const std::string sound = encode(entry);
  ASSERT_EQ(decode(sound).value(), entry);
  for (std::size_t at = 0; at < sound.size(); ++at) {
    EXPECT_FALSE(decode(sound.substr(0, at)).ok()) << at;
    EXPECT_FALSE(decode(flipped(sound, at, static_cast<int>(at % 8))).ok()) << at;
  }
}

class PackDamageTest : public DamageTest {
 protected:
  PackDamageTest() {
    for (const char* identity : {"a", "b", "c"})
      files_by_id_[entry_id(identity)] = encode(entry_of(identity));
    sound_ = encode_pack(files_by_id_);
    head_ = sound_.size();
    for (const auto& [id, bytes] : files_by_id_) head_ -= bytes.size();
  }

  // How many of the entries a pack of these bytes still gives; all that it gives is right.
  int hits(std::string_view bytes) {
    // Another file each time, or the index of the last one could be taken for its.
    const std::string path = temp_ / (std::to_string(++packs_) + ".njp");
    write(path, bytes);
    const auto pack = make_layer(path, files_, false);
    int hits = 0;
    for (const char* identity : {"a", "b", "c"}) {
      const Lookup lookup = pack->look(identity);
      if (lookup.kind == Kind::entry) {
        EXPECT_EQ(lookup.entry, entry_of(identity));
      }
      if (lookup.kind != Kind::entry) {
        EXPECT_EQ(lookup.entry, Entry());
      }
      hits += lookup.kind == Kind::entry;
    }
    if (const auto listed = pack->list()) {
      int sound = 0;
      for (const Listed& each : *listed) sound += each.entry.ok();
      EXPECT_EQ(sound, hits);
    } else {
      EXPECT_EQ(hits, 0);
    }
    fs::remove(path);
    return hits;
  }

  std::map<std::string, std::string> files_by_id_;
  std::string sound_;
  std::size_t head_ = 0;  // bytes before the first entry
  int packs_ = 0;
};

TEST_F(PackDamageTest, EveryCutIsAMiss) {
  EXPECT_EQ(hits(sound_), 3);
  for (std::size_t bytes = 0; bytes < sound_.size(); ++bytes)
    EXPECT_EQ(hits(std::string_view(sound_).substr(0, bytes)), 0) << bytes;
  EXPECT_EQ(hits(sound_ + "x"), 0);
}

TEST_F(PackDamageTest, AChangedByteOfAnEntryCostsThatEntryAndOfTheIndexAll) {
  for (std::size_t at = 0; at < sound_.size(); ++at)
    for (const int bit : {static_cast<int>(at % 8), 7})
      EXPECT_EQ(hits(flipped(sound_, at, bit)), at < head_ ? 0 : 2) << "bit " << bit << " of byte " << at;
}

TEST_F(PackDamageTest, EntriesThatChangedPlacesAreNotTakenForEachOther) {
  auto swapped = files_by_id_;
  std::swap(swapped[entry_id("a")], swapped[entry_id("b")]);
  EXPECT_EQ(hits(encode_pack(swapped)), 1);
}

TEST_F(PackDamageTest, AnIndexThatItsWriterGotWrongIsRefused) {
  const auto pack_with = [](const std::string& index, const std::string& rest = "") {
    return "normjit-pack 1\nchecksum: " + digest(index) + "\n" + index + rest;
  };
  const std::string a = entry_id("a"), body = files_by_id_[a], bytes = std::to_string(body.size());
  const std::string b(32, 'f');
  ASSERT_EQ(hits(pack_with("entries: 1\n" + a + " " + bytes + "\n\n", body)), 1) << "or this tests nothing";
  EXPECT_EQ(hits(pack_with("entries: 0\n\n")), 0);
  for (const std::string& index : {
           std::string("\n"), std::string("\n\n"), std::string("entries: 1\n\n"),
           "entries: 2\n" + a + " " + bytes + "\n\n",               // another count
           "entries: 1\n" + a + "\n\n",                             // no size
           "entries: 1\n" + a + " \n\n",                            //
           "entries: 1\n" + a + " -1\n\n",                          //
           "entries: 1\n" + a + " " + bytes + " \n\n",              //
           "entries: 1\n" + a + " 0x10\n\n",                        //
           "entries: 1\n" + a + " 99999999999999999999\n\n",        //
           "entries: 1\n" + a + " 67108865\n\n",                    // beyond the limit
           "entries: 1\n" + a.substr(1) + " " + bytes + "\n\n",     // no id
           "entries: 1\n../" + a + " " + bytes + "\n\n",            //
           "entries: 2\n" + a + " " + bytes + "\n" + a + " 0\n\n",  // twice
           "entries: 2\n" + a + " -1\n" + b + " " + std::to_string(body.size() + 1) + "\n\n",
           "entries: 2\n" + b + " 0\n" + a + " " + bytes + "\n\n",               // not by id
           "entries: 1\n" + a + " " + std::to_string(body.size() + 1) + "\n\n",  // beyond the end
       })
    EXPECT_EQ(hits(pack_with(index, body)), 0) << index;
}

// Random bytes behind the right beginning, a checksum that matches included.
TEST_F(PackDamageTest, NonsenseIsRefused) {
  std::mt19937 random(11);
  const std::string alphabet = "entries: 0123456789abcdef\n\n\n ";
  for (int round = 0; round < 2000; ++round) {
    std::string index;
    for (auto length = random() % 120; length > 0; --length) index += alphabet[random() % alphabet.size()];
    index += "\n\n";
    index.resize(index.find("\n\n") + 2);
    EXPECT_EQ(hits("normjit-pack 1\nchecksum: " + digest(index) + "\n" + index), 0) << index;
  }
}

}  // namespace
}  // namespace normjit
