// SPDX-License-Identifier: Apache-2.0
// What the cache promises on a healthy directory.
#include "normjit/cache/directory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>

#include "tests/support/recording_file_system.h"
#include "tests/support/temp_directory.h"

namespace normjit {
namespace {

namespace fs = std::filesystem;
using Kind = RecordingFileSystem::Kind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Entry entry_of(const std::string& identity, const std::string& body = "machine code") {
  return {.identity = identity, .facts = {{"plan", "threads=256"}}, .body = body};
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& file : fs::directory_iterator(directory)) names.push_back(file.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

class DirectoryTest : public ::testing::Test {
 protected:
  Directory open(const std::string& directory) {
    return Directory(directory, files_, [this](std::string_view text) { warnings_.emplace_back(text); });
  }

  TempDirectory temp_;
  std::shared_ptr<RecordingFileSystem> files_ = std::make_shared<RecordingFileSystem>();
  std::vector<std::string> warnings_;
  Entry found_;
};

TEST_F(DirectoryTest, FindsWhatWasStored) {
  Directory cache = open(temp_.path());
  EXPECT_TRUE(cache.store(entry_of("a")));
  EXPECT_TRUE(cache.store(entry_of("b", "")));
  ASSERT_TRUE(cache.find("a", found_));
  EXPECT_EQ(found_, entry_of("a"));
  ASSERT_TRUE(cache.find("b", found_));
  EXPECT_EQ(found_, entry_of("b", ""));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(DirectoryTest, MissesSilentlyWhatIsAbsent) {
  Directory cache = open(temp_ / "not/there");
  EXPECT_FALSE(cache.find("a", found_));
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_EQ(files_->writes(), 0);
  EXPECT_FALSE(fs::exists(temp_ / "not"));
}

TEST_F(DirectoryTest, AMissLeavesTheEntryAlone) {
  Directory cache = open(temp_.path());
  found_ = entry_of("mine");
  EXPECT_FALSE(cache.find("a", found_));
  EXPECT_EQ(found_, entry_of("mine"));
}

TEST_F(DirectoryTest, ConstructionTouchesNothing) {
  const Directory cache = open(temp_ / "c");
  EXPECT_THAT(files_->calls(), IsEmpty());
}

TEST_F(DirectoryTest, AnEntryIsOneFileNamedByItsId) {
  open(temp_.path()).store(entry_of("a"));
  EXPECT_THAT(names_in(temp_.path()), ElementsAre(entry_id("a") + ".njk"));
}

TEST_F(DirectoryTest, AHitReadsOneFileAndWritesNone) {
  open(temp_.path()).store(entry_of("a"));
  files_->forget();
  ASSERT_TRUE(open(temp_.path()).find("a", found_));

  const std::string path = temp_ / (entry_id("a") + ".njk");
  EXPECT_EQ(files_->count(Kind::open, path), 1);
  EXPECT_EQ(files_->count(Kind::fstat, path), 1);
  EXPECT_EQ(files_->count(Kind::read, path), 1);
  EXPECT_EQ(files_->count(Kind::close, path), 1);
  EXPECT_EQ(files_->calls().size(), 4u);
  EXPECT_EQ(files_->writes(), 0);
  EXPECT_EQ(files_->open_files(), 0);
}

TEST_F(DirectoryTest, APublicationIsFlushedBeforeItIsVisible) {
  Directory cache = open(temp_.path());
  ASSERT_TRUE(cache.store(entry_of("a")));
  std::vector<Kind> kinds;
  for (const auto& call : files_->calls()) kinds.push_back(call.kind);
  EXPECT_THAT(kinds,
              ElementsAre(Kind::open, Kind::write, Kind::fsync, Kind::close, Kind::link, Kind::unlink));
  EXPECT_EQ(files_->open_files(), 0);
}

TEST_F(DirectoryTest, TemporariesAreNewFilesOfRandomNamesInTheSameDirectory) {
  Directory cache = open(temp_.path());
  std::set<std::string> names;
  for (int i = 0; i < 50; ++i) cache.store(entry_of("a"));
  for (const auto& call : files_->calls()) {
    if (call.kind != Kind::open || !RecordingFileSystem::changes(call)) continue;
    const int needed = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    EXPECT_EQ(call.flags & needed, needed);
    EXPECT_EQ(fs::path(call.path).parent_path(), temp_.path());
    EXPECT_EQ(fs::path(call.path).extension(), ".tmp");
    names.insert(call.path);
  }
  EXPECT_EQ(names.size(), 50u);
}

TEST_F(DirectoryTest, TheFirstPublisherWins) {
  Directory cache = open(temp_.path());
  EXPECT_TRUE(cache.store(entry_of("a", "first")));
  EXPECT_TRUE(cache.store(entry_of("a", "second")));
  ASSERT_TRUE(cache.find("a", found_));
  EXPECT_EQ(found_.body, "first");
  EXPECT_EQ(names_in(temp_.path()).size(), 1u);
}

TEST_F(DirectoryTest, ReplacePutsAnEntryInThePlaceOfAnother) {
  Directory cache = open(temp_.path());
  EXPECT_TRUE(cache.store(entry_of("a", "first")));
  EXPECT_TRUE(cache.store(entry_of("a", "second"), /*replace=*/true));
  EXPECT_TRUE(cache.store(entry_of("b", "new"), /*replace=*/true));
  ASSERT_TRUE(cache.find("a", found_));
  EXPECT_EQ(found_.body, "second");
  ASSERT_TRUE(cache.find("b", found_));
  EXPECT_EQ(names_in(temp_.path()).size(), 2u);
}

TEST_F(DirectoryTest, MakesItsDirectoryForTheUserAlone) {
  for (const std::string name : {"x/y/z", "trailing/slash/", "double//slash"}) {
    Directory cache = open(temp_ / name);
    EXPECT_TRUE(cache.store(entry_of("a"))) << name;
    EXPECT_TRUE(cache.find("a", found_)) << name;
    EXPECT_EQ(fs::status(temp_ / name).permissions(), fs::perms::owner_all) << name;
  }
  EXPECT_EQ(fs::status(temp_ / "x").permissions(), fs::perms::owner_all);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(DirectoryTest, ACopiedOrMovedDirectoryStillHits) {
  open(temp_ / "here").store(entry_of("a"));
  fs::copy(temp_ / "here", temp_ / "copied");
  fs::last_write_time(temp_ / "copied/" + entry_id("a") + ".njk",
                      fs::file_time_type::clock::now() + std::chrono::hours(-9999));
  fs::rename(temp_ / "here", temp_ / "moved");
  EXPECT_FALSE(open(temp_ / "here").find("a", found_));
  EXPECT_TRUE(open(temp_ / "copied").find("a", found_));
  EXPECT_TRUE(open(temp_ / "moved").find("a", found_));
}

TEST_F(DirectoryTest, WithoutADirectoryItStoresAndFindsNothing) {
  Directory cache = open("");
  EXPECT_FALSE(cache.store(entry_of("a")));
  EXPECT_FALSE(cache.find("a", found_));
  ASSERT_TRUE(cache.list().ok());
  EXPECT_TRUE(cache.list()->empty());
  EXPECT_TRUE(cache.probe().ok());
  EXPECT_THAT(files_->calls(), IsEmpty());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(DirectoryTest, ListsEntriesById) {
  Directory cache = open(temp_.path());
  std::vector<std::string> ids;
  for (int i = 0; i < 20; ++i) {
    cache.store(entry_of(std::to_string(i)));
    ids.push_back(entry_id(std::to_string(i)));
  }
  std::sort(ids.begin(), ids.end());
  const auto listed = cache.list();
  ASSERT_TRUE(listed.ok());
  ASSERT_EQ(listed->size(), ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Listed& item = (*listed)[i];
    EXPECT_EQ(item.id, ids[i]);
    ASSERT_TRUE(item.entry.ok());
    EXPECT_EQ(*item.entry, entry_of(item.entry->identity));
    EXPECT_EQ(item.bytes, std::int64_t(encode(*item.entry).size()));
  }
}

TEST_F(DirectoryTest, ListsNothingWhereThereIsNoDirectory) {
  const auto listed = open(temp_ / "none").list();
  ASSERT_TRUE(listed.ok());
  EXPECT_TRUE(listed->empty());
}

TEST_F(DirectoryTest, ProbeMakesTheDirectoryAndLeavesItEmpty) {
  EXPECT_TRUE(open(temp_ / "p/q").probe().ok());
  EXPECT_THAT(names_in(temp_ / "p/q"), IsEmpty());
  EXPECT_EQ(files_->open_files(), 0);
}

}  // namespace
}  // namespace normjit
