// Many entries in one file, for shipping:
//
//   normjit-pack 1                                magic and format version
//   checksum: 0c5f4e1d...                         of everything from here to the first entry
//   entries: 2
//   06b05ab6733a618578af5f94892f3950 38432        id and bytes of each, by id
//   ...
//
//   <the entry files, concatenated>
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "normjit/base/fork.h"
#include "normjit/cache/tier.h"

namespace normjit {

// The pack of these entry files, by id. The same files make the same bytes.
std::string encode_pack(const std::map<std::string, std::string>& entries);

// A pack that is read in parts: the index at the first look, then one entry per look. After the file is
// replaced, the new one serves.
class Pack final : public Tier {
 public:
  // Touches no file. `shared`: as in make_layer.
  Pack(std::string path, std::shared_ptr<FileSystem> files, bool shared);
  ~Pack() override;

  const std::string& path() const override { return path_; }
  Lookup look(const std::string& identity) const override;
  Result<std::vector<Listed>> list() const override;

 private:
  struct Index;
  class OpenFile;

  // The index of the open file. Null: it has no valid index, and `trouble` says why.
  std::shared_ptr<const Index> index(const OpenFile& file, Lookup& trouble) const;
  std::shared_ptr<const Index> read_index(const OpenFile& file, Lookup& trouble) const;

  const std::string path_;
  const std::shared_ptr<FileSystem> files_;
  const bool shared_;
  mutable ForkMutex mutex_;                     // never held across a file access
  mutable std::shared_ptr<const Index> index_;  // of the file that was opened last
};

// A pack that is part of the program. Its index is read at the first look.
class MemoryPack final : public Tier {
 public:
  // `name` is reported as its path; `bytes` must outlive the pack.
  MemoryPack(std::string name, std::string_view bytes);
  ~MemoryPack() override;

  const std::string& path() const override { return name_; }
  Lookup look(const std::string& identity) const override;
  Result<std::vector<Listed>> list() const override;

 private:
  struct Index;

  // CacheIo if the bytes are not a pack.
  Result<std::shared_ptr<const Index>> index() const;
  std::string_view part(std::int64_t offset, std::int64_t bytes) const;

  const std::string name_;
  const std::string_view bytes_;
  mutable ForkMutex mutex_;
  mutable std::shared_ptr<const Index> index_;
};

}  // namespace normjit
