// SPDX-License-Identifier: Apache-2.0
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
#include <utility>
#include <vector>

#include "normjit/base/fork.h"
#include "normjit/cache/tier.h"

namespace normjit {

class OpenFile;

// The largest pack whose signature is checked: to check it, a reader keeps the whole pack in memory.
inline constexpr std::int64_t kMaxSignedPackBytes = std::int64_t{256} << 20;

// The pack of these entry files, by id. The same files make the same bytes.
std::string encode_pack(const std::map<std::string, std::string>& entries);

// A pack that is read in parts: the index at the first look, then one entry per look. After the file is
// replaced, the new one serves.
class Pack final : public Tier {
 public:
  // Touches no file. `shared`, `believes`: as in make_layer. A file that may not be believed is read as a
  // whole and kept in memory: what was checked is what is used. One that is not believed is judged again
  // after a second.
  Pack(std::string path, std::shared_ptr<FileSystem> files, bool shared, Believes believes = {})
      : path_(std::move(path)), files_(std::move(files)), shared_(shared), believes_(std::move(believes)) {}
  // A pack that is part of the program. `name` is reported as its path; `bytes` must outlive the pack.
  Pack(std::string name, std::string_view bytes) : path_(std::move(name)), bytes_(bytes) {}
  // A pack in memory that the object keeps. `bytes` must not be null.
  Pack(std::string name, std::shared_ptr<const std::string> bytes)
      : path_(std::move(name)), owned_(std::move(bytes)), bytes_(*owned_) {}

  const std::string& path() const override { return path_; }
  Lookup look(const std::string& identity) const override;
  Result<std::vector<Listed>> list() const override;
  // Whether it has a valid index, which is all of a pack but its entries. CacheIo; Untrusted.
  Result<void> check() const;

 private:
  struct Index;

  OpenFile open() const;
  // The index of the open file. Null if it has no valid one or is not believed, and the file's trouble() says
  // why.
  std::shared_ptr<const Index> index(OpenFile& file) const;
  bool read_whole(OpenFile& file, Index& to) const;
  bool read_part(OpenFile& file, const Index& index, std::int64_t offset, std::int64_t bytes,
                 std::string& to) const;
  Error error_of(const OpenFile& file) const;

  const std::string path_;
  const std::shared_ptr<FileSystem> files_;         // null: `bytes_` are the pack
  const std::shared_ptr<const std::string> owned_;  // null: they are not the pack's own
  const std::string_view bytes_;
  const bool shared_ = false;
  const Believes believes_ = {};
  mutable ForkMutex mutex_;                     // never held across a file access
  mutable std::shared_ptr<const Index> index_;  // of the file that was opened last
};

}  // namespace normjit
