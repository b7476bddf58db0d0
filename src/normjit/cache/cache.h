// SPDX-License-Identifier: Apache-2.0
// All tiers of the cache in one: memory, the user's directory, the layers, the embedded pack.
// cache/README.md describes the tiers and their rules.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/base/fork.h"
#include "normjit/cache/directory.h"
#include "normjit/cache/key_lock.h"
#include "normjit/cache/tier.h"

namespace normjit {

// The first tier: the entries that this process made itself, so that it never reads them back. Thread-safe.
class Memory {
 public:
  struct Kept {
    Entry entry;
    bool only_here;  // not in the directory
  };
  std::optional<Kept> find(const std::string& identity) const;
  // Keeps an entry, and replaces an older one of its identity. `only_here` entries stay for good; of the
  // others the newest kSpareBytes stay.
  void keep(const Entry& entry, bool only_here);

 private:
  static constexpr std::size_t kSpareBytes = std::size_t{16} << 20;

  mutable ForkMutex mutex_;
  std::map<std::string, Kept> kept_;  // by identity
  std::deque<std::string> spare_;     // identities that are on disk too, the oldest first
  std::size_t spare_bytes_ = 0;       // of their bodies
};

// Safe for any number of threads and processes. Every fault of the cache counts as a miss: it costs the
// caller time, never the result.
class Cache {
 public:
  struct Settings {
    std::string directory = {};            // empty: memory only
    std::vector<std::string> layers = {};  // paths of directories and packs, searched in this order
    std::int64_t max_bytes = 0;            // of the directory; 0: no bound
    bool shared = false;                   // trust files that other users own or can write
    Believes believes = {};                // of packs among the layers; empty: all are
    // A pack that is part of the program: searched last, never copied or listed; empty: none.
    std::string_view embedded = {};
    // How long to wait for another process that holds the lock of the same key; KeyLock::kSlowFactor times as
    // long for one that runs.
    std::chrono::milliseconds patience{2000};
  };
  // `warn` is called once per kind of trouble.
  Cache(Settings settings, std::shared_ptr<FileSystem> files, Warn warn);

  enum class Place { memory, directory, layer, embedded };
  struct Found {
    Entry entry;
    Place place;
    bool kept_on_disk = true;  // false: only the memory of this process has it
  };
  // Whether the caller can use an entry; empty: it can use every one.
  using Accepts = std::function<bool(const Entry&)>;
  // The first accepted entry, in the order of the tiers. An entry of a layer is copied to the directory.
  // `on_damaged` is called for each damaged entry found before it.
  std::optional<Found> find(const std::string& identity, const Accepts& accepts = {},
                            const Warn& on_damaged = {});

  // Adds a layer behind the others, from the next find on. The bytes of a pack become "memory layer N", or
  // are CacheIo, and nothing changes, if they have no valid index.
  void add_layer(std::shared_ptr<const Tier> layer);
  Result<void> add_layer(std::string pack);

  // Keeps an entry in memory, and publishes it to the directory (Directory::store). False: it is in memory
  // only; if there is a directory, `on_refused` is called with the reason.
  bool store(const Entry& entry, bool replace = false, const Warn& on_refused = {});

  // Keeps an entry that another machine made: as a copy in the directory, with `replace` in the place of an
  // older one, else in memory. False: in memory only.
  bool take_over(const Entry& entry, bool replace = false);

  // The lock to hold while making the entry of this identity: other processes wait for it, then look again.
  // It only saves work: it may be unavailable, and after `patience` a waiting process goes on without it.
  // `on_wait` is called once before it waits.
  KeyLock lock(const std::string& identity, const std::function<void()>& on_wait = {});

  // Every entry of the directory, then of each readable layer. CacheIo if the directory cannot be read.
  Result<std::vector<Listed>> list() const;

  // What find would return, without side effects: the accepted entry and its tier ("memory", "embedded" or a
  // path); else the first tier's lookup that is not absent; else absent.
  struct Look {
    std::string tier;
    Lookup lookup;
  };
  Look look(const std::string& identity, const Accepts& accepts = {}) const;

  // Damaged entries that were found so far.
  std::uint64_t damaged_entries() const noexcept { return damaged_ + directory_.damaged(); }

  const Settings& settings() const { return settings_; }
  Directory& directory() { return directory_; }
  // In the order in which they are searched. A layer that is added later does not change the list that was
  // returned.
  using Layers = std::vector<std::shared_ptr<const Tier>>;
  std::shared_ptr<const Layers> layers() const;
  const Tier* embedded() const { return embedded_.get(); }  // null: no pack is embedded
  const std::shared_ptr<FileSystem>& files() const { return files_; }

 private:
  enum class Trouble { layer, stalled, embedded };

  // The entry of one of the read-only tiers, if it is accepted.
  std::optional<Entry> find_in(const Tier& tier, const std::string& identity, const Accepts& accepts,
                               const Warn& on_damaged);

  const Settings settings_;
  const std::shared_ptr<FileSystem> files_;
  Memory memory_;
  Directory directory_;
  mutable ForkMutex mutex_;  // of layers_; never held while a tier is asked
  std::shared_ptr<const Layers> layers_;
  std::atomic<int> memory_layers_ = 0;  // that have a number
  std::unique_ptr<Tier> embedded_;
  WarnOnce<Trouble> warn_;
  std::atomic<std::uint64_t> damaged_ = 0;  // outside the directory
};

}  // namespace normjit
