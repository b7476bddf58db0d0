// Many entries in one file, to be shipped and read from anywhere:
//
//   normjit-pack 1                                magic and format version
//   checksum: 0c5f4e1d...                         of everything from here to the first entry
//   entries: 2
//   06b05ab6733a618578af5f94892f3950 38432        id and bytes of each, by id
//   ...
//
//   <the entries, each as its file would be, one behind the other>
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "normjit/base/fork.h"
#include "normjit/cache/tier.h"

namespace normjit {

// The bytes of the pack of these entry files, by id. The same files make the same bytes.
std::string encode_pack(const std::map<std::string, std::string>& entries);

// A pack, read piece by piece: its index at the first look, then one entry for each. Where the file is
// replaced by another, the new one serves from then on.
class Pack final : public Tier {
 public:
  // Touches no file. `shared` as of make_layer.
  Pack(std::string path, std::shared_ptr<FileSystem> files, bool shared);
  ~Pack() override;

  const std::string& path() const override { return path_; }
  Lookup look(const std::string& identity) const override;
  Result<std::vector<Listed>> list() const override;

 private:
  struct Index;
  class OpenFile;

  // The index of the file that is open; if it has none that can be used, nothing, and `trouble` says why.
  std::shared_ptr<const Index> index(const OpenFile& file, Lookup& trouble) const;
  std::shared_ptr<const Index> read_index(const OpenFile& file, Lookup& trouble) const;

  const std::string path_;
  const std::shared_ptr<FileSystem> files_;
  const bool shared_;
  mutable ForkMutex mutex_;                     // never held across a file access
  mutable std::shared_ptr<const Index> index_;  // of the file that was looked at last
};

// A pack that is part of the program. Its index is read at the first look.
class MemoryPack final : public Tier {
 public:
  // `name` stands for its path; `bytes` must outlive it.
  MemoryPack(std::string name, std::string_view bytes);
  ~MemoryPack() override;

  const std::string& path() const override { return name_; }
  Lookup look(const std::string& identity) const override;
  Result<std::vector<Listed>> list() const override;

 private:
  struct Index;

  // CacheIo: it is no pack.
  Result<std::shared_ptr<const Index>> index() const;
  std::string_view part(std::int64_t offset, std::int64_t bytes) const;

  const std::string name_;
  const std::string_view bytes_;
  mutable ForkMutex mutex_;
  mutable std::shared_ptr<const Index> index_;
};

}  // namespace normjit
