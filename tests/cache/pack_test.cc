// SPDX-License-Identifier: Apache-2.0
// Many entries in one file.
#include "normjit/cache/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "tests/support/recording_file_system.h"
#include "tests/support/temp_directory.h"

namespace normjit {
namespace {

namespace fs = std::filesystem;
using Call = RecordingFileSystem::Kind;
using Kind = Lookup::Kind;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Entry entry_of(const std::string& identity) {
  return {.identity = identity, .facts = {{"plan", "p"}}, .body = "body of " + identity};
}

std::string pack_of(const std::vector<std::string>& identities) {
  std::map<std::string, std::string> entries;
  for (const std::string& identity : identities) entries[entry_id(identity)] = encode(entry_of(identity));
  return encode_pack(entries);
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class PackTest : public ::testing::Test {
 protected:
  const TempDirectory temp_;
  const std::string path_ = temp_ / "one.njp";
  const std::shared_ptr<RecordingFileSystem> files_ = std::make_shared<RecordingFileSystem>();
  const Pack pack_{path_, files_, /*shared=*/false};
};

TEST_F(PackTest, GivesEveryEntryAndNoOther) {
  std::vector<std::string> identities;
  for (int i = 0; i < 3000; ++i) identities.push_back(std::to_string(i));  // an index of more than one piece
  write(path_, pack_of(identities));
  for (const std::string& identity : identities) {
    const Lookup lookup = pack_.look(identity);
    ASSERT_EQ(lookup.kind, Kind::entry) << lookup.error;
    ASSERT_EQ(lookup.entry, entry_of(identity));
  }
  EXPECT_EQ(pack_.look("another").kind, Kind::absent);
  const auto listed = pack_.list();
  ASSERT_TRUE(listed.ok());
  ASSERT_THAT(*listed, SizeIs(3000));
  std::string last;
  for (const Listed& each : *listed) {
    EXPECT_LT(last, each.id);
    last = each.id;
    ASSERT_TRUE(each.entry.ok());
    EXPECT_EQ(*each.entry, entry_of(each.entry->identity));
    EXPECT_EQ(each.bytes, std::int64_t(encode(*each.entry).size()));
    EXPECT_EQ(each.path, path_);
  }
  EXPECT_EQ(files_->open_files(), 0);
  EXPECT_EQ(files_->writes(), 0);
}

TEST_F(PackTest, TheSameEntriesMakeTheSameBytes) {
  EXPECT_EQ(pack_of({"a", "b", "c"}), pack_of({"c", "a", "b"}));
  EXPECT_NE(pack_of({"a", "b"}), pack_of({"a", "c"}));
}

// The format is a contract: what one version has written, later ones read.
TEST_F(PackTest, TheBytesAreThose) {
  const std::string a = encode(entry_of("a"));
  const std::string pack = pack_of({"a"});
  EXPECT_THAT(pack, ::testing::StartsWith("normjit-pack 1\nchecksum: "));
  EXPECT_THAT(pack, ::testing::EndsWith("\nentries: 1\n" + entry_id("a") + " " + std::to_string(a.size()) +
                                        "\n\n" + a));
}

TEST_F(PackTest, AnEmptyPackHasNoEntry) {
  write(path_, encode_pack({}));
  EXPECT_EQ(pack_.look("a").kind, Kind::absent);
  EXPECT_THAT(*pack_.list(), SizeIs(0));
}

TEST_F(PackTest, ReadsTheIndexOnceAndOneEntryForEachLook) {
  write(path_, pack_of({"a", "b"}));
  pack_.look("a");
  files_->forget();
  EXPECT_EQ(pack_.look("b").kind, Kind::entry);
  EXPECT_EQ(files_->count(Call::open, path_), 1);
  EXPECT_EQ(files_->count(Call::pread, path_), 1);
  EXPECT_THAT(files_->calls(), SizeIs(4)) << "and fstat and close";
  files_->forget();
  EXPECT_EQ(pack_.look("c").kind, Kind::absent);
  EXPECT_EQ(files_->count(Call::pread), 0);
}

TEST_F(PackTest, AnotherFileInItsPlaceServesFromThenOn) {
  write(path_, pack_of({"a"}));
  EXPECT_EQ(pack_.look("a").kind, Kind::entry);
  write(temp_ / "new", pack_of({"b"}));
  fs::rename(temp_ / "new", path_);
  EXPECT_EQ(pack_.look("a").kind, Kind::absent);
  EXPECT_EQ(pack_.look("b").kind, Kind::entry);
  fs::remove(path_);
  EXPECT_EQ(pack_.look("b").kind, Kind::absent);
  EXPECT_EQ(pack_.list().code(), Code::CacheIo);
}

// What it says meanwhile is right or nothing.
TEST_F(PackTest, ThreadsMayLookWhileItIsReplaced) {
  write(path_, pack_of({"a", "b"}));
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0}, hits{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      do {
        const Lookup lookup = pack_.look("b");
        if (lookup.kind != Kind::entry || lookup.entry != entry_of("b")) ++wrong;
        ++hits;
      } while (!done);
    });
  for (int i = 0; i < 100; ++i) {
    write(temp_ / "new", i % 2 ? pack_of({"a", "b"}) : pack_of({"b", "c", "d"}));
    fs::rename(temp_ / "new", path_);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(hits, 0);
}

TEST_F(PackTest, IsBelievedOrNotOnceForAFile) {
  int asked = 0;
  bool answer = false;
  const Pack pack(path_, files_, /*shared=*/false, [&](std::string_view bytes, const std::string& path) {
    ++asked;
    EXPECT_EQ(bytes, pack_of({"a"}));
    EXPECT_EQ(path, path_);
    return answer ? Result<void>() : Error{Code::Untrusted, "nobody knows it"};
  });
  write(path_, pack_of({"a"}));
  for (int i = 0; i < 3; ++i) {
    const Lookup lookup = pack.look("a");
    EXPECT_EQ(lookup.kind, Kind::untrusted);
    EXPECT_EQ(lookup.error, "nobody knows it");
    EXPECT_EQ(pack.list().error().message, "nobody knows it");
    EXPECT_FALSE(pack.check().ok());
  }
  EXPECT_EQ(asked, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_EQ(pack.look("a").kind, Kind::untrusted);
  EXPECT_EQ(asked, 2) << "after a second it is judged again";
  asked = 1;
  answer = true;
  write(temp_ / "new", pack_of({"a"}));
  fs::rename(temp_ / "new", path_);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pack.look("a").entry, entry_of("a"));
  EXPECT_EQ(asked, 2);
}

TEST_F(PackTest, WhatWasCheckedIsWhatIsUsed) {
  const Pack pack(path_, files_, /*shared=*/false,
                  [](std::string_view, const std::string&) { return Result<void>(); });
  write(path_, pack_of({"a", "b"}));
  EXPECT_EQ(pack.look("a").kind, Kind::entry);
  files_->forget();
  EXPECT_EQ(pack.look("b").entry, entry_of("b"));
  EXPECT_THAT(*pack.list(), SizeIs(2));
  EXPECT_EQ(files_->count(Call::pread), 0);
}

TEST(PackInMemory, IsAsTheOneInAFile) {
  auto bytes = std::make_shared<const std::string>(pack_of({"a", "b"}));
  const Pack pack("name", bytes);
  const std::weak_ptr<const std::string> kept = std::exchange(bytes, nullptr);
  EXPECT_FALSE(kept.expired()) << "the pack keeps its bytes";
  ASSERT_TRUE(pack.check().ok());
  EXPECT_EQ(pack.path(), "name");
  EXPECT_EQ(pack.look("a").entry, entry_of("a"));
  EXPECT_EQ(pack.look("c").kind, Kind::absent);
  const auto listed = pack.list();
  ASSERT_TRUE(listed.ok());
  ASSERT_THAT(*listed, SizeIs(2));
  for (const Listed& each : *listed) {
    EXPECT_EQ(each.tier, "name");
    EXPECT_EQ(each.path, "name");
    EXPECT_EQ(each.modified, 0);
    EXPECT_TRUE(each.entry.ok());
  }
}

// Whatever is changed or missing outside of the entries.
TEST(PackInMemory, ItsIndexIsChecked) {
  const std::string sound = pack_of({"a", "b"});
  const auto check = [](std::string bytes) {
    return Pack("name", std::make_shared<const std::string>(std::move(bytes))).check();
  };
  const std::size_t index = sound.find("\n\n") + 2;
  for (std::size_t at = 0; at < sound.size(); ++at) {
    std::string changed = sound;
    changed[at] ^= 1;
    EXPECT_EQ(check(changed).ok(), at >= index) << at;
    const auto cut = check(sound.substr(0, at));
    ASSERT_EQ(cut.code(), Code::CacheIo) << at;
    EXPECT_THAT(cut.error().message, HasSubstr("name is not a valid pack")) << at;
  }
  EXPECT_EQ(check(sound + "x").code(), Code::CacheIo);
  EXPECT_TRUE(check(sound).ok());
  EXPECT_TRUE(check(pack_of({})).ok());
}

TEST_F(PackTest, ItsIndexIsCheckedInAFileToo) {
  EXPECT_EQ(pack_.check().code(), Code::CacheIo);
  write(path_, pack_of({"a"}));
  EXPECT_TRUE(pack_.check().ok());
}

TEST_F(PackTest, ALinkIsFollowedAsItIsTheUsersChoice) {
  write(temp_ / "elsewhere", pack_of({"a"}));
  fs::create_symlink(temp_ / "elsewhere", path_);
  EXPECT_EQ(pack_.look("a").kind, Kind::entry);
}

TEST_F(PackTest, WhatIsNoFileNeitherServesNorHangs) {
  fs::create_directory(path_);
  EXPECT_EQ(pack_.look("a").kind, Kind::damaged);
  fs::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(pack_.look("a").kind, Kind::damaged);
  EXPECT_EQ(files_->open_files(), 0);
}

TEST_F(PackTest, WhatOthersOwnOrCanWriteIsNotBelieved) {
  write(path_, pack_of({"a"}));
  const Pack believing(path_, files_, /*shared=*/true);
  for (const auto& [user, mode] : {std::pair{::geteuid() + 1, 0644u}, {::geteuid(), 0664u}, {0u, 0646u}}) {
    files_->pretend_owner(user, mode);
    const Lookup lookup = pack_.look("a");
    EXPECT_EQ(lookup.kind, Kind::untrusted);
    EXPECT_THAT(lookup.error, HasSubstr(path_));
    EXPECT_EQ(pack_.list().code(), Code::CacheIo);
    EXPECT_EQ(believing.look("a").kind, Kind::entry);
  }
  files_->pretend_owner(0, 0444);
  EXPECT_EQ(pack_.look("a").kind, Kind::entry) << "root's";
}

TEST_F(PackTest, WhatCannotBeReadIsSaidAndReadLater) {
  write(path_, pack_of({"a"}));
  for (const Call call : {Call::open, Call::fstat, Call::pread}) {
    files_->fail(call, ESTALE);
    const Lookup lookup = pack_.look("a");
    EXPECT_EQ(lookup.kind, Kind::unreadable);
    EXPECT_THAT(lookup.error, HasSubstr(path_));
    files_->fail(call, ESTALE);
    EXPECT_EQ(pack_.list().code(), Code::CacheIo);
  }
  EXPECT_EQ(pack_.look("a").kind, Kind::entry);
  files_->fail(Call::pread, EIO);
  EXPECT_EQ(pack_.look("a").kind, Kind::unreadable) << "the index is known, the entry cannot be read";
}

TEST_F(PackTest, AForeignFileIsNotReadToItsEnd) {
  write(path_, "#!");
  fs::resize_file(path_, 32 << 20);
  EXPECT_EQ(pack_.look("a").kind, Kind::damaged);
  EXPECT_LE(files_->count(Call::pread), 1);
}

}  // namespace
}  // namespace normjit
