// SPDX-License-Identifier: Apache-2.0
// A file that becomes visible under its name complete, or not at all.
//
// It is written under a random name in the same directory, flushed, and only then given its name. A crash, a
// full disk or a killed process leaves at worst a `*.tmp` file, which is never read.
#pragma once

#include <string>
#include <string_view>

#include "normjit/cache/file_system.h"
#include "normjit/result.h"

namespace normjit {

// Makes a directory and its missing parents: with mode 0700, or as the umask allows if `shared`. Ok if the
// directory exists. Errors: CacheIo.
Result<void> make_directories(FileSystem& files, const std::string& directory, bool shared);

// One publication: create, write, then publish. The destructor removes the temporary, and ignores a failure.
// Not thread-safe: each publisher has its own.
class AtomicFile {
 public:
  // World-readable, in a directory that by default only its owner can enter: to open a cache to other users
  // (a container image) one chmod of the directory suffices.
  static constexpr unsigned kMode = 0644;

  // For the file `directory`/`name`; touches nothing. `files` must outlive the object. `shared`: as in
  // make_directories.
  AtomicFile(FileSystem& files, std::string directory, std::string_view name, bool shared = false,
             unsigned mode = kMode);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Creates the temporary, and the directory with its parents if it is missing. Errors: CacheIo.
  Result<void> create();
  // Writes the whole content; called once. `flush`: waits for fsync. Errors: CacheIo.
  Result<void> write(std::string_view bytes, bool flush = true);
  // Gives the file its name. An existing file of that name is replaced with `replace`; else it stays, which
  // is a success: another publisher was first. Errors: CacheIo.
  Result<void> publish(bool replace);
  // After publish: whether an existing file kept the name.
  bool was_taken() const { return was_taken_; }
  // The descriptor of the temporary, open for writing from create() to write().
  int file() const { return file_; }

 private:
  FileSystem& files_;
  std::string directory_;
  std::string path_;
  bool shared_;
  unsigned mode_;
  std::string temporary_;  // path; empty: not created
  int file_ = -1;
  bool was_taken_ = false;
};

}  // namespace normjit
