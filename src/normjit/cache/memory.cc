#include "normjit/cache/memory.h"

namespace normjit {

std::optional<Memory::Kept> Memory::find(const std::string& identity) const {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(identity);
  if (found == kept_.end()) return {};
  return found->second;
}

void Memory::keep(const Entry& entry, bool only_here) {
  const std::lock_guard lock(mutex_);
  if (const auto old = kept_.find(entry.identity); old != kept_.end()) {
    if (!old->second.only_here) {
      spare_bytes_ -= old->second.entry.body.size();
      std::erase(spare_, entry.identity);
    }
    kept_.erase(old);
  }
  kept_.emplace(entry.identity, Kept{entry, only_here});
  if (only_here) return;
  spare_.push_back(entry.identity);
  spare_bytes_ += entry.body.size();
  while (spare_bytes_ > kSpareBytes) {
    const auto oldest = kept_.find(spare_.front());
    spare_bytes_ -= oldest->second.entry.body.size();
    kept_.erase(oldest);
    spare_.pop_front();
  }
}

}  // namespace normjit
