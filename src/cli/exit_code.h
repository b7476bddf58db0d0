// SPDX-License-Identifier: Apache-2.0
// The exit status of the tool; documented in `normjit --help`.
#pragma once

#include <string_view>

#include "normjit/result.h"

namespace normjit::cli {

enum ExitCode : int {
  kDone = 0,
  kFailed = 1,       // a kernel failed, something is missing or damaged, a check found wrong numbers
  kUsage = 2,        // the command line, a manifest or an input file is wrong; zero kernels were asked for
  kEnvironment = 3,  // no compiler, no GPU or no driver where one is needed
  kCacheIo = 4,      // the cache or an output file cannot be read or written
};

// What the library's errors mean to whoever called the tool.
ExitCode exit_code(Code code) noexcept;

// Prints "normjit: MESSAGE" to stderr, without control characters but line breaks, and returns the code.
ExitCode fail(ExitCode code, std::string_view message);

}  // namespace normjit::cli
