// All tiers of the cache in one: memory, the user's directory, the layers, what is part of the program.
// cache/README.md says what they are and which rules they keep.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/cache/directory.h"
#include "normjit/cache/key_lock.h"
#include "normjit/cache/memory.h"
#include "normjit/cache/tier.h"

namespace normjit {

// Thread-safe, and safe against any number of processes. The cache can cost its caller time and never a
// result: whatever is wrong is as if there were no entry.
class Cache {
 public:
  struct Settings {
    std::string directory = {};            // empty: memory only
    std::vector<std::string> layers = {};  // paths of directories and packs, searched in this order
    std::int64_t max_bytes = 0;            // of the directory; 0: no bound
    bool shared = false;                   // believe what other users own or can write
    // A pack that is part of the program, searched last, and never copied or listed; empty: none.
    std::string_view embedded = {};
    // How long to wait for another process that has the same key under way.
    std::chrono::milliseconds patience{2000};
  };
  using Warn = Directory::Warn;  // told once per kind of trouble

  Cache(Settings settings, std::shared_ptr<FileSystem> files, Warn warn);

  enum class Place { memory, directory, layer, embedded };
  struct Found {
    Entry entry;
    Place place;
    bool kept_on_disk = true;  // false: only the memory of this process has it
  };
  // Whether an entry will do; empty: every one does.
  using Accepts = std::function<bool(const Entry&)>;
  // The entry out of the first tier that has one that will do. What a layer has is copied to the directory.
  // `on_damaged` is told of each one on the way that is damaged.
  std::optional<Found> find(const std::string& identity, const Accepts& accepts = {},
                            const Warn& on_damaged = {});

  // Keeps an entry in memory, and publishes it to the directory: Directory::store. False: it is in memory
  // only; `on_refused` is told why, where there is a directory.
  bool store(const Entry& entry, bool replace = false, const Warn& on_refused = {});

  // To be held while the entry of this identity is being made, so that other processes wait for it instead of
  // making it too. After that they look again. It may be had by nobody, or by several at once: it only saves
  // work.
  KeyLock lock(const std::string& identity);

  // Every entry of the directory, then of each layer that can be read. CacheIo if the directory cannot.
  Result<std::vector<Listed>> list() const;

  // What find would find, without changing or saying anything: the entry and the tier that holds it
  // ("memory", "embedded" or a path); or if none will do, the first thing that stands at its place; or
  // absent.
  struct Look {
    std::string tier;
    Lookup lookup;
  };
  Look look(const std::string& identity, const Accepts& accepts = {}) const;

  // What has happened to find and lock so far.
  struct Counts {
    std::uint64_t damaged_entries = 0;
    std::uint64_t lock_waits = 0;
    std::chrono::nanoseconds lock_wait{0};
  };
  Counts counts() const noexcept;

  const Settings& settings() const { return settings_; }
  Directory& directory() { return directory_; }
  const std::vector<std::unique_ptr<Tier>>& layers() const { return layers_; }
  const Tier* embedded() const { return embedded_.get(); }  // null: nothing is
  const std::shared_ptr<FileSystem>& files() const { return files_; }

 private:
  enum class Trouble : unsigned { layer = 1, stalled = 2, embedded = 4 };

  const Settings settings_;
  const std::shared_ptr<FileSystem> files_;
  Memory memory_;
  Directory directory_;
  std::vector<std::unique_ptr<Tier>> layers_;
  std::unique_ptr<Tier> embedded_;
  WarnOnce<Trouble> warn_;
  std::atomic<std::uint64_t> damaged_ = 0, lock_waits_ = 0;  // damaged: of the layers and the library
  std::atomic<std::chrono::nanoseconds::rep> lock_wait_ = 0;
};

}  // namespace normjit
