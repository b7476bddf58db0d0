// SPDX-License-Identifier: Apache-2.0
// A pack that is fetched from a URL, once for all processes that share a cache directory, and is a layer from
// then on. docs/fleets.md describes it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "normjit/cache/file_system.h"
#include "normjit/cache/key_lock.h"
#include "normjit/cache/tier.h"
#include "normjit/cache/warn_once.h"
#include "normjit/remote/breaker.h"
#include "normjit/remote/sessions.h"

namespace normjit {

// Thread-safe, and safe for a forked child. Every fault costs time within the limits below, never the result.
class RemotePack {
 public:
  struct Limits {
    std::chrono::milliseconds fetch{3000};    // of the pack; as much again of its signature
    std::chrono::milliseconds pause{60'000};  // between two fetches, whatever came of the first
  };
  struct Settings {
    std::string url;
    std::vector<std::string> trust = {};  // public keys, or files with one
    bool unsigned_values = false;         // takes a pack without a signature
    std::string directory = {};           // the cache directory, which keeps the pack
    bool shared = false;                  // as of the cache directory
    Limits limits = {};
  };
  // As fetch_file (sessions.h).
  using Fetch =
      std::function<Outcome(const std::string& url, const std::string& version, std::size_t max_bytes,
                            std::chrono::milliseconds limit, std::string& bytes, std::string& new_version)>;
  // Touches nothing. `warn` is called once per kind of trouble.
  RemotePack(Settings settings, std::shared_ptr<FileSystem> files, Warn warn, Fetch fetch = fetch_file);

  // What was fetched last, also by other processes. Has no entries before, and none without a cache
  // directory.
  const std::shared_ptr<const Tier>& layer() const { return layer_; }
  // On the way to a compile: fetches the pack if it is new, unless a process has tried that less than a pause
  // ago; waits for one that does.
  void refresh() noexcept;
  // Counts what refresh() has done or seen: if it is another number than before, so may be the layer.
  std::uint64_t changes() const noexcept { return changes_; }
  // Whether refresh() may do anything.
  bool is_due() const noexcept { return Clock::now().time_since_epoch().count() >= next_; }
  // The same at once: why there is no pack, or an older one.
  Result<void> fetch();
  std::string shown() const;  // the URL without user, password and query

 private:
  using Clock = std::chrono::steady_clock;
  enum class Trouble { failed, untrusted };

  bool is_signed() const { return !settings_.unsigned_values; }
  Result<void> usable() const;
  KeyLock lock() const;
  Result<void> fetch_now();
  Result<void> keep(const std::string& pack, const std::string& signature, const std::string& version) const;
  std::string version() const;
  void pause_for(std::chrono::milliseconds time) noexcept {
    next_ = (Clock::now() + time).time_since_epoch().count();
  }

  const Settings settings_;
  const std::shared_ptr<FileSystem> files_;
  const Fetch fetch_;
  const std::string id_;
  // Shut for a pause after each fetch, whatever came of it, for all processes.
  Breaker fetched_;
  std::atomic<Clock::rep> next_ = 0;  // when to look at that again
  std::atomic<std::uint64_t> changes_ = 0;
  WarnOnce<Trouble> warn_;
  std::shared_ptr<const Tier> layer_;
};

}  // namespace normjit
