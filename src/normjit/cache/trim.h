// Keeps a cache directory within bounds.
#pragma once

#include <cstdint>
#include <string>

#include "normjit/cache/file_system.h"
#include "normjit/result.h"

namespace normjit {

struct TrimLimits {
  // Once the entries take more, the oldest go until they take 90 % of it; 0: all go; -1: no bound.
  std::int64_t max_bytes = -1;
  // A temporary so old was left by a process that was killed; or so far in the future: a clock was set back.
  std::int64_t stale_seconds = 600;
  bool all_damaged = false;  // remove all that was moved aside; else only with the entries of its age
  bool dry_run = false;      // only count
  bool shared = false;       // as of DirectoryRules
};

struct Trimmed {
  int entries = 0, damaged = 0, temporaries = 0;  // removed
  std::int64_t bytes = 0;                         // of all these
  int kept = 0;                                   // entries, and their
  std::int64_t kept_bytes = 0;                    // bytes
  int refused = 0;                                // could not be removed
  bool busy = false;                              // another process is at it: nothing was done
};

// One process at a time; entries may be read and published meanwhile. Which files are old, the times of the
// file system say, all of one clock; if that jumps, another entry goes first. CacheIo if the directory cannot
// be listed; a missing one is empty.
Result<Trimmed> trim(FileSystem& files, const std::string& directory, const TrimLimits& limits);

}  // namespace normjit
