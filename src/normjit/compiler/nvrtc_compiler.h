// The compiler of production: NVRTC, in this process.
#pragma once

#include <memory>

#include "normjit/compiler/compiler.h"
#include "normjit/compiler/nvrtc_search.h"

namespace normjit {

// Looks for libnvrtc at the first call of compile() or facts(), and keeps it; after a failure the next call
// searches again. Any number of threads compile at the same time. Only search.driver_cuda_version may open
// libcuda. A fork and an exit wait for the running compiles; while the process exits, every call is the error
// NoCompiler.
std::shared_ptr<Compiler> make_nvrtc_compiler(NvrtcSearch search);

// The same with another search.
std::shared_ptr<Compiler> make_nvrtc_compiler_from(std::function<Result<Nvrtc>()> open);

}  // namespace normjit
