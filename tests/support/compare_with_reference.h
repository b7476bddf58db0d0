// SPDX-License-Identifier: Apache-2.0
// The outputs of a problem against the float64 reference, for data on which the kernels' arithmetic reaches
// its limits.
#pragma once

#include <optional>
#include <string>

#include "verify/problem.h"

namespace normjit::testing {

// The first output that is not what cli/reference.h says within the tolerance of cli/check.h, or nothing.
//
// The tolerance is wider in two places: for weights that are far from 1, which magnify the roundings of the
// statistics; and for a row whose variance and epsilon are so small beside the square of its mean that
// rounding in the compute type decides about rstd, by as much as it can change it. Where that is everything
// (rows of one number without epsilon), only rows are compared whose sums are exact.
std::optional<std::string> first_wrong(const oracle::Problem& problem);

}  // namespace normjit::testing
