// Asynchronous copies. They are done as late as the kernel allows, or at a random moment before, and what
// they are to bring counts as absent until then.
#include "normjit/base/text.h"
#include "simt/execution.h"
#include "simt/inside.h"
#include "simt/sanitizers.h"

namespace normjit::simt {

// The copy engine of the running thread's block does it, from now on.
void Execution::send_as_helper(Copy& copy) {
  copy.as.thread = static_cast<Clocks::Thread>(fibers_.size() + running_->slot);
  copy.as.time = clocks_.send(running_index_, copy.as.thread, copy.knowledge);
}

// Begins a copy: the thread's rights to both sides are looked at now.
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
      // Until the copy is waited for, the engine may still read.
      if (from.shadow != nullptr) {
        Access reads = copy.as;
        reads.write = false;
        from.shadow->record(copy.from, copy.bytes, reads, clocks_);
      }
    }
    if (copy.kind == Copy::Kind::bulk_store) {
      Access writer;
      if (from.shadow != nullptr && from.shadow->first_unready(copy.from, copy.bytes, store_ready_.data(),
                                                               store_ready_.size(), writer)) {
        note(Fault::missing_wait,
             concat({"{0}: ", running_name(), " hands the copy engine shared memory that ",
                     thread_name(writer.thread), " wrote in {1} without bulk_store_ready() since"}),
             {pc, writer.pc});
        stop();
      }
    }
    if (const Region to = region_of(copy.to, copy.bytes); to.shadow != nullptr)
      to.shadow->pend(copy.to, copy.bytes);
  }
  slots_[running_->slot].copies.push_back(std::move(copy));
}

// Does what the copy is for. A bulk store stays in the list until its thread has waited for it.
void Execution::perform(Slot& slot, Copy& copy) {
  if (copy.done) return;
  copy.done = true;
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
  copy.group = running_->load_group;
  start_copy(std::move(copy), pc);
}

// Those of the running thread's copies that belong to groups before its newest `left` closed ones.
void Execution::finish_groups(Copy::Kind kind, unsigned open_group, unsigned left) {
  const Unseen unseen;
  const Inside inside(*this);
  Slot& slot = slots_[running_->slot];
  for (std::size_t i = 0; i < slot.copies.size();) {
    Copy& copy = slot.copies[i];
    if (copy.kind != kind || copy.fiber != running_index_ || copy.group + left >= open_group) {
      ++i;
      continue;
    }
    if (checked_) {
      // Of the copy engine's work the thread learns; its own copy is as if it had written it just now.
      if (kind == Copy::Kind::async)
        copy.as.time = clocks_.now(running_index_);
      else
        clocks_.acquire(running_index_, copy.knowledge);
    }
    finish_copy(slot, i);
  }
}

void Execution::copies_wait(unsigned left) { finish_groups(Copy::Kind::async, running_->load_group, left); }

void Execution::check_bulk(std::size_t bytes, const char* what, Place place) {
  if (bytes > 0 && bytes % 16 == 0) return;
  note(Fault::misuse, concat({text_of(place), ": ", running_name(), " asks for a bulk ", what, " of ",
                              shortest(bytes), " bytes; multiples of 16 are possible"}));
  stop();
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
  check_bulk(bytes, "load", place);
  must_be_ready(barrier, place);
  Copy copy{.kind = Copy::Kind::bulk_load, .to = to, .from = from, .bytes = bytes, .barrier = barrier};
  copy.place = place;
  start_copy(std::move(copy), pc);
}

// Done at once: whoever looks at the place without having waited is found by its clock.
void Execution::send(void* to, const void* value, std::size_t bytes, std::uint64_t* barrier, int rank,
                     Place place, const void* pc) {
  const Unseen unseen;
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

void Execution::bulk_store(void* to, const void* from, std::size_t bytes, Place place, const void* pc) {
  check_bulk(bytes, "store", place);
  Copy copy{.kind = Copy::Kind::bulk_store, .to = to, .from = from, .bytes = bytes};
  copy.group = running_->store_group;
  copy.place = place;
  start_copy(std::move(copy), pc);
}

void Execution::bulk_store_ready() {
  if (!checked_) return;
  const Inside inside(*this);
  store_ready_[running_index_] = clocks_.tick(running_index_);
}

void Execution::bulk_wait(unsigned left) {
  finish_groups(Copy::Kind::bulk_store, running_->store_group, left);
}

}  // namespace normjit::simt
