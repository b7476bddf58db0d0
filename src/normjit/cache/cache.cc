#include "normjit/cache/cache.h"

#include <algorithm>
#include <cerrno>

#include "normjit/cache/atomic_file.h"
#include "normjit/cache/read_file.h"
#include "normjit/cache/system_call.h"

namespace normjit {
namespace {

constexpr std::string_view kEntrySuffix = ".njk";
constexpr std::string_view kDamagedSuffix = ".damaged";
constexpr std::size_t kIdDigits = 32;
// No kernel comes near it (the largest are about 100 KB); it bounds what a foreign file can make a reader
// allocate.
constexpr std::int64_t kMaxEntryBytes = std::int64_t{64} << 20;

std::string file_name(std::string_view id, std::string_view suffix) { return std::string(id).append(suffix); }

std::string path_to(const std::string& directory, std::string_view id, std::string_view suffix) {
  return directory + '/' + file_name(id, suffix);
}

// The id in the name of an entry file; empty for any other name.
std::string_view id_in(std::string_view name) {
  if (!name.ends_with(kEntrySuffix)) return {};
  const std::string_view id = name.substr(0, name.size() - kEntrySuffix.size());
  const bool named_as_entry =
      id.size() == kIdDigits && id.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  return named_as_entry ? id : std::string_view();
}

}  // namespace

Cache::Cache(std::string directory, std::shared_ptr<FileSystem> files, Warn warn)
    : directory_(std::move(directory)), files_(std::move(files)), warn_(std::move(warn)) {}

bool Cache::find(const std::string& identity, Entry& entry) {
  if (directory_.empty()) return false;
  const std::string id = entry_id(identity);
  const std::string path = path_to(directory_, id, kEntrySuffix);
  FileContent file = read_file(*files_, path, kMaxEntryBytes);
  switch (file.outcome) {
    case FileContent::Outcome::absent:
      return false;
    case FileContent::Outcome::unreadable:
      warn(Trouble::unreadable,
           file.error + "; see to its permissions and disk, or use another cache directory");
      return false;
    case FileContent::Outcome::unfit:
      set_aside(id, file.error);
      return false;
    case FileContent::Outcome::read:
      break;
  }
  Result<Entry> decoded = decode(std::move(file.bytes));
  if (!decoded) {
    set_aside(id, path + " is " + decoded.error().message);
    return false;
  }
  if (decoded->identity != identity) {
    // Two identities with one hash, or, less unlikely, a renamed file. It is a good entry, though not ours.
    warn(Trouble::misnamed, path + " holds another entry than its name says and is left alone; " +
                                "while it stands there, the entry of this name cannot be kept");
    return false;
  }
  entry = std::move(*decoded);
  return true;
}

bool Cache::store(const Entry& entry, bool replace) {
  if (directory_.empty()) return false;
  const auto publish = [&]() -> Result<void> {
    const std::string bytes = encode(entry);
    if (std::int64_t(bytes.size()) > kMaxEntryBytes) {
      return Error{Code::CacheIo, "an entry of " + std::to_string(bytes.size()) +
                                      " bytes is larger than the " + std::to_string(kMaxEntryBytes) +
                                      " that are read again"};
    }
    AtomicFile file(*files_, directory_, file_name(entry_id(entry.identity), kEntrySuffix));
    if (Result<void> created = file.create(); !created) return created;
    if (Result<void> written = file.write(bytes); !written) return written;
    return file.publish(replace);
  };
  const Result<void> published = publish();
  if (!published) {
    warn(Trouble::unstored, published.error().message +
                                "; going on without storing, so the next process makes it " +
                                "anew; make room, see to the permissions, or use another cache directory");
  }
  return published.ok();
}

Result<std::vector<Cache::Listed>> Cache::list() const {
  std::vector<Listed> entries;
  if (directory_.empty()) return entries;
  std::vector<std::string> names;
  if (files_->list(directory_.c_str(), names) < 0) {
    if (errno == ENOENT) return entries;
    return io_error("list the cache directory", directory_, errno);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const std::string_view id = id_in(name);
    if (id.empty()) continue;
    FileContent file = read_file(*files_, path_to(directory_, id, kEntrySuffix), kMaxEntryBytes);
    if (file.outcome == FileContent::Outcome::absent) continue;  // removed since its name was read
    Result<Entry> entry = file.outcome == FileContent::Outcome::read
                              ? decode(std::move(file.bytes))
                              : Result<Entry>(Error{Code::CacheIo, std::move(file.error)});
    if (entry && entry_id(entry->identity) != id) {
      entry = Error{Code::CacheIo, "misnamed: it holds the entry " + entry_id(entry->identity)};
    }
    entries.push_back({std::string(id), file.size, std::move(entry)});
  }
  return entries;
}

Result<void> Cache::probe() const {
  if (directory_.empty()) return {};
  return AtomicFile(*files_, directory_, "probe").create();
}

// Out of the way, so that the next publisher finds the name free, and kept for whoever wants to know what
// happened. Where the directory does not allow it, the file is met and refused again. If another process has
// just put a good entry there, that one goes aside, which costs one more compile.
void Cache::set_aside(const std::string& id, const std::string& reason) {
  const std::string aside = path_to(directory_, id, kDamagedSuffix);
  const bool moved = files_->rename(path_to(directory_, id, kEntrySuffix).c_str(), aside.c_str()) == 0;
  warn(Trouble::damaged,
       reason + (moved ? "; it is made anew, and the old file kept as " + aside : "; it is made anew"));
}

void Cache::warn(Trouble trouble, const std::string& message) {
  const unsigned bit = static_cast<unsigned>(trouble);
  if ((warned_.fetch_or(bit) & bit) == 0 && warn_) warn_("cache: " + message);
}

}  // namespace normjit
