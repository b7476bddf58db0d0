// The compiler of production: NVRTC, in this process.
#pragma once

#include <memory>

#include "normjit/compiler/compiler.h"
#include "normjit/compiler/nvrtc_search.h"

namespace normjit {

// Looks for libnvrtc at the first call of compile() or facts(), not before, and keeps what it finds; a search
// that failed is done again by the next call. Any number of threads compile at the same time. Does not open
// libcuda by itself; search.driver_cuda_version may, to ask for its version. A fork waits for the compiles
// that are under way, and so does the end of the process; then every call is the error NoCompiler.
std::shared_ptr<Compiler> make_nvrtc_compiler(NvrtcSearch search);

// The same with another search.
std::shared_ptr<Compiler> make_nvrtc_compiler_from(std::function<Result<Nvrtc>()> open);

}  // namespace normjit
