// SPDX-License-Identifier: Apache-2.0
// The rules of launch_facts.h, with facts that are made up so as to break one after the other.
#include "tests/support/launch_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace normjit::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DeviceProfile profile(int arch) { return DeviceProfile::of({.number = arch}).value(); }

// A kernel that fits exactly as its plan says: 8 blocks of 256 threads with 32 registers fill an sm_90.
struct Launchable {
  NormSpec spec{.columns = 4096};
  Plan plan{Strategy::block_row, 256, 256, 4, 4, 1, 8};
  CubinFacts facts{.registers = 32, .register_limit = 32, .shared_bytes = 256, .max_threads = 256};
  DeviceProfile device = profile(90);
  LaunchShape shape{.threads = 256};

  std::vector<std::string> trouble() const { return launch_trouble(facts, plan, spec, device, shape); }
  Residency residency() const { return residency_of(facts, shape, device); }
};

// A launch whose grid never exceeds two blocks a multiprocessor, as chunks of long rows have it.
Launchable persistent() {
  Launchable l;
  l.spec.columns = 1 << 22;
  l.plan = {Strategy::split_row, 256, 256, 4, 8, 16, 2};
  l.facts = {.registers = 120, .register_limit = 128, .shared_bytes = 2048, .max_threads = 256};
  return l;
}

TEST(LaunchFacts, NothingIsWrongWithWhatFits) {
  EXPECT_THAT(Launchable().trouble(), IsEmpty());
  EXPECT_THAT(persistent().trouble(), IsEmpty());
}

TEST(LaunchFacts, LocalMemoryIsTrouble) {
  Launchable l;
  l.facts.local_bytes = 72;
  EXPECT_THAT(l.trouble(), ElementsAre("72 bytes of local memory a thread"));
}

TEST(LaunchFacts, TheCodeIsForThePlansThreads) {
  Launchable l;
  l.facts.max_threads = 1024;
  EXPECT_THAT(l.trouble(), ElementsAre(HasSubstr("compiled for blocks of 1024 threads; the plan has 256")));
  l = {};
  l.shape.threads = 128;
  EXPECT_THAT(l.trouble(), ElementsAre(HasSubstr("launched with blocks of 128 threads")));
}

TEST(LaunchFacts, TheLaunchBoundsHoldThePlansBlocks) {
  Launchable l;
  l.facts.register_limit = 255;
  EXPECT_THAT(l.trouble(), ElementsAre(HasSubstr("the launch bounds lost the 8 blocks")));
  l.facts.register_limit = 33;
  EXPECT_THAT(l.trouble(), ElementsAre(HasSubstr("up to 33 registers")));
}

TEST(LaunchFacts, RegistersComeInEightsToWholeWarpsOfAQuarter) {
  Launchable l;
  l.facts.registers = 33;  // 40
  EXPECT_EQ(l.residency().by_registers, 6);
  EXPECT_THAT(l.trouble(),
              ElementsAre("6 blocks of 33 registers a thread fit on a multiprocessor; the plan has 8"));
  l.facts.registers = 88;  // 5 warps a quarter: 20 of 23 that all registers together would hold
  EXPECT_EQ(l.residency().by_registers, 2);
  l.shape.threads = 96;
  EXPECT_EQ(l.residency().by_registers, 6);
  l.shape.threads = 65;  // 3 warps
  EXPECT_EQ(l.residency().by_registers, 6);
}

TEST(LaunchFacts, SharedMemoryOfABlock) {
  Launchable l;
  l.plan.blocks_per_sm = 1;
  l.facts.shared_bytes = 48 * 1024;
  EXPECT_THAT(l.trouble(), IsEmpty());
  l.facts.shared_bytes += 1;
  EXPECT_THAT(l.trouble(), ElementsAre(HasSubstr("49153 bytes of static shared memory")));
  l.facts.shared_bytes = 1024;
  l.shape.dynamic_shared_bytes = 226 * 1024;
  EXPECT_THAT(l.trouble(), IsEmpty());
  l.facts.shared_bytes += 1;
  EXPECT_THAT(l.trouble(), ElementsAre(HasSubstr("232449 bytes of shared memory a block; 232448 are allowed"),
                                       HasSubstr("0 blocks of 232449 bytes of shared memory fit")));
}

TEST(LaunchFacts, SharedMemoryOfAMultiprocessorWithWhatTheSystemTakes) {
  Launchable l;
  l.facts.shared_bytes = 28 * 1024 - 512;  // 8 times 28.5 KiB with 1 KiB for the system
  EXPECT_EQ(l.residency().by_shared_memory, 8);
  l.facts.shared_bytes += 1;
  EXPECT_EQ(l.residency().by_shared_memory, 7);
  EXPECT_THAT(l.trouble(), ElementsAre(HasSubstr("7 blocks of 28161 bytes of shared memory")));

  l.device = profile(75);  // 64 KiB, nothing for the system, in units of 256 bytes
  l.facts.shared_bytes = 16 * 1024;
  EXPECT_EQ(l.residency().by_shared_memory, 4);
  l.facts.shared_bytes += 1;
  EXPECT_EQ(l.residency().by_shared_memory, 3);
  l.device = profile(80);  // 164 KiB
  l.facts.shared_bytes = 16 * 1024;
  EXPECT_EQ(l.residency().by_shared_memory, 9);
}

TEST(LaunchFacts, ThreadsAndSlotsOfAMultiprocessor) {
  Launchable l;
  l.device = profile(120);
  l.facts.register_limit = l.facts.registers = 24;
  EXPECT_EQ(l.residency(), (Residency{10, 80, 6, 24}));
  EXPECT_THAT(l.trouble(), ElementsAre("6 blocks of 256 threads fit on a multiprocessor; the plan has 8"));
  l.device = profile(75);
  l.shape.threads = 32;
  EXPECT_EQ(l.residency().by_threads, 32);
  EXPECT_EQ(l.residency().by_slots, 16);
  EXPECT_EQ(l.residency().blocks(), 16);
}

TEST(LaunchFacts, ACooperativeGridIsResident) {
  Launchable l = persistent();
  l.shape.cooperative = true;
  EXPECT_EQ(resident_blocks(l.residency(), l.shape, l.device), 2 * 132);
  EXPECT_THAT(l.trouble(), IsEmpty());

  l.facts.registers = 136;
  EXPECT_THAT(l.trouble(),
              ElementsAre(HasSubstr("1 blocks of 136 registers"),
                          "a cooperative grid of 264 blocks, of which 132 are resident at once"));
  l.shape.cooperative = false;
  EXPECT_THAT(l.trouble(), ElementsAre(HasSubstr("1 blocks of 136 registers")));
}

TEST(LaunchFacts, AGridThatGrowsWithTheRowsIsNotCooperative) {
  Launchable l;
  l.shape.cooperative = true;
  EXPECT_THAT(l.trouble(), ElementsAre(HasSubstr("a cooperative grid of 2147483647 blocks, of which 1056")));
}

// Teams that exchange over the grid: whatever the rows, no more blocks than are resident.
TEST(LaunchFacts, TeamsOverTheGridAreResident) {
  Launchable l;
  l.spec.columns = 1 << 20;
  l.plan = {Strategy::block_row, 256, 256, 4, 8, 1, 2, 128, Exchange::grid};
  l.facts = {.registers = 120, .register_limit = 128, .shared_bytes = 2048, .max_threads = 256};
  l.shape.cooperative = true;
  EXPECT_THAT(l.trouble(), IsEmpty());
  l.shape.dynamic_shared_bytes = 150 * 1024;  // for which the plan has no room twice
  EXPECT_THAT(l.trouble(),
              ElementsAre(HasSubstr("1 blocks of 155648 bytes of shared memory"),
                          "a cooperative grid of 256 blocks, of which 132 are resident at once"));
}

TEST(LaunchFacts, TheClustersOfAPlanDivideItsGrid) {
  Launchable l;
  l.spec.columns = 32768;
  l.plan = {Strategy::block_row, 256, 256, 4, 4, 1, 8, 8, Exchange::cluster};
  l.facts.cluster_blocks = l.shape.cluster_blocks = 8;
  EXPECT_THAT(l.trouble(), IsEmpty());
  l.plan.blocks_per_row = 4;
  EXPECT_THAT(l.trouble(), ElementsAre("clusters of 8 blocks do not divide a grid of 4"));
}

TEST(LaunchFacts, ClustersNeedTheirArchitecture) {
  Launchable l = persistent();
  l.shape.cluster_blocks = 2;
  EXPECT_THAT(l.trouble(), IsEmpty());
  l.device = profile(89);
  l.plan.blocks_per_sm = 1;
  EXPECT_THAT(l.trouble(), ElementsAre("sm_89 has no clusters; sm_90 and newer have"));
}

TEST(LaunchFacts, ClustersHaveAtMostEightBlocksOrSixteenWhereThatExists) {
  Launchable l = persistent();
  for (const int blocks : {2, 4, 8}) {
    l.shape.cluster_blocks = blocks;
    EXPECT_THAT(l.trouble(), IsEmpty()) << blocks;
  }
  l.device.sm_count = 128;  // so that the grid is divided by all of these
  l.shape.cluster_blocks = 16;
  EXPECT_THAT(l.trouble(), IsEmpty());
  l.shape.cluster_blocks = 32;
  EXPECT_THAT(l.trouble(), ElementsAre("clusters of 32 blocks; 16 are allowed"));
  l.shape.cluster_blocks = 0;
  EXPECT_THAT(l.trouble(), ElementsAre("clusters of 0 blocks"));

  l.device.arch.number = 120;
  l.shape.cluster_blocks = 16;
  EXPECT_THAT(l.trouble(), ElementsAre("clusters of 16 blocks; 8 are allowed"));
}

TEST(LaunchFacts, ClustersAreThoseOfTheCode) {
  Launchable l = persistent();
  l.facts.cluster_blocks = 4;
  EXPECT_THAT(l.trouble(), ElementsAre("compiled for clusters of 4 blocks, launched with 1"));
  l.shape.cluster_blocks = 4;
  EXPECT_THAT(l.trouble(), IsEmpty());
  l.facts.cluster_blocks = 0;
  l.facts.max_cluster_blocks = 2;
  EXPECT_THAT(l.trouble(), ElementsAre("clusters of 4 blocks; compiled for up to 2"));
}

TEST(LaunchFacts, ClustersDivideTheGridOfAnyRows) {
  Launchable l;
  l.shape.cluster_blocks = 4;
  EXPECT_THAT(l.trouble(), ElementsAre("clusters of 4 blocks do not divide a grid of 1"));
}

TEST(LaunchFacts, OneClusterFitsIntoAGpc) {
  Launchable l = persistent();
  l.device.sm_count = 128;
  l.plan.blocks_per_sm = 1;
  l.shape.cluster_blocks = 16;
  l.shape.dynamic_shared_bytes = 200 * 1024;  // one block a multiprocessor
  EXPECT_THAT(l.trouble(), IsEmpty());
  l.facts.registers = 255;  // one as well
  EXPECT_THAT(l.trouble(), IsEmpty());
  l.facts.shared_bytes = 28 * 1024;  // none
  EXPECT_THAT(
      l.trouble(),
      ::testing::Contains(HasSubstr("not one cluster of 16 blocks fits into a GPC of 16 multiprocessors")));
}

TEST(LaunchFacts, OfClustersOnlyWholeOnesAreResident) {
  Launchable l = persistent();
  l.shape.cluster_blocks = 8;
  l.shape.dynamic_shared_bytes = 200 * 1024;
  ASSERT_EQ(l.residency().blocks(), 1);
  EXPECT_EQ(resident_blocks(l.residency(), l.shape, l.device), 128) << "of 132 multiprocessors";
  l.shape.dynamic_shared_bytes = 0;
  EXPECT_EQ(resident_blocks(l.residency(), l.shape, l.device), 264) << "4 multiprocessors hold 8 blocks";
  l.device.sm_count = 131;
  EXPECT_EQ(resident_blocks(l.residency(), l.shape, l.device), 256);

  l.device.sm_count = 132;
  l.shape.cooperative = true;
  l.shape.dynamic_shared_bytes = 100 * 1024;
  EXPECT_THAT(l.trouble(), IsEmpty());
  l.shape.cluster_blocks = 12;
  EXPECT_THAT(l.trouble(),
              ElementsAre("a cooperative grid of 264 blocks, of which 192 are resident at once"));
}

}  // namespace
}  // namespace normjit::testing
