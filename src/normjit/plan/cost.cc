// SPDX-License-Identifier: Apache-2.0
#include "normjit/plan/cost.h"

#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <numeric>

#include "normjit/plan/model.h"

namespace normjit {
namespace {

constexpr float kUnit = 1.0f / 1024;  // of leaves
// The model knows no generic plan, which is slower than all others.
constexpr float kGeneric = 1000;

PlanFamily family_of(const NormSpec& spec) {
  return spec.backward         ? PlanFamily::gradients
         : spec.channels_first ? PlanFamily::channels_first
                               : PlanFamily::forward;
}

// So many plans pass through a tree side by side, in vector instructions, which GCC and Clang make of these
// types on any processor.
constexpr std::size_t kTogether = 16;
using Floats = float __attribute__((vector_size(kTogether * sizeof(float))));
using Ints = std::int32_t __attribute__((vector_size(kTogether * sizeof(std::int32_t))));
using Together = std::array<Floats, kFeatures>;

using Sums = std::array<std::int32_t, kTogether>;

Sums sums_of_leaves(std::span<const Tree> trees, const Together& plans) {
  Sums sums{};
  for (const Tree& tree : trees) {
    Ints answers{};
    std::int32_t bit = 1;
    for (const Tree::Split& split : tree.splits) {
      answers |= (plans[static_cast<std::size_t>(split.feature)] > split.threshold) & bit;
      bit *= 2;
    }
    const auto at = std::bit_cast<Sums>(answers);
    for (std::size_t i = 0; i < kTogether; ++i) sums[i] += tree.leaves[at[i]];
  }
  return sums;
}

// What would be the case without a reason for a plan to be slow.
struct Reason {
  std::string_view text;
  Feature feature;
  float better;
  bool smaller;  // `better` is less than what is worse
};
constexpr Reason kReasons[] = {
    {"some threads are idle", Feature::idle, 0, true},
    {"the last wave of blocks is not full", Feature::tail, 0, true},
    {"the blocks do not fill the device", Feature::busy, 1, false},
    {"accesses are narrow", Feature::access_bytes, 16, false},
    {"accesses are scattered", Feature::log_run, 8, false},
    {"there may be too few registers", Feature::spare, 16, false},
    {"too few bytes in flight", Feature::log_in_flight, 16, false},
    {"too few warps overlap", Feature::warps, 32, false},
    {"x is read twice", Feature::read_twice, 0, true},
    {"blocks that share a row wait for each other", Feature::log_row_blocks, 0, true},
    {"blocks that share a row meet over the whole device", Feature::over_grid, 0, true},
    {"rows are realigned in shared memory", Feature::unaligned, 0, true},
    {"one block does all", Feature::alone, 0, true},
    {"parameters come late", Feature::early, 1, false},
};

}  // namespace

std::vector<float> costs_of(std::span<const Plan> plans, const PlanUse& use) {
  const std::span<const Tree> trees = trees_of(family_of(use.spec));
  const std::int64_t rows = use.rows();
  std::vector<float> costs(plans.size());
  std::vector<Features> features(plans.size());
  for (std::size_t i = 0; i < plans.size(); ++i)
    features[i] = features_of(plans[i], use.spec, use.device, rows);
  // Adds what these trees say of the plans with these indices.
  const auto add = [&](std::span<const std::size_t> those, std::span<const Tree> say) {
    Together together{};
    for (std::size_t begin = 0; begin < those.size(); begin += kTogether) {
      const std::size_t count = std::min(kTogether, those.size() - begin);
      for (std::size_t i = 0; i < count; ++i)
        for (std::size_t f = 0; f < kFeatures; ++f) together[f][i] = features[those[begin + i]].values[f];
      const Sums sums = sums_of_leaves(say, together);
      for (std::size_t i = 0; i < count; ++i) costs[those[begin + i]] += static_cast<float>(sums[i]) * kUnit;
    }
  };
  // The first trees tell good plans from bad ones. Only the good ones pass through the others, and the bad
  // ones cost more than they.
  constexpr std::size_t kRough = 40, kGood = 3 * kTogether;
  std::vector<std::size_t> order(plans.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  add(order, trees.first(std::min(kRough, trees.size())));
  const auto by_cost = [&](std::size_t a, std::size_t b) { return costs[a] < costs[b]; };
  if (order.size() > kGood) std::nth_element(order.begin(), order.begin() + kGood, order.end(), by_cost);
  const std::span<const std::size_t> good = std::span(order).first(std::min(kGood, order.size()));
  add(good, trees.subspan(std::min(kRough, trees.size())));
  const float worst = costs[*std::max_element(good.begin(), good.end(), by_cost)];
  for (const std::size_t bad : std::span(order).subspan(good.size()))
    costs[bad] = worst + std::exp2(costs[bad]);
  for (std::size_t i = 0; i < plans.size(); ++i)
    if (plans[i].strategy == Strategy::generic) costs[i] = kGeneric;
  return costs;
}

std::string_view why(const Plan& plan, const PlanUse& use) {
  if (plan.strategy == Strategy::generic) return "the generic kernel reads rows several times";
  const Features features = features_of(plan, use.spec, use.device, use.rows());
  // The plan as it is, and without each reason.
  constexpr std::size_t kCases = std::size(kReasons) + 1;
  static_assert(kCases <= kTogether);
  Together cases{};
  for (std::size_t f = 0; f < kFeatures; ++f) cases[f] = features.values[f] - Floats{};
  for (std::size_t i = 1; i < kCases; ++i) {
    const Reason& reason = kReasons[i - 1];
    Floats& values = cases[static_cast<std::size_t>(reason.feature)];
    values[i] = reason.smaller ? std::min(values[i], reason.better) : std::max(values[i], reason.better);
  }
  const Sums sums = sums_of_leaves(trees_of(family_of(use.spec)), cases);
  std::size_t best = 0;
  for (std::size_t i = 1; i < kCases; ++i)
    if (sums[i] < sums[best]) best = i;
  return best == 0 ? "nothing that the model knows of" : kReasons[best - 1].text;
}

}  // namespace normjit
