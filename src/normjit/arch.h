// SPDX-License-Identifier: Apache-2.0
// The architecture of a GPU, as the CUDA toolchain names it.
#pragma once

#include <string>
#include <string_view>

#include "normjit/result.h"

namespace normjit {

// A full architecture name: compute capability times ten, and the suffix of an architecture-specific (a) or
// family-specific (f) target, else '\0'. It is part of every cache key and is never rounded.
struct Arch {
  int number = 0;
  char suffix = '\0';

  friend constexpr bool operator==(const Arch&, const Arch&) = default;

  int major() const noexcept { return number / 10; }
  int minor() const noexcept { return number % 10; }
  // "sm_90", "sm_90a".
  NORMJIT_API std::string name() const;
  // Reads "sm_90" or "sm_90a"; UnknownArch for any other form. Does not check whether such a GPU exists;
  // DeviceProfile::of(arch) does.
  NORMJIT_API static Result<Arch> parse(std::string_view text);
};

}  // namespace normjit
