// SPDX-License-Identifier: Apache-2.0
// A running launch. Blocks take turns in slots, as on a GPU they take turns on its multiprocessors. Each CUDA
// thread is a fiber that runs until it waits for others; the schedule then picks the next one.
//
// execution.cc has the scheduler; warps.cc, barriers.cc and copies.cc have what threads wait for; memory.cc
// checks accesses.
#pragma once

#include <csignal>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "simt/fiber.h"
#include "simt/launch.h"
#include "simt/module.h"
#include "simt/shadow.h"

namespace normjit::simt {

class Execution {
 public:
  Execution(const HostKernel& kernel, const Launch& launch);
  ~Execution();
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  // The calling thread's, or null.
  static Execution* current();

  std::optional<Diagnosis> run();

  // kernel/runtime.h, for the running fiber.
  const Thread* self() const { return running_->self; }
  void access(const void* at, std::size_t bytes, bool write, bool aligned, const void* pc);
  [[noreturn]] void misaligned(const void* at, std::size_t bytes, const void* pc);
  void* shared(const void* key, std::size_t bytes, std::size_t alignment, Place place);
  void* dynamic_shared(Place place);

  unsigned lane() const { return running_->here.thread.x % kWarp; }
  std::uint64_t shuffle(std::uint64_t bits, unsigned from, unsigned members, Place place);
  void warp_barrier(unsigned members, Place place);
  void block_barrier(Place place);

  std::uint64_t add(std::uint64_t* counter, std::uint64_t n, bool ordered, const void* pc);
  void raise(std::uint64_t* number, std::uint64_t value, const void* pc);
  void wait_until(const std::uint64_t* counter, std::uint64_t value, Place place, const void* pc);
  std::uint64_t gather(const std::uint64_t* slot, unsigned tag, Place place, const void* pc);

  void copy_async(void* to, const void* from, std::size_t bytes, const void* pc);
  void copies_commit() { ++running_->group; }
  void copies_wait(unsigned left);
  void barrier_init(std::uint64_t* barrier, int arrivals, const void* pc);
  void barriers_ready();
  void barrier_arrive(std::uint64_t* barrier, int bytes, Place place);
  void barrier_wait(std::uint64_t* barrier, unsigned parity, Place place);
  void bulk_load(void* to, const void* from, std::size_t bytes, std::uint64_t* barrier, Place place,
                 const void* pc);

  void cluster_enter(Place place);
  void cluster_entered(Place place);
  void wait_for_previous_launch() { running_->waited = true; }
  void send(void* to, const void* value, std::size_t bytes, std::uint64_t* barrier, int rank, Place place,
            const void* pc);

  // Called by the signal handler: ends the launch in the kernel's code; returns in the executor's own.
  void on_signal(int signal, const void* address, const void* pc);

 private:
  static constexpr unsigned kWarp = 32;

  struct FiberState {
    Fiber fiber;
    const Thread* self = nullptr;  // on its own stack
    Thread here{};
    unsigned slot = 0, warp = 0;
    std::uint64_t result = 0;  // of the shuffle that it waited for
    unsigned group = 0;        // of asynchronous copies, the open one
    bool entered = false;      // has called cluster_enter(), not yet cluster_entered()
    bool waited = false;       // has called wait_for_previous_launch()
  };

  enum class WarpOp : std::uint8_t { shuffle, barrier };
  struct Warp {
    unsigned slot = 0, first = 0;               // its block's slot, and the fiber of its lane 0
    unsigned live = 0, ready = 0, waiting = 0;  // lanes: not left, able to run, in a warp operation
    bool listed = false;                        // in active_
    struct Waiting {
      WarpOp op;
      unsigned members, from;
      std::uint64_t value;
      Place place;
    } lanes[kWarp];
  };

  // All threads of a block, or of a cluster, that wait for each other.
  struct Barrier {
    std::vector<Clocks::Thread> waiting;
    Place place{};
  };
  // An unfinished asynchronous copy.
  struct Copy {
    enum class Kind { async, bulk_load } kind = Kind::async;
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
    std::uint64_t* barrier = nullptr;  // arrived at when it ends; null: none
    unsigned fiber = 0, group = 0;
    Access as = {};                    // its write
    Clocks::Knowledge knowledge = {};  // handed to the threads that wait for it
    Place place = {};
  };
  struct MemoryBarrierState {
    int arrivals = 0, pending = 0;  // of each phase; missing in the current one
    std::int64_t bytes = 0;         // missing in the current phase
    unsigned phase = 0;             // parity of the current one
    bool ready = false;             // known to the copy engine
    Clocks::Knowledge knowledge;
    std::vector<unsigned> waiting;  // fibers
  };

  // A place for a block.
  struct Slot {
    std::uint32_t block = 0;
    unsigned live = 0;  // threads not left
    std::unique_ptr<std::byte[]> memory;
    std::byte* arena = nullptr;  // the block's shared memory
    Shadow shadow;
    Barrier barrier;
    std::vector<Copy> copies;
    std::map<const void*, MemoryBarrierState> memory_barriers;
  };

  struct SharedVariable {
    const void* key;
    std::size_t offset, bytes;
  };
  // A thread in wait_until or, `tagged`, in gather, for a number whose upper half is that of `value`.
  struct Waiter {
    unsigned fiber;
    const std::uint64_t* counter;
    std::uint64_t value;
    Place place;
    bool tagged = false;

    bool content_with(std::uint64_t now) const { return tagged ? now >> 32 == value >> 32 : now >= value; }
  };

  // The first fault; later ones are ignored. In the text, {0} stands for the place of pcs[0], and so on.
  struct Finding {
    Fault fault = Fault::crash;
    std::string text;
    std::vector<const void*> pcs = {};
  };

  // ---- scheduler
  std::optional<Diagnosis> refuse() const;
  bool set_up();
  void start_group(unsigned first_slot);
  void loop();
  bool unblock();
  unsigned pick_warp();
  void run_fiber(unsigned index);
  void wait_here();  // leaves the running fiber until it is woken
  void wake(unsigned fiber);
  void make_ready(unsigned warp, unsigned lanes);
  static void fiber_main();
  void leave();
  void finish_block(unsigned slot);
  unsigned random(unsigned below);

  // ---- waiting
  void resolve(unsigned warp, unsigned members);
  std::uint64_t warp_op(WarpOp op, std::uint64_t value, unsigned from, unsigned members, Place place);
  void meet(Barrier& barrier, std::size_t need, Place place, const char* what, bool ordered);
  void settle(MemoryBarrierState& barrier);
  MemoryBarrierState& memory_barrier(const std::uint64_t* barrier, Place place);
  void send_as_helper(Copy& copy);
  void* remote(void* own, int rank, Place place);
  void start_copy(Copy copy, const void* pc);
  void perform(Slot& slot, const Copy& copy);
  void finish_copy(Slot& slot, std::size_t index);
  void must_be_ready(const std::uint64_t* barrier, Place place);
  std::string who_waits() const;

  // ---- memory
  struct Region {
    Shadow* shadow;  // null: not tracked
    const Buffer* buffer;
    bool foreign;  // another block's shared memory
    bool found;
  };
  Region region_of(const void* at, std::size_t bytes);
  void examine(const void* at, std::size_t bytes, const Access& access);
  std::optional<Finding> objection(const Region& region, const void* at, std::size_t bytes,
                                   const Access& access);
  Finding outside(const void* at, std::size_t bytes, const Access& access) const;
  void look_at_counter(const std::uint64_t* counter, bool write, const void* pc);
  Access access_now(bool write, const void* pc) const;
  std::string name_of(const void* at, const Region& region) const;

  // ---- faults
  void note(Fault fault, std::string text, std::vector<const void*> pcs = {});
  // Leaves the running fiber for good, and with it the launch. Its stack is not unwound: no object that owns
  // memory may be alive on it.
  [[noreturn]] void stop();
  void note_signal();
  std::string thread_name(Clocks::Thread fiber) const;  // "block 2, thread 37"
  std::string running_name() const { return thread_name(running_index_); }
  static std::string text_of(Place place);
  static bool same(Place a, Place b) { return a.line == b.line && std::string_view(a.file) == b.file; }

  const HostKernel kernel_;
  const Launch launch_;
  const Schedule schedule_;
  const bool checked_;
  const unsigned threads_, warps_, cluster_;  // of a block; blocks of a cluster
  const unsigned group_;                      // blocks, and slots, that begin and end together
  unsigned slots_count_ = 1;

  std::vector<FiberState> fibers_;
  std::vector<Warp> warp_states_;
  std::vector<Slot> slots_;
  std::vector<Barrier> cluster_barriers_;
  std::vector<Waiter> waiters_;
  std::vector<unsigned> active_;  // warps that may have a ready lane
  std::vector<SharedVariable> variables_;
  std::size_t shared_used_ = 0;
  std::uint64_t first_group_ = 0, next_group_ = 0, groups_ = 0;  // of the grid, to start next, to run
  unsigned live_ = 0;

  Fiber main_;
  FiberState* running_ = nullptr;
  unsigned running_index_ = 0;
  unsigned last_warp_ = ~0u;
  std::uint64_t random_;
  volatile std::sig_atomic_t in_kernel_ = 0, expired_ = 0;

  Clocks clocks_;
  std::vector<std::unique_ptr<Shadow>> buffer_shadows_;  // null for inputs
  // The newest arrivals at each counter, with the count after each.
  struct Arrival {
    std::uint64_t count;
    Clocks::Knowledge knowledge;  // its own and that of all before it
  };
  std::unordered_map<const void*, std::deque<Arrival>> published_;

  struct Signal {
    int number = 0;  // 0: none
    const void* address = nullptr;
    const void* pc = nullptr;
  };
  Signal signal_;  // that ended a fiber
  std::optional<Finding> finding_;

  friend class Inside;
};

// A scope in which the executor's own code runs on a fiber: a signal must not end the launch there.
class Inside {
 public:
  explicit Inside(Execution& execution) : execution_(execution), before_(execution.in_kernel_) {
    execution_.in_kernel_ = 0;
  }
  ~Inside() { execution_.in_kernel_ = before_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Execution& execution_;
  const std::sig_atomic_t before_;
};

}  // namespace normjit::simt
