// SPDX-License-Identifier: Apache-2.0
// Runs a kernel on the CPU: one fiber per CUDA thread, on the calling thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "normjit/driver/driver.h"
#include "simt/host_compiler.h"

namespace normjit::simt {

// What the executor found wrong with a kernel.
enum class Fault {
  bad_launch,     // beyond the limits of a GPU or of the emulation
  deadlock,       // every live thread waits
  divergence,     // threads meet at different barriers or warp operations, or some have left
  bad_mask,       // a warp operation whose mask leaves out the calling lane
  out_of_bounds,  // an access outside of every buffer, or a write to an input
  misaligned,     // an access that is not a multiple of its size away from address 0
  uninitialized,  // a read of shared memory, or of an output, before it was written
  missing_wait,   // an access to memory that an asynchronous copy still uses, or to an earlier launch's
                  // tensors
  race,           // two accesses that no barrier orders, at least one of them a write
  misuse,         // a primitive used against its contract, such as an mbarrier that was never initialised
  undefined,      // undefined behaviour of C++: an integer overflow, a shift too far, a division by zero
  crash,          // any other signal of the processor
  time_limit,     // still running at the time limit
};
std::string_view name(Fault fault) noexcept;

// The first fault. The message is one line: the fault, its place in the kernel text (file and line), its
// block and thread, and for accesses the chain of inlined calls, innermost first.
struct Diagnosis {
  Fault fault = Fault::crash;
  std::string message;
};

// The order in which the threads of a launch run. A GPU guarantees none, so a correct kernel gives the same
// result under every schedule.
struct Schedule {
  enum class Order {
    in_order,    // the first thread that can run
    any_lane,    // any thread that can run
    warp_ahead,  // one warp runs until all of it waits: finds most missing barriers
  };
  Order order = Order::in_order;
  bool backwards = false;   // the last block first
  int resident_blocks = 1;  // at the same time, unless the launch decides
  std::uint64_t seed = 0;   // of its random choices
};

// Seed 0 is in order, one block after the other. Every other seed stands for one fixed schedule: 1, 2 and 3
// run 2, 3 and 4 blocks at a time, which a race between blocks needs to be seen. The same seed gives the same
// run on every machine.
Schedule schedule_of(std::uint64_t seed) noexcept;

// "schedule 7: one warp ahead, blocks backwards, 2 blocks at a time"
std::string to_text(const Schedule& schedule);

// Memory that a kernel may access. Buffers do not overlap.
struct Buffer {
  const void* begin = nullptr;
  std::size_t bytes = 0;
  std::string_view name;    // for messages: "x"
  bool writable = false;    // a write to another one is a fault
  bool initialized = true;  // else reading unwritten bytes is a fault
  // A launch that overlaps the previous one may read it before it has waited, as weight and bias.
  bool early = false;
  // Bytes of its elements, where they are single ones: neighbours may be written by two threads.
  std::size_t element = 2;
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
