// SPDX-License-Identifier: Apache-2.0
#include "normjit/cache/pack.h"

#include <algorithm>
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
// The same of a pack that is read as a whole.
constexpr std::int64_t kMaxBytes = std::int64_t{4} << 30;

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
  std::string distrust = {};          // why it is not believed; empty: it is

  bool is_of(const struct stat& file) const {
    return file.st_dev == facts.st_dev && file.st_ino == facts.st_ino && file.st_size == facts.st_size &&
           file.st_mtim.tv_sec == facts.st_mtim.tv_sec && file.st_mtim.tv_nsec == facts.st_mtim.tv_nsec;
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
    if (index->distrust.empty()) return index;
    file.refuse(Kind::untrusted, index->distrust);
    return std::shared_ptr<const Index>();
  };
  std::shared_ptr<const Index> known;
  {
    const std::lock_guard lock(mutex_);
    if (index_ && index_->is_of(file.facts())) known = index_;
  }
  if (known) return believed(std::move(known));
  std::string head;
  if (!read_head(file, head)) return nullptr;
  auto read = std::make_shared<Index>();
  read->facts = file.facts();
  if (const std::string_view mistake = read->parse(head); !mistake.empty()) {
    file.refuse(Kind::damaged, concat({path_, " is not a valid pack: ", mistake}));
    return nullptr;
  }
  if (believes_) {
    std::string whole;
    if (read->facts.st_size > kMaxBytes)
      read->distrust = concat({path_, " has more than 4 GiB, too many to check its signature"});
    else if (!file.read_at(0, static_cast<std::size_t>(read->facts.st_size), whole))
      return nullptr;
    else if (const auto outcome = believes_(whole, path_); !outcome)
      read->distrust = outcome.error().message;
  }
  {
    const std::lock_guard lock(mutex_);
    index_ = read;
  }
  return believed(std::move(read));
}

Lookup Pack::look(const std::string& identity) const {
  OpenFile file = open();
  const auto index = this->index(file);
  if (!index) return file.trouble();
  const std::string id = entry_id(identity);
  const auto part = index->parts.find(id);
  if (part == index->parts.end()) return {};
  std::string bytes;
  if (!file.read_at(part->second.offset, static_cast<std::size_t>(part->second.bytes), bytes))
    return file.trouble();
  return verify(std::move(bytes), identity, concat({"entry ", id, " of ", path_}));
}

Result<void> Pack::check() const {
  OpenFile file = open();
  if (!index(file)) return Error{Code::CacheIo, file.trouble().error};
  return {};
}

Result<std::vector<Listed>> Pack::list() const {
  OpenFile file = open();
  const auto index = this->index(file);
  if (!index) return Error{Code::CacheIo, file.trouble().error};
  std::vector<Listed> entries;
  for (const auto& [id, part] : index->parts) {
    Listed& listed = entries.emplace_back(Listed{id, path_, path_, part.bytes, file.facts().st_mtime});
    std::string bytes;
    if (file.read_at(part.offset, static_cast<std::size_t>(part.bytes), bytes))
      verify(std::move(bytes), listed);
    else
      listed.refuse(file.trouble());
  }
  return entries;
}

}  // namespace normjit
