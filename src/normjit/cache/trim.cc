#include "normjit/cache/trim.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <tuple>
#include <vector>

#include "normjit/cache/atomic_file.h"
#include "normjit/cache/file_names.h"
#include "normjit/cache/key_lock.h"
#include "normjit/cache/system_call.h"

namespace normjit {
namespace {

// Removing a file of one block frees nothing to speak of, and a tuned plan, which is as small, took long to
// measure: such entries are the last to go.
constexpr std::int64_t kBlock = 4096;

struct File {
  std::string path;
  std::int64_t bytes = 0;
  std::int64_t modified = 0;
  bool is_entry = false;  // else one that was moved aside
};

// In the order in which they go.
bool goes_first(const File& a, const File& b) {
  const auto key = [](const File& file) {
    return std::tuple(file.is_entry && file.bytes <= kBlock, file.modified, std::string_view(file.path));
  };
  return key(a) < key(b);
}

// What the file system takes for the present; nothing if that cannot be had. Our own clock may be another.
std::optional<std::int64_t> now(FileSystem& files, const std::string& directory, bool shared) {
  AtomicFile probe(files, directory, "probe", shared);
  struct stat facts = {};
  if (!probe.create() || files.fstat(probe.file(), &facts) < 0) return {};
  return facts.st_mtime;
}

}  // namespace

Result<Trimmed> trim(FileSystem& files, const std::string& directory, const TrimLimits& limits) {
  Trimmed done;
  std::vector<std::string> names;
  if (files.list(directory.c_str(), names) < 0) {
    if (errno == ENOENT) return done;
    return io_error("list the cache directory", directory, errno);
  }
  const KeyLock alone = KeyLock::of_trimmer(files, directory, limits.shared);
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

  const std::optional<std::int64_t> present = now(files, directory, limits.shared);
  std::vector<File> aging;
  std::int64_t entry_bytes = 0;
  for (const std::string& name : names) {
    const bool is_entry = !id_in(name, kEntrySuffix).empty();
    const bool is_damaged = !id_in(name, kDamagedSuffix).empty();
    const bool is_temporary = name.ends_with(kTemporarySuffix);
    if (!is_entry && !is_damaged && !is_temporary) continue;
    const std::string path = path_to(directory, name, "");
    struct stat facts = {};
    if (files.lstat(path.c_str(), &facts) < 0 || S_ISDIR(facts.st_mode)) continue;  // gone, or not ours
    if (is_temporary) {
      if (present && *present - facts.st_mtime >= limits.stale_seconds)
        remove(path, facts.st_size, done.temporaries);
    } else if (is_damaged && limits.all_damaged) {
      remove(path, facts.st_size, done.damaged);
    } else {
      aging.push_back({path, facts.st_size, facts.st_mtime, is_entry});
      done.kept += is_entry;
      entry_bytes += facts.st_size;
    }
  }

  const bool full = limits.max_bytes >= 0 && entry_bytes > limits.max_bytes;
  const std::int64_t goal = full ? limits.max_bytes - limits.max_bytes / 10 : entry_bytes;
  std::sort(aging.begin(), aging.end(), goes_first);
  for (const File& file : aging) {
    if (entry_bytes <= goal) break;
    if (!remove(file.path, file.bytes, file.is_entry ? done.entries : done.damaged)) continue;
    entry_bytes -= file.bytes;
    done.kept -= file.is_entry;
  }
  done.kept_bytes = entry_bytes;
  return done;
}

}  // namespace normjit
