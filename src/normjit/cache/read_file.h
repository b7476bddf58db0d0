// Reads one whole regular file that only this user or root can have written; links, FIFOs, devices and huge
// files cannot redirect, hang or crash the reader.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "normjit/cache/file_system.h"

namespace normjit {

struct FileContent {
  enum class Outcome {
    read,        // `bytes` is the file
    absent,      // there is no such file
    unfit,       // a link, a directory, a device, or a file beyond the limit
    untrusted,   // another user owns it or can write it
    unreadable,  // a system call failed
  };
  Outcome outcome = Outcome::absent;
  std::string bytes = {};
  std::int64_t size = 0;      // from fstat; 0 if that was not reached
  std::int64_t modified = 0;  // likewise, in seconds since 1970
  std::string error = {};     // a sentence, for all but read and absent
};

// Why a file is not trusted, or empty: it must belong to this process's user or to root, and no other user
// may be able to write it. With `shared` every file is trusted.
std::string distrust(const struct stat& facts, bool shared);

// Costs one open, one fstat, the reads and one close. Follows no symbolic link in the last component and
// waits for no FIFO. The file is read, not mapped: if a network file system fails, a mapped page is a SIGBUS,
// a read an error code.
FileContent read_file(FileSystem& files, const std::string& path, std::int64_t size_limit, bool shared);

}  // namespace normjit
