// SPDX-License-Identifier: Apache-2.0
// Every system call of the cache fails in every way: nobody gets anything wrong, and the directory is as good
// as before.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "tests/support/cache_scenes.h"
#include "tests/support/every_fault.h"

namespace normjit::testing {
namespace {

TEST(CacheFaults, CostNothingButTime) {
  Tally all;
  for (const Story& story : stories()) {
    SCOPED_TRACE(story.name);
    all += strike_everywhere(
        [&] { return std::make_unique<CacheScene>(story); },
        [](Scene& scene) { std::filesystem::remove_all(static_cast<CacheScene&>(scene).directory); });
    if (HasFailure()) return;
  }
  std::printf("cache: %s\n", all.text().c_str());
  EXPECT_GT(all.faults, kBriefly ? 1'000 : 10'000);
}

}  // namespace
}  // namespace normjit::testing
