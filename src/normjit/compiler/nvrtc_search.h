// Where libnvrtc is looked for.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "normjit/compiler/nvrtc.h"
#include "normjit/result.h"

namespace normjit {

struct NvrtcSearch {
  // The library to use instead of searching: NORMJIT_NVRTC_PATH or Options::compiler_path.
  std::string explicit_path;
  // A CUDA toolkit to look into: CUDA_HOME or CUDA_PATH. /usr/local/cuda is looked into besides.
  std::string cuda_home;
  // The driver's CUDA version, 13000 for 13.0; 0 or no function where there is no driver. Asked when the
  // search begins. A driver does not load cubins of a newer major, so NVRTC may not be newer either.
  std::function<int()> driver_cuda_version;
};

// One place to look at.
struct NvrtcCandidate {
  std::string name;  // a soname or a file
  bool only_if_loaded = false;

  friend bool operator==(const NvrtcCandidate&, const NvrtcCandidate&) = default;
};

// The places in their order: loaded in this process, the loader's own path, beside this library
// (own_directory), the wheels of pip beside it, the CUDA toolkits; newer majors first, none above
// newest_major (0: no limit).
std::vector<NvrtcCandidate> nvrtc_candidates(const std::string& cuda_home, const std::string& own_directory,
                                             int newest_major);

// How a place is looked at: open_nvrtc, or a test's own.
using OpenNvrtc = std::function<Result<Nvrtc>(const std::string& name, bool only_if_loaded)>;

// The first place that has a usable NVRTC. An explicit path is the only place: if it fails, so does the
// search. Errors: NoCompiler with every place and what was wrong there; CompilerTooOld for an explicit path.
Result<Nvrtc> find_nvrtc(const NvrtcSearch& search, const OpenNvrtc& open = open_nvrtc);

}  // namespace normjit
