// SPDX-License-Identifier: Apache-2.0
// Automatic mutants that no test can notice, and why: the kernel still does what it promises.
#pragma once

#include <span>
#include <string_view>

namespace normjit::testing {

// The mutant of this file whose line becomes that; `nth` as in Mutant. Where `becomes` is empty, all mutants
// of the line: those that survive are right, others may be wrong.
struct EquivalentMutant {
  std::string_view file, line, becomes, reason;
  int nth = 1;
};

std::span<const EquivalentMutant> equivalent_mutants();

}  // namespace normjit::testing
