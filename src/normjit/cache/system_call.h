// Helpers for callers of FileSystem: whole reads, and errors that name call, path and reason.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>

#include "normjit/base/uninterrupted.h"
#include "normjit/result.h"

namespace normjit {

// Reads `bytes` bytes, or up to the end of the file, with read(at, count, done), which calls read() or
// pread(). False if that fails, with errno.
template <class Read>
bool read_fully(std::size_t bytes, std::string& to, const Read& read) {
  to.resize(bytes);
  std::size_t done = 0;
  while (done < bytes) {
    const long got = uninterrupted([&] { return read(to.data() + done, bytes - done, done); });
    if (got < 0) return false;
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  to.resize(done);
  return true;
}

// "cannot write /d/x.tmp: No space left on device".
inline Error io_error(std::string_view what, std::string_view path, int error_number) {
  std::string message = "cannot ";
  message.append(what).append(" ").append(path).append(": ");
  return {Code::CacheIo, message + std::generic_category().message(error_number)};
}

}  // namespace normjit
