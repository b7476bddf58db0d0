#include "normjit/cache/directory.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "normjit/cache/atomic_file.h"
#include "normjit/cache/file_names.h"
#include "normjit/cache/key_lock.h"
#include "normjit/cache/read_file.h"
#include "normjit/cache/system_call.h"
#include "normjit/cache/trim.h"

namespace normjit {

using Kind = Lookup::Kind;

namespace {

// How a file that was not read is reported.
Kind kind_of(FileContent::Outcome outcome) {
  switch (outcome) {
    case FileContent::Outcome::absent:
      return Kind::absent;
    case FileContent::Outcome::untrusted:
      return Kind::untrusted;
    case FileContent::Outcome::unreadable:
      return Kind::unreadable;
    default:
      return Kind::damaged;
  }
}

}  // namespace

Directory::Directory(std::string path, std::shared_ptr<FileSystem> files, Warn warn, DirectoryRules rules)
    : path_(std::move(path)), files_(std::move(files)), rules_(rules), warn_(std::move(warn)) {}

Lookup Directory::look(const std::string& identity) const {
  if (path_.empty()) return {};
  const std::string path = path_to(path_, entry_id(identity), kEntrySuffix);
  FileContent file = read_file(*files_, path, kMaxEntryBytes, rules_.shared);
  if (file.outcome == FileContent::Outcome::read) return verify(std::move(file.bytes), identity, path);
  return {.kind = kind_of(file.outcome), .error = std::move(file.error)};
}

bool Directory::find(const std::string& identity, Entry& entry, const Warn& on_damaged) {
  Lookup found = look(identity);
  switch (found.kind) {
    case Kind::entry:
      entry = std::move(found.entry);
      return true;
    case Kind::absent:
      break;
    case Kind::other:
      warn_(Trouble::misnamed,
            found.error + " and stays as it is; while it is there, the entry of this name cannot be stored");
      break;
    case Kind::damaged:
      ++damaged_;
      if (on_damaged) on_damaged(found.error);
      warn_(Trouble::damaged,
            found.error + "; it is made anew" +
                (clear_the_name(identity)
                     ? ", and the old file kept as " + path_to(path_, entry_id(identity), kDamagedSuffix)
                     : ""));
      break;
    case Kind::untrusted:
      warn_(Trouble::untrusted, found.error +
                                    " and is not used; make this user or root its owner and take its write "
                                    "permission from others, or "
                                    "trust every file of a shared cache with NORMJIT_CACHE_SHARED=1");
      break;
    case Kind::unreadable:
      warn_(Trouble::unreadable,
            found.error + "; see to its permissions and disk, or use another cache directory");
      break;
  }
  return false;
}

bool Directory::store(const Entry& entry, bool replace, const Warn& on_refused) {
  if (path_.empty()) return false;
  const Result<void> published = publish(entry, replace, /*flush=*/true);
  if (!published) {
    if (on_refused) on_refused(published.error().message);
    warn_(Trouble::unstored, published.error().message +
                                 "; going on without storing, so the next process makes it " +
                                 "anew; make room, see to the permissions, or use another cache directory");
  }
  return published.ok();
}

Result<void> Directory::fill(const Entry& entry) {
  if (path_.empty()) return Error{Code::CacheIo, "there is no cache directory"};
  return publish(entry, /*replace=*/false, /*flush=*/false);
}

Result<void> Directory::publish(const Entry& entry, bool replace, bool flush) {
  const std::string bytes = encode(entry);
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (size > kMaxEntryBytes) {
    return Error{Code::CacheIo, "an entry of " + std::to_string(size) + " bytes is larger than the " +
                                    std::to_string(kMaxEntryBytes) + " that a reader accepts"};
  }
  const std::string id = entry_id(entry.identity);
  AtomicFile file(*files_, path_, file_name(id, kEntrySuffix), rules_.shared);
  if (Result<void> created = file.create(); !created) return created;
  if (Result<void> written = file.write(bytes, flush); !written) return written;
  if (Result<void> published = file.publish(replace); !published) return published;
  if (file.was_taken()) {
    // The name is taken, usually by the same entry: replace a damaged file, report one of another identity.
    Lookup there = look(entry.identity);
    if (there.kind == Kind::damaged) return file.publish(/*replace=*/true);
    if (there.kind != Kind::entry && there.kind != Kind::absent)
      return Error{Code::CacheIo, std::move(there.error)};
  }
  trim_if_due(id, size);
  return {};
}

// Trims once for about every max_bytes / 32 that are published: with probability bytes / interval, drawn from
// the (uniform) id. So there is no counter, and many short processes trim as often as a long one.
void Directory::trim_if_due(const std::string& id, std::int64_t bytes) {
  if (rules_.max_bytes <= 0) return;
  const std::int64_t interval = std::max<std::int64_t>(rules_.max_bytes / 32, 1);
  const double draw = static_cast<double>(id_number(id) >> 32) / 4294967296.0;  // in [0, 1)
  if (draw * static_cast<double>(interval) >= static_cast<double>(bytes)) return;
  const Result<Trimmed> trimmed =
      trim(*files_, path_, {.max_bytes = rules_.max_bytes, .shared = rules_.shared});
  if (trimmed && trimmed->entries > 0) {
    warn_(Trouble::full, path_ + " has reached its bound of " + std::to_string(rules_.max_bytes) +
                             " bytes and lost its " + std::to_string(trimmed->entries) +
                             " oldest entries; if kernels are compiled again and again, raise "
                             "NORMJIT_CACHE_MAX_BYTES");
  }
}

Result<std::vector<Listed>> Directory::list() const {
  std::vector<Listed> entries;
  if (path_.empty()) return entries;
  std::vector<std::string> names;
  if (files_->list(path_.c_str(), names) < 0) {
    if (errno == ENOENT && !rules_.must_exist) return entries;
    return io_error("list the cache directory", path_, errno);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const std::string_view id = id_in(name, kEntrySuffix);
    if (id.empty()) continue;
    const std::string path = path_to(path_, id, kEntrySuffix);
    FileContent file = read_file(*files_, path, kMaxEntryBytes, rules_.shared);
    if (file.outcome == FileContent::Outcome::absent) continue;  // removed since its name was read
    Listed listed{.id = std::string(id),
                  .path = path,
                  .bytes = file.size,
                  .modified = file.modified,
                  .kind = kind_of(file.outcome),
                  .entry = Error{Code::CacheIo, file.error}};
    if (file.outcome == FileContent::Outcome::read) verify(std::move(file.bytes), listed);
    entries.push_back(std::move(listed));
  }
  return entries;
}

Result<void> Directory::probe() const {
  if (path_.empty()) return {};
  return AtomicFile(*files_, path_, "probe", rules_.shared).create();
}

bool Directory::set_aside(const std::string& id) {
  return files_->rename(path_to(path_, id, kEntrySuffix).c_str(),
                        path_to(path_, id, kDamagedSuffix).c_str()) == 0;
}

// Quarantines a damaged entry: frees its name for the next publisher and keeps the file for inspection. Under
// the lock and after a second look, since another process may have replaced the file meanwhile.
bool Directory::clear_the_name(const std::string& identity) {
  const std::string id = entry_id(identity);
  const KeyLock alone = KeyLock::of_id(*files_, path_, id, rules_.shared, std::chrono::milliseconds(0));
  return alone.state() != KeyLock::State::busy && look(identity).kind == Kind::damaged && set_aside(id);
}

}  // namespace normjit
