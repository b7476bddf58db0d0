// SPDX-License-Identifier: Apache-2.0
#include "normjit/cache/cache.h"

#include <gtest/gtest.h>

namespace normjit {
namespace {

Entry entry_of(const std::string& identity, std::size_t bytes, char fill = 'x') {
  return {.identity = identity, .facts = {{"plan", "p"}}, .body = std::string(bytes, fill)};
}
constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(Memory, GivesWhatWasKept) {
  Memory memory;
  EXPECT_FALSE(memory.find("a").has_value());
  memory.keep(entry_of("a", 10), /*only_here=*/true);
  memory.keep(entry_of("b", 20), /*only_here=*/false);
  EXPECT_EQ(memory.find("a")->entry, entry_of("a", 10));
  EXPECT_TRUE(memory.find("a")->only_here);
  EXPECT_EQ(memory.find("b")->entry, entry_of("b", 20));
  EXPECT_FALSE(memory.find("b")->only_here);
}

TEST(Memory, TheNewerTakesThePlaceOfTheOlder) {
  Memory memory;
  for (const bool before : {true, false})
    for (const bool after : {true, false}) {
      memory.keep(entry_of("a", 10, '1'), before);
      memory.keep(entry_of("a", 10, '2'), after);
      EXPECT_EQ(memory.find("a")->entry, entry_of("a", 10, '2'));
      EXPECT_EQ(memory.find("a")->only_here, after);
    }
}

TEST(Memory, ForgetsTheOldestOfWhatIsOnDiskToo) {
  Memory memory;
  memory.keep(entry_of("kept", 30 * kMiB), /*only_here=*/true);
  for (int i = 0; i < 20; ++i) memory.keep(entry_of(std::to_string(i), kMiB), /*only_here=*/false);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(memory.find(std::to_string(i)).has_value(), i >= 4) << i;
  EXPECT_TRUE(memory.find("kept").has_value()) << "nobody else has it";
}

TEST(Memory, WhatIsKeptAgainIsCountedOnceAndIsTheNewest) {
  Memory memory;
  memory.keep(entry_of("a", 6 * kMiB), false);
  memory.keep(entry_of("b", 6 * kMiB), false);
  for (int i = 0; i < 10; ++i) memory.keep(entry_of("a", 6 * kMiB), false);
  EXPECT_TRUE(memory.find("b").has_value());
  memory.keep(entry_of("c", 6 * kMiB), false);
  EXPECT_FALSE(memory.find("b").has_value());
  EXPECT_TRUE(memory.find("a").has_value());
  // What is not on disk any more does not count.
  memory.keep(entry_of("a", 6 * kMiB), true);
  memory.keep(entry_of("d", 6 * kMiB), false);
  for (const char* identity : {"a", "c", "d"}) EXPECT_TRUE(memory.find(identity).has_value()) << identity;
}

TEST(Memory, WhatIsLargerThanItsRoomIsNotKept) {
  Memory memory;
  memory.keep(entry_of("a", 17 * kMiB), false);
  EXPECT_FALSE(memory.find("a").has_value());
  memory.keep(entry_of("b", kMiB), false);
  EXPECT_TRUE(memory.find("b").has_value());
}

}  // namespace
}  // namespace normjit
