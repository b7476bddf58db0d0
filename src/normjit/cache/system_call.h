// What every use of the FileSystem seam needs: patience with signals, and errors that name call, path and
// reason.
#pragma once

#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>

#include "normjit/result.h"

namespace normjit {

// Makes a system call again for as long as signals interrupt it.
template <class Call>
auto uninterrupted(const Call& call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

// "cannot write /d/x.tmp: No space left on device".
inline Error io_error(std::string_view what, std::string_view path, int error_number) {
  std::string message = "cannot ";
  message.append(what).append(" ").append(path).append(": ");
  return {Code::CacheIo, message + std::generic_category().message(error_number)};
}

}  // namespace normjit
