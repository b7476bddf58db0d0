// SPDX-License-Identifier: Apache-2.0
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

Directory::Directory(std::string path, std::shared_ptr<FileSystem> files, Warn warn, DirectoryRules rules)
    : path_(std::move(path)), files_(std::move(files)), rules_(rules), warn_(std::move(warn)) {}

Lookup Directory::look(const std::string& identity) const {
  if (path_.empty()) return {};
  const std::string path = path_to(path_, entry_id(identity), kEntrySuffix);
  OpenFile file(*files_, path, rules_.shared);
  std::string bytes;
  return file.read_all(kMaxEntryBytes, bytes) ? verify(std::move(bytes), identity, path) : file.trouble();
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
      warn_(
          Trouble::misnamed,
          found.error + " and stays as it is; until it is removed, the entry of this name cannot be stored");
      break;
    case Kind::damaged:
      ++damaged_;
      if (on_damaged) on_damaged(found.error);
      warn_(Trouble::damaged,
            found.error + "; it counts as absent" +
                (clear_the_name(identity)
                     ? ", and the old file is kept as " + path_to(path_, entry_id(identity), kDamagedSuffix)
                     : ""));
      break;
    case Kind::untrusted:
      warn_(Trouble::untrusted, found.error +
                                    " and is not used; make this user or root its owner and remove the write "
                                    "permission of other users, or trust every file with "
                                    "NORMJIT_CACHE_SHARED=1");
      break;
    case Kind::unreadable:
      warn_(Trouble::unreadable,
            found.error + "; check its permissions and the disk, or use another cache directory");
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
                                 "; it stays in memory only, and the next process makes it again; free disk "
                                 "space, check the permissions, or use another cache directory");
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
                                    std::to_string(kMaxEntryBytes) + " that readers accept"};
  }
  const std::string id = entry_id(entry.identity);
  AtomicFile file(*files_, path_, file_name(id, kEntrySuffix), rules_.shared);
  if (Result<void> created = file.create(); !created) return created;
  if (Result<void> written = file.write(bytes, flush); !written) return written;
  if (Result<void> published = file.publish(replace); !published) return published;
  if (file.was_taken()) {
    // Usually the same entry has the name. Replace a damaged file; report a file of another identity.
    Lookup there = look(entry.identity);
    if (there.kind == Kind::damaged) return file.publish(/*replace=*/true);
    if (there.kind != Kind::entry && there.kind != Kind::absent)
      return Error{Code::CacheIo, std::move(there.error)};
  }
  trim_if_due(id, size);
  return {};
}

// Trims about once per max_bytes / 32 published bytes: with probability bytes / interval, drawn from the
// (uniform) id. This needs no counter, and many short processes trim as often as one long process.
void Directory::trim_if_due(const std::string& id, std::int64_t bytes) {
  if (rules_.max_bytes <= 0) return;
  const std::int64_t interval = std::max<std::int64_t>(rules_.max_bytes / 32, 1);
  const double draw = static_cast<double>(id_number(id) >> 32) / 4294967296.0;  // in [0, 1)
  if (draw * static_cast<double>(interval) >= static_cast<double>(bytes)) return;
  const Result<Trimmed> trimmed =
      trim(*files_, path_, {.max_bytes = rules_.max_bytes, .shared = rules_.shared});
  if (trimmed && trimmed->entries > 0) {
    warn_(Trouble::full, path_ + " exceeded its bound of " + std::to_string(rules_.max_bytes) +
                             " bytes: its " + std::to_string(trimmed->entries) +
                             " oldest entries were removed; if kernels are compiled again and again, raise "
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
    OpenFile file(*files_, path, rules_.shared);
    if (file.trouble().kind == Kind::absent) continue;  // removed since its name was read
    Listed& listed = entries.emplace_back(
        Listed{std::string(id), path_, path, file.facts().st_size, file.facts().st_mtime});
    std::string bytes;
    if (file.read_all(kMaxEntryBytes, bytes))
      verify(std::move(bytes), listed);
    else
      listed.refuse(file.trouble());
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

// Quarantines a damaged entry: frees its name for the next publisher and keeps the file for inspection. Takes
// the lock and looks again, since another process may have replaced the file meanwhile.
bool Directory::clear_the_name(const std::string& identity) {
  const std::string id = entry_id(identity);
  const KeyLock alone = KeyLock::of_id(*files_, path_, id, rules_.shared, std::chrono::milliseconds(0));
  return alone.state() != KeyLock::State::busy && look(identity).kind == Kind::damaged && set_aside(id);
}

}  // namespace normjit
