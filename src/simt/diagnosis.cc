// SPDX-License-Identifier: Apache-2.0
#include "simt/diagnosis.h"

#include <iterator>

namespace normjit::simt {

std::string_view name(Fault fault) noexcept {
  constexpr std::string_view kNames[] = {"bad launch",    "deadlock",   "divergence",          "bad mask",
                                         "out of bounds", "misaligned", "uninitialized",       "missing wait",
                                         "race",          "misuse",     "undefined behaviour", "crash",
                                         "time limit"};
  const auto index = static_cast<std::size_t>(fault);
  return index < std::size(kNames) ? kNames[index] : "?";
}

}  // namespace normjit::simt
