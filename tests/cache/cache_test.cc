// SPDX-License-Identifier: Apache-2.0
// The tiers together: in which order they are asked, what is copied from one to the other, and what each can
// do to the others.
#include "normjit/cache/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "normjit/cache/file_names.h"
#include "normjit/cache/pack.h"
#include "tests/support/recording_file_system.h"
#include "tests/support/temp_directory.h"

namespace normjit {
namespace {

namespace fs = std::filesystem;
using Call = RecordingFileSystem::Kind;
using Place = Cache::Place;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Entry entry_of(const std::string& identity, const std::string& maker = "") {
  return {.identity = identity, .facts = {{"maker", maker}}, .body = "body of " + identity + maker};
}

class CacheTest : public ::testing::Test {
 protected:
  Cache open(bool shared = false) {
    return Cache({.directory = directory_, .layers = {first_, pack_, last_}, .shared = shared}, files_,
                 [this](std::string_view text) { warnings_.emplace_back(text); });
  }
  static std::string path_of(const std::string& directory, const std::string& identity) {
    return path_to(directory, entry_id(identity), kEntrySuffix);
  }
  void write(const std::string& path, const std::string& bytes) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  void put(const std::string& directory, const Entry& entry) {
    write(path_of(directory, entry.identity), encode(entry));
  }
  void put_in_pack(const Entry& entry) {
    write(pack_, encode_pack({{entry_id(entry.identity), encode(entry)}}));
  }
  // The maker of what is found, and where; "" where nothing is.
  std::string find(Cache& cache, const std::string& identity, Place place) {
    const auto found = cache.find(identity);
    if (!found) return "";
    EXPECT_EQ(found->place, place);
    EXPECT_EQ(found->entry.body, "body of " + identity + std::string(found->entry.fact("maker")));
    return std::string(found->entry.fact("maker"));
  }

  const TempDirectory temp_;
  std::string directory_ = temp_ / "cache";
  const std::string first_ = temp_ / "first", pack_ = temp_ / "second.njp", last_ = temp_ / "last";
  const std::shared_ptr<RecordingFileSystem> files_ = std::make_shared<RecordingFileSystem>();
  std::vector<std::string> warnings_;
};

TEST_F(CacheTest, AsksMemoryDirectoryAndLayersInThisOrder) {
  Cache cache = open();
  EXPECT_EQ(find(cache, "a", Place::layer), "");
  put(last_, entry_of("a", "last"));
  EXPECT_EQ(find(cache, "a", Place::layer), "last");
  fs::remove_all(directory_);
  put_in_pack(entry_of("a", "pack"));
  EXPECT_EQ(find(cache, "a", Place::layer), "pack");
  fs::remove_all(directory_);
  put(first_, entry_of("a", "first"));
  EXPECT_EQ(find(cache, "a", Place::layer), "first");
  fs::remove_all(directory_);
  put(directory_, entry_of("a", "directory"));
  EXPECT_EQ(find(cache, "a", Place::directory), "directory");
  cache.store(entry_of("a", "memory"));
  EXPECT_EQ(find(cache, "a", Place::memory), "memory");
  EXPECT_THAT(warnings_, IsEmpty());
}

std::string pack_of(const Entry& entry) { return encode_pack({{entry_id(entry.identity), encode(entry)}}); }

TEST_F(CacheTest, ALayerThatIsAddedIsAskedBehindTheOthers) {
  const std::string embedded = pack_of(entry_of("a", "embedded"));
  Cache cache({.directory = directory_, .layers = {first_}, .embedded = embedded}, files_,
              [this](std::string_view text) { warnings_.emplace_back(text); });
  EXPECT_EQ(find(cache, "a", Place::embedded), "embedded");
  const auto before = cache.layers();

  ASSERT_TRUE(cache.add_layer(pack_of(entry_of("a", "one"))).ok());
  ASSERT_TRUE(cache.add_layer(pack_of(entry_of("a", "two"))).ok());
  ASSERT_TRUE(cache.add_layer(pack_of(entry_of("b", "three"))).ok());
  EXPECT_THAT(*before, SizeIs(1)) << "a list that somebody walks along stays";
  EXPECT_THAT(*cache.layers(), SizeIs(4));
  EXPECT_EQ(cache.look("a").tier, "memory layer 1");
  EXPECT_EQ(cache.look("b").tier, "memory layer 3");
  EXPECT_EQ(find(cache, "a", Place::layer), "one");
  EXPECT_EQ(find(cache, "b", Place::layer), "three");
  EXPECT_EQ(find(cache, "a", Place::directory), "one") << "it was copied";
  fs::remove_all(directory_);
  EXPECT_FALSE(cache.find("a", [](const Entry& entry) { return entry.fact("maker") == "none"; }));
  EXPECT_EQ(cache.find("a", [](const Entry& entry) { return entry.fact("maker") == "two"; })->place,
            Place::layer);
  put(first_, entry_of("a", "first"));
  fs::remove_all(directory_);
  EXPECT_EQ(find(cache, "a", Place::layer), "first");

  std::vector<std::string> tiers;
  const auto listed = cache.list();
  ASSERT_TRUE(listed.ok());
  for (const Listed& each : *listed) tiers.push_back(each.tier);
  EXPECT_THAT(tiers, ElementsAre(directory_, first_, "memory layer 1", "memory layer 2", "memory layer 3"));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CacheTest, WhatIsNoPackIsNotAdded) {
  Cache cache = open();
  const std::string sound = pack_of(entry_of("a", "one"));
  for (const std::string& bytes : {std::string(), std::string("x"), sound.substr(0, sound.size() - 1)}) {
    const auto added = cache.add_layer(bytes);
    EXPECT_EQ(added.code(), Code::CacheIo);
    EXPECT_THAT(added.error().message, HasSubstr("the layer in memory is not a valid pack"));
  }
  EXPECT_THAT(*cache.layers(), SizeIs(3));
  ASSERT_TRUE(cache.add_layer(sound).ok());
  EXPECT_EQ(cache.look("a").tier, "memory layer 1") << "those before have no number";
}

TEST_F(CacheTest, ADamagedEntryOfALayerThatIsAddedIsAMiss) {
  std::string damaged = pack_of(entry_of("a", "one"));
  damaged.back() ^= 1;
  Cache cache = open();
  ASSERT_TRUE(cache.add_layer(damaged).ok());
  ASSERT_TRUE(cache.add_layer(pack_of(entry_of("a", "two"))).ok());
  EXPECT_EQ(find(cache, "a", Place::layer), "two");
  EXPECT_EQ(cache.damaged_entries(), 1U);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("memory layer 1")));
}

class EmbeddedTest : public CacheTest {
 protected:
  Cache open_with(std::string_view embedded) {
    return Cache({.directory = directory_, .layers = {pack_}, .embedded = embedded}, files_,
                 [this](std::string_view text) { warnings_.emplace_back(text); });
  }
};

TEST_F(EmbeddedTest, IsAskedLast) {
  const std::string embedded = pack_of(entry_of("a", "embedded"));
  Cache cache = open_with(embedded);
  EXPECT_EQ(find(cache, "b", Place::embedded), "");
  EXPECT_EQ(find(cache, "a", Place::embedded), "embedded");
  EXPECT_EQ(cache.look("a").tier, "embedded");
  EXPECT_EQ(cache.look("b").lookup.kind, Lookup::Kind::absent);
  EXPECT_FALSE(cache.find("a", [](const Entry&) { return false; }));
  EXPECT_EQ(files_->writes(), 0) << "it is never copied";
  ASSERT_TRUE(cache.list().ok());
  EXPECT_THAT(*cache.list(), IsEmpty());
  put_in_pack(entry_of("a", "pack"));
  EXPECT_EQ(cache.look("a").tier, pack_);
  EXPECT_EQ(find(cache, "a", Place::layer), "pack");
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(EmbeddedTest, DamageIsAMiss) {
  const std::string sound = pack_of(entry_of("a", "embedded"));
  for (std::size_t at = 0; at < sound.size(); at += 7) {
    std::string damaged = sound;
    damaged[at] ^= 1;
    warnings_.clear();
    Cache cache = open_with(damaged);
    EXPECT_FALSE(cache.find("a")) << at;
    EXPECT_FALSE(cache.find("a")) << at;
    EXPECT_NE(cache.look("a").lookup.kind, Lookup::Kind::entry);
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr("embedded"))) << at << ": once";
  }
  for (const std::size_t bytes : {std::size_t{1}, sound.size() / 2, sound.size() - 1}) {
    Cache cache = open_with(std::string_view(sound).substr(0, bytes));
    EXPECT_FALSE(cache.find("a")) << bytes;
  }
}

TEST_F(CacheTest, FillsTheDirectoryWithoutWaitingForTheDisk) {
  put_in_pack(entry_of("a", "pack"));
  Cache cache = open();
  EXPECT_EQ(find(cache, "a", Place::layer), "pack");
  EXPECT_EQ(files_->count(Call::fsync), 0);
  EXPECT_EQ(find(cache, "a", Place::directory), "pack");
  fs::remove(pack_);
  Cache later = open();
  EXPECT_EQ(find(later, "a", Place::directory), "pack");
}

TEST_F(CacheTest, AHitInTheDirectoryAsksNoLayer) {
  put(directory_, entry_of("a", "directory"));
  put_in_pack(entry_of("a", "pack"));
  Cache cache = open();
  EXPECT_EQ(find(cache, "a", Place::directory), "directory");
  EXPECT_THAT(files_->calls(), SizeIs(4));
  EXPECT_EQ(files_->writes(), 0);
}

TEST_F(CacheTest, LayersAreNeitherWrittenNorRepaired) {
  write(path_of(first_, "a"), "damaged");
  put(last_, entry_of("a", "last"));
  Cache cache = open();
  EXPECT_EQ(find(cache, "a", Place::layer), "last");
  for (const auto& call : files_->calls()) {
    if (!RecordingFileSystem::changes(call)) continue;
    EXPECT_THAT(call.path, HasSubstr(directory_)) << "a layer is not ours";
  }
  EXPECT_TRUE(fs::exists(path_of(first_, "a")));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr(path_of(first_, "a"))));
}

TEST_F(CacheTest, AnUnusableLayerIsPassedOverWithOneWarning) {
  write(pack_, "no pack");
  put(last_, entry_of("a", "last"));
  put(last_, entry_of("b", "last"));
  Cache cache = open();
  EXPECT_EQ(find(cache, "a", Place::layer), "last");
  EXPECT_EQ(find(cache, "b", Place::layer), "last");
  EXPECT_EQ(find(cache, "c", Place::layer), "");
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr(pack_)));
}

TEST_F(CacheTest, AMissingLayerIsAnEmptyOne) {
  Cache cache = open();
  EXPECT_EQ(find(cache, "a", Place::layer), "");
  ASSERT_TRUE(cache.list().ok());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CacheTest, ReadOnlyLayersServeWhereTheDirectoryTakesNothing) {
  put_in_pack(entry_of("a", "pack"));
  files_->fail_creation(EROFS);
  Cache cache = open();
  for (int round = 0; round < 3; ++round) EXPECT_EQ(find(cache, "a", Place::layer), "pack");
  EXPECT_THAT(warnings_, IsEmpty()) << "nothing is lost";
  directory_.clear();
  Cache without = open();
  EXPECT_EQ(find(without, "a", Place::layer), "pack");
}

TEST_F(CacheTest, MemoryServesWhatTheDirectoryDidNotTake) {
  files_->fail_creation(ENOSPC);
  Cache cache = open();
  EXPECT_FALSE(cache.store(entry_of("a", "made")));
  files_->forget();
  const auto found = cache.find("a");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->place, Place::memory);
  EXPECT_FALSE(found->kept_on_disk);
  EXPECT_THAT(files_->calls(), IsEmpty());
  EXPECT_THAT(warnings_, SizeIs(1));

  files_->heal();
  EXPECT_TRUE(cache.store(entry_of("a", "made")));
  EXPECT_TRUE(cache.find("a")->kept_on_disk);
}

TEST_F(CacheTest, MemoryServesWhatWasReplaced) {
  Cache cache = open();
  put(directory_, entry_of("a", "old"));
  EXPECT_EQ(find(cache, "a", Place::directory), "old");
  EXPECT_TRUE(cache.store(entry_of("a", "new"), /*replace=*/true));
  EXPECT_EQ(find(cache, "a", Place::memory), "new");
  Cache later = open();
  EXPECT_EQ(find(later, "a", Place::directory), "new");
}

TEST_F(CacheTest, ADirectoryThatVanishesIsMadeAgain) {
  Cache cache = open();
  for (int round = 0; round < 3; ++round) {
    const std::string identity = std::to_string(round);
    EXPECT_FALSE(cache.find(identity).has_value());
    EXPECT_EQ(cache.lock(identity).state(), KeyLock::State::held);
    fs::remove_all(directory_);
    EXPECT_TRUE(cache.store(entry_of(identity, "made")));
    EXPECT_EQ(fs::status(directory_).permissions(), fs::perms::owner_all);
    Cache later = open();
    EXPECT_EQ(find(later, identity, Place::directory), "made");
    fs::remove_all(directory_);
  }
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CacheTest, WhatOthersOwnOrCanWriteIsNotBelieved) {
  put(directory_, entry_of("a"));
  const auto is_found = [&](unsigned user, unsigned mode, bool shared) {
    files_->pretend_owner(user, mode);
    Cache cache = open(shared);
    const bool found = cache.find("a").has_value();
    EXPECT_EQ(warnings_.size(), found ? 0u : 1u);
    if (!found) {
      EXPECT_THAT(warnings_, ElementsAre(HasSubstr("NORMJIT_CACHE_SHARED")));
    }
    warnings_.clear();
    EXPECT_TRUE(fs::exists(path_of(directory_, "a"))) << "left where it is";
    return found;
  };
  const unsigned self = ::geteuid();
  EXPECT_TRUE(is_found(self, 0644, false));
  EXPECT_TRUE(is_found(self, 0400, false));
  EXPECT_TRUE(is_found(0, 0644, false)) << "root may do what it likes anyway";
  EXPECT_FALSE(is_found(self + 1, 0644, false));
  EXPECT_FALSE(is_found(self, 0664, false));
  EXPECT_FALSE(is_found(self, 0646, false));
  EXPECT_TRUE(is_found(self + 1, 0666, true));
}

// The same for a real file, as far as this user can make one.
TEST_F(CacheTest, AFileThatOthersCanWriteIsNotBelieved) {
  put(directory_, entry_of("a"));
  fs::permissions(path_of(directory_, "a"), fs::perms{0666});
  Cache cache = open();
  EXPECT_FALSE(cache.find("a").has_value());
  Cache sharing = open(/*shared=*/true);
  EXPECT_TRUE(sharing.find("a").has_value());
}

TEST_F(CacheTest, DirectoriesAreForTheUserAloneUnlessShared) {
  const mode_t before = ::umask(0002);
  directory_ = temp_ / "own/cache";
  Cache own = open();
  own.store(entry_of("a"));
  directory_ = temp_ / "shared/cache";
  Cache shared = open(/*shared=*/true);
  shared.store(entry_of("a"));
  ::umask(before);
  for (const char* path : {"own", "own/cache"})
    EXPECT_EQ(fs::status(temp_ / path).permissions(), fs::perms{0700}) << path;
  for (const char* path : {"shared", "shared/cache"})
    EXPECT_EQ(fs::status(temp_ / path).permissions(), fs::perms{0775}) << path;
}

TEST_F(CacheTest, AnEntryIsNoLink) {
  put(temp_ / "elsewhere", entry_of("a"));
  fs::create_directory(directory_);
  fs::create_symlink(path_of(temp_ / "elsewhere", "a"), path_of(directory_, "a"));
  Cache cache = open();
  EXPECT_FALSE(cache.find("a").has_value());
  fs::create_directory(first_);
  fs::create_symlink(path_of(temp_ / "elsewhere", "a"), path_of(first_, "a"));
  EXPECT_FALSE(cache.find("a").has_value());
  EXPECT_TRUE(fs::is_symlink(path_of(first_, "a")));
}

// Its entries cannot be opened for the same error as an entry that is a link.
TEST_F(CacheTest, ADirectoryBehindALoopOfLinksIsNotAnEntryThatIsALink) {
  fs::create_directory_symlink(directory_, directory_);
  Cache cache = open();
  EXPECT_FALSE(cache.find("a").has_value());
  EXPECT_FALSE(cache.store(entry_of("a")));
  EXPECT_THAT(warnings_, ::testing::Not(::testing::Contains(HasSubstr("is a symbolic link"))));
  EXPECT_THAT(warnings_, ::testing::Contains(HasSubstr("Too many levels of symbolic links")));
}

// The directory has what is of no use and cannot be moved: what was made is in memory alone, and known to be.
TEST_F(CacheTest, WhatStandsInTheWayIsNotTakenForTheEntry) {
  put(directory_, entry_of("a", "untrusted"));
  fs::permissions(path_of(directory_, "a"), fs::perms{0666});
  write(path_of(directory_, "b"), encode(entry_of("other")));
  Cache cache = open();
  for (const char* identity : {"a", "b"}) {
    EXPECT_FALSE(cache.find(identity).has_value());
    EXPECT_FALSE(cache.store(entry_of(identity, "made"))) << identity;
    EXPECT_EQ(find(cache, identity, Place::memory), "made");
    EXPECT_FALSE(cache.find(identity)->kept_on_disk);
  }
}

TEST_F(CacheTest, WhatIsDamagedAndCouldNotBeMovedGivesWay) {
  write(path_of(directory_, "a"), "damaged");
  files_->fail(Call::rename, EIO);
  Cache cache = open();
  EXPECT_FALSE(cache.find("a").has_value());
  EXPECT_TRUE(fs::exists(path_of(directory_, "a")));
  EXPECT_TRUE(cache.store(entry_of("a", "made")));
  Cache later = open();
  EXPECT_EQ(find(later, "a", Place::directory), "made");
}

TEST_F(CacheTest, ListsEveryTier) {
  put(directory_, entry_of("a"));
  put(first_, entry_of("a"));
  put_in_pack(entry_of("b"));
  write(path_of(last_, "c"), "damaged");
  const auto listed = open().list();
  ASSERT_TRUE(listed.ok());
  ASSERT_THAT(*listed, SizeIs(4));
  EXPECT_EQ((*listed)[0].path, path_of(directory_, "a"));
  EXPECT_EQ((*listed)[1].path, path_of(first_, "a"));
  EXPECT_EQ((*listed)[2].path, pack_);
  EXPECT_EQ((*listed)[3].kind, Lookup::Kind::damaged);
  EXPECT_EQ(files_->writes(), 0);
}

TEST_F(CacheTest, ALookChangesNothingAndSaysWhatIsWrong) {
  write(path_of(directory_, "a"), "damaged");
  Cache cache = open();
  Cache::Look look = cache.look("a");
  EXPECT_EQ(look.lookup.kind, Lookup::Kind::damaged);
  EXPECT_EQ(look.tier, directory_);
  put_in_pack(entry_of("a", "pack"));
  look = cache.look("a");
  EXPECT_EQ(look.lookup.kind, Lookup::Kind::entry);
  EXPECT_EQ(look.tier, pack_);
  EXPECT_EQ(cache.look("b").lookup.kind, Lookup::Kind::absent);
  EXPECT_EQ(files_->writes(), 0);
  EXPECT_THAT(warnings_, IsEmpty());
  cache.store(entry_of("b"));
  EXPECT_EQ(cache.look("b").tier, "memory");
}

}  // namespace
}  // namespace normjit
