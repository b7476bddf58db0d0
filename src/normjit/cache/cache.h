// Bytes under a key, on disk: one self-verifying file per entry. Knows nothing of kernels; cache/README.md
// documents the format, the key and the rules.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/cache/entry.h"
#include "normjit/cache/file_system.h"
#include "normjit/result.h"

namespace normjit {

// One directory of entries. Thread-safe, and safe against any number of processes on the same directory. It
// holds no lock and keeps nothing in memory: a child forked at any moment can use it.
class Cache {
 public:
  // Told once per kind of trouble and Cache: an entry cannot be read, is damaged, is misnamed, cannot be
  // stored. Called on the thread that met the trouble; may be empty.
  using Warn = std::function<void(std::string_view)>;

  // An empty directory name is a cache that stores nothing and finds nothing. Touches no file.
  Cache(std::string directory, std::shared_ptr<FileSystem> files, Warn warn);

  // The entry, or nothing: absent, unreadable, damaged (then it is moved aside) or of another identity. Never
  // fails. A hit reads one file and writes none. `entry` is changed by a hit only.
  bool find(const std::string& identity, Entry& entry);

  // Publishes an entry: complete before visible, and the first of several publishers wins. Best effort: false
  // says that the directory did not take it (a warning has been given, or there is no directory), and harms
  // nobody. `replace` puts it in the place of a present one: a kernel that the
  // driver refused, an older tuned plan.
  bool store(const Entry& entry, bool replace = false);

  // Every entry file, by id, damaged and misnamed ones included, as errors. What has no entry's name
  // (temporaries, files moved aside, the user's own) is left out. CacheIo if the directory exists and cannot
  // be read.
  struct Listed {
    std::string id;
    std::int64_t bytes = 0;  // of the file; 0 where not even that is known
    Result<Entry> entry;
  };
  Result<std::vector<Listed>> list() const;

  // Ok if the directory takes files, or there is none to take them. Tries it out: makes the directory if it
  // is missing, and in it a temporary file that it removes again. Errors: CacheIo.
  Result<void> probe() const;

 private:
  enum class Trouble : unsigned { unreadable = 1, damaged = 2, misnamed = 4, unstored = 8 };

  void set_aside(const std::string& id, const std::string& reason);
  void warn(Trouble trouble, const std::string& message);

  std::string directory_;
  std::shared_ptr<FileSystem> files_;
  Warn warn_;
  std::atomic<unsigned> warned_{0};  // the Troubles already told
};

}  // namespace normjit
