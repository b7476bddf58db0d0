// A file that becomes visible under its name complete, or not at all.
//
// It is written under a random name in the same directory, flushed, and only then given its name. A crash, a
// full disk or a killed process leaves at worst a `*.tmp` file, which nobody reads.
#pragma once

#include <string>
#include <string_view>

#include "normjit/cache/file_system.h"
#include "normjit/result.h"

namespace normjit {

// Makes a directory and its parents, each for the user alone (0700), or for all whom the umask allows if it
// is to be `shared`. Ok if it is there. Errors: CacheIo.
Result<void> make_directories(FileSystem& files, const std::string& directory, bool shared);

// One publication: create, write, then publish. The temporary is gone when the object is; that it could not
// be removed is nobody's error. Not thread-safe: each publisher has its own.
class AtomicFile {
 public:
  // Touches nothing. The file is to be `directory`/`name`; `files` must outlive the object. `shared` as of
  // make_directories.
  AtomicFile(FileSystem& files, std::string directory, std::string_view name, bool shared = false);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Creates the temporary, and the directory with its parents if it is missing. Errors: CacheIo.
  Result<void> create();
  // Writes the whole content, once; with `flush` waits until the disk has it. Errors: CacheIo.
  Result<void> write(std::string_view bytes, bool flush = true);
  // Gives the file its name. A file that has it already stays as it is, which is a success: another publisher
  // was first. With `replace` it gives way. Errors: CacheIo.
  Result<void> publish(bool replace);
  // After publish: whether another file had the name and kept it.
  bool was_taken() const { return was_taken_; }
  // The temporary, from create() to write(): open for writing.
  int file() const { return file_; }

 private:
  FileSystem& files_;
  std::string directory_;
  std::string path_;
  bool shared_;
  std::string temporary_;  // empty: not created
  int file_ = -1;          // open while it is written
  bool was_taken_ = false;
};

}  // namespace normjit
