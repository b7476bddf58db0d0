// The options for NVRTC.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace normjit {

// The options for a target ("sm_90", "compute_90") and a version of NVRTC: the semantic ones, and of those
// that do not change the code the ones that this version knows (an unknown option fails the compile).
std::vector<std::string> compile_options(std::string_view target, int major, int minor);

// As one line, for messages.
std::string joined(const std::vector<std::string>& options);

}  // namespace normjit
