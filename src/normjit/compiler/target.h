// SPDX-License-Identifier: Apache-2.0
// The target that NVRTC compiles for, and its options.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/arch.h"

namespace normjit {

struct Target {
  Arch arch;
  bool ptx = false;

  friend bool operator==(const Target&, const Target&) = default;

  std::string name() const;  // "sm_90a", or "compute_90" for PTX
};

// The best target for `wanted` that a compiler offers which knows the base architectures `known`:
//   1. `wanted` with its suffix, if its number is known (compilers accept suffixes without listing them);
//   2. a cubin for the newest older architecture of the same major, which newer GPUs of that major run;
//   3. PTX for the newest older architecture, which the driver translates;
//   4. nothing.
// 2 and 3 drop the suffix, since suffixed code runs on its own architecture only.
std::optional<Target> choose_target(Arch wanted, const std::vector<Arch>& known);

// The options for a target ("sm_90", "compute_90") and a version of NVRTC: the semantic options, and those
// without effect on the code that this version knows. An unknown option would fail the compile.
std::vector<std::string> compile_options(std::string_view target, int major, int minor);

// As one line, for messages.
std::string joined(const std::vector<std::string>& options);

}  // namespace normjit
