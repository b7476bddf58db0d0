// SPDX-License-Identifier: Apache-2.0
// From a failing case to a small one that fails too, so that a human sees what matters.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "tests/support/kernel_case.h"

namespace normjit::testing {

// What is wrong with a case, or nothing.
using Verdict = std::function<std::optional<std::string>(const KernelCase&)>;

struct ShrunkCase {
  KernelCase smallest;  // that fails
  std::string wrong;    // with it
  int tried = 0;        // cases
};

// `wrong` is the verdict on `failing`. Takes greedily whatever simplification still fails, one at a time:
// fewer rows and columns, a smaller plan, plain dtypes, no options, plain memory, plain inputs. Asks for the
// verdict on legal cases only, `most` of them.
ShrunkCase shrink(const KernelCase& failing, const std::string& wrong, const Verdict& verdict, int most = 40);

}  // namespace normjit::testing
