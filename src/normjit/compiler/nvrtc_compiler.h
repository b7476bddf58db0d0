// SPDX-License-Identifier: Apache-2.0
// The compiler in production: NVRTC, in this process.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "normjit/compiler/compiler.h"
#include "normjit/compiler/nvrtc.h"

namespace normjit {

// Searches for libnvrtc at the first call of compile() or facts(), and keeps it; after a failure the next
// call searches again. Any number of threads may compile at the same time. Only search.driver_cuda_version
// may open libcuda. A fork and an exit wait for the running compiles; while the process exits, every call
// returns NoCompiler.
std::shared_ptr<Compiler> make_nvrtc_compiler(NvrtcSearch search);

// The same with another search.
std::shared_ptr<Compiler> make_nvrtc_compiler_from(std::function<Result<Nvrtc>()> open);

// What ptxas -v reports of a kernel; -1: not in the log.
struct PtxasFacts {
  int registers = -1;     // a thread
  int spill_bytes = -1;   // stores plus loads, called functions included
  int shared_bytes = -1;  // static shared memory a block

  friend bool operator==(const PtxasFacts&, const PtxasFacts&) = default;
};
PtxasFacts parse_ptxas_log(std::string_view log, std::string_view kernel);

}  // namespace normjit
