// The first tier: the entries that this process made itself, so that it never reads them back.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "normjit/base/fork.h"
#include "normjit/cache/entry.h"

namespace normjit {

// Thread-safe.
class Memory {
 public:
  struct Kept {
    Entry entry;
    bool only_here;  // not in the directory
  };
  std::optional<Kept> find(const std::string& identity) const;
  // Keeps an entry, in place of an older one of its identity. `only_here` entries stay for good; of the
  // others the newest kSpareBytes stay.
  void keep(const Entry& entry, bool only_here);

 private:
  static constexpr std::size_t kSpareBytes = std::size_t{16} << 20;

  mutable ForkMutex mutex_;
  std::map<std::string, Kept> kept_;  // by identity
  std::deque<std::string> spare_;     // identities that are on disk too, the oldest first
  std::size_t spare_bytes_ = 0;       // of their bodies
};

}  // namespace normjit
