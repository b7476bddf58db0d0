// SPDX-License-Identifier: Apache-2.0
#include "normjit/cache/trim.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <optional>
#include <tuple>
#include <vector>

#include "normjit/cache/atomic_file.h"
#include "normjit/cache/file_names.h"
#include "normjit/cache/key_lock.h"
#include "normjit/cache/system_call.h"

namespace normjit {
namespace {

// Entries of up to one disk block are removed last: they free little, and the tuned plans among them took
// long to measure.
constexpr std::int64_t kBlock = 4096;

struct File {
  std::string path;
  std::int64_t bytes = 0;
  struct timespec modified = {};
  bool is_entry = false;  // else a quarantined one
};

// The order of removal.
bool goes_first(const File& a, const File& b) {
  const auto key = [](const File& file) {
    return std::tuple(file.is_entry && file.bytes <= kBlock, file.modified.tv_sec, file.modified.tv_nsec,
                      file.is_entry, std::string_view(file.path));
  };
  return key(a) < key(b);
}

// The file system's time, taken from a new file: it may differ from this machine's. Nothing if no file can be
// created.
std::optional<std::int64_t> now(FileSystem& files, const std::string& directory, bool shared) {
  AtomicFile probe(files, directory, "probe", shared);
  struct stat facts = {};
  if (!probe.create() || files.fstat(probe.file(), &facts) < 0) return {};
  return facts.st_mtime;
}

// Whether a file is that old, or as far in the future (a clock was set back). In floating point, because a
// file's time can be any number.
bool is_stale(std::int64_t modified, std::int64_t present, std::int64_t stale_seconds) {
  return std::abs(static_cast<double>(present) - static_cast<double>(modified)) >=
         static_cast<double>(stale_seconds);
}

}  // namespace

Result<Trimmed> trim(FileSystem& files, const std::string& directory, const TrimLimits& limits) {
  Trimmed done;
  std::vector<std::string> names;
  if (files.list(directory.c_str(), names) < 0) {
    if (errno == ENOENT) return done;
    return io_error("list the cache directory", directory, errno);
  }
  const KeyLock alone = limits.dry_run ? KeyLock() : KeyLock::of_trimmer(files, directory, limits.shared);
  if (alone.state() == KeyLock::State::busy) {
    done.busy = true;
    return done;
  }

  const auto remove = [&](const std::string& path, std::int64_t bytes, int& count) {
    if (!limits.dry_run && files.unlink(path.c_str()) < 0 && errno != ENOENT) {
      ++done.refused;
      return false;
    }
    ++count;
    done.bytes += bytes;
    return true;
  };

  const std::optional<std::int64_t> present =
      limits.dry_run ? std::time(nullptr) : now(files, directory, limits.shared);
  std::vector<File> aging;
  std::int64_t entry_bytes = 0;
  for (const std::string& name : names) {
    const bool is_entry = !id_in(name, kEntrySuffix).empty();
    const bool is_damaged = !id_in(name, kDamagedSuffix).empty();
    const bool is_unfinished = is_temporary(name);
    if (!is_entry && !is_damaged && !is_unfinished) continue;
    const std::string path = path_to(directory, name, "");
    struct stat facts = {};
    if (files.lstat(path.c_str(), &facts) < 0) continue;  // removed meanwhile
    if (S_ISDIR(facts.st_mode)) {                         // not the cache's, and left for its owner to remove
      done.refused += is_entry && limits.max_bytes == 0;
      continue;
    }
    if (is_unfinished) {
      if (present && is_stale(facts.st_mtime, *present, limits.stale_seconds))
        remove(path, facts.st_size, done.temporaries);
    } else if (is_damaged && limits.all_damaged) {
      remove(path, facts.st_size, done.damaged);
    } else {
      aging.push_back({path, facts.st_size, facts.st_mtim, is_entry});
      done.kept += is_entry;
      entry_bytes += facts.st_size;
    }
  }

  const bool full = limits.max_bytes >= 0 && entry_bytes > limits.max_bytes;
  const std::int64_t goal = full ? limits.max_bytes - limits.max_bytes / 10 : entry_bytes;
  std::sort(aging.begin(), aging.end(), goes_first);
  for (const File& file : aging) {
    if (entry_bytes <= goal && limits.max_bytes != 0) break;  // a bound of 0 removes empty files too
    if (!remove(file.path, file.bytes, file.is_entry ? done.entries : done.damaged)) continue;
    entry_bytes -= file.bytes;
    done.kept -= file.is_entry;
  }
  done.kept_bytes = entry_bytes;
  return done;
}

}  // namespace normjit
