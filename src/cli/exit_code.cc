// SPDX-License-Identifier: Apache-2.0
#include "cli/exit_code.h"

#include <cstdio>

#include "normjit/base/text.h"
#include "verify/foreign_text.h"

namespace normjit::cli {

ExitCode exit_code(Code code) noexcept {
  switch (code) {
    case Code::Ok:
      return kDone;
    case Code::NoCompiler:
    case Code::CompilerTooOld:
    case Code::NoDriver:
    case Code::DriverTooOld:
    case Code::NoDevice:
    case Code::NoContext:
    case Code::OutOfMemory:
    case Code::ForkedAfterCudaInit:
      return kEnvironment;
    case Code::CacheIo:
      return kCacheIo;
    case Code::BadTemplate:
    case Code::CompileFailed:
    case Code::LoadFailed:
    case Code::NotCached:
    case Code::DriverError:
      return kFailed;
    default:
      return kUsage;  // a bad spec, plan, launch argument, architecture or option
  }
}

ExitCode fail(ExitCode code, std::string_view message) {
  const std::string line = concat({"normjit: ", oracle::printable(message), "\n"});
  std::fwrite(line.data(), 1, line.size(), stderr);
  return code;
}

}  // namespace normjit::cli
