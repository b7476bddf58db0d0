// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/kernel_table.h"

#include <mutex>

namespace normjit {

KernelTable::KernelTable() {
  constexpr std::size_t kFirstSlots = 64;
  arrays_.push_back(std::make_unique<const Slots>(kFirstSlots));
  slots_.store(arrays_.back().get(), std::memory_order_release);
}

KernelTable::~KernelTable() = default;

KernelTable::Slot& KernelTable::slot_of(const Slots& slots, const UseKey& use) noexcept {
  for (std::uint64_t i = use.hash();; ++i) {
    Slot& slot = slots.at[i & slots.mask];
    const Record* record = slot.record.load(std::memory_order_relaxed);
    if (record == nullptr || record->use == use) return slot;
  }
}

const KernelTable::Record& KernelTable::put(const UseKey& use, const Kernel& kernel, const Job* job,
                                            bool in_place_of_another) {
  const std::lock_guard lock(mutex_);
  Slot* slot = &slot_of(*arrays_.back(), use);
  const Record* old = slot->record.load(std::memory_order_relaxed);
  if (old != nullptr && !in_place_of_another) return *old;
  if (old == nullptr && 2 * (taken_ + 1) > arrays_.back()->mask + 1) {
    grow();
    slot = &slot_of(*arrays_.back(), use);
  }
  const Record& record = records_.emplace_back(use, kernel, job);
  taken_ += old == nullptr;
  slot->hash.store(use.hash(), std::memory_order_relaxed);
  slot->record.store(&record, std::memory_order_release);
  return record;
}

void KernelTable::grow() {
  const Slots& old = *arrays_.back();
  auto bigger = std::make_unique<const Slots>(2 * (old.mask + 1));
  for (std::uint64_t i = 0; i <= old.mask; ++i) {
    const Record* record = old.at[i].record.load(std::memory_order_relaxed);
    if (record == nullptr) continue;
    Slot& slot = slot_of(*bigger, record->use);
    slot.hash.store(record->use.hash(), std::memory_order_relaxed);
    slot.record.store(record, std::memory_order_relaxed);
  }
  arrays_.push_back(std::move(bigger));
  slots_.store(arrays_.back().get(), std::memory_order_release);
}

}  // namespace normjit
