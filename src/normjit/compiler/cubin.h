// SPDX-License-Identifier: Apache-2.0
// Reads a cubin's architecture and what its kernels need.
#pragma once

#include <optional>
#include <string_view>

namespace normjit {

// The architecture of a cubin (90 for both sm_90 and sm_90a); 0: an unknown, newer ELF layout; -1: no cubin.
int cubin_architecture(std::string_view bytes);

// The resources of a kernel, from its machine code.
struct CubinFacts {
  int registers = 0;  // a thread, before the hardware rounds up
  // The largest number of registers a thread that the launch bounds allow; 255 without bounds. A cubin
  // records a minimum of blocks per multiprocessor only in this form.
  int register_limit = 255;
  int local_bytes = 0;         // stack a thread, called functions included: spills and arrays
  int shared_bytes = 0;        // static, a block; without the system's reserve
  int max_threads = 0;         // a block, by the launch bounds; 0: no bound
  int cluster_blocks = 0;      // required by the kernel; 0: the launch decides
  int max_cluster_blocks = 0;  // by the launch bounds; 0: no bound

  friend bool operator==(const CubinFacts&, const CubinFacts&) = default;
};

// The facts of the kernel with this name. Nothing if the bytes are no complete cubin of a known layout, or
// have no such kernel. Never reads past the bytes.
std::optional<CubinFacts> cubin_facts(std::string_view bytes, std::string_view kernel);

}  // namespace normjit
