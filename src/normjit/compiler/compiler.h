// From CUDA C++ text to machine code. Knows nothing of layer normalization, caches or the driver.
#pragma once

#include <string>
#include <vector>

#include "normjit/arch.h"
#include "normjit/base/source.h"
#include "normjit/result.h"

namespace normjit {

// What a compile made.
struct Binary {
  std::string code;       // the bytes of a cubin, or a PTX text
  bool ptx = false;       // which of these
  std::string target;     // what the code is for: "sm_90", or "compute_90" for PTX
  std::string toolchain;  // its maker: "nvrtc 13.0"
  // As ptxas reported them for the kernel; -1 where it did not (PTX).
  int registers = -1, spill_bytes = -1, shared_bytes = -1;
  // The compiler's whole log. From NVRTC 12.9 on it tells the compile time, so unlike `code` it differs from
  // run to run.
  std::string log;
};

// Seam: NvrtcCompiler in production, a fake in tests. Implementations are thread-safe.
class Compiler {
 public:
  virtual ~Compiler() = default;

  // Machine code of `source` for exactly this architecture; where the compiler does not know it, for the
  // newest known of the same major, else PTX. Errors: NoCompiler, CompilerTooOld, CompileFailed, UnknownArch.
  virtual Result<Binary> compile(const Source& source, Arch arch) = 0;

  // Path and version of the library behind it, and the architectures that it makes cubins for.
  struct Facts {
    std::string path;
    int major = 0, minor = 0;
    std::vector<Arch> archs;

    // As Binary::toolchain has it.
    std::string toolchain() const { return "nvrtc " + std::to_string(major) + "." + std::to_string(minor); }
  };
  virtual Result<Facts> facts() = 0;
};

// The options that decide what the code is; part of the identity of a cache entry. Options that only silence
// or inform the compiler are not among them.
std::string semantic_options(Arch arch);

}  // namespace normjit
