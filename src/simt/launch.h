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
  bool initialized = true;  // else reading what nobody has written is a fault
  // Whether a launch that overlaps the one before may read it before it has waited, as weight and bias.
  bool early = false;
};

struct Launch {
  std::uint32_t blocks = 1;
  LaunchShape shape;           // as for the driver
  void** arguments = nullptr;  // as cuLaunchKernel takes them
  // All memory that the kernel may access besides its own. None given: bounds of global memory are not
  // checked.
  std::span<const Buffer> buffers;
  std::uint64_t seed = 0;  // schedule_of() says what it means
  // Only these blocks of the grid run, for a look at one end of a huge one; 0 for all from the first on.
  std::uint32_t first_block = 0, run_blocks = 0;
  // Of processor time.
  std::chrono::milliseconds time_limit = std::chrono::seconds(60);
};

// Of blocks that must run together, as all of a cooperative launch. Each is a fiber, which has two mappings,
// of which a process may have 65,530; ThreadSanitizer has room for 8128 fibers.
int most_threads_together() noexcept;

// Returns when all blocks are done: nothing, or what went wrong first; then the outputs are unfinished. Any
// number of threads may launch at the same time; each launch stays on its own thread, so atomics of two
// launches on the same memory work, and blocks of one launch wait for no other launch.
//
// Limits of the emulation: blocks and grids have one dimension; a cooperative launch has at most
// most_threads_together() threads; memory is as strongly ordered as the CPU's (races through it are found by
// the checks all the same); approximate instructions are exact to the last bits only as far as the host half
// of hw:: says.
std::optional<Diagnosis> run(const HostKernel& kernel, const Launch& launch);

}  // namespace normjit::simt
