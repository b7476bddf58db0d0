// SPDX-License-Identifier: Apache-2.0
// Whether a kernel, as its machine code is, can be launched as its plan says: the rules by which the hardware
// hands out registers, shared memory and places for blocks, so that no GPU is needed to find out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "normjit/compiler/cubin.h"
#include "normjit/driver/driver.h"
#include "normjit/plan.h"

namespace normjit::testing {

// How many blocks fit on one multiprocessor at once, by each of the things that they take.
struct Residency {
  int by_registers = 0, by_shared_memory = 0, by_threads = 0, by_slots = 0;

  int blocks() const;  // by all of them
  friend bool operator==(const Residency&, const Residency&) = default;
};
Residency residency_of(const CubinFacts& facts, const LaunchShape& shape, const DeviceProfile& device);

// How many blocks of such launches the whole device holds at once; of clusters, only whole ones count.
//
// Assumption: the blocks of a cluster share a GPC, a group of multiprocessors whose size no call tells
// without a GPU. It is taken as 16 where clusters of 16 blocks exist (sm_90, sm_100 and sm_103), and 8
// elsewhere; what is left over counts as one smaller group.
std::int64_t resident_blocks(const Residency& residency, const LaunchShape& shape,
                             const DeviceProfile& device);

// All that is wrong, one line each; empty if nothing is:
//   local memory, which means spills, or an array that is indexed by what the compiler does not know; other
//   threads a block than the plan's; launch bounds that lost the plan's blocks a multiprocessor; more static
//   (48 KiB) or total shared memory than a block may have; fewer blocks a multiprocessor than the plan counts
//   on; a cooperative grid that is not resident as a whole, for whatever number of rows; clusters where there
//   are none, too large, not what the code was compiled for, that do not divide the grid, or of which not one
//   fits into a GPC.
std::vector<std::string> launch_trouble(const CubinFacts& facts, const Plan& plan, const NormSpec& spec,
                                        const DeviceProfile& device, const LaunchShape& shape);

}  // namespace normjit::testing
