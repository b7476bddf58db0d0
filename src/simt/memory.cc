// SPDX-License-Identifier: Apache-2.0
// Shared memory, accesses, and counters in global memory.
#include <algorithm>
#include <cstdio>

#include "normjit/base/text.h"
#include "simt/execution.h"
#include "simt/sanitizers.h"

namespace normjit::simt {
namespace {

constexpr std::size_t kGap = 64;                 // behind each shared variable
constexpr std::size_t kStaticShared = 48 << 10;  // what CUDA allows

}  // namespace

void* Execution::shared(const void* key, std::size_t bytes, std::size_t alignment, Place place) {
  Slot& slot = slots_[running_->slot];
  for (const SharedVariable& variable : variables_)
    if (variable.key == key) return slot.arena + variable.offset;
  const Inside inside(*this);
  const std::size_t offset = (shared_used_ + kGap + alignment - 1) / alignment * alignment;
  std::size_t declared = bytes;
  for (const SharedVariable& variable : variables_)
    if (variable.key != nullptr) declared += variable.bytes;
  if (declared > kStaticShared) {
    note(Fault::bad_launch,
         concat({text_of(place), ": the kernel declares ", shortest(declared),
                 " bytes of shared memory; 48 KiB are possible without asking for dynamic memory"}));
    stop();
  }
  variables_.push_back({key, offset, bytes});
  shared_used_ = offset + bytes;
  return slot.arena + offset;
}

// The arena is aligned to 128 bytes, as NJ_DYNAMIC_SHARED promises.
void* Execution::dynamic_shared(Place place) {
  if (launch_.shape.dynamic_shared_bytes == 0) {
    note(Fault::bad_launch,
         concat({text_of(place), ": the kernel uses dynamic shared memory, but the launch has none"}));
    stop();
  }
  return slots_[running_->slot].arena;
}

void* Execution::remote(void* own, int rank, Place place) {
  const unsigned first = running_->slot / cluster_ * cluster_;
  if (rank < 0 || rank >= static_cast<int>(cluster_)) {
    note(Fault::misuse, concat({text_of(place), ": ", running_name(), " asks for block ", shortest(rank),
                                " of a cluster of ", shortest(cluster_)}));
    stop();
  }
  Slot& mine = slots_[running_->slot];
  Slot& other = slots_[first + static_cast<unsigned>(rank)];
  const std::ptrdiff_t offset = static_cast<std::byte*>(own) - mine.arena;
  if (offset < 0 || offset >= static_cast<std::ptrdiff_t>(shared_used_)) {
    note(Fault::misuse, concat({text_of(place), ": ", running_name(),
                                " asks for the counterpart of what does not lie in its shared memory"}));
    stop();
  }
  return other.arena + offset;
}

Access Execution::access_now(bool write, const void* pc) const {
  return {running_index_, checked_ ? clocks_.now(running_index_) : 0, pc, write, false};
}

Execution::Region Execution::region_of(const void* at, std::size_t bytes) {
  const auto* byte = static_cast<const std::byte*>(at);
  const auto in_arena = [&](Slot& slot) {
    if (!slot.shadow.holds(at)) return false;
    const auto offset = static_cast<std::size_t>(byte - slot.arena);
    return std::any_of(variables_.begin(), variables_.end(), [&](const SharedVariable& variable) {
      return offset >= variable.offset && offset + bytes <= variable.offset + variable.bytes;
    });
  };
  if (Slot& own = slots_[running_->slot]; in_arena(own)) return {&own.shadow, nullptr, false, true};
  for (std::size_t i = 0; i < launch_.buffers.size(); ++i) {
    const Buffer& buffer = launch_.buffers[i];
    const auto* begin = static_cast<const std::byte*>(buffer.begin);
    if (byte >= begin && byte + bytes <= begin + buffer.bytes)
      return {buffer_shadows_[i].get(), &buffer, false, true};
  }
  for (Slot& slot : slots_)
    if (slot.live > 0 && in_arena(slot)) return {&slot.shadow, nullptr, true, true};
  return {nullptr, nullptr, false, false};
}

// "x + 4096", "shared memory"
std::string Execution::name_of(const void* at, const Region& region) const {
  if (region.buffer == nullptr) return region.foreign ? "another block's shared memory" : "shared memory";
  return concat(
      {region.buffer->name, " (",
       shortest(static_cast<const std::byte*>(at) - static_cast<const std::byte*>(region.buffer->begin)),
       " bytes from its begin)"});
}

void Execution::access(const void* at, std::size_t bytes, bool write, bool aligned, const void* pc) {
  if (!checked_) return;
  if (aligned && reinterpret_cast<std::uintptr_t>(at) % bytes != 0) misaligned(at, bytes, pc);
  examine(at, bytes, access_now(write, pc));
}

void Execution::misaligned(const void* at, std::size_t bytes, const void* pc) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", at);
  note(Fault::misaligned,
       concat({"{0}: ", running_name(), " accesses ", shortest(bytes), " bytes at ", text,
               ", which is no multiple of that"}),
       {pc});
  stop();
}

void Execution::examine(const void* at, std::size_t bytes, const Access& access) {
  if (bytes == 0) return;
  const Region region = region_of(at, bytes);
  if (region.buffer != nullptr && launch_.shape.overlap_previous && !running_->waited &&
      (access.write || !region.buffer->early)) {
    note(Fault::missing_wait,
         concat({"{0}: ", running_name(), access.write ? " writes " : " reads ", name_of(at, region),
                 " before wait_for_previous_launch(), in a launch that overlaps the one before"}),
         {access.pc});
    stop();
  }
  if (region.found && region.shadow == nullptr && !access.write) return;
  if (auto finding = objection(region, at, bytes, access)) {
    note(finding->fault, std::move(finding->text), std::move(finding->pcs));
    finding.reset();
    stop();
  }
}

std::optional<Execution::Finding> Execution::objection(const Region& region, const void* at,
                                                       std::size_t bytes, const Access& access) {
  if (!region.found) {
    const bool nothing_known = launch_.buffers.empty() && !slots_[running_->slot].shadow.holds(at);
    if (nothing_known || kernel_.module->holds(at)) return {};
    return outside(at, bytes, access);
  }
  const char* does = access.write ? " writes " : " reads ";
  if (access.write && region.buffer != nullptr && !region.buffer->writable)
    return Finding{
        Fault::out_of_bounds,
        concat({"{0}: ", running_name(), " writes to ", name_of(at, region), ", which is an input"}),
        {access.pc}};
  if (region.shadow == nullptr) return {};
  const Conflict conflict = region.shadow->record(at, bytes, access, clocks_);
  switch (conflict.kind) {
    case Conflict::Kind::none:
      return {};
    case Conflict::Kind::unwritten:
      return Finding{Fault::uninitialized,
                     concat({"{0}: ", running_name(), " reads ", name_of(conflict.at, region),
                             ", which was never written"}),
                     {access.pc}};
    case Conflict::Kind::pending:
      return Finding{Fault::missing_wait,
                     concat({"{0}: ", running_name(), does, name_of(conflict.at, region),
                             ", where an asynchronous copy is still on its way; a wait is missing"}),
                     {access.pc}};
    case Conflict::Kind::race:
      break;
  }
  return Finding{
      Fault::race,
      concat({"{0}: ", running_name(), does, name_of(conflict.at, region), ", which ",
              thread_name(conflict.earlier.thread), conflict.earlier.write ? " has written" : " has read",
              " in {1}; nothing orders the two"}),
      {access.pc, conflict.earlier.pc}};
}

// Names the nearest buffer or shared memory.
Execution::Finding Execution::outside(const void* at, std::size_t bytes, const Access& access) const {
  constexpr std::ptrdiff_t kNear = 1 << 20;
  const auto* byte = static_cast<const std::byte*>(at);
  std::string near;
  std::ptrdiff_t nearest = kNear;
  for (const Buffer& buffer : launch_.buffers) {
    const auto* begin = static_cast<const std::byte*>(buffer.begin);
    const std::ptrdiff_t behind = byte - (begin + buffer.bytes), before = begin - byte;
    if (behind > -static_cast<std::ptrdiff_t>(bytes) && behind < nearest) {
      nearest = behind;
      near = concat(
          {", ", shortest(std::max<std::ptrdiff_t>(behind, 0)), " bytes behind the end of ", buffer.name});
    }
    if (before > 0 && before < nearest) {
      nearest = before;
      near = concat({", ", shortest(before), " bytes before ", buffer.name});
    }
  }
  for (const Slot& slot : slots_)
    if (slot.shadow.holds(at))
      near = slot.live == 0
                 ? concat({", in the shared memory of block ", shortest(slot.block), ", which has left"})
                 : ", beside the variables in shared memory";
  return {Fault::out_of_bounds,
          concat({"{0}: ", running_name(), access.write ? " writes " : " reads ", shortest(bytes),
                  " bytes outside of every buffer", near}),
          {access.pc}};
}

void Execution::look_at_counter(const std::uint64_t* counter, bool write, const void* pc) {
  if (reinterpret_cast<std::uintptr_t>(counter) % sizeof *counter != 0)
    misaligned(counter, sizeof *counter, pc);
  if (!checked_) return;
  Access access = access_now(write, pc);
  access.atomic = true;
  examine(counter, sizeof *counter, access);
}

std::uint64_t Execution::add(std::uint64_t* counter, std::uint64_t n, bool ordered, const void* pc) {
  const Unseen unseen;
  const Inside inside(*this);
  look_at_counter(counter, true, pc);
  if (checked_ && ordered) {
    constexpr std::size_t kKept = 64;  // threads wait for recent counts
    std::deque<Arrival>& arrivals = published_[counter];
    const std::uint64_t count = __atomic_load_n(counter, __ATOMIC_RELAXED) + n;
    if (!arrivals.empty() && arrivals.back().count >= count) arrivals.clear();  // it was set back
    Clocks::Knowledge known = arrivals.empty() ? nullptr : arrivals.back().knowledge;
    clocks_.acquire(running_index_, known);
    clocks_.release(running_index_, known);
    if (arrivals.size() == kKept) arrivals.pop_front();
    arrivals.push_back({count, std::move(known)});
  }
  if (ordered) {
    order_after(counter);
    order_before(counter);
  }
  const std::uint64_t old = __atomic_fetch_add(counter, n, ordered ? __ATOMIC_ACQ_REL : __ATOMIC_RELAXED);
  for (std::size_t i = 0; i < waiters_.size();)
    if (waiters_[i].counter == counter && waiters_[i].content_with(old + n)) {
      wake(waiters_[i].fiber);
      waiters_.erase(waiters_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  return old;
}

void Execution::raise(std::uint64_t* number, std::uint64_t value, const void* pc) {
  const Unseen unseen;
  const Inside inside(*this);
  look_at_counter(number, true, pc);
  std::uint64_t now = __atomic_load_n(number, __ATOMIC_RELAXED);
  while (now < value && !__atomic_compare_exchange_n(number, &now, value, /*weak=*/true, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
}

void Execution::wait_until(const std::uint64_t* counter, std::uint64_t value, Place place, const void* pc) {
  const Unseen unseen;
  const Inside inside(*this);
  look_at_counter(counter, false, pc);
  if (__atomic_load_n(counter, __ATOMIC_ACQUIRE) < value) {
    waiters_.push_back({running_index_, counter, value, place});
    wait_here();
  }
  // The wait may have ended with the arrival that made the counter reach the value, so later ones do not
  // order this thread.
  if (checked_)
    for (const Arrival& arrival : published_[counter])
      if (arrival.count >= value) {
        clocks_.acquire(running_index_, arrival.knowledge);
        break;
      }
  order_after(counter);
}

// A thread that was woken may find a newer tag, as on a GPU, and waits again.
std::uint64_t Execution::gather(const std::uint64_t* slot, unsigned tag, Place place, const void* pc) {
  const Unseen unseen;
  const Inside inside(*this);
  look_at_counter(slot, false, pc);
  for (;;) {
    const std::uint64_t now = __atomic_load_n(slot, __ATOMIC_RELAXED);
    if (now >> 32 == tag) return now;
    waiters_.push_back({running_index_, slot, std::uint64_t{tag} << 32, place, true});
    wait_here();
  }
}

}  // namespace normjit::simt
