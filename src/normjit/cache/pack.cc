// SPDX-License-Identifier: Apache-2.0
#include "normjit/cache/pack.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "normjit/base/digest.h"
#include "normjit/base/text.h"
#include "normjit/cache/file_names.h"
#include "normjit/cache/read_file.h"

namespace normjit {

using Kind = Lookup::Kind;

namespace {

constexpr std::string_view kMagic = "normjit-pack 1\n";
constexpr std::string_view kChecksum = "checksum: ";
constexpr std::string_view kEntries = "entries: ";
// Room for a million entries; bounds what a foreign file can make a reader allocate.
constexpr std::size_t kMaxIndexBytes = std::size_t{64} << 20;
// Why a pack is not believed may change although its file does not: a signature comes beside it.
constexpr std::chrono::seconds kJudgedAgain{1};
using Clock = std::chrono::steady_clock;

std::string index_text(const std::map<std::string, std::string>& entries) {
  std::string text = concat({kEntries, shortest(entries.size()), "\n"});
  for (const auto& [id, bytes] : entries) text += concat({id, " ", shortest(bytes.size()), "\n"});
  return text + "\n";
}

// Reads the head of a pack, which ends with the first empty line; empty if there is none. False if a read
// fails.
bool read_head(OpenFile& file, std::string& head) {
  constexpr std::size_t kPiece = 65536;
  std::size_t end = std::string::npos;
  for (std::string more; end == std::string::npos && head.size() < kMaxIndexBytes;) {
    if (!file.read_at(static_cast<std::int64_t>(head.size()), kPiece, more)) return false;
    if (more.empty()) break;
    const std::size_t from = head.empty() ? 0 : head.size() - 1;
    head += more;
    if (!head.starts_with(kMagic)) break;
    end = head.find("\n\n", from);
  }
  head.resize(end == std::string::npos ? 0 : end + 2);
  return true;
}

// The same of a whole pack.
std::string_view head_of(std::string_view pack) {
  const std::size_t end = pack.substr(0, kMaxIndexBytes).find("\n\n");
  return pack.substr(0, end == pack.npos ? 0 : end + 2);
}

bool is_at(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

}  // namespace

std::string encode_pack(const std::map<std::string, std::string>& entries) {
  const std::string index = index_text(entries);
  std::string pack = concat({kMagic, kChecksum, digest(index), "\n", index});
  for (const auto& [id, bytes] : entries) pack += bytes;
  return pack;
}

// Where the entries of a pack are.
struct Pack::Index {
  struct Part {
    std::int64_t offset, bytes;
  };
  std::map<std::string, Part> parts;  // by id
  struct stat facts = {};             // of the file whose index this is
  std::string checked = {};           // the whole pack, if it is believed and not every pack is
  Error distrust = {};                // why it is not believed; Ok: it is
  Clock::time_point judged = {};

  bool is_of(const struct stat& file) const {
    return file.st_dev == facts.st_dev && file.st_ino == facts.st_ino && file.st_size == facts.st_size &&
           is_at(file.st_mtim, facts.st_mtim) && is_at(file.st_ctim, facts.st_ctim);
  }

  // Parses the head of a pack. Returns what is wrong with it, or an empty text.
  std::string_view parse(std::string_view head) {
    auto offset = static_cast<std::int64_t>(head.size());
    std::string_view checksum, count, line;
    if (!take_prefix(head, kMagic)) return "it is damaged, foreign, or of another format version";
    if (!take_field(head, kChecksum, checksum) || checksum != digest(head))
      return "the checksum of its index does not match: it is damaged or cut short";
    constexpr std::string_view kMalformed = "its index is malformed";
    if (!take_field(head, kEntries, count)) return kMalformed;
    while (take_line(head, line) && !line.empty()) {
      const std::string_view id = line.substr(0, line.find(' '));
      const auto bytes = number<std::int64_t>(line.substr(std::min(id.size() + 1, line.size())));
      if (!is_id(id) || !bytes || *bytes < 0 || *bytes > kMaxEntryBytes ||
          (!parts.empty() && parts.rbegin()->first >= id))
        return kMalformed;
      parts.emplace_hint(parts.end(), id, Part{offset, *bytes});
      offset += *bytes;
    }
    if (count != shortest(parts.size())) return kMalformed;
    return offset == facts.st_size ? "" : "its size differs from the one in its index";
  }
};

// Follows links, since the user chose the path.
OpenFile Pack::open() const {
  return files_ ? OpenFile(*files_, path_, shared_, OpenFile::Links::follow) : OpenFile(bytes_);
}

std::shared_ptr<const Pack::Index> Pack::index(OpenFile& file) const {
  if (file.trouble().kind != Kind::entry) return nullptr;
  const auto believed = [&](std::shared_ptr<const Index> index) {
    if (index->distrust.code == Code::Ok) return index;
    file.refuse(index->distrust.code == Code::Untrusted ? Kind::untrusted : Kind::unreadable,
                index->distrust.message);
    return std::shared_ptr<const Index>();
  };
  std::shared_ptr<const Index> known;
  {
    const std::lock_guard lock(mutex_);
    if (index_ && index_->is_of(file.facts())) known = index_;
  }
  if (known && (known->distrust.code == Code::Ok || Clock::now() < known->judged + kJudgedAgain))
    return believed(std::move(known));
  auto read = std::make_shared<Index>();
  read->facts = file.facts();
  std::string head;
  if (believes_ ? !read_whole(file, *read) : !read_head(file, head)) return nullptr;
  if (believes_)
    if (const auto outcome = believes_(read->checked, path_); !outcome) read->distrust = outcome.error();
  if (read->distrust.code != Code::Ok) {
    read->checked = {};
  } else if (const std::string_view mistake = read->parse(believes_ ? head_of(read->checked) : head);
             !mistake.empty()) {
    file.refuse(Kind::damaged, concat({path_, " is not a valid pack: ", mistake}));
    return nullptr;
  }
  read->judged = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    index_ = read;
  }
  return believed(std::move(read));
}

bool Pack::read_whole(OpenFile& file, Index& to) const {
  if (to.facts.st_size > kMaxSignedPackBytes)
    return file.refuse(Kind::unreadable,
                       concat({path_, " is too large to check its signature: it has more than 256 MiB"}));
  const auto size = static_cast<std::size_t>(to.facts.st_size);
  if (!file.read_at(0, size, to.checked)) return false;
  return to.checked.size() == size ||
         file.refuse(Kind::damaged, concat({path_, " became shorter while it was read"}));
}

// Out of the bytes that were checked, where they were.
bool Pack::read_part(OpenFile& file, const Index& index, std::int64_t offset, std::int64_t bytes,
                     std::string& to) const {
  const auto begin = static_cast<std::size_t>(offset), size = static_cast<std::size_t>(bytes);
  if (!believes_) return file.read_at(offset, size, to);
  to = index.checked.substr(begin, size);
  return true;
}

// A file of another user is an error of the cache, as everywhere.
Error Pack::error_of(const OpenFile& file) const {
  const bool foreign = !believes_ || file.trouble().kind != Kind::untrusted;
  return {foreign ? Code::CacheIo : Code::Untrusted, file.trouble().error};
}

Lookup Pack::look(const std::string& identity) const {
  OpenFile file = open();
  const auto index = this->index(file);
  if (!index) return file.trouble();
  const std::string id = entry_id(identity);
  const auto part = index->parts.find(id);
  if (part == index->parts.end()) return {};
  std::string bytes;
  if (!read_part(file, *index, part->second.offset, part->second.bytes, bytes)) return file.trouble();
  return verify(std::move(bytes), identity, concat({"entry ", id, " of ", path_}));
}

Result<void> Pack::check() const {
  OpenFile file = open();
  if (!index(file)) return error_of(file);
  return {};
}

Result<std::vector<Listed>> Pack::list() const {
  OpenFile file = open();
  const auto index = this->index(file);
  if (!index) return error_of(file);
  std::vector<Listed> entries;
  for (const auto& [id, part] : index->parts) {
    Listed& listed = entries.emplace_back(Listed{id, path_, path_, part.bytes, file.facts().st_mtime});
    std::string bytes;
    if (read_part(file, *index, part.offset, part.bytes, bytes))
      verify(std::move(bytes), listed);
    else
      listed.refuse(file.trouble());
  }
  return entries;
}

}  // namespace normjit
