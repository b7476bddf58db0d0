// SPDX-License-Identifier: Apache-2.0
#include "tests/support/verdict_cache.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "normjit/base/text.h"
#include "tests/support/temp_directory.h"

namespace normjit::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kDay = 20'000;

class VerdictCacheTest : public ::testing::Test {
 protected:
  VerdictCache open(std::int64_t day = kDay, std::string_view suite = "suite", std::uint64_t seed = 1) const {
    return {folder_.path(), suite, "code", seed, day};
  }
  // The files of the folder.
  std::vector<fs::path> files() const {
    return {fs::directory_iterator(folder_.path()), fs::directory_iterator()};
  }
  // Keeps this many keys.
  std::vector<std::string> fill(int count) const {
    std::vector<std::string> keys;
    for (int i = 0; i < count; ++i) {
      keys.push_back(open().key({shortest(i)}));
      open().keep(keys.back());
    }
    return keys;
  }

  const TempDirectory folder_;
};

TEST_F(VerdictCacheTest, HasWhatAnEarlierProcessKept) {
  const std::string key = open().key({"text", "plan"});
  EXPECT_FALSE(open().has(key));
  open().keep(key);
  EXPECT_TRUE(open().has(key));
  EXPECT_FALSE(open(kDay, "another").has(key));
}

TEST_F(VerdictCacheTest, EveryFactAndTheCodeMakeAnotherKey) {
  const VerdictCache cache = open();
  EXPECT_EQ(cache.key({"a", "b"}), open().key({"a", "b"}));
  const VerdictCache other(folder_.path(), "suite", "other code", 1, kDay);
  const std::set<std::string> keys = {cache.key({"a", "b"}), cache.key({"a", "c"}), cache.key({"b", "a"}),
                                      cache.key({"ab", ""}), cache.key({"a\n1 b"}), cache.key({"a"}),
                                      other.key({"a", "b"})};
  EXPECT_EQ(keys.size(), 7u);
}

TEST_F(VerdictCacheTest, ATwentiethIsDueWhichTheSeedChooses) {
  const VerdictCache cache = open(), again = open(), another = open(kDay, "suite", 2);
  std::set<std::string> due, due_of_another_seed;
  for (int i = 0; i < 4000; ++i) {
    const std::string key = cache.key({shortest(i)});
    if (cache.is_due(key)) due.insert(key);
    EXPECT_EQ(again.is_due(key), due.contains(key));
    if (another.is_due(key)) due_of_another_seed.insert(key);
  }
  EXPECT_GT(due.size(), 150u);
  EXPECT_LT(due.size(), 250u);
  EXPECT_GT(due_of_another_seed.size(), 150u);
  EXPECT_NE(due, due_of_another_seed);
}

TEST_F(VerdictCacheTest, EveryKeyIsDueAtSomeTime) {
  const std::string key = open().key({"text"});
  int due = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) due += open(kDay, "suite", seed).is_due(key);
  EXPECT_GT(due, 60);
  EXPECT_LT(due, 140);
}

TEST_F(VerdictCacheTest, DamageIsAMiss) {
  const std::vector<std::string> keys = fill(3);
  ASSERT_EQ(files().size(), 1u);
  const fs::path file = files().front();
  const auto known = [&] {
    int count = 0;
    for (const std::string& key : keys) count += open().has(key);
    return count;
  };
  ASSERT_EQ(known(), 3);

  std::fstream(file, std::ios::in | std::ios::out).seekp(5).put('!');
  EXPECT_EQ(known(), 2);
  fs::resize_file(file, fs::file_size(file) - 10);
  EXPECT_EQ(known(), 1);
  open().keep(keys[0]);  // behind the torn line: lost
  EXPECT_EQ(known(), 1);
  open().keep(keys[0]);
  EXPECT_EQ(known(), 2);

  std::ofstream(file) << std::string(100'000, '\0') << "\n" << keys[1] << keys[1] << "\n" << keys[2];
  EXPECT_EQ(known(), 1);
  fs::remove(file);
  fs::create_directory(file);
  EXPECT_EQ(known(), 0);
  open().keep(keys[0]);
  EXPECT_EQ(known(), 0);
}

TEST_F(VerdictCacheTest, AFolderThatCannotBeMadeKeepsNothing) {
  std::ofstream(folder_ / "file") << "no folder";
  for (const std::string& folder : {std::string(), folder_ / "file", folder_ / "file/below"}) {
    const auto cache = [&] { return VerdictCache(folder, "suite", "code", 1, kDay); };
    const std::string key = cache().key({"text"});
    cache().keep(key);
    EXPECT_FALSE(cache().has(key)) << folder;
    cache().discard();
  }
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(VerdictCacheTest, WhatIsUsedStaysAndWhatIsNotUsedFor30DaysGoes) {
  const std::string used = open().key({"used"}), unused = open().key({"unused"});
  open().keep(used);
  open().keep(unused);
  for (int day = 1; day <= 45; ++day) {
    EXPECT_TRUE(open(kDay + day).has(used)) << day;
    EXPECT_FALSE(day >= 30 && open(kDay + day).has(unused)) << day;
    EXPECT_LE(files().size(), 2u);
  }
}

TEST_F(VerdictCacheTest, TheFilesOfASuiteAreBounded) {
  const std::vector<std::string> keys = fill(1);
  const fs::path file = files().front();
  std::string many;
  while (many.size() <= (2u << 20)) many += std::string(31, 'f') + "\n";
  std::ofstream(file, std::ios::app) << many;
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(open().has(keys[0]));  // from the larger file into a new one
    EXPECT_EQ(files().size(), 2u);
  }
  EXPECT_LT(fs::file_size(file), 100u);
}

TEST_F(VerdictCacheTest, KeysOfManyThreadsStayWhole) {
  const VerdictCache cache = open();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) cache.keep(cache.key({shortest(t), shortest(i)}));
    });
  for (std::thread& thread : threads) thread.join();
  const VerdictCache after = open();
  for (int t = 0; t < 4; ++t)
    for (int i = 0; i < 200; ++i) EXPECT_TRUE(after.has(after.key({shortest(t), shortest(i)})));
}

TEST_F(VerdictCacheTest, DiscardsTheKeysOfItsSuiteAlone) {
  const std::string key = open().key({"text"});
  open(kDay - 15).keep(key);
  open().keep(key);
  open(kDay, "another").keep(key);
  open().discard();
  EXPECT_FALSE(open().has(key));
  EXPECT_TRUE(open(kDay, "another").has(key));
}

TEST(VerdictFolder, IsTheOneOfTheEnvironment) {
  std::vector<std::pair<const char*, std::optional<std::string>>> before;
  for (const char* const name : {"NORMJIT_TEST_CACHE", "XDG_CACHE_HOME", "HOME"}) {
    const char* const value = ::getenv(name);
    before.emplace_back(name, value == nullptr ? std::nullopt : std::optional<std::string>(value));
  }
  ::unsetenv("NORMJIT_TEST_CACHE");
  ::unsetenv("XDG_CACHE_HOME");
  ::setenv("HOME", "/home", 1);
  EXPECT_EQ(verdict_folder(), "/home/.cache/normjit-tests");
  ::setenv("XDG_CACHE_HOME", "/caches", 1);
  EXPECT_EQ(verdict_folder(), "/caches/normjit-tests");
  ::setenv("NORMJIT_TEST_CACHE", "/named", 1);
  EXPECT_EQ(verdict_folder(), "/named");
  ::setenv("NORMJIT_TEST_CACHE", "off", 1);
  EXPECT_EQ(verdict_folder(), "");
  for (const auto& [name, value] : before) value ? ::setenv(name, value->c_str(), 1) : ::unsetenv(name);
}

}  // namespace
}  // namespace normjit::testing
