// SPDX-License-Identifier: Apache-2.0
// The lock that saves work: who waits for whom, and how long at most.
#include "normjit/cache/key_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "normjit/cache/cache.h"
#include "tests/support/recording_file_system.h"
#include "tests/support/temp_directory.h"

namespace normjit {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Kind = RecordingFileSystem::Kind;
using State = KeyLock::State;
using std::chrono::milliseconds;

const Entry kEntry{.identity = "a", .facts = {}, .body = "machine code"};

class KeyLockTest : public ::testing::Test {
 protected:
  KeyLock lock(const std::string& identity, milliseconds patience = milliseconds(0)) {
    return KeyLock::of_id(*files_, temp_.path(), entry_id(identity), /*shared=*/false, patience);
  }

  // A process that has the lock of "a" until it is ended.
  pid_t start_holder() {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      const KeyLock held = lock("a");
      const char state = held.state() == State::held ? 'y' : 'n';
      static_cast<void>(!::write(ready[1], &state, 1));
      for (;;) ::pause();
    }
    char state = 0;
    EXPECT_EQ(::read(ready[0], &state, 1), 1);
    EXPECT_EQ(state, 'y');
    ::close(ready[0]);
    ::close(ready[1]);
    return child;
  }
  void end(pid_t child) {
    ::kill(child, SIGKILL);
    EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  }

  const TempDirectory temp_;
  const std::shared_ptr<RecordingFileSystem> files_ = std::make_shared<RecordingFileSystem>();
};

TEST_F(KeyLockTest, NobodyElseHasIt) {
  {
    const KeyLock held = lock("a");
    EXPECT_EQ(held.state(), State::held);
    EXPECT_EQ(lock("a").state(), State::busy);
    EXPECT_EQ(lock("b").state(), State::held) << "other keys do not wait";
    EXPECT_EQ(KeyLock::of_trimmer(*files_, temp_.path(), false).state(), State::held);
    EXPECT_EQ(lock("a").state(), State::busy) << "that another descriptor was closed frees nothing";
  }
  EXPECT_EQ(lock("a").state(), State::held);
  EXPECT_EQ(files_->open_files(), 0);
}

TEST_F(KeyLockTest, MovesWithItsObject) {
  KeyLock first = lock("a");
  {
    const KeyLock second = std::move(first);
    EXPECT_EQ(second.state(), State::held);
    EXPECT_EQ(lock("a").state(), State::busy);
  }
  EXPECT_EQ(lock("a").state(), State::held);
  EXPECT_EQ(KeyLock().state(), State::unavailable);
}

TEST_F(KeyLockTest, ThreadsExcludeEachOther) {
  constexpr int kThreads = 8, kRounds = 20;
  std::atomic<int> inside{0}, most{0}, held{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const KeyLock alone = lock("a", std::chrono::minutes(1));
        held += alone.state() == State::held;
        const int now = ++inside;
        if (now > most) most = now;
        std::this_thread::yield();
        --inside;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(held, kThreads * kRounds);
}

TEST_F(KeyLockTest, AWaiterHasItSoonAfterItIsFree) {
  auto held = std::make_unique<KeyLock>(lock("a"));
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(50));
    held.reset();
  });
  const auto start = Clock::now();
  EXPECT_EQ(lock("a", std::chrono::minutes(1)).state(), State::held);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
  other.join();
}

TEST_F(KeyLockTest, DeathFreesIt) {
  const pid_t holder = start_holder();
  EXPECT_EQ(lock("a").state(), State::busy);
  EXPECT_EQ(lock("b").state(), State::held);
  end(holder);
  EXPECT_EQ(lock("a").state(), State::held);
}

TEST_F(KeyLockTest, AStoppedHolderCostsABoundedWaitAndNothingElse) {
  const pid_t holder = start_holder();
  ASSERT_EQ(::kill(holder, SIGSTOP), 0);
  std::vector<std::string> warnings;
  Cache cache({.directory = temp_.path(), .patience = milliseconds(100)}, files_,
              [&](std::string_view text) { warnings.emplace_back(text); });
  for (const bool first : {true, false}) {
    const auto start = Clock::now();
    if (!cache.find("a")) {
      const KeyLock alone = cache.lock("a");
      EXPECT_EQ(alone.state(), State::busy);
      EXPECT_TRUE(cache.store(kEntry));
    }
    const auto waited = Clock::now() - start;
    if (first) {
      EXPECT_GE(waited, milliseconds(100));
    }
    EXPECT_LT(waited, first ? std::chrono::seconds(10) : std::chrono::seconds(1));
  }
  EXPECT_EQ(cache.lock("b").state(), State::held);
  EXPECT_EQ(warnings.size(), 1u);
  end(holder);
  EXPECT_EQ(cache.lock("a").state(), State::held);
}

// On a busy machine a compile takes longer than the patience, and its waiters must not all compile, too.
TEST_F(KeyLockTest, AHolderThatRunsIsWaitedForLonger) {
  const pid_t holder = start_holder();
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(400));
    end(holder);
  });
  const KeyLock alone = lock("a", milliseconds(50));
  EXPECT_EQ(alone.state(), State::held);
  EXPECT_GE(alone.waited(), milliseconds(200));
  other.join();
}

TEST_F(KeyLockTest, AHolderThatNeverEndsIsGivenUp) {
  const pid_t holder = start_holder();
  const KeyLock alone = lock("a", milliseconds(5));
  EXPECT_EQ(alone.state(), State::busy);
  EXPECT_GE(alone.waited(), milliseconds(5 * KeyLock::kSlowFactor - 20));
  end(holder);
}

// A process of another PID namespace, or of version 0.1, locks one byte: it cannot be asked how it is.
TEST_F(KeyLockTest, AHolderThatIsNotKnownIsWaitedForOnlyAsLongAsThePatience) {
  const auto id = lock("a");
  ASSERT_EQ(id.state(), State::held);
  files_->fail_always(Kind::lock, EAGAIN);  // of the waiter: it cannot ask
  const auto start = Clock::now();
  EXPECT_EQ(lock("a", milliseconds(20)).state(), State::busy);
  EXPECT_LT(Clock::now() - start, milliseconds(20 * KeyLock::kSlowFactor));
  files_->heal();
}

TEST_F(KeyLockTest, AForkedChildDoesNotKeepIt) {
  auto held = std::make_unique<KeyLock>(lock("a"));
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0)
    for (;;) ::pause();
  EXPECT_EQ(lock("a").state(), State::busy);
  held.reset();
  EXPECT_EQ(lock("a").state(), State::held);
  end(child);
}

TEST_F(KeyLockTest, AChildThatEndsDoesNotFreeIt) {
  const KeyLock held = lock("a");
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(lock("a").state(), State::busy);
}

// No locks: nobody waits, and nobody is harmed.

TEST_F(KeyLockTest, FileSystemsMayRefuseLocks) {
  for (const int error : {ENOLCK, EINVAL, EOPNOTSUPP, ENOSYS, EIO, ESTALE}) {
    files_->fail_always(Kind::lock, error);
    EXPECT_EQ(lock("a", std::chrono::minutes(1)).state(), State::unavailable) << std::strerror(error);
  }
  EXPECT_EQ(files_->open_files(), 0);
}

TEST_F(KeyLockTest, TheFileMayNotBeHad) {
  for (const int error : {EACCES, EROFS, EMFILE, ENOSPC, ELOOP, ENOENT}) {
    files_->fail_creation(error);
    EXPECT_EQ(lock("a", std::chrono::minutes(1)).state(), State::unavailable) << std::strerror(error);
  }
}

TEST_F(KeyLockTest, AnInterruptedCallIsMadeAgain) {
  files_->fail(Kind::open, EINTR);
  files_->fail(Kind::lock, EINTR);
  EXPECT_EQ(lock("a").state(), State::held);
}

TEST_F(KeyLockTest, WhatStandsInThePlaceOfTheFileIsLeftAlone) {
  const std::string path = temp_ / "lock";
  fs::create_directory(path);
  EXPECT_EQ(lock("a").state(), State::unavailable);
  EXPECT_TRUE(fs::is_directory(path));
  fs::remove(path);

  std::ofstream(temp_ / "target") << "precious";
  fs::create_symlink(temp_ / "target", path);
  EXPECT_EQ(lock("a").state(), State::unavailable);
  EXPECT_EQ(fs::file_size(temp_ / "target"), 8u);
  fs::remove(path);

  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  static_cast<void>(lock("a"));  // neither hangs nor harms
  EXPECT_EQ(files_->open_files(), 0);
}

TEST_F(KeyLockTest, TheFileStaysEmptyAndIsForTheUserAlone) {
  static_cast<void>(lock("a"));
  struct stat facts = {};
  ASSERT_EQ(::stat((temp_ / "lock").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_size, 0);
  EXPECT_EQ(facts.st_mode & 07777, 0600u);
  EXPECT_EQ(files_->count(Kind::write), 0);
}

TEST_F(KeyLockTest, OfASharedDirectoryItIsForAllWhomTheUmaskAllows) {
  const mode_t before = ::umask(0002);
  static_cast<void>(KeyLock::of_id(*files_, temp_ / "s", entry_id("a"), /*shared=*/true, {}));
  ::umask(before);
  EXPECT_EQ(fs::status(temp_ / "s").permissions(), fs::perms{0775});
  EXPECT_EQ(fs::status(temp_ / "s/lock").permissions(), fs::perms{0664});
}

TEST_F(KeyLockTest, MakesTheDirectory) {
  EXPECT_EQ(KeyLock::of_id(*files_, temp_ / "x/y", entry_id("a"), false, {}).state(), State::held);
  EXPECT_EQ(fs::status(temp_ / "x/y").permissions(), fs::perms::owner_all);
}

// The directory goes while its lock is held: the next one has a new file, so both make the entry.
TEST_F(KeyLockTest, DoesNotOutliveItsDirectory) {
  const KeyLock held = lock("a");
  fs::remove_all(temp_.path());
  EXPECT_EQ(lock("a").state(), State::held);
}

TEST(CacheLock, WithoutADirectoryThereIsNone) {
  const auto files = std::make_shared<RecordingFileSystem>();
  Cache cache({}, files, nullptr);
  EXPECT_EQ(cache.lock("a").state(), State::unavailable);
  EXPECT_TRUE(files->calls().empty());
}

}  // namespace
}  // namespace normjit
