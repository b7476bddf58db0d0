// Which kernel serves which use: what every one-call launch looks into.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <vector>

#include "normjit/base/fork.h"
#include "normjit/service.h"
#include "normjit/service/background.h"
#include "normjit/service/launcher.h"
#include "normjit/service/prepared.h"
#include "normjit/service/use.h"

namespace normjit {

// A map that only grows. Thread-safe: readers take no lock, never wait and write nothing, so that any number
// of them cost each other nothing; writers take turns. All that was ever in it lives as long as the table,
// since a reader may be launching it. In a forked child it is whole, for a fork waits for the writer.
class KernelTable {
 public:
  // Two cache lines, which have all that a launch needs of this process.
  struct alignas(64) Record {
    Record(const UseKey& of, const Kernel& by, const Job* awaited)
        : use(of), launcher(by.prepared().launcher), kernel(by), job(awaited) {}

    // Whether the one-call form has launched the kernel with sound pointers. Never said of a fallback, which
    // is looked at anew each time.
    bool is_sound() const noexcept {
      if (sound.load(std::memory_order_relaxed)) return true;
      if (launcher.is_fallback || !kernel.prepared().pointers_checked.load(std::memory_order_relaxed))
        return false;
      sound.store(true, std::memory_order_relaxed);  // once: from then on the line is only read
      return true;
    }

    // Whether this is a fallback, and the kernel that it stands in for has been compiled.
    bool is_superseded() const noexcept {
      return launcher.is_fallback && job != nullptr && job->state == Job::State::done;
    }

    const UseKey use;
    const Launcher launcher;  // of the kernel
    const Kernel kernel;
    const Job* const job;  // of a fallback: the compile of what it stands for; null: there will be none
    mutable std::atomic<bool> sound = false;
  };
  static_assert(sizeof(Record) == 128);

  KernelTable();
  ~KernelTable();
  KernelTable(const KernelTable&) = delete;
  KernelTable& operator=(const KernelTable&) = delete;

  // The record of a use, or null. A pointer stays valid, also when another record takes its place.
  const Record* find(const UseKey& use) const noexcept {
    const std::uint64_t hash = use.hash();
    const Slots& slots = *slots_.load(std::memory_order_acquire);
    for (std::uint64_t i = hash;; ++i) {
      const Slot& slot = slots.at[i & slots.mask];
      const Record* record = slot.record.load(std::memory_order_acquire);
      if (record == nullptr) return nullptr;
      if (slot.hash.load(std::memory_order_relaxed) == hash && record->use == use) return record;
    }
  }

  // The record of a use after the kernel has been put there, unless there was one already.
  const Record& insert(const UseKey& use, const Kernel& kernel, const Job* job = nullptr) {
    return put(use, kernel, job, false);
  }
  // The record of a use after the kernel has been put there in the place of an older one. Threads that have
  // found that one may go on to launch it.
  const Record& replace(const UseKey& use, const Kernel& kernel, const Job* job = nullptr) {
    return put(use, kernel, job, true);
  }

 private:
  struct Slot {
    std::atomic<std::uint64_t> hash = 0;  // of the record's use; set before the record, and never again
    std::atomic<const Record*> record = nullptr;
  };
  // An array of a power of two of slots, at most half of them taken.
  struct Slots {
    explicit Slots(std::size_t count) : mask(count - 1), at(std::make_unique<Slot[]>(count)) {}
    const std::uint64_t mask;
    const std::unique_ptr<Slot[]> at;
  };

  const Record& put(const UseKey& use, const Kernel& kernel, const Job* job, bool in_place_of_another);
  // The slot of a use: with its record, or the free one where it belongs.
  static Slot& slot_of(const Slots& slots, const UseKey& use) noexcept;
  // Publishes an array of twice the size. The others stay, for readers may be in them.
  void grow();

  std::atomic<const Slots*> slots_;
  ForkMutex mutex_;  // of the writers, for what follows
  std::vector<std::unique_ptr<const Slots>> arrays_;
  // All records that ever were, close together: ten thousand of them would else be as many pages, which the
  // processor must look up.
  std::pmr::monotonic_buffer_resource memory_;
  std::pmr::deque<Record> records_{&memory_};
  std::size_t taken_ = 0;  // slots of the newest array
};

}  // namespace normjit
