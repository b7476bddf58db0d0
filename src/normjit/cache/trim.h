// SPDX-License-Identifier: Apache-2.0
// Keeps a cache directory within its bound.
#pragma once

#include <cstdint>
#include <string>

#include "normjit/cache/file_system.h"
#include "normjit/result.h"

namespace normjit {

struct TrimLimits {
  // Above it the oldest entries are removed until 90 % of it are left; 0: all are removed; -1: no bound.
  std::int64_t max_bytes = -1;
  // Temporaries this old, or this far in the future (a clock was set back), are a killed process's.
  std::int64_t stale_seconds = 600;
  bool all_damaged = false;  // remove every quarantined file; else by age, like entries
  bool dry_run = false;      // only count
  bool shared = false;       // as in DirectoryRules
};

struct Trimmed {
  int entries = 0, damaged = 0, temporaries = 0;  // removed
  std::int64_t bytes = 0;                         // of all these
  int kept = 0;                                   // entries left
  std::int64_t kept_bytes = 0;                    // of those
  int refused = 0;                                // could not be removed
  bool busy = false;                              // another process is trimming: nothing was done
};

// One process trims at a time; others read and publish meanwhile. Age is by the file system's own clock; if
// that jumps, other entries are removed first. CacheIo if the directory cannot be listed; a missing one is
// empty.
Result<Trimmed> trim(FileSystem& files, const std::string& directory, const TrimLimits& limits);

}  // namespace normjit
