// SPDX-License-Identifier: Apache-2.0
// What the executor found wrong with a kernel.
#pragma once

#include <string>
#include <string_view>

namespace normjit::simt {

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

}  // namespace normjit::simt
