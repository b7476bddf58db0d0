// What follows from the times of a tuning: which plans are worth a second look, which one wins, and what
// there is to say about the rules of the planner.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cli/reports.h"

namespace normjit::cli {

// The indices of the trials to look at again: of the fastest plans, at most `most`, the fastest first, and of
// the planner's choice, which is the first of the trials. Plans that did not run are left out.
std::vector<std::size_t> finalists(const std::vector<TuneReport::Trial>& trials, std::size_t most);

// The indices of those that were finalists and ran, the fastest first.
std::vector<std::size_t> ranking(const std::vector<TuneReport::Trial>& trials);

// The index of the fastest of the finalists. The planner's choice wins as long as no other
// is faster by more than the noise of a measurement. Nothing if none ran.
std::optional<std::size_t> winner_of(const std::vector<TuneReport::Trial>& trials);

// One sentence: whether the rules chose the best plan, and else what they chose, what is better and by how
// much.
std::string verdict(const TuneReport& report);

}  // namespace normjit::cli
