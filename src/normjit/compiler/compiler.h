// SPDX-License-Identifier: Apache-2.0
// The interface to a compiler: from CUDA C++ text to machine code.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "normjit/arch.h"
#include "normjit/base/source.h"
#include "normjit/result.h"

namespace normjit {

// The result of a compile.
struct Binary {
  std::string code;       // the bytes of a cubin, or a PTX text
  bool ptx = false;       // `code` is PTX
  std::string target;     // "sm_90", or "compute_90" for PTX
  std::string toolchain;  // "nvrtc 13.0"
  // As ptxas reported them for the kernel; -1 without a report (PTX).
  int registers = -1, spill_bytes = -1, shared_bytes = -1;
  // The compiler's whole log. Unlike `code` it differs from run to run: NVRTC 12.9 and newer log the compile
  // time.
  std::string log;
};

// NvrtcCompiler in production, a fake in tests. Implementations are thread-safe.
class Compiler {
 public:
  virtual ~Compiler() = default;

  // Compiles for this architecture or, if the compiler does not know it, for what choose_target returns.
  // Errors: NoCompiler, CompilerTooOld, CompileFailed, UnknownArch.
  virtual Result<Binary> compile(const Source& source, Arch arch) = 0;

  // The compiler's library and version, and the architectures that it makes cubins for.
  struct Facts {
    std::string path;
    int major = 0, minor = 0;
    std::vector<Arch> archs;

    // As in Binary::toolchain.
    std::string toolchain() const { return "nvrtc " + std::to_string(major) + "." + std::to_string(minor); }
  };
  virtual Result<Facts> facts() = 0;

  // For a caller that compiles many sources at once. While it holds the returned object, other processes may
  // help with every compile. Null if none can, which is the default.
  virtual std::shared_ptr<void> helpers() { return nullptr; }
};

// The options that decide the machine code, without those for the compiler's log and speed. Part of a cache
// entry's identity.
std::string semantic_options(Arch arch);

}  // namespace normjit
