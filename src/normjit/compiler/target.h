// What to compile for, when the compiler may be older or newer than the GPU.
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

// The best code for `wanted` from a compiler that knows the base architectures `known`: exactly `wanted`,
// suffix included, where its number is known (compilers accept suffixes without listing them); else a cubin
// for the newest older one of its major, since within a major newer GPUs run older cubins; else PTX for the
// newest older one, which the driver translates; else nothing. A stand-in has no suffix: suffixed code runs
// on its own architecture only.
std::optional<Target> choose_target(Arch wanted, const std::vector<Arch>& known);

}  // namespace normjit
