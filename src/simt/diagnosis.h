// What the executor found wrong with a kernel.
#pragma once

#include <string>
#include <string_view>

namespace normjit::simt {

enum class Fault {
  bad_launch,     // more than a GPU allows, or than can be emulated
  deadlock,       // nobody can go on: threads wait for what will never come
  divergence,     // threads meet at different barriers or warp operations, or some have left
  bad_mask,       // a warp operation whose mask leaves out the calling lane
  out_of_bounds,  // an access outside of every buffer, or a write to an input
  misaligned,     // an access that is not a multiple of its size away from address 0
  uninitialized,  // a read of shared memory, or of an output, that nobody has written
  missing_wait,   // a read of what an asynchronous copy is still to bring
  race,           // two accesses that no barrier orders, at least one of them a write
  misuse,         // a primitive used against its contract, such as an mbarrier that was never initialised
  undefined,      // undefined behaviour of C++: an integer overflow, a shift too far, a division by zero
  crash,          // any other signal of the processor
  time_limit,     // still running when its time was up
};
std::string_view name(Fault fault) noexcept;

// The first thing that went wrong. The message has one line that says what, where in the kernel text (file
// and line), in which block and thread, and for accesses the inlined calls that lead there, innermost first.
struct Diagnosis {
  Fault fault = Fault::crash;
  std::string message;
};

}  // namespace normjit::simt
