// SPDX-License-Identifier: Apache-2.0
// The texts of faults.
#include <algorithm>
#include <bit>
#include <csignal>
#include <cstdio>

#include "normjit/base/text.h"
#include "simt/execution.h"
#include "simt/signals.h"

namespace normjit::simt {

std::string Execution::thread_name(Clocks::Thread fiber) const {
  if (fiber >= fibers_.size())
    return concat({"the copy engine of block ", shortest(slots_[fiber - fibers_.size()].block)});
  const FiberState& state = fibers_[fiber];
  return concat({"block ", shortest(slots_[state.slot].block), ", thread ", shortest(state.here.thread.x)});
}

std::string Execution::text_of(Place place) { return concat({place.file, ":", shortest(place.line)}); }

void Execution::note(Fault fault, std::string text, std::vector<const void*> pcs) {
  const Inside inside(*this);
  if (!finding_) finding_ = Finding{fault, std::move(text), std::move(pcs)};
}

void Execution::stop() {
  in_kernel_ = 0;
  for (;;) wait_here();
}

std::string Execution::who_waits() const {
  std::string text;
  const auto add = [&](std::initializer_list<std::string_view> parts) {
    if (text.size() < 1000) text += concat({text.empty() ? "" : "; ", concat(parts)});
  };
  const auto barrier = [&](const Barrier& b, unsigned need, std::string_view what) {
    if (!b.waiting.empty())
      add({shortest(b.waiting.size()), " of ", shortest(need), " threads wait at the barrier ", what, " in ",
           text_of(b.place), ", the first of them ", thread_name(b.waiting[0])});
  };
  for (std::size_t i = 0; i < waiters_.size(); ++i) {
    const Waiter& waiter = waiters_[i];
    const auto like_it = [&](const Waiter& other) {
      return other.counter == waiter.counter && other.value == waiter.value &&
             other.place.line == waiter.place.line;
    };
    const auto begin = waiters_.begin();
    if (std::any_of(begin, begin + static_cast<std::ptrdiff_t>(i), like_it)) continue;  // listed already
    const auto others = std::count_if(begin, waiters_.end(), like_it) - 1;
    add({thread_name(waiter.fiber),
         others > 0 ? concat({" and ", shortest(others), " others wait in "}) : " waits in ",
         text_of(waiter.place),
         waiter.tagged ? concat({" for a value with tag ", shortest(waiter.value >> 32),
                                 " where one with tag ", shortest(*waiter.counter >> 32), " is"})
                       : concat({" until a counter that is ", shortest(*waiter.counter), " reaches ",
                                 shortest(waiter.value)})});
  }
  for (const Slot& slot : slots_) {
    barrier(slot.barrier, threads_, concat({"of block ", shortest(slot.block)}));
    for (const auto& [address, state] : slot.memory_barriers)
      if (!state.waiting.empty())
        add({thread_name(state.waiting[0]), " and ", shortest(state.waiting.size() - 1),
             " others wait for a barrier in shared memory that lacks ", shortest(state.pending),
             " arrivals and ", shortest(state.bytes), " bytes"});
  }
  for (const Barrier& b : cluster_barriers_) barrier(b, cluster_ * threads_, "of the cluster");
  for (const Warp& warp : warp_states_)
    if (warp.waiting != 0) {
      const auto lane = static_cast<unsigned>(std::countr_zero(warp.waiting));
      add({shortest(std::popcount(warp.waiting)), " lanes wait for their warp in ",
           text_of(warp.lanes[lane].place), ", the first of them ", thread_name(warp.first + lane)});
    }
  if (text.empty()) text = concat({thread_name(running_index_), " does not stop running"});
  return text;
}

// Only stores the signal: the scheduler writes the text, where it is safe to allocate.
void Execution::on_signal(int signal, const void* address, const void* pc) {
  if (signal == kTimeIsUp) expired_ = 1;
  if (!in_kernel_) return;  // the executor's own code runs, and reads expired_
  signal_ = {signal, address, pc};
  stop();
}

void Execution::note_signal() {
  const int signal = signal_.number;
  const void *const address = signal_.address, *const pc = signal_.pc;
  const auto found = [&](Fault fault, std::string_view what) {
    // + 1, since place_of expects a return address.
    note(fault, concat({"{0}: ", running_name(), what}), {static_cast<const char*>(pc) + 1});
  };
  if (signal == kTimeIsUp) return found(Fault::time_limit, " still ran when the launch's time was up");
  if (running_->fiber.stack_holds(address)) return found(Fault::crash, " has used up its stack");
  switch (signal) {
    case SIGSEGV:
    case SIGBUS: {
      char text[32];
      std::snprintf(text, sizeof text, "%p", address);
      return found(Fault::out_of_bounds,
                   concat({" accesses address ", text, ", which is no memory of the launch"}));
    }
    case SIGILL:  // a trap of -fsanitize-trap
    case SIGTRAP:
    case SIGFPE:
      return found(
          Fault::undefined,
          " does what has no defined result: an integer overflow, a shift too far, a division by zero "
          "or an index out of range");
    default:
      return found(Fault::crash, concat({" was stopped by signal ", shortest(signal)}));
  }
}

}  // namespace normjit::simt
