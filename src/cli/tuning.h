// SPDX-License-Identifier: Apache-2.0
// What follows from the times of a tuning: which plans are worth a second look, which one wins, and what
// there is to say about the rules of the planner.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cli/measure.h"

namespace normjit::cli {

// The plans of one use, measured. The planner's choice is the first trial, the others follow as the model of
// the planner ranks them.
struct TuneReport {
  struct Trial {
    Plan plan;
    double cost = 0;  // by the model: its time relative to that of the choice; 0: the model was not asked,
    std::string why;  // and what decides it
    Timing kernel = {}, copy = {};
    int replays = 0;        // that the times are of; 0: it did not run
    bool finalist = false;  // measured in the second round too
    std::string error = {};

    double fraction_of_copy() const { return copy.median / kernel.median; }
  };

  NormSpec spec;
  std::int64_t rows = 0;
  std::string device;
  RowsRegime regime = RowsRegime::many;
  std::string served_rows;  // of the regime, which a tuned plan serves: "265 to 528"
  Alignment alignment = Alignment::eight;
  std::vector<Trial> trials;
  std::string error;                  // why none of them could be measured; else empty
  std::optional<std::size_t> winner;  // index; none ran: nothing
  bool stored = false;
};

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

// As JSON.
std::string json_of(const std::vector<TuneReport>& reports, const std::string& cache_directory);

}  // namespace normjit::cli
