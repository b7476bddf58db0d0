// SPDX-License-Identifier: Apache-2.0
// For callers of FileSystem: restarts after EINTR, and errors that name call, path and reason.
#pragma once

#include <string>
#include <string_view>
#include <system_error>

#include "normjit/base/uninterrupted.h"
#include "normjit/result.h"

namespace normjit {

// "cannot write /d/x.tmp: No space left on device".
inline Error io_error(std::string_view what, std::string_view path, int error_number) {
  std::string message = "cannot ";
  message.append(what).append(" ").append(path).append(": ");
  return {Code::CacheIo, message + std::generic_category().message(error_number)};
}

}  // namespace normjit
