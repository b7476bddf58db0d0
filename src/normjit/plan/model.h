// SPDX-License-Identifier: Apache-2.0
// The model of the planner's costs: sums of small trees, fitted to measured layers by scripts/fit_plans.py,
// which writes model.cc.
#pragma once

#include <cstdint>
#include <span>

#include "normjit/plan/features.h"

namespace normjit {

// Plans of one family compete with each other only.
enum class PlanFamily : std::uint8_t { forward, channels_first, gradients };

// Six questions, "is this feature larger?", and a number for each set of answers: bit i of its index is the
// i-th answer. Numbers are in 1/1024 of the binary logarithm of the time.
struct Tree {
  struct Split {
    Feature feature;
    float threshold;
  };
  Split splits[6];
  std::int16_t leaves[64];
};

std::span<const Tree> trees_of(PlanFamily family) noexcept;

}  // namespace normjit
