// SPDX-License-Identifier: Apache-2.0
// Many publishers and readers of one key, in threads and in processes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "normjit/cache/directory.h"
#include "tests/support/temp_directory.h"

namespace normjit {
namespace {

const Entry kEntry{.identity = "a", .facts = {{"plan", "p"}}, .body = std::string(100'000, 'x')};

// Exactly the one entry, whole, and no temporaries.
void expect_one_entry(const std::string& directory) {
  int files = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(directory)) ++files;
  EXPECT_EQ(files, 1);
  Directory cache(directory, make_posix_file_system(), [](std::string_view text) { ADD_FAILURE() << text; });
  Entry found;
  ASSERT_TRUE(cache.find("a", found));
  EXPECT_EQ(found, kEntry);
}

TEST(DirectoryRace, ProcessesLeaveOneEntry) {
  constexpr int kProcesses = 16;
  const TempDirectory temp;
  // Closing the write end lets all children go at once.
  int gate[2];
  ASSERT_EQ(::pipe(gate), 0);
  std::vector<pid_t> children;
  std::fflush(nullptr);  // else every child could repeat what is still in the buffers
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(gate[1]);
      char byte;
      static_cast<void>(!::read(gate[0], &byte, 1));
      // The directory is made by all of them, too.
      Directory cache(temp / "made/by/all", make_posix_file_system(), nullptr);
      Entry found;
      cache.find("a", found);
      const bool stored = cache.store(kEntry, /*replace=*/i % 4 == 3);
      ::_exit(stored && cache.find("a", found) && found == kEntry ? 0 : 1);
    }
    children.push_back(child);
  }
  ::close(gate[0]);
  ::close(gate[1]);
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
  expect_one_entry(temp / "made/by/all");
}

TEST(DirectoryRace, ThreadsLeaveOneEntry) {
  constexpr int kThreads = 16;
  const TempDirectory temp;
  Directory cache(temp / "d", make_posix_file_system(), [](std::string_view text) { ADD_FAILURE() << text; });
  std::barrier start(kThreads);
  std::atomic<int> torn{0}, refused{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      for (int round = 0; round < 10; ++round) {
        Entry found;
        if (cache.find("a", found) && found != kEntry) ++torn;
        if (!cache.store(kEntry, /*replace=*/(i + round) % 4 == 3)) ++refused;
        if (!cache.find("a", found) || found != kEntry) ++torn;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(refused, 0);
  expect_one_entry(temp / "d");
}

TEST(DirectoryRace, ThreadsThatMeetDamageWarnOnceAndRecover) {
  constexpr int kThreads = 16;
  const TempDirectory temp;
  std::ofstream(temp / (entry_id("a") + ".njk")) << "damaged";
  std::atomic<int> warnings{0}, wrong{0};
  Directory cache(temp.path(), make_posix_file_system(), [&](std::string_view) { ++warnings; });
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      Entry found;
      if (cache.find("a", found) && found != kEntry) ++wrong;
      if (!cache.store(kEntry)) ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(warnings, 1);
  // A slow reader of the damage may have moved a good entry aside: that costs one more store, no more.
  EXPECT_TRUE(cache.store(kEntry));
  Entry found;
  EXPECT_TRUE(cache.find("a", found));
  EXPECT_EQ(found, kEntry);
}

}  // namespace
}  // namespace normjit
