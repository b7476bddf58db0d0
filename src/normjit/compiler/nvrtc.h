// SPDX-License-Identifier: Apache-2.0
// NVRTC as a table of functions. Only its header is compiled in: the library is opened at run time.
#pragma once

#include <nvrtc.h>

#include <string>
#include <vector>

#include "normjit/arch.h"
#include "normjit/result.h"

namespace normjit {

// One line per function: its name here and in NVRTC.
#define NORMJIT_NVRTC_CALLS(CALL)             \
  CALL(version, nvrtcVersion)                 \
  CALL(error_string, nvrtcGetErrorString)     \
  CALL(arch_count, nvrtcGetNumSupportedArchs) \
  CALL(archs, nvrtcGetSupportedArchs)         \
  CALL(create_program, nvrtcCreateProgram)    \
  CALL(destroy_program, nvrtcDestroyProgram)  \
  CALL(compile_program, nvrtcCompileProgram)  \
  CALL(log_size, nvrtcGetProgramLogSize)      \
  CALL(log, nvrtcGetProgramLog)               \
  CALL(cubin_size, nvrtcGetCUBINSize)         \
  CALL(cubin, nvrtcGetCUBIN)                  \
  CALL(ptx_size, nvrtcGetPTXSize)             \
  CALL(ptx, nvrtcGetPTX)

struct NvrtcTable {
#define NORMJIT_POINTER(name, function) decltype(&function) name = nullptr;
  NORMJIT_NVRTC_CALLS(NORMJIT_POINTER)
#undef NORMJIT_POINTER
};

// An open NVRTC, ready to compile.
struct Nvrtc {
  NvrtcTable call;
  std::string path;
  int major = 0, minor = 0;
  std::vector<Arch> archs;  // ascending, without suffixes

  std::string version() const;  // "13.0"
};

// Opens a library by path or soname; with `only_if_loaded`, only if this process has loaded it. Errors:
// NoCompiler, whose message is the reason alone, and CompilerTooOld.
Result<Nvrtc> open_nvrtc(const std::string& name, bool only_if_loaded);

// The second half of open_nvrtc: reads version and architectures through a complete table.
Result<Nvrtc> describe_nvrtc(const NvrtcTable& call, const std::string& path);

}  // namespace normjit
