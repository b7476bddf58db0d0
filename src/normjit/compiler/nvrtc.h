// SPDX-License-Identifier: Apache-2.0
// NVRTC as a table of functions. Only its header is compiled in: the library is opened at run time.
#pragma once

#include <nvrtc.h>

#include <functional>
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

// --- The search for it ---

struct NvrtcSearch {
  // The library to use instead of searching: NORMJIT_NVRTC_PATH or Options::compiler_path.
  std::string explicit_path;
  // A CUDA toolkit to search besides /usr/local/cuda: CUDA_HOME or CUDA_PATH.
  std::string cuda_home;
  // The driver's CUDA version, 13000 for 13.0; 0 or no function without a driver. Called when the search
  // begins. A driver loads no cubin of a newer major, so NVRTC must not be of a newer major either.
  std::function<int()> driver_cuda_version;
};

// One place to search.
struct NvrtcCandidate {
  std::string name;  // a soname or a file
  bool only_if_loaded = false;

  friend bool operator==(const NvrtcCandidate&, const NvrtcCandidate&) = default;
};

// The places in order: what this process has loaded, the loader's path, the folder of this library
// (own_directory), pip's wheels beside it, the CUDA toolkits. Newer majors come first, none above
// newest_major (0: no limit).
std::vector<NvrtcCandidate> nvrtc_candidates(const std::string& cuda_home, const std::string& own_directory,
                                             int newest_major);

// open_nvrtc, or a fake of it.
using OpenNvrtc = std::function<Result<Nvrtc>(const std::string& name, bool only_if_loaded)>;

// The first usable NVRTC. With an explicit path nothing else is tried. Errors: NoCompiler with every place
// and its error; CompilerTooOld for an explicit path.
Result<Nvrtc> find_nvrtc(const NvrtcSearch& search, const OpenNvrtc& open = open_nvrtc);

}  // namespace normjit
