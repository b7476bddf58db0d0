// SPDX-License-Identifier: Apache-2.0
// Which kernel serves which use: every one-call launch looks its kernel up here.
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
#include "normjit/service/prepared.h"
#include "normjit/service/use.h"

namespace normjit {

// A map that only grows. Thread-safe: readers take no lock, never wait and write nothing, so they do not slow
// each other down; writers take turns. Records live as long as the table, since a reader may be launching
// one. A fork waits for the writer, so a forked child has a consistent table.
class KernelTable {
 public:
  // Two cache lines with all that a launch needs of this process.
  struct alignas(64) Record {
    Record(const UseKey& of, const Kernel& by, const Job* awaited)
        : use(of), launcher(by.prepared().launcher), kernel(by), job(awaited) {}

    // Whether the one-call form has launched the kernel with checked pointers. Always false for a fallback,
    // which may be superseded.
    bool is_sound() const noexcept {
      if (sound.load(std::memory_order_relaxed)) return true;
      if (launcher.is_fallback || !kernel.prepared().pointers_checked.load(std::memory_order_relaxed))
        return false;
      sound.store(true, std::memory_order_relaxed);  // once: later calls only read the line
      return true;
    }

    const UseKey use;
    const Launcher launcher;  // of the kernel
    const Kernel kernel;
    const Job* const job;  // of a fallback: the compile of the kernel that it replaces; null: there is none
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

  // Adds a record unless the use has one. Returns the use's record.
  const Record& insert(const UseKey& use, const Kernel& kernel, const Job* job = nullptr) {
    return put(use, kernel, job, false);
  }
  // Adds a record, or replaces the use's older one, which threads that have found it may still launch.
  // Returns the new record.
  const Record& replace(const UseKey& use, const Kernel& kernel, const Job* job = nullptr) {
    return put(use, kernel, job, true);
  }

 private:
  struct Slot {
    std::atomic<std::uint64_t> hash = 0;  // of the record's use; set before the record, and never again
    std::atomic<const Record*> record = nullptr;
  };
  // A power of two of slots, of which at most half are taken.
  struct Slots {
    explicit Slots(std::size_t count) : mask(count - 1), at(std::make_unique<Slot[]>(count)) {}
    const std::uint64_t mask;
    const std::unique_ptr<Slot[]> at;
  };

  const Record& put(const UseKey& use, const Kernel& kernel, const Job* job, bool in_place_of_another);
  // The slot of a use: with its record, or the free one where it belongs.
  static Slot& slot_of(const Slots& slots, const UseKey& use) noexcept;
  // Publishes an array of twice the size. Readers may be in the older ones, which stay.
  void grow();

  std::atomic<const Slots*> slots_;
  ForkMutex mutex_;  // of the writers: guards the members below
  std::vector<std::unique_ptr<const Slots>> arrays_;
  // All records, close together: ten thousand of them on pages of their own would need as many TLB entries.
  std::pmr::monotonic_buffer_resource memory_;
  std::pmr::deque<Record> records_{&memory_};
  std::size_t taken_ = 0;  // slots of the newest array
};

}  // namespace normjit
