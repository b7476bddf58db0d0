// SPDX-License-Identifier: Apache-2.0
// Barriers of a block, of a cluster, and those that lie in shared memory.
#include "normjit/base/text.h"
#include "simt/execution.h"
#include "simt/sanitizers.h"

namespace normjit::simt {

// Returns when `need` threads have come here. `ordered`: each then knows what all of them did before.
void Execution::meet(Barrier& barrier, std::size_t need, Place place, const char* what, bool ordered) {
  const Unseen unseen;
  const Inside inside(*this);
  if (barrier.waiting.empty()) {
    barrier.place = place;
  } else if (!same(barrier.place, place)) {
    note(Fault::divergence,
         concat({"the threads of a ", what, " meet at different barriers: ", thread_name(barrier.waiting[0]),
                 " in ", text_of(barrier.place), ", ", running_name(), " in ", text_of(place)}));
    stop();
  }
  barrier.waiting.push_back(running_index_);
  if (ordered) order_before(&barrier);
  if (barrier.waiting.size() == need) {
    if (checked_ && ordered) clocks_.meet(barrier.waiting);
    for (const unsigned fiber : barrier.waiting) wake(fiber);
    barrier.waiting.clear();
  }
  wait_here();
  if (ordered) order_after(&barrier);
}

void Execution::block_barrier(Place place) {
  Slot& slot = slots_[running_->slot];
  if (slot.live != threads_) {
    note(Fault::divergence,
         concat({text_of(place), ": ", running_name(), " waits at a barrier of its block, but ",
                 shortest(threads_ - slot.live), " of its threads have left the kernel"}));
    stop();
  }
  meet(slot.barrier, threads_, place, "block", true);
}

// On the hardware, arriving twice, or waiting without having arrived, hangs or miscounts.
void Execution::cluster_enter(Place place) {
  if (running_->entered) {
    note(Fault::misuse, concat({text_of(place), ": ", running_name(),
                                " calls cluster_enter() again before it has waited with cluster_entered()"}));
    stop();
  }
  running_->entered = true;
}

void Execution::cluster_entered(Place place) {
  if (!running_->entered) {
    note(Fault::misuse, concat({text_of(place), ": ", running_name(),
                                " waits for its cluster without having called cluster_enter()"}));
    stop();
  }
  running_->entered = false;
  meet(cluster_barriers_[running_->slot / cluster_], std::size_t{cluster_} * threads_, place, "cluster",
       false);
}

// ---- Barriers in shared memory

Execution::MemoryBarrierState& Execution::memory_barrier(const std::uint64_t* barrier, Place place) {
  for (Slot& slot : slots_)
    if (const auto found = slot.memory_barriers.find(barrier); found != slot.memory_barriers.end())
      return found->second;
  note(Fault::misuse, concat({text_of(place), ": ", running_name(),
                              " uses a barrier in shared memory that was never initialised"}));
  stop();
}

void Execution::barrier_init(std::uint64_t* barrier, int arrivals, const void* pc) {
  const Unseen unseen;
  access(barrier, sizeof *barrier, true, true, pc);
  const Inside inside(*this);
  if (arrivals < 1 || arrivals >= 1 << 20) {
    note(Fault::misuse,
         concat({"{0}: ", running_name(), " initialises a barrier for ", shortest(arrivals), " arrivals"}),
         {pc});
    stop();
  }
  Slot& slot = slots_[running_->slot];
  const auto* at = reinterpret_cast<const std::byte*>(barrier);
  if (at < slot.arena || at >= slot.arena + shared_used_) {
    note(Fault::misuse,
         concat({"{0}: ", running_name(), " initialises a barrier that does not lie in its shared memory"}),
         {pc});
    stop();
  }
  slot.memory_barriers[barrier] = {.arrivals = arrivals, .pending = arrivals, .knowledge = {}, .waiting = {}};
}

void Execution::barriers_ready() {
  for (auto& [address, state] : slots_[running_->slot].memory_barriers) state.ready = true;
}

// Begins the next phase if the current one is complete.
void Execution::settle(MemoryBarrierState& state) {
  if (state.pending > 0 || state.bytes != 0) return;
  state.phase ^= 1;
  state.pending = state.arrivals;
  for (const unsigned fiber : state.waiting) {
    if (checked_) clocks_.acquire(fiber, state.knowledge);
    wake(fiber);
  }
  state.waiting.clear();
}

void Execution::barrier_arrive(std::uint64_t* barrier, int bytes, Place place) {
  const Unseen unseen;
  const Inside inside(*this);
  MemoryBarrierState& state = memory_barrier(barrier, place);
  if (state.pending == 0) {
    note(Fault::misuse,
         concat({text_of(place), ": ", running_name(),
                 " arrives at a barrier in shared memory that expects no more arrivals in this phase"}));
    stop();
  }
  order_before(barrier);
  if (checked_) clocks_.release(running_index_, state.knowledge);
  --state.pending;
  state.bytes += bytes;
  settle(state);
}

void Execution::barrier_wait(std::uint64_t* barrier, unsigned parity, Place place) {
  const Unseen unseen;
  const Inside inside(*this);
  MemoryBarrierState& state = memory_barrier(barrier, place);
  if (state.phase == (parity & 1)) {
    state.waiting.push_back(running_index_);
    wait_here();
  } else if (checked_) {
    clocks_.acquire(running_index_, state.knowledge);
  }
  order_after(barrier);
}

}  // namespace normjit::simt
