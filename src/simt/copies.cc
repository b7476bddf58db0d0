// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies. They happen as late as the kernel allows, or at a random moment before; their
// destination counts as unwritten until then.
#include "normjit/base/text.h"
#include "simt/execution.h"
#include "simt/sanitizers.h"

namespace normjit::simt {

// Makes the copy one of the copy engine of the running thread's block.
void Execution::send_as_helper(Copy& copy) {
  copy.as.thread = static_cast<Clocks::Thread>(fibers_.size() + running_->slot);
  copy.as.time = clocks_.send(running_index_, copy.as.thread, copy.knowledge);
}

// Begins a copy, and checks the accesses to both sides.
void Execution::start_copy(Copy copy, const void* pc) {
  const Unseen unseen;
  access(copy.from, copy.bytes, false, false, pc);
  access(copy.to, copy.bytes, true, false, pc);
  const Inside inside(*this);
  copy.fiber = running_index_;
  copy.as = access_now(true, pc);
  if (checked_) {
    const Region from = region_of(copy.from, copy.bytes);
    if (copy.kind != Copy::Kind::async) {
      send_as_helper(copy);
      // The engine may read until a thread has waited for the copy.
      if (from.shadow != nullptr) {
        Access reads = copy.as;
        reads.write = false;
        from.shadow->record(copy.from, copy.bytes, reads, clocks_);
      }
    }
    if (const Region to = region_of(copy.to, copy.bytes); to.shadow != nullptr)
      to.shadow->pend(copy.to, copy.bytes);
  }
  slots_[running_->slot].copies.push_back(std::move(copy));
}

void Execution::perform(Slot& slot, const Copy& copy) {
  // Not memcpy, which a sanitizer would take for the kernel's.
  const auto* from = static_cast<const volatile unsigned char*>(copy.from);
  auto* to = static_cast<volatile unsigned char*>(copy.to);
  for (std::size_t i = 0; i < copy.bytes; ++i) to[i] = from[i];
  if (checked_)
    if (const Region region = region_of(copy.to, copy.bytes); region.shadow != nullptr)
      region.shadow->land(copy.to, copy.bytes, copy.as);
  if (copy.barrier == nullptr) return;
  const auto found = slot.memory_barriers.find(copy.barrier);
  if (found == slot.memory_barriers.end()) return;
  if (checked_) clocks_.merge(found->second.knowledge, copy.knowledge);
  found->second.bytes -= static_cast<std::int64_t>(copy.bytes);
  settle(found->second);
}

void Execution::finish_copy(Slot& slot, std::size_t index) {
  perform(slot, slot.copies[index]);
  slot.copies.erase(slot.copies.begin() + static_cast<std::ptrdiff_t>(index));
}

void Execution::copy_async(void* to, const void* from, std::size_t bytes, const void* pc) {
  Copy copy{.kind = Copy::Kind::async, .to = to, .from = from, .bytes = bytes};
  copy.group = running_->group;
  start_copy(std::move(copy), pc);
}

// Finishes the running thread's copies of all groups but its newest `left` closed ones and the open one.
void Execution::copies_wait(unsigned left) {
  const Unseen unseen;
  const Inside inside(*this);
  Slot& slot = slots_[running_->slot];
  for (std::size_t i = 0; i < slot.copies.size();) {
    Copy& copy = slot.copies[i];
    if (copy.kind != Copy::Kind::async || copy.fiber != running_index_ ||
        copy.group + left >= running_->group) {
      ++i;
      continue;
    }
    if (checked_) copy.as.time = clocks_.now(running_index_);  // as if the thread had written it just now
    finish_copy(slot, i);
  }
}

void Execution::must_be_ready(const std::uint64_t* barrier, Place place) {
  if (memory_barrier(barrier, place).ready) return;
  note(Fault::missing_wait, concat({text_of(place), ": ", running_name(),
                                    " uses a barrier in shared memory with the copy engine without "
                                    "barriers_ready() since it was initialised"}));
  stop();
}

void Execution::bulk_load(void* to, const void* from, std::size_t bytes, std::uint64_t* barrier, Place place,
                          const void* pc) {
  if (bytes == 0 || bytes % 16 != 0) {
    note(Fault::misuse, concat({text_of(place), ": ", running_name(), " asks for a bulk load of ",
                                shortest(bytes), " bytes; multiples of 16 are possible"}));
    stop();
  }
  must_be_ready(barrier, place);
  Copy copy{.kind = Copy::Kind::bulk_load, .to = to, .from = from, .bytes = bytes, .barrier = barrier};
  copy.place = place;
  start_copy(std::move(copy), pc);
}

// Copies at once: a thread that reads the place without having waited is found by its clock.
void Execution::send(void* to, const void* value, std::size_t bytes, std::uint64_t* barrier, int rank,
                     Place place, const void* pc) {
  const Unseen unseen;
  if (running_->entered) {
    note(Fault::misuse,
         concat({text_of(place), ": ", running_name(), " sends to its cluster before cluster_entered()"}));
    stop();
  }
  Copy copy{.kind = Copy::Kind::bulk_load, .to = remote(to, rank, place), .from = value, .bytes = bytes};
  copy.barrier = static_cast<std::uint64_t*>(remote(barrier, rank, place));
  must_be_ready(copy.barrier, place);
  access(copy.to, bytes, true, false, pc);
  const Inside inside(*this);
  copy.fiber = running_index_;
  copy.as = access_now(true, pc);
  Slot& other = slots_[running_->slot / cluster_ * cluster_ + static_cast<unsigned>(rank)];
  if (checked_) send_as_helper(copy);
  order_before(copy.barrier);
  perform(other, copy);
}

}  // namespace normjit::simt
