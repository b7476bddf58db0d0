// SPDX-License-Identifier: Apache-2.0
#include "simt/execution.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "normjit/base/text.h"
#include "simt/sanitizers.h"
#include "simt/signals.h"

namespace normjit::simt {
namespace {

thread_local Execution* t_current = nullptr;

// Reused by the next launch, whose fibers begin anew.
thread_local Stacks t_stacks;

constexpr unsigned kMaxThreads = 1024;
constexpr int kMaxShared = 227 << 10;           // sm_90
constexpr std::size_t kArenaSlack = 128 << 10;  // static variables, and the gaps between them

std::size_t most_fibers() { return static_cast<std::size_t>(most_threads_together()); }

}  // namespace

Execution* Execution::current() { return t_current; }

Execution::Execution(const HostKernel& kernel, const Launch& launch)
    : kernel_(kernel),
      launch_(launch),
      schedule_(schedule_of(launch.seed)),
      checked_(kernel.module->checked()),
      threads_(static_cast<unsigned>(std::max(launch.shape.threads, 0))),
      warps_((threads_ + kWarp - 1) / kWarp),
      cluster_(static_cast<unsigned>(std::max(launch.shape.cluster_blocks, 1))),
      group_(launch.shape.cooperative ? launch.blocks : cluster_),
      random_(schedule_.seed * 0x9e3779b97f4a7c15u + 88172645463325252u) {}

Execution::~Execution() = default;

unsigned Execution::random(unsigned below) {  // xorshift64
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return static_cast<unsigned>((random_ >> 32) * below >> 32);
}

// Launches beyond the limits of a GPU or of the emulation.
std::optional<Diagnosis> Execution::refuse() const {
  const auto refused = [](std::initializer_list<std::string_view> why) {
    return Diagnosis{Fault::bad_launch, concat({"the launch is refused: ", concat(why)})};
  };
  const LaunchShape& shape = launch_.shape;
  if (shape.threads < 1 || threads_ > kMaxThreads)
    return refused({shortest(shape.threads), " threads a block; 1 to 1024 are possible"});
  if (launch_.blocks == 0) return refused({"no blocks"});
  if (shape.dynamic_shared_bytes < 0 || shape.dynamic_shared_bytes > kMaxShared)
    return refused({shortest(shape.dynamic_shared_bytes), " bytes of dynamic shared memory; at most ",
                    shortest(kMaxShared)});
  if (shape.cluster_blocks < 1 || shape.cluster_blocks > 16 || launch_.blocks % cluster_ != 0)
    return refused({"clusters of ", shortest(shape.cluster_blocks),
                    " blocks; 1 to 16 that divide the grid of ", shortest(launch_.blocks)});
  const std::uint64_t end = std::uint64_t{launch_.first_block} + launch_.run_blocks;
  if (launch_.first_block >= launch_.blocks || end > launch_.blocks || launch_.first_block % group_ != 0 ||
      launch_.run_blocks % group_ != 0)
    return refused({shortest(launch_.run_blocks), " blocks from block ", shortest(launch_.first_block),
                    " on of a grid of ", shortest(launch_.blocks), " in units of ", shortest(group_)});
  if (const std::size_t together = std::size_t{group_} * threads_; together > most_fibers())
    return refused(
        {shortest(together), " threads that run together; the emulation takes ", shortest(most_fibers())});
  return {};
}

bool Execution::set_up() {
  first_group_ = launch_.first_block / group_;
  groups_ = (launch_.run_blocks > 0 ? launch_.run_blocks : launch_.blocks - launch_.first_block) / group_;
  const std::size_t wanted =
      std::min<std::size_t>(groups_, static_cast<std::size_t>(schedule_.resident_blocks));
  const std::size_t most = std::max<std::size_t>(1, most_fibers() / (std::size_t{group_} * threads_));
  slots_count_ = static_cast<unsigned>(std::min(wanted, most)) * group_;

  fibers_ = std::vector<FiberState>(std::size_t{slots_count_} * threads_);
  warp_states_.resize(std::size_t{slots_count_} * warps_);
  slots_ = std::vector<Slot>(slots_count_);
  cluster_barriers_.resize(slots_count_ / cluster_);
  if (!t_stacks.reserve(fibers_.size())) return false;
  for (std::size_t i = 0; i < fibers_.size(); ++i) {
    FiberState& state = fibers_[i];
    state.slot = static_cast<unsigned>(i / threads_);
    const auto thread = static_cast<unsigned>(i % threads_);
    state.warp = state.slot * warps_ + thread / kWarp;
    state.here = {{thread}, {0}, {threads_}, {launch_.blocks}};
    state.fiber.begin(t_stacks[i], &fiber_main);
  }
  const void* const code = kernel_.module->code();
  const std::size_t arena = static_cast<std::size_t>(launch_.shape.dynamic_shared_bytes) + kArenaSlack;
  for (Slot& slot : slots_) {
    slot.memory = std::make_unique_for_overwrite<std::byte[]>(arena + 128);
    slot.arena = slot.memory.get() + (128 - reinterpret_cast<std::uintptr_t>(slot.memory.get()) % 128);
    std::memset(slot.arena, 0xff, arena);  // NaN in every floating-point type
    if (checked_ && !slot.shadow.cover(slot.arena, arena, 1, false, code)) return false;
  }
  shared_used_ = static_cast<std::size_t>(launch_.shape.dynamic_shared_bytes);
  if (shared_used_ > 0) variables_.push_back({nullptr, 0, shared_used_});

  if (checked_) {
    clocks_.reset(fibers_.size() + slots_count_);  // each slot has a copy engine
    for (const Buffer& buffer : launch_.buffers) {
      buffer_shadows_.push_back(buffer.writable ? std::make_unique<Shadow>() : nullptr);
      const std::size_t granule = std::min<std::size_t>(buffer.element, 2);
      if (buffer.writable &&
          !buffer_shadows_.back()->cover(buffer.begin, buffer.bytes, granule, buffer.initialized, code))
        return false;
    }
  }
  return true;
}

std::optional<Diagnosis> Execution::run() {
  if (auto refused = refuse()) return refused;
  if (!set_up())
    return Diagnosis{
        Fault::bad_launch,
        "the launch is refused: no memory for the stacks of its threads or the checks of its buffers"};
  t_current = this;
  main_.adopt();
  {
    const SignalScope signals(launch_.time_limit);
    const Unseen unseen;
    order_before(this);
    for (unsigned slot = 0; slot < slots_count_; slot += group_) start_group(slot);
    loop();
    order_after(&live_);
  }
  t_current = nullptr;
  if (!finding_) return {};

  std::string text = std::move(finding_->text);
  for (std::size_t i = 0; i < finding_->pcs.size(); ++i)
    if (const std::string mark = concat({"{", shortest(i), "}"}); text.find(mark) != std::string::npos)
      text.replace(text.find(mark), mark.size(), kernel_.module->place_of(finding_->pcs[i]));
  return Diagnosis{finding_->fault, concat({text, " [", to_text(schedule_), "]"})};
}

// Starts the next blocks in the slots of one group, if any block is left.
void Execution::start_group(unsigned first_slot) {
  if (next_group_ == groups_) return;
  const std::uint64_t number = first_group_ + (schedule_.backwards ? groups_ - 1 - next_group_ : next_group_);
  ++next_group_;
  for (unsigned i = 0; i < group_; ++i) {
    Slot& slot = slots_[first_slot + i];
    slot.block = static_cast<std::uint32_t>(number * group_ + i);
    slot.live = threads_;
    slot.memory_barriers.clear();
    std::memset(slot.arena, 0xff, shared_used_);
    if (checked_) slot.shadow.forget(slot.arena, shared_used_);
    live_ += threads_;
    for (unsigned thread = 0; thread < threads_; ++thread) {
      FiberState& state = fibers_[std::size_t{first_slot + i} * threads_ + thread];
      state.here.block = {slot.block};
      state.group = 0;
      state.entered = state.waited = false;
      if (checked_) clocks_.begin((first_slot + i) * threads_ + thread);
    }
    for (unsigned w = 0; w < warps_; ++w) {
      const unsigned index = (first_slot + i) * warps_ + w, lanes = std::min(kWarp, threads_ - w * kWarp);
      Warp& warp = warp_states_[index];
      warp.slot = first_slot + i;
      warp.first = (first_slot + i) * threads_ + w * kWarp;
      warp.waiting = 0;
      warp.live = lanes == kWarp ? ~0u : (1u << lanes) - 1;
      make_ready(index, warp.live);
    }
  }
}

void Execution::make_ready(unsigned warp, unsigned lanes) {
  Warp& state = warp_states_[warp];
  state.ready |= lanes;
  if (state.listed) return;
  state.listed = true;
  active_.push_back(warp);
}

void Execution::wake(unsigned fiber) {
  make_ready(fibers_[fiber].warp, 1u << fibers_[fiber].here.thread.x % kWarp);
}

// The warp that runs next, which has a ready lane; ~0 if no thread is ready.
unsigned Execution::pick_warp() {
  const bool stays = schedule_.order != Schedule::Order::any_lane;
  if (stays && last_warp_ != ~0u && warp_states_[last_warp_].ready != 0) return last_warp_;
  while (!active_.empty()) {
    std::size_t at = 0;
    if (schedule_.order == Schedule::Order::in_order)
      at = static_cast<std::size_t>(std::min_element(active_.begin(), active_.end()) - active_.begin());
    else
      at = random(static_cast<unsigned>(active_.size()));
    const unsigned warp = active_[at];
    if (warp_states_[warp].ready != 0) return last_warp_ = warp;
    warp_states_[warp].listed = false;
    active_[at] = active_.back();
    active_.pop_back();
  }
  return ~0u;
}

void Execution::loop() {
  while (live_ > 0 && !finding_) {
    if (expired_)
      return note(Fault::time_limit, concat({"the kernel still ran when its time was up: ", who_waits()}));
    const unsigned index = pick_warp();
    if (index == ~0u) {
      if (unblock()) continue;
      return note(Fault::deadlock, concat({"deadlock: ", who_waits()}));
    }
    Warp& warp = warp_states_[index];
    const unsigned turn = schedule_.order == Schedule::Order::in_order ? 0 : random(kWarp);
    const unsigned lane =
        (static_cast<unsigned>(std::countr_zero(std::rotr(warp.ready, static_cast<int>(turn)))) + turn) %
        kWarp;
    warp.ready &= ~(1u << lane);
    // The copy engine works at random times; in order, as late as it can.
    if (std::vector<Copy>& copies = slots_[warp.slot].copies;
        !copies.empty() && schedule_.order != Schedule::Order::in_order)
      if (const std::size_t k = random(static_cast<unsigned>(8 * copies.size()));
          k < copies.size() && copies[k].kind == Copy::Kind::bulk_load)
        finish_copy(slots_[warp.slot], k);
    run_fiber(warp.first + lane);
  }
}

// No thread is ready: wakes one whose counter another launch has changed, or finishes a copy. False:
// deadlock.
bool Execution::unblock() {
  for (std::size_t i = 0; i < waiters_.size(); ++i)
    if (waiters_[i].content_with(__atomic_load_n(waiters_[i].counter, __ATOMIC_ACQUIRE))) {
      const unsigned fiber = waiters_[i].fiber;
      waiters_.erase(waiters_.begin() + static_cast<std::ptrdiff_t>(i));
      wake(fiber);
      return true;
    }
  for (Slot& slot : slots_)
    for (std::size_t i = 0; i < slot.copies.size(); ++i)
      if (slot.copies[i].kind == Copy::Kind::bulk_load) {
        finish_copy(slot, i);
        return true;
      }
  return false;
}

void Execution::run_fiber(unsigned index) {
  running_index_ = index;
  running_ = &fibers_[index];
  in_kernel_ = 1;
  running_->fiber.run_from(main_);
  in_kernel_ = 0;
  if (signal_.number != 0) note_signal();
}

void Execution::wait_here() {
  FiberState& own = *running_;
  main_.run_from(own.fiber);
}

void Execution::fiber_main() {
  Fiber::entered();
  for (;;) {
    Execution& execution = *t_current;
    FiberState& state = *execution.running_;
    const Thread here = state.here;
    state.self = &here;
    // Blocks of a group reach each other's shared memory, so groups are ordered as a whole.
    const Slot& group = execution.slots_[state.slot / execution.group_ * execution.group_];
    order_after(&execution);
    order_after(&group);
    execution.kernel_.module->kernel(execution.kernel_.index)(execution.launch_.arguments);
    order_before(&group);
    order_before(&execution.live_);
    {
      const Inside inside(execution);
      execution.leave();
      execution.wait_here();
    }
  }
}

// Called when the running thread has left the kernel.
void Execution::leave() {
  const Unseen unseen;
  FiberState& state = *running_;
  Warp& warp = warp_states_[state.warp];
  Slot& slot = slots_[state.slot];
  const unsigned lane = 1u << this->lane();
  warp.live &= ~lane;
  --slot.live;
  --live_;
  const auto left = [&](const Barrier& barrier) {
    if (!barrier.waiting.empty()) {
      note(Fault::divergence, concat({text_of(barrier.place), ": ", running_name(),
                                      " has left the kernel, while others wait for it at this barrier"}));
      stop();
    }
  };
  left(slot.barrier);
  left(cluster_barriers_[state.slot / cluster_]);
  if (const unsigned waiting = warp.waiting; waiting != 0)
    for (unsigned i = 0; i < kWarp; ++i)
      if ((waiting >> i & 1) && (warp.lanes[i].members & lane)) {
        note(Fault::divergence, concat({text_of(warp.lanes[i].place), ": ", running_name(),
                                        " has left the kernel, while its warp waits for it"}));
        stop();
      }
  if (slot.live == 0) finish_block(state.slot);
}

void Execution::finish_block(unsigned index) {
  Slot& slot = slots_[index];
  for (std::size_t i = slot.copies.size(); i-- > 0;) {
    if (slot.copies[i].kind == Copy::Kind::bulk_load) {
      note(Fault::missing_wait,
           concat({text_of(slot.copies[i].place), ": block ", shortest(slot.block),
                   " ends while this bulk load is under way; a thread must wait for its barrier"}));
      stop();
    }
    slot.copies.erase(slot.copies.begin() + static_cast<std::ptrdiff_t>(i));  // no thread waits for it
  }
  const unsigned first = index / group_ * group_;
  for (unsigned i = first; i < first + group_; ++i)
    if (slots_[i].live > 0) return;
  start_group(first);
}

int most_threads_together() noexcept { return __tsan_create_fiber != nullptr ? 8000 : 16384; }

std::optional<Diagnosis> run(const HostKernel& kernel, const Launch& launch) {
  const auto execution = std::make_unique<Execution>(kernel, launch);
  return execution->run();
}

}  // namespace normjit::simt
