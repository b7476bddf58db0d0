// SPDX-License-Identifier: Apache-2.0
// The tier on disk: a directory of self-verifying files, one per entry. cache/README.md documents the format,
// the key and the rules.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/cache/tier.h"
#include "normjit/cache/warn_once.h"

namespace normjit {

struct DirectoryRules {
  std::int64_t max_bytes = 0;  // above it the oldest entries are removed; 0: no bound
  bool shared = false;         // trust files that other users own or can write, and let them publish
  bool must_exist = false;     // list() of a missing directory is an error; else it is empty
};

// Safe for any number of threads and processes. It holds no lock and no state: a child forked at any moment
// can use it.
class Directory final : public Tier {
 public:
  // Touches no file. With an empty path it stores and finds nothing. `warn` is called once per Directory and
  // kind of trouble: an entry is unreadable, damaged, misnamed, untrusted or cannot be stored; the directory
  // is full.
  Directory(std::string path, std::shared_ptr<FileSystem> files, Warn warn, DirectoryRules rules = {});

  const std::string& path() const override { return path_; }
  Lookup look(const std::string& identity) const override;
  // Leaves out files whose name is no entry's: temporaries, quarantined files, the user's own.
  Result<std::vector<Listed>> list() const override;

  // True on a hit, which sets `entry`, reads one file and writes none. False: the entry is absent,
  // unreadable, untrusted, of another identity, or damaged; a damaged one is quarantined, and `on_damaged` is
  // called each time.
  bool find(const std::string& identity, Entry& entry, const Warn& on_damaged = {});

  // Publishes an entry: complete before visible, and the first of several publishers wins. `replace`: the
  // last one wins, for a kernel that the driver refused or an older tuned plan. Best effort. False: there is
  // no directory, or the entry was not stored; then a warning was given and `on_refused` called.
  bool store(const Entry& entry, bool replace = false, const Warn& on_refused = {});
  // Publishes a copy of another tier's entry: without fsync, without a warning. Errors: CacheIo.
  Result<void> fill(const Entry& entry);

  // Quarantines an entry, as find does with a damaged one. False if it could not be renamed.
  bool set_aside(const std::string& id);

  // Whether files can be created: makes the directory if it is missing, creates a temporary file and removes
  // it. Ok with an empty path. Errors: CacheIo.
  Result<void> probe() const;

  // How many damaged entries find has found.
  std::uint64_t damaged() const noexcept { return damaged_; }

 private:
  enum class Trouble { unreadable, damaged, misnamed, unstored, untrusted, full };

  bool clear_the_name(const std::string& identity);
  Result<void> publish(const Entry& entry, bool replace, bool flush);
  void trim_if_due(const std::string& id, std::int64_t bytes);

  const std::string path_;
  const std::shared_ptr<FileSystem> files_;
  const DirectoryRules rules_;
  WarnOnce<Trouble> warn_;
  std::atomic<std::uint64_t> damaged_ = 0;
};

}  // namespace normjit
