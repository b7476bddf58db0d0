// SPDX-License-Identifier: Apache-2.0
// What the lanes of a warp wait for together: shuffles and warp barriers.
#include <bit>

#include "normjit/base/text.h"
#include "simt/execution.h"
#include "simt/sanitizers.h"

namespace normjit::simt {

// Lets the lanes of a mask go on if all of them have come.
void Execution::resolve(unsigned index, unsigned members) {
  Warp& warp = warp_states_[index];
  unsigned come = 0;
  for (unsigned left = warp.waiting; left != 0; left &= left - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(left));
    if (warp.lanes[lane].members == members) come |= 1u << lane;
  }
  if (come != members) return;

  const auto first = static_cast<unsigned>(std::countr_zero(come));
  const Warp::Waiting& one = warp.lanes[first];
  Clocks::Thread fibers[kWarp];
  std::size_t count = 0;
  for (unsigned left = come; left != 0; left &= left - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(left));
    const Warp::Waiting& other = warp.lanes[lane];
    if (other.op != one.op || !same(other.place, one.place)) {
      note(Fault::divergence, concat({"the lanes of a warp meet at different operations: ",
                                      thread_name(warp.first + first), " in ", text_of(one.place), ", ",
                                      thread_name(warp.first + lane), " in ", text_of(other.place)}));
      stop();
    }
    fibers[count++] = warp.first + lane;
  }
  for (unsigned left = come; left != 0; left &= left - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(left));
    const Warp::Waiting& own = warp.lanes[lane];
    if (own.op == WarpOp::shuffle && !(come >> own.from & 1)) {
      note(Fault::bad_mask, concat({text_of(own.place), ": ", thread_name(warp.first + lane), " reads lane ",
                                    shortest(own.from), ", which is not in the mask and takes no part"}));
      stop();
    }
    if (own.op == WarpOp::shuffle) fibers_[warp.first + lane].result = warp.lanes[own.from].value;
  }
  // Only a barrier orders memory; a shuffle does not.
  if (checked_ && one.op == WarpOp::barrier) clocks_.meet({fibers, count});
  warp.waiting &= ~come;
  make_ready(index, come);
}

std::uint64_t Execution::warp_op(WarpOp op, std::uint64_t value, unsigned from, unsigned members,
                                 Place place) {
  const Unseen unseen;
  const Inside inside(*this);
  FiberState& state = *running_;
  Warp& warp = warp_states_[state.warp];
  const unsigned own = lane();
  if (!(members >> own & 1)) {
    note(Fault::bad_mask, concat({text_of(place), ": ", running_name(), " is lane ", shortest(own),
                                  " of its warp, which its mask leaves out"}));
    stop();
  }
  if (const unsigned missing = members & ~warp.live; missing != 0) {
    note(Fault::divergence, concat({text_of(place), ": ", running_name(), " waits for lane ",
                                    shortest(std::countr_zero(missing)),
                                    " of its warp, which has left the kernel or never was"}));
    stop();
  }
  warp.lanes[own] = {op, members, from, value, place};
  warp.waiting |= 1u << own;
  const bool orders = op == WarpOp::barrier;
  if (orders) order_before(&warp);
  resolve(state.warp, members);
  wait_here();
  if (orders) order_after(&warp);
  return state.result;
}

std::uint64_t Execution::shuffle(std::uint64_t bits, unsigned from, unsigned members, Place place) {
  return warp_op(WarpOp::shuffle, bits, from, members, place);
}

void Execution::warp_barrier(unsigned members, Place place) {
  warp_op(WarpOp::barrier, 0, 0, members, place);
}

}  // namespace normjit::simt
