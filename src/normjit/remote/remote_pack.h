// SPDX-License-Identifier: Apache-2.0
// A pack that is fetched from a URL, once for all processes that share a cache directory, and is a layer from
// then on. docs/fleets.md describes it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "normjit/cache/file_system.h"
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
    std::size_t bytes = std::size_t{256} << 20;
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

  // What was fetched last, also by other processes. Has no entries before.
  const std::shared_ptr<const Tier>& layer() const { return layer_; }
  // On the way to a compile: fetches the pack if it is new, unless that was tried less than a pause ago.
  // Returns after a fetch by another process, too.
  void refresh() noexcept;
  // The same now: why there is no pack, or an older one.
  Result<void> fetch();
  std::string shown() const;  // the URL without user, password and query

 private:
  enum class Trouble { failed, untrusted };

  // Whether the pack is believed that is signed like this. `signature` may be empty.
  Result<void> check(const std::string& bytes, const std::string& signature) const;
  Result<std::string> fetch_signature() const;
  Result<void> publish(std::string_view suffix, const std::string& bytes) const;
  std::string version() const;

  const Settings settings_;
  const std::shared_ptr<FileSystem> files_;
  const Fetch fetch_;
  const std::string id_;
  // Shut for a pause after each fetch, whatever came of it.
  Breaker fetched_;
  WarnOnce<Trouble> warn_;
  std::shared_ptr<const Tier> layer_;
};

}  // namespace normjit
