// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/miss_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "cli/manifest.h"
#include "tests/support/child.h"
#include "tests/support/temp_directory.h"

namespace normjit::testing {
namespace {

constexpr int kProcesses = 8, kThreads = 4, kSpecs = 100;

std::string spec_of(int columns) { return to_text(NormSpec{.columns = columns}); }

class MissLogTest : public ::testing::Test {
 protected:
  MissLog log() const {
    return MissLog(path_, make_posix_file_system(), [](std::string_view text) { ADD_FAILURE() << text; });
  }
  // How often each spec stands in the file.
  std::map<std::string, int> written() const {
    const auto specs = cli::read_manifest(path_);
    EXPECT_TRUE(specs.ok()) << specs.error().message;
    std::map<std::string, int> counts;
    if (specs)
      for (const NormSpec& spec : *specs) ++counts[to_text(spec)];
    return counts;
  }

  const TempDirectory directory_;
  const std::string path_ = directory_ / "misses.jsonl";
};

TEST_F(MissLogTest, LinesOfManyProcessesAndThreadsDoNotMix) {
  NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
  EXPECT_EQ(done_children(kProcesses, kProcesses,
                          [&](int) {
                            MissLog misses = log();
                            std::vector<std::thread> threads;
                            for (int t = 0; t < kThreads; ++t)
                              threads.emplace_back([&] {
                                for (int i = 1; i <= kSpecs; ++i) misses.add(spec_of(i), "sm_90");
                              });
                            for (std::thread& thread : threads) thread.join();
                            return true;
                          }),
            kProcesses);
  const std::map<std::string, int> counts = written();
  EXPECT_EQ(counts.size(), static_cast<std::size_t>(kSpecs));
  for (const auto& [spec, count] : counts) EXPECT_EQ(count, kProcesses) << spec << ": once a process";
}

TEST_F(MissLogTest, ASpecThatMissesOnTwoArchitecturesIsOneLine) {
  MissLog misses = log();
  misses.add(spec_of(1), "sm_80");
  misses.add(spec_of(1), "sm_90");
  EXPECT_EQ(written(), (std::map<std::string, int>{{spec_of(1), 1}}));
}

TEST_F(MissLogTest, WhatStandsInTheFileStays) {
  std::ofstream(path_) << "\"" << spec_of(7) << "\"\n";
  log().add(spec_of(8), "sm_90");
  EXPECT_EQ(written(), (std::map<std::string, int>{{spec_of(7), 1}, {spec_of(8), 1}}));
}

}  // namespace
}  // namespace normjit::testing
