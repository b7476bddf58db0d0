#include "normjit/cache/pack.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "normjit/base/digest.h"
#include "normjit/base/text.h"
#include "normjit/cache/file_names.h"
#include "normjit/cache/read_file.h"
#include "normjit/cache/system_call.h"
#include "normjit/cache/take_prefix.h"

namespace normjit {

using Kind = Lookup::Kind;

namespace {

constexpr std::string_view kMagic = "normjit-pack 1\n";
constexpr std::string_view kChecksum = "checksum: ";
constexpr std::string_view kEntries = "entries: ";
// Room for a million entries; bounds what a foreign file can make a reader allocate.
constexpr std::size_t kMaxIndexBytes = std::size_t{64} << 20;

std::string index_text(const std::map<std::string, std::string>& entries) {
  std::string text = concat({kEntries, shortest(entries.size()), "\n"});
  for (const auto& [id, bytes] : entries) text += concat({id, " ", shortest(bytes.size()), "\n"});
  return text + "\n";
}

}  // namespace

std::string encode_pack(const std::map<std::string, std::string>& entries) {
  const std::string index = index_text(entries);
  std::string pack = concat({kMagic, kChecksum, digest(index), "\n", index});
  for (const auto& [id, bytes] : entries) pack += bytes;
  return pack;
}

// The file, open during one look.
class Pack::OpenFile {
 public:
  // Follows links, since the user chose the path; waits for no FIFO.
  explicit OpenFile(const Pack& pack) : files_(*pack.files_), path_(pack.path_) {
    file_ = uninterrupted([&] { return files_.open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0); });
    if (file_ < 0) {
      kind_ = errno == ENOENT ? Kind::absent : Kind::unreadable;
      error_ = io_error("open", path_, errno).message;
    } else if (files_.fstat(file_, &facts_) < 0) {
      kind_ = Kind::unreadable;
      error_ = io_error("stat", path_, errno).message;
    } else if (!S_ISREG(facts_.st_mode)) {
      kind_ = Kind::damaged;
      error_ = path_ + " is not a regular file";
    } else if (const std::string reason = distrust(facts_, pack.shared_); !reason.empty()) {
      kind_ = Kind::untrusted;
      error_ = concat({path_, " ", reason});
    }
  }
  ~OpenFile() {
    if (file_ >= 0) files_.close(file_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  // Kind::entry: the file can be read.
  Kind kind() const { return kind_; }
  const std::string& error() const { return error_; }
  const struct stat& facts() const { return facts_; }

  // Reads `bytes` bytes, or up to the end of the file. False if that fails, with errno.
  bool read(std::int64_t offset, std::size_t bytes, std::string& to) const {
    return read_fully(bytes, to, [&](char* at, std::size_t count, std::size_t done) {
      return files_.pread(file_, at, count, offset + static_cast<long long>(done));
    });
  }

 private:
  FileSystem& files_;
  const std::string& path_;
  int file_ = -1;
  struct stat facts_ = {};
  Kind kind_ = Kind::entry;
  std::string error_;
};

namespace {

// Where the entries of a pack are.
struct PackIndex {
  struct Line {
    std::string id;
    std::int64_t offset, bytes;
  };
  std::vector<Line> lines;  // by id

  // Null: no such entry.
  const Line* find(const std::string& id) const {
    const auto line = std::lower_bound(lines.begin(), lines.end(), id,
                                       [](const Line& a, const std::string& b) { return a.id < b; });
    return line == lines.end() || line->id != id ? nullptr : &*line;
  }
};

// Parses the head of a pack of `pack_bytes` bytes, which ends with the first empty line. The error's message
// completes "is not a valid pack: ".
Result<PackIndex> parse_index(std::string_view head, std::int64_t pack_bytes) {
  const auto refuse = [](std::string_view reason) { return Error{Code::CacheIo, std::string(reason)}; };
  std::string_view rest = head;
  if (!take_prefix(rest, kMagic)) return refuse("it is damaged, foreign, or of another format version");
  if (!take_prefix(rest, kChecksum) || rest.size() < 33 || rest[32] != '\n' ||
      rest.substr(0, 32) != digest(rest.substr(33)))
    return refuse("the checksum of its index does not match, it is damaged or cut short");
  rest.remove_prefix(33);

  PackIndex index;
  auto offset = static_cast<std::int64_t>(head.size());
  const auto lines = split(rest.substr(0, rest.size() - 2), '\n');
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const std::string_view id = lines[i].substr(0, lines[i].find(' '));
    const auto bytes = number<std::int64_t>(lines[i].substr(std::min(id.size() + 1, lines[i].size())));
    if (id_in(file_name(id, kEntrySuffix), kEntrySuffix).empty() || !bytes || *bytes < 0 ||
        *bytes > kMaxEntryBytes || (!index.lines.empty() && index.lines.back().id >= id))
      return refuse("its index is malformed");
    index.lines.push_back({std::string(id), offset, *bytes});
    offset += *bytes;
  }
  if (lines[0] != concat({kEntries, shortest(index.lines.size())})) return refuse("its index is malformed");
  if (offset != pack_bytes) return refuse("its size is not the one in its index");
  return index;
}

std::string not_valid(std::string_view path, std::string_view reason) {
  return concat({path, " is not a valid pack: ", reason});
}

}  // namespace

struct Pack::Index : PackIndex {
  struct stat facts = {};  // of the file whose index this is

  bool is_of(const struct stat& file) const {
    return file.st_dev == facts.st_dev && file.st_ino == facts.st_ino && file.st_size == facts.st_size &&
           file.st_mtim.tv_sec == facts.st_mtim.tv_sec && file.st_mtim.tv_nsec == facts.st_mtim.tv_nsec;
  }
};

Pack::Pack(std::string path, std::shared_ptr<FileSystem> files, bool shared)
    : path_(std::move(path)), files_(std::move(files)), shared_(shared) {}

Pack::~Pack() = default;

std::shared_ptr<const Pack::Index> Pack::index(const OpenFile& file, Lookup& trouble) const {
  {
    const std::lock_guard lock(mutex_);
    if (index_ && index_->is_of(file.facts())) return index_;
  }
  std::shared_ptr<const Index> read = read_index(file, trouble);
  const std::lock_guard lock(mutex_);
  if (read) index_ = read;
  return read;
}

std::shared_ptr<const Pack::Index> Pack::read_index(const OpenFile& file, Lookup& trouble) const {
  // The head ends with the first empty line.
  std::string head, more;
  std::size_t end = std::string::npos;
  while (end == std::string::npos && head.size() < kMaxIndexBytes) {
    constexpr std::size_t kPiece = 65536;
    if (!file.read(static_cast<std::int64_t>(head.size()), kPiece, more)) {
      trouble = {.kind = Kind::unreadable, .error = io_error("read", path_, errno).message};
      return nullptr;
    }
    if (more.empty()) break;
    const std::size_t from = head.empty() ? 0 : head.size() - 1;
    head += more;
    if (!head.starts_with(kMagic)) break;
    end = head.find("\n\n", from);
  }
  auto parsed = parse_index(std::string_view(head).substr(0, end == std::string::npos ? 0 : end + 2),
                            file.facts().st_size);
  if (!parsed) {
    trouble = {.kind = Kind::damaged, .error = not_valid(path_, parsed.error().message)};
    return nullptr;
  }
  return std::make_shared<Index>(Index{*std::move(parsed), file.facts()});
}

Lookup Pack::look(const std::string& identity) const {
  const OpenFile file(*this);
  if (file.kind() != Kind::entry) return {.kind = file.kind(), .error = file.error()};
  Lookup trouble;
  const auto index = this->index(file, trouble);
  if (!index) return trouble;
  const std::string id = entry_id(identity);
  const auto* const line = index->find(id);
  if (!line) return {};
  std::string bytes;
  if (!file.read(line->offset, static_cast<std::size_t>(line->bytes), bytes))
    return {.kind = Kind::unreadable, .error = io_error("read", path_, errno).message};
  return verify(std::move(bytes), identity, concat({"entry ", id, " of ", path_}));
}

Result<std::vector<Listed>> Pack::list() const {
  const OpenFile file(*this);
  if (file.kind() != Kind::entry) return Error{Code::CacheIo, file.error()};
  Lookup trouble;
  const auto index = this->index(file, trouble);
  if (!index) return Error{Code::CacheIo, std::move(trouble.error)};
  std::vector<Listed> entries;
  for (const Index::Line& line : index->lines) {
    Listed listed{.id = line.id,
                  .path = path_,
                  .bytes = line.bytes,
                  .modified = file.facts().st_mtime,
                  .entry = Error{Code::CacheIo, {}}};
    std::string bytes;
    if (file.read(line.offset, static_cast<std::size_t>(line.bytes), bytes)) {
      verify(std::move(bytes), listed);
    } else {
      listed.kind = Kind::unreadable;
      listed.entry = io_error("read", path_, errno);
    }
    entries.push_back(std::move(listed));
  }
  return entries;
}

struct MemoryPack::Index : PackIndex {};

MemoryPack::MemoryPack(std::string name, std::string_view bytes) : name_(std::move(name)), bytes_(bytes) {}

MemoryPack::~MemoryPack() = default;

Result<std::shared_ptr<const MemoryPack::Index>> MemoryPack::index() const {
  {
    const std::lock_guard lock(mutex_);
    if (index_) return index_;
  }
  const std::size_t end = bytes_.find("\n\n");
  auto parsed = parse_index(bytes_.substr(0, end == bytes_.npos ? 0 : end + 2),
                            static_cast<std::int64_t>(bytes_.size()));
  if (!parsed) return Error{Code::CacheIo, not_valid(name_, parsed.error().message)};
  auto read = std::make_shared<const Index>(Index{*std::move(parsed)});
  const std::lock_guard lock(mutex_);
  if (!index_) index_ = std::move(read);
  return index_;
}

Lookup MemoryPack::look(const std::string& identity) const {
  const auto index = this->index();
  if (!index) return {.kind = Kind::damaged, .error = index.error().message};
  const std::string id = entry_id(identity);
  const auto* const line = (*index)->find(id);
  if (!line) return {};
  return verify(std::string(part(line->offset, line->bytes)), identity,
                concat({"entry ", id, " of ", name_}));
}

Result<std::vector<Listed>> MemoryPack::list() const {
  const auto index = this->index();
  if (!index) return index.error();
  std::vector<Listed> entries;
  for (const Index::Line& line : (*index)->lines) {
    entries.push_back({.id = line.id, .path = name_, .bytes = line.bytes, .entry = Error{Code::CacheIo, {}}});
    verify(std::string(part(line.offset, line.bytes)), entries.back());
  }
  return entries;
}

std::string_view MemoryPack::part(std::int64_t offset, std::int64_t bytes) const {
  return bytes_.substr(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
}

}  // namespace normjit
