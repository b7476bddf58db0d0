// As much of the cubin format as it takes to see that a cubin is what it should be, and what its kernels
// need.
#pragma once

#include <optional>
#include <string_view>

namespace normjit {

// The architecture of a cubin (90 for both sm_90 and sm_90a), 0 if it is of an ELF layout newer than this
// library, or -1 if the bytes are no cubin at all.
int cubin_architecture(std::string_view bytes);

// What one launch of a kernel takes, as its machine code says.
struct CubinFacts {
  int registers = 0;  // a thread, before the hardware rounds up
  // The most registers that the launch bounds left the compiler; 255 where they ask for nothing. Of a minimum
  // of blocks a multiprocessor, a cubin keeps only this.
  int register_limit = 255;
  int local_bytes = 0;         // stack a thread, of the functions that it calls too: spills, and arrays
  int shared_bytes = 0;        // static, a block; without what the system reserves
  int max_threads = 0;         // a block, by the launch bounds; 0 where there are none
  int cluster_blocks = 0;      // that the kernel must be launched with; 0 where the launch decides
  int max_cluster_blocks = 0;  // by the launch bounds; 0 where there are none

  friend bool operator==(const CubinFacts&, const CubinFacts&) = default;
};

// The facts of one kernel, by its name in the cubin. Nothing where the bytes are no whole cubin of a known
// layout or have no such kernel; whatever the bytes, nothing beyond them is read.
std::optional<CubinFacts> cubin_facts(std::string_view bytes, std::string_view kernel);

}  // namespace normjit
