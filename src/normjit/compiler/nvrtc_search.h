// SPDX-License-Identifier: Apache-2.0
// The search for libnvrtc.
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
