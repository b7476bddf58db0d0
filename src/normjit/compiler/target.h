// The architecture to compile for, when the compiler may be older or newer than the GPU.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "normjit/arch.h"

namespace normjit {

struct Target {
  Arch arch;
  bool ptx = false;

  friend bool operator==(const Target&, const Target&) = default;

  std::string name() const;  // "sm_90a", or "compute_90" for PTX
};

// The best target for `wanted` of a compiler that knows the base architectures `known`:
//   1. `wanted`, suffix included, if its number is known (compilers accept suffixes without listing them);
//   2. a cubin for the newest older one of its major, which newer GPUs of that major run;
//   3. PTX for the newest older one, which the driver translates;
//   4. nothing.
// 2 and 3 drop the suffix, since suffixed code runs on its own architecture only.
std::optional<Target> choose_target(Arch wanted, const std::vector<Arch>& known);

}  // namespace normjit
