// SPDX-License-Identifier: Apache-2.0
// The bound of a cache directory, and what is cleared away.
#include "normjit/cache/trim.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "normjit/cache/cache.h"
#include "normjit/cache/file_names.h"
#include "tests/support/recording_file_system.h"
#include "tests/support/temp_directory.h"

namespace normjit {
namespace {

namespace fs = std::filesystem;
using Kind = RecordingFileSystem::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr std::int64_t kHour = 3600;

class TrimTest : public ::testing::Test {
 protected:
  // A file of so many bytes, so many seconds old.
  std::string put(const std::string& name, std::size_t bytes, std::int64_t age) {
    std::ofstream(temp_ / name) << std::string(bytes, 'x');
    set_time(name, std::time(nullptr) - age);
    return name;
  }
  void set_time(const std::string& name, std::int64_t seconds) {
    const timespec times[2] = {{.tv_sec = seconds, .tv_nsec = 0}, {.tv_sec = seconds, .tv_nsec = 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (temp_ / name).c_str(), times, 0), 0);
  }
  static std::string entry(int number) { return entry_id(std::to_string(number)) + ".njk"; }
  static std::string damaged(int number) { return entry_id(std::to_string(number)) + ".damaged"; }
  static std::string temporary(int number) { return entry(number) + ".0123456789abcdef.tmp"; }

  // The names that are left, the lock file left out.
  std::vector<std::string> names() {
    std::vector<std::string> names;
    for (const auto& file : fs::directory_iterator(temp_.path()))
      if (file.path().filename() != "lock") names.push_back(file.path().filename());
    return names;
  }
  Trimmed trim_to(TrimLimits limits) {
    const auto trimmed = trim(*files_, temp_.path(), limits);
    EXPECT_TRUE(trimmed.ok());
    EXPECT_EQ(files_->open_files(), 0);
    return trimmed.ok() ? *trimmed : Trimmed();
  }

  const TempDirectory temp_;
  const std::shared_ptr<RecordingFileSystem> files_ = std::make_shared<RecordingFileSystem>();
};

TEST_F(TrimTest, TheOldestGoUntilNineTenthsAreLeft) {
  for (int i = 0; i < 10; ++i) put(entry(i), 10'000, i * kHour);
  Trimmed trimmed = trim_to({.max_bytes = 100'000});
  EXPECT_EQ(trimmed.entries, 0) << "it is not more than the bound";
  EXPECT_EQ(trimmed.kept, 10);
  EXPECT_EQ(trimmed.kept_bytes, 100'000);

  trimmed = trim_to({.max_bytes = 99'999});
  EXPECT_EQ(trimmed.entries, 1 + 0);
  EXPECT_EQ(trimmed.bytes, 10'000);
  EXPECT_EQ(trimmed.kept, 9);
  EXPECT_EQ(trimmed.kept_bytes, 90'000);
  EXPECT_FALSE(fs::exists(temp_ / entry(9)));

  trimmed = trim_to({.max_bytes = 50'000});
  EXPECT_EQ(trimmed.entries, 5);
  EXPECT_THAT(names(), UnorderedElementsAre(entry(0), entry(1), entry(2), entry(3)));
}

TEST_F(TrimTest, WithoutABoundNothingGoes) {
  for (int i = 0; i < 3; ++i) put(entry(i), 10'000, i);
  EXPECT_EQ(trim_to({}).kept, 3);
  EXPECT_EQ(names().size(), 3u);
}

TEST_F(TrimTest, ABoundOfNothingRemovesAll) {
  put(entry(0), 10'000, 0);
  put(entry(1), 0, kHour);
  put(damaged(2), 0, 0);
  put(temporary(3), 10, 0);
  const Trimmed trimmed = trim_to({.max_bytes = 0, .stale_seconds = 0});
  EXPECT_EQ(trimmed.entries, 2);
  EXPECT_EQ(trimmed.damaged, 1);
  EXPECT_EQ(trimmed.temporaries, 1);
  EXPECT_EQ(trimmed.kept, 0);
  EXPECT_THAT(names(), IsEmpty());
}

// They free nothing to speak of, and a tuned plan took long to measure.
TEST_F(TrimTest, EntriesOfOneBlockAreTheLastToGo) {
  put(entry(0), 4096, 9 * kHour);
  put(entry(1), 4097, kHour);
  put(entry(2), 5000, 0);
  trim_to({.max_bytes = 11'000});
  EXPECT_THAT(names(), UnorderedElementsAre(entry(0), entry(2)));
  trim_to({.max_bytes = 4600});
  EXPECT_THAT(names(), ElementsAre(entry(0)));
  trim_to({.max_bytes = 100});
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(TrimTest, WhatWasMovedAsideGoesBeforeTheEntriesOfItsAge) {
  for (int i = 0; i < 6; ++i) {
    put(entry(i), 10'000, 2 * kHour);
    put(damaged(10 + i), 10'000, 2 * kHour);
  }
  put(damaged(20), 100, kHour);
  Trimmed trimmed = trim_to({.max_bytes = 65'000});
  EXPECT_EQ(trimmed.entries, 1);
  EXPECT_EQ(trimmed.damaged, 6);
  EXPECT_TRUE(fs::exists(temp_ / damaged(20))) << "it is younger";
  trimmed = trim_to({.all_damaged = true});
  EXPECT_EQ(trimmed.damaged, 1);
  EXPECT_EQ(trimmed.entries, 0);
  EXPECT_EQ(trimmed.kept, 5);
}

TEST_F(TrimTest, OnlyTemporariesThatNobodyWritesAnyMoreGo) {
  put(temporary(0), 10, 0);
  put(temporary(1), 10, 500);
  put(temporary(2), 10, 700);
  EXPECT_EQ(trim_to({}).temporaries, 1);
  EXPECT_THAT(names(), UnorderedElementsAre(temporary(0), temporary(1)));
  EXPECT_EQ(trim_to({.stale_seconds = 100}).temporaries, 1);
  EXPECT_EQ(trim_to({.stale_seconds = 0}).temporaries, 1);
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(TrimTest, OtherPeoplesFilesStay) {
  std::vector<std::string> others = {"README",
                                     "notes.tmp",
                                     "x.0123456789abcde.tmp",
                                     "x.0123456789abcdeg.tmp",
                                     ".0123456789abcdef.tmp",
                                     "0123456789abcdef.tmp",
                                     "kernel.njk",
                                     "a.damaged",
                                     "all.njp"};
  for (const std::string& name : others) put(name, 10, 9999 * kHour);
  fs::create_directory(temp_ / entry(1));
  fs::create_directory(temp_ / temporary(1));
  fs::create_directory(temp_ / damaged(1));
  others.insert(others.end(), {entry(1), temporary(1), damaged(1)});
  const Trimmed trimmed = trim_to({.max_bytes = 0, .stale_seconds = 0, .all_damaged = true});
  EXPECT_EQ(trimmed.entries + trimmed.damaged + trimmed.temporaries, 0);
  EXPECT_EQ(trimmed.refused, 1) << "the directory with the name of an entry, when all were to go";
  EXPECT_THAT(names(), ::testing::UnorderedElementsAreArray(others));
}

TEST_F(TrimTest, ALinkGoesAndItsTargetStays) {
  put("target", 10'000, 0);
  fs::create_symlink(temp_ / "target", temp_ / entry(1));
  trim_to({.max_bytes = 0});
  EXPECT_THAT(names(), ElementsAre("target"));
}

TEST_F(TrimTest, ADryRunOnlyCounts) {
  for (int i = 0; i < 10; ++i) put(entry(i), 10'000, i * kHour);
  put(damaged(1), 10, 0);
  put(temporary(1), 10, kHour);
  const auto before = names();
  const TrimLimits limits{.max_bytes = 50'000, .all_damaged = true, .dry_run = true};
  files_->forget();
  const Trimmed foreseen = trim_to(limits);
  EXPECT_EQ(files_->writes(), 0);
  EXPECT_THAT(names(), ::testing::UnorderedElementsAreArray(before));
  TrimLimits real = limits;
  real.dry_run = false;
  const Trimmed done = trim_to(real);
  EXPECT_EQ(done.entries, foreseen.entries);
  EXPECT_EQ(done.damaged, foreseen.damaged);
  EXPECT_EQ(done.temporaries, foreseen.temporaries);
  EXPECT_EQ(done.bytes, foreseen.bytes);
  EXPECT_EQ(done.kept, foreseen.kept);
  EXPECT_EQ(done.kept_bytes, foreseen.kept_bytes);
  EXPECT_EQ(names().size(), std::size_t(done.kept));
}

// Clocks that were set: another entry goes first, and the bound and the temporaries are kept in order.
TEST_F(TrimTest, AnyTimeWillDo) {
  constexpr std::int64_t kTimes[] = {-1, 0, 1, 1LL << 31, (1LL << 33) + 5, 4 * kHour};
  int number = 0;
  for (const std::int64_t time : kTimes) {
    put(entry(number), 10'000, 0);
    set_time(entry(number), time);
    put(temporary(number), 10, 0);
    set_time(temporary(number), time);
    ++number;
  }
  put(entry(number), 10'000, 0);
  const Trimmed trimmed = trim_to({.max_bytes = 40'000});
  EXPECT_EQ(trimmed.temporaries, number) << "also those of the future";
  EXPECT_EQ(trimmed.kept, 3);
  EXPECT_THAT(names(), UnorderedElementsAre(entry(3), entry(4), entry(number)));
}

TEST_F(TrimTest, TheAgeOfTemporariesIsOfTheFileSystemsClock) {
  put(temporary(1), 10, kHour);
  files_->fail_creation(EROFS);  // nobody can tell the present
  EXPECT_EQ(trim_to({}).temporaries, 0);
  files_->heal();
  EXPECT_EQ(trim_to({}).temporaries, 1);
}

TEST_F(TrimTest, OneAtATime) {
  put(entry(1), 10'000, 0);
  {
    const KeyLock other = KeyLock::of_trimmer(*files_, temp_.path(), false);
    ASSERT_EQ(other.state(), KeyLock::State::held);
    const auto trimmed = trim(*files_, temp_.path(), {.max_bytes = 0});
    EXPECT_TRUE(trimmed->busy);
    EXPECT_EQ(trimmed->entries, 0);
    EXPECT_TRUE(fs::exists(temp_ / entry(1)));
  }
  const KeyLock publisher =
      KeyLock::of_id(*files_, temp_.path(), entry_id("a"), false, std::chrono::milliseconds(0));
  EXPECT_EQ(trim(*files_, temp_.path(), {.max_bytes = 0})->entries, 1) << "publishers are no hindrance";
}

TEST_F(TrimTest, WithoutLocksTwoMayTrimAtOnce) {
  for (int i = 0; i < 100; ++i) put(entry(i), 10'000, i * kHour);
  files_->fail_always(Kind::lock, ENOLCK);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      const auto trimmed = trim(*files_, temp_.path(), {.max_bytes = 500'000});
      EXPECT_TRUE(trimmed.ok());
      EXPECT_EQ(trimmed->refused, 0);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(names().size(), 45u) << "the same ones go, whoever is faster";
}

TEST_F(TrimTest, WhatCannotBeRemovedIsCounted) {
  for (int i = 0; i < 4; ++i) put(entry(i), 10'000, i * kHour);
  files_->fail(Kind::unlink, EPERM, 2);  // the first is of the file that tells the time
  const Trimmed trimmed = trim_to({.max_bytes = 30'000});
  EXPECT_EQ(trimmed.refused, 1);
  EXPECT_EQ(trimmed.entries, 2) << "others go in its place";
  EXPECT_TRUE(fs::exists(temp_ / entry(3)));
}

TEST_F(TrimTest, AMissingDirectoryIsEmptyAndStaysMissing) {
  const auto trimmed = trim(*files_, temp_ / "none", {.max_bytes = 0});
  ASSERT_TRUE(trimmed.ok());
  EXPECT_EQ(trimmed->kept + trimmed->entries, 0);
  EXPECT_FALSE(fs::exists(temp_ / "none"));
  files_->fail(Kind::list, EACCES);
  EXPECT_EQ(trim(*files_, temp_.path(), {}).code(), Code::CacheIo);
}

// A Directory with a bound.

TEST_F(TrimTest, StoresKeepADirectoryWithinItsBound) {
  constexpr std::int64_t kBound = 1'000'000;
  files_->skip_flushes();
  std::vector<std::string> warnings;
  Directory directory(temp_.path(), files_, [&](std::string_view text) { warnings.emplace_back(text); },
                      {.max_bytes = kBound});
  const auto bytes = [&] {
    std::int64_t sum = 0;
    for (const auto& file : fs::directory_iterator(temp_.path())) sum += std::int64_t(file.file_size());
    return sum;
  };
  std::int64_t most = 0;
  int found = 0;
  for (int i = 0; i < 600; ++i) {
    const Entry entry{.identity = std::to_string(i), .facts = {}, .body = std::string(9'000, 'x')};
    ASSERT_TRUE(directory.store(entry));
    // A clock of whole seconds would make all of one age.
    set_time(entry_id(entry.identity) + ".njk", std::time(nullptr) - 600 + i);
    most = std::max(most, bytes());
    Entry kept;
    found += directory.find(entry.identity, kept);
  }
  EXPECT_EQ(found, 600) << "what was just stored stays";
  EXPECT_LT(most, kBound + kBound / 5);
  EXPECT_GT(bytes(), kBound / 2);
  EXPECT_LT(files_->count(Kind::list), 600 / 2) << "not at every store";
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("NORMJIT_CACHE_MAX_BYTES")));
}

TEST_F(TrimTest, OneEntryLargerThanTheBoundIsNoHarm) {
  Directory directory(temp_.path(), files_, nullptr, {.max_bytes = 1000});
  EXPECT_TRUE(directory.store({.identity = "a", .facts = {}, .body = std::string(5'000, 'x')}));
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(TrimTest, EntriesMayComeAndGoMeanwhile) {
  files_->skip_flushes();
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::thread publisher([&] {
    Directory directory(temp_.path(), files_, nullptr);
    for (int i = 0; i < 300; ++i) {
      const Entry entry{.identity = std::to_string(i % 20), .facts = {}, .body = std::string(9'000, 'x')};
      if (!directory.store(entry)) ++wrong;
      Entry found;
      if (directory.find(entry.identity, found) && found != entry) ++wrong;
    }
    done = true;
  });
  while (!done) {
    const auto trimmed = trim(*files_, temp_.path(), {.max_bytes = 50'000});
    if (!trimmed || trimmed->refused > 0) ++wrong;
  }
  publisher.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace normjit
