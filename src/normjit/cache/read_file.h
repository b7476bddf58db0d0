// Reads one whole regular file, carefully: nothing that stands under its name can hang, redirect or crash the
// reader, and nobody else can have put it there.
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
    unfit,       // something else stands there: a link, a directory, a device, or a file beyond the limit
    untrusted,   // another user owns it or can write it
    unreadable,  // the system did not let us read it
  };
  Outcome outcome = Outcome::absent;
  std::string bytes = {};
  std::int64_t size = 0;      // as fstat told it; 0 before that
  std::int64_t modified = 0;  // the same: seconds since 1970
  std::string error = {};     // a sentence, for all but read and absent
};

// Why a file with these facts is not to be believed, or nothing: it must belong to this process's user or
// root, and nobody else may write it. A `shared` cache believes all.
std::string distrust(const struct stat& facts, bool shared);

// One open, one fstat, the reads, one close; nothing else, and nothing that writes. Follows no symbolic link
// in the last component and waits for no FIFO. The file is read and never mapped: a mapped page that a
// network file system cannot deliver any more is a SIGBUS, a failed read is an error code.
FileContent read_file(FileSystem& files, const std::string& path, std::int64_t size_limit, bool shared);

}  // namespace normjit
