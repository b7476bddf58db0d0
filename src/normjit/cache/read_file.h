// Reads one whole regular file, carefully: nothing that stands under its name can hang, redirect or crash the
// reader.
#pragma once

#include <cstdint>
#include <string>

#include "normjit/cache/file_system.h"

namespace normjit {

struct FileContent {
  enum class Outcome {
    read,        // `bytes` is the file
    absent,      // there is no such file
    unfit,       // something else stands there: a link, a directory, a device, or a file beyond the limit
    unreadable,  // the system did not let us read it
  };
  Outcome outcome = Outcome::absent;
  std::string bytes = {};
  std::int64_t size = 0;   // as fstat told it; 0 before that
  std::string error = {};  // a sentence, for unfit and unreadable
};

// One open, one fstat, the reads, one close; nothing else, and nothing that writes. Follows no symbolic link
// in the last component and waits for no FIFO. The file is read and never mapped: a mapped page that a
// network file system cannot deliver any more is a SIGBUS, a failed read is an error code.
FileContent read_file(FileSystem& files, const std::string& path, std::int64_t size_limit);

}  // namespace normjit
