// Bytes under a key, on disk: a directory of self-verifying files, one per entry. Knows nothing of kernels;
// cache/README.md documents the format, the key and the rules.
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
  std::int64_t max_bytes = 0;  // more than this is trimmed, the oldest first; 0: no bound
  bool shared = false;         // with other users: believe what they own or can write, let them publish
  bool must_exist = false;     // a list of what is not there is an error, and not empty
};

// Thread-safe, and safe against any number of processes on the same directory. It holds no lock and keeps
// nothing in memory: a child forked at any moment can use it.
class Directory final : public Tier {
 public:
  // Told once per kind of trouble and Directory: an entry cannot be read, is damaged, is misnamed, is not to
  // be trusted, cannot be stored; the directory is full. Called on the thread that met the trouble; may be
  // empty.
  using Warn = normjit::Warn;

  // An empty path is a directory that stores nothing and finds nothing. Touches no file.
  Directory(std::string path, std::shared_ptr<FileSystem> files, Warn warn, DirectoryRules rules = {});

  const std::string& path() const override { return path_; }
  Lookup look(const std::string& identity) const override;
  // Files without an entry's name (temporaries, files moved aside, the user's own) are left out.
  Result<std::vector<Listed>> list() const override;

  // The entry, or nothing: absent, unreadable, untrusted, damaged (then it is moved aside) or of another
  // identity. Never fails. A hit reads one file and writes none. `entry` is changed by a hit only.
  // `on_damaged` is told of a damaged one, each time.
  bool find(const std::string& identity, Entry& entry, const Warn& on_damaged = {});

  // Publishes an entry: complete before visible, and the first of several publishers wins. Best effort: false
  // says that the directory did not take it (a warning has been given, and `on_refused` told why; or there is
  // no directory), and harms nobody. `replace` puts it in the place of a present one: a kernel that the
  // driver refused, an older tuned plan.
  bool store(const Entry& entry, bool replace = false, const Warn& on_refused = {});
  // Publishes what stands elsewhere too: without waiting for the disk, and without a warning. Errors:
  // CacheIo.
  Result<void> fill(const Entry& entry);

  // Moves an entry out of the way, as find does with a damaged one. False if it could not be moved.
  bool set_aside(const std::string& id);

  // Ok if the directory takes files, or there is none to take them. Tries it out: makes the directory if it
  // is missing, and in it a temporary file that it removes again. Errors: CacheIo.
  Result<void> probe() const;

  // Damaged entries that find has met.
  std::uint64_t damaged() const noexcept { return damaged_; }

 private:
  enum class Trouble : unsigned {
    unreadable = 1,
    damaged = 2,
    misnamed = 4,
    unstored = 8,
    untrusted = 16,
    full = 32
  };

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
