// From what `bench --suite` and scripts/bench_peers.py have stored to the lines of a plot.
#pragma once

#include <string>

#include "cli/plot.h"
#include "normjit/result.h"

namespace normjit::cli {

// One line for each dtype, through its cases that move more than 64 MB with weight and bias and nothing else;
// and for each peer one through those of bf16, or of the first dtype that the peers have. `peers` may be
// empty. BadArgument, which names what is wrong, for texts that are something else.
Result<Plot> plot_of(const std::string& suite, const std::string& peers);

}  // namespace normjit::cli
