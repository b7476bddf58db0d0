// SPDX-License-Identifier: Apache-2.0
// What the cache owes its caller when files are damaged and the file system refuses: misses and warnings,
// never more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "normjit/cache/directory.h"
#include "tests/support/recording_file_system.h"
#include "tests/support/temp_directory.h"

namespace normjit {
namespace {

namespace fs = std::filesystem;
using Kind = RecordingFileSystem::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const Entry kEntry{.identity = "a", .facts = {}, .body = std::string(5000, 'x')};

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class TroubleTest : public ::testing::Test {
 protected:
  // Neither temporaries nor open files, whatever happened.
  ~TroubleTest() override {
    EXPECT_EQ(files_->open_files(), 0);
    for (const auto& file : fs::recursive_directory_iterator(temp_.path())) {
      EXPECT_NE(file.path().extension(), ".tmp") << file.path();
    }
  }

  TempDirectory temp_;
  std::shared_ptr<RecordingFileSystem> files_ = std::make_shared<RecordingFileSystem>();
  std::vector<std::string> warnings_;
  Directory cache_{temp_.path(), files_, [this](std::string_view text) { warnings_.emplace_back(text); }};
  const std::string path_ = temp_ / (entry_id("a") + ".njk");
  const std::string aside_ = temp_ / (entry_id("a") + ".damaged");
  Entry found_;
};

// Whatever stands at an entry's place and is none: a miss, moved aside, and the next publication takes the
// place.
class Obstacle : public TroubleTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void place(const std::string& what) {
    const std::string good = encode(kEntry);
    if (what == "empty") write(path_, "");
    if (what == "cut short") write(path_, good.substr(0, good.size() / 2));
    if (what == "flipped") write(path_, good.substr(0, good.size() - 1) + "y");
    if (what == "foreign") write(path_, "#!/bin/sh\n");
    if (what == "huge") {
      write(path_, good);
      fs::resize_file(path_, (std::uintmax_t{64} << 20) + 1);  // sparse
    }
    if (what == "symlink") {
      write(temp_ / "target", good);
      fs::create_symlink(temp_ / "target", path_);
    }
    if (what == "dangling symlink") fs::create_symlink(temp_ / "nowhere", path_);
    if (what == "fifo") {
      ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    }
    if (what == "directory") fs::create_directory(path_);
  }
};

TEST_P(Obstacle, IsAMissAndMovedAside) {
  place(GetParam());
  EXPECT_FALSE(cache_.find("a", found_));
  EXPECT_EQ(found_, Entry());
  EXPECT_FALSE(fs::exists(fs::symlink_status(path_)));
  EXPECT_TRUE(fs::exists(fs::symlink_status(aside_)));
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr(path_));
  EXPECT_THAT(warnings_[0], HasSubstr(aside_));

  EXPECT_TRUE(cache_.store(kEntry));
  EXPECT_TRUE(cache_.find("a", found_));
  EXPECT_EQ(found_, kEntry);
  EXPECT_THAT(*cache_.list(), SizeIs(1));  // what was moved aside is no entry
}

TEST_P(Obstacle, IsListedAsAnErrorAndLeftAlone) {
  place(GetParam());
  const auto listed = cache_.list();
  ASSERT_TRUE(listed.ok());
  ASSERT_THAT(*listed, SizeIs(1));
  EXPECT_EQ((*listed)[0].id, entry_id("a"));
  EXPECT_EQ((*listed)[0].entry.code(), Code::CacheIo);
  EXPECT_FALSE((*listed)[0].entry.error().message.empty());
  EXPECT_EQ(files_->writes(), 0);
  EXPECT_TRUE(fs::exists(fs::symlink_status(path_)));
}

TEST_P(Obstacle, GivesWayToAReplacement) {
  place(GetParam());
  // Only a directory does not: no rename puts a file in its place.
  const bool possible = std::string(GetParam()) != "directory";
  EXPECT_EQ(cache_.store(kEntry, /*replace=*/true), possible);
  EXPECT_EQ(warnings_.empty(), possible);
  EXPECT_EQ(cache_.find("a", found_), possible);
}

TEST_P(Obstacle, IsAMissWhereItCannotBeMoved) {
  place(GetParam());
  files_->fail_always(Kind::rename, EROFS);
  EXPECT_FALSE(cache_.find("a", found_));
  EXPECT_TRUE(fs::exists(fs::symlink_status(path_)));
  EXPECT_THAT(warnings_, SizeIs(1));
}

INSTANTIATE_TEST_SUITE_P(All, Obstacle,
                         ::testing::Values("empty", "cut short", "flipped", "foreign", "huge", "symlink",
                                           "dangling symlink", "fifo", "directory"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

TEST_F(TroubleTest, AnEntryOfAnotherIdentityIsAMissAndStays) {
  const std::string other = encode({.identity = "b", .facts = {}, .body = "of b"});
  write(path_, other);
  EXPECT_FALSE(cache_.find("a", found_));
  EXPECT_EQ(read(path_), other);
  EXPECT_FALSE(fs::exists(aside_));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr(path_)));
  const auto listed = cache_.list();
  ASSERT_THAT(*listed, SizeIs(1));
  EXPECT_THAT((*listed)[0].entry.error().message, HasSubstr(entry_id("b")));
}

TEST_F(TroubleTest, OneWarningAKind) {
  for (int round = 0; round < 3; ++round) {
    write(path_, "damaged");
    EXPECT_FALSE(cache_.find("a", found_));
  }
  EXPECT_THAT(warnings_, SizeIs(1));
  files_->fail_always(Kind::open, EACCES);
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(cache_.find("a", found_));
    EXPECT_FALSE(cache_.store(kEntry));
  }
  EXPECT_THAT(warnings_, SizeIs(3));
}

TEST_F(TroubleTest, WorksWithoutAWarnCallback) {
  Directory silent(temp_.path(), files_, nullptr);
  write(path_, "damaged");
  EXPECT_FALSE(silent.find("a", found_));
}

// Reading.

TEST_F(TroubleTest, ReadErrorsAreMissesThatTouchNothing) {
  ASSERT_TRUE(cache_.store(kEntry));
  for (const Kind kind : {Kind::open, Kind::fstat, Kind::read}) {
    for (const int error : {EACCES, EIO, ESTALE, EMFILE, ENOTDIR}) {
      files_->forget();
      files_->fail(kind, error);
      EXPECT_FALSE(cache_.find("a", found_)) << std::strerror(error);
      EXPECT_EQ(files_->writes(), 0);
      EXPECT_TRUE(cache_.find("a", found_));
    }
  }
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("Permission denied")));
}

TEST_F(TroubleTest, ACloseThatFailsAfterReadingIsIgnored) {
  ASSERT_TRUE(cache_.store(kEntry));
  files_->fail(Kind::close, EIO);
  EXPECT_TRUE(cache_.find("a", found_));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(TroubleTest, InterruptedAndShortTransfersComplete) {
  files_->limit_transfers(7);
  for (const Kind kind : {Kind::open, Kind::read, Kind::write, Kind::fsync}) {
    files_->fail(kind, EINTR, 1);
    files_->fail(kind, EINTR, 2);
    files_->fail(kind, EINTR, 20);
  }
  files_->fail(Kind::close, EINTR);
  EXPECT_TRUE(cache_.store(kEntry));
  EXPECT_TRUE(cache_.find("a", found_));
  EXPECT_EQ(found_, kEntry);
  EXPECT_GT(files_->count(Kind::read), 500);
  EXPECT_GT(files_->count(Kind::write), 500);
  EXPECT_THAT(warnings_, IsEmpty());
}

// Writing.

TEST_F(TroubleTest, AFailedStoreLeavesNothingAndTheNextSucceeds) {
  for (const Kind kind : {Kind::open, Kind::write, Kind::fsync, Kind::close}) {
    for (const int error : {EACCES, EROFS, ENOSPC, EDQUOT, EIO}) {
      files_->fail(kind, error);
      EXPECT_FALSE(cache_.store(kEntry)) << std::strerror(error);
      EXPECT_TRUE(fs::is_empty(temp_.path()));
    }
  }
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("Permission denied")));
  EXPECT_TRUE(cache_.store(kEntry));
}

TEST_F(TroubleTest, ADiskThatFillsHalfwayLeavesNothing) {
  files_->limit_transfers(100);
  files_->fail(Kind::write, ENOSPC, 10);
  EXPECT_FALSE(cache_.store(kEntry));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("No space left")));
  EXPECT_TRUE(fs::is_empty(temp_.path()));
}

TEST_F(TroubleTest, WhereLinkIsRefusedRenamePublishes) {
  for (const int error : {EPERM, EOPNOTSUPP, ENOSYS, EMLINK, EXDEV, EACCES}) {
    fs::remove(path_);
    files_->fail(Kind::link, error);
    EXPECT_TRUE(cache_.store(kEntry)) << std::strerror(error);
    EXPECT_TRUE(cache_.find("a", found_)) << std::strerror(error);
  }
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(TroubleTest, WhereNothingPublishesTheTemporaryIsRemoved) {
  files_->fail_always(Kind::link, EPERM);
  files_->fail_always(Kind::rename, EROFS);
  EXPECT_FALSE(cache_.store(kEntry));
  EXPECT_TRUE(fs::is_empty(temp_.path()));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("Read-only")));
}

TEST_F(TroubleTest, ATemporaryThatCannotBeRemovedIsNobodysError) {
  files_->fail(Kind::unlink, EIO);
  EXPECT_TRUE(cache_.store(kEntry));
  EXPECT_TRUE(cache_.find("a", found_));
  EXPECT_THAT(*cache_.list(), SizeIs(1));
  EXPECT_THAT(warnings_, IsEmpty());
  for (const auto& file : fs::directory_iterator(temp_.path())) {
    if (file.path().extension() == ".tmp") fs::remove(file.path());
  }
}

TEST_F(TroubleTest, AReadableButUnwritableDirectoryStillHits) {
  ASSERT_TRUE(cache_.store(kEntry));
  files_->fail_creation(EROFS);
  for (const Kind kind : {Kind::link, Kind::rename, Kind::unlink, Kind::mkdir})
    files_->fail_always(kind, EROFS);
  EXPECT_TRUE(cache_.find("a", found_));
  EXPECT_FALSE(cache_.store({.identity = "b", .facts = {}, .body = ""}));
  EXPECT_THAT(warnings_, SizeIs(1));
  EXPECT_EQ(cache_.probe().code(), Code::CacheIo);
}

TEST_F(TroubleTest, AnOversizedEntryIsNotStored) {
  EXPECT_FALSE(cache_.store({.identity = "a", .facts = {}, .body = std::string(std::size_t{64} << 20, 'x')}));
  EXPECT_THAT(files_->calls(), IsEmpty());
  EXPECT_THAT(warnings_, SizeIs(1));
}

// Directories.

TEST_F(TroubleTest, AFileAmongTheDirectoriesIsAMissAndARefusal) {
  write(temp_ / "file", "");
  for (const std::string name : {"file", "file/below"}) {
    warnings_.clear();
    Directory cache(temp_ / name, files_, [this](std::string_view text) { warnings_.emplace_back(text); });
    EXPECT_FALSE(cache.find("a", found_));
    EXPECT_FALSE(cache.store(kEntry));
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr("Not a directory"), HasSubstr("Not a directory")));
    EXPECT_EQ(cache.list().code(), Code::CacheIo);
    EXPECT_EQ(cache.probe().code(), Code::CacheIo);
    EXPECT_THAT(cache.probe().error().message, HasSubstr(name));
  }
}

TEST_F(TroubleTest, ADirectoryThatCannotBeMadeIsARefusal) {
  Directory cache(temp_ / "x/y", files_, nullptr);
  files_->fail_always(Kind::mkdir, EACCES);
  EXPECT_FALSE(cache.store(kEntry));
  EXPECT_EQ(cache.probe().code(), Code::CacheIo);
  EXPECT_TRUE(fs::is_empty(temp_.path()));
}

TEST_F(TroubleTest, ADirectoryThatCannotBeListedIsAnError) {
  files_->fail(Kind::list, EACCES);
  const auto listed = cache_.list();
  ASSERT_EQ(listed.code(), Code::CacheIo);
  EXPECT_THAT(listed.error().message, HasSubstr(temp_.path()));
}

TEST_F(TroubleTest, ListLeavesOutWhatHasNoEntrysName) {
  ASSERT_TRUE(cache_.store(kEntry));
  const std::string id = entry_id("a");
  for (const std::string& name : {std::string("README"), std::string(".njk"), id, id + ".damaged",
                                  id + ".njk.0123.tmp", "A" + id.substr(1) + ".njk", id + "0.njk"}) {
    write(temp_ / name, "x");
  }
  const auto listed = cache_.list();
  ASSERT_THAT(*listed, SizeIs(1));
  EXPECT_EQ((*listed)[0].id, id);
  fs::remove(temp_ / (id + ".njk.0123.tmp"));
}

}  // namespace
}  // namespace normjit
