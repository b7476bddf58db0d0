// SPDX-License-Identifier: Apache-2.0
// Runs a kernel on the CPU: one fiber per CUDA thread, on the calling thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "normjit/driver/driver.h"
#include "simt/diagnosis.h"
#include "simt/host_compiler.h"

namespace normjit::simt {

// Memory that a kernel may access. Buffers do not overlap.
struct Buffer {
  const void* begin = nullptr;
  std::size_t bytes = 0;
  std::string_view name;    // for messages: "x"
  bool writable = false;    // a write to another one is a fault
  bool initialized = true;  // else reading unwritten bytes is a fault
  // A launch that overlaps the previous one may read it before it has waited, as weight and bias.
  bool early = false;
};

struct Launch {
  std::uint32_t blocks = 1;
  LaunchShape shape;           // as for the driver
  void** arguments = nullptr;  // as cuLaunchKernel takes them
  // All global memory that the kernel may access; empty: its bounds are not checked.
  std::span<const Buffer> buffers;
  std::uint64_t seed = 0;  // schedule_of() says what it means
  // Run only these blocks, for one end of a huge grid; run_blocks 0: all from first_block on.
  std::uint32_t first_block = 0, run_blocks = 0;
  // In processor time.
  std::chrono::milliseconds time_limit = std::chrono::seconds(60);
};

// The most threads of blocks that must run together, as in a cooperative launch. Each is a fiber with two
// mappings, of which a process may have 65,530; ThreadSanitizer has room for 8128 fibers.
int most_threads_together() noexcept;

// Returns nothing when all blocks are done, or the first fault; the outputs are then unfinished. Any number
// of threads may launch at the same time, also on the same memory: atomics of two launches work. Each launch
// runs on its caller's thread, and its blocks wait for no other launch.
//
// Limits of the emulation: blocks and grids have one dimension; a cooperative launch has at most
// most_threads_together() threads; memory is ordered as strongly as the CPU's (the checks find races all the
// same); the last bits of approximate instructions are those of the host half of hw::.
std::optional<Diagnosis> run(const HostKernel& kernel, const Launch& launch);

}  // namespace normjit::simt
