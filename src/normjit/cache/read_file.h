// SPDX-License-Identifier: Apache-2.0
// Reads regular files that only this user or root can have written; links, FIFOs, devices and huge files
// cannot redirect, hang or crash the reader.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "normjit/cache/tier.h"

namespace normjit {

// Why a file is not trusted, or empty: it must belong to this process's user or to root, and no other user
// may be able to write it. With `shared` every file is trusted.
std::string distrust(const struct stat& facts, bool shared);

// A file while it is open. Costs one open, one fstat, the reads and one close. Waits for no FIFO. The file is
// read, not mapped: if a network file system fails, a mapped page is a SIGBUS, a read an error code. Not
// thread-safe.
class OpenFile {
 public:
  enum class Links { refuse, follow };  // for a symbolic link as the last component of the path

  // `files` and `path` must outlive the object.
  OpenFile(FileSystem& files, const std::string& path, bool shared, Links links = Links::refuse);
  // Reads bytes in memory, which must outlive the object.
  explicit OpenFile(std::string_view bytes);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  // Kind::entry: the file is open, and all reads so far succeeded. Else what is wrong, also with its content.
  const Lookup& trouble() const { return trouble_; }
  bool refuse(Lookup::Kind kind, std::string error);  // sets trouble(); returns false
  // From fstat; all 0 if that was not reached or failed.
  const struct stat& facts() const { return facts_; }

  // Reads the whole file, once. False, with trouble(): it cannot be read, or has more than `limit` bytes.
  bool read_all(std::int64_t limit, std::string& to);
  // Reads `bytes` bytes at an offset, or up to the end of the file. False, with trouble(): the read failed.
  bool read_at(std::int64_t offset, std::size_t bytes, std::string& to);

 private:
  FileSystem* files_ = nullptr;
  std::string_view path_ = {}, memory_ = {};
  int file_ = -1;
  struct stat facts_ = {};
  Lookup trouble_ = {.kind = Lookup::Kind::entry};
};

}  // namespace normjit
