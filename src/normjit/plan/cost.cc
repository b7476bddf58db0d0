// SPDX-License-Identifier: Apache-2.0
#include "normjit/plan/cost.h"

#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "normjit/plan/model.h"

namespace normjit {
namespace {

constexpr float kUnit = 1.0f / 1024;  // of leaves
PlanFamily family_of(const NormSpec& spec) {
  return spec.backward         ? PlanFamily::gradients
         : spec.channels_first ? PlanFamily::channels_first
                               : PlanFamily::forward;
}

// So many plans pass through a tree side by side, in vectors of kLanes of them.
constexpr std::size_t kTogether = 16;
template <std::size_t kLanes>
struct Vectors {
  typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
  typedef std::int32_t Ints __attribute__((vector_size(kLanes * sizeof(std::int32_t))));
};

// The features of some plans of one launch, by feature.
struct Together {
  std::array<std::array<float, kTogether>, kFeatures> values;

  explicit Together(const Features& common) {
    for (std::size_t f = 0; f < kFeatures; ++f) values[f].fill(common.values[f]);
  }
  void set(std::size_t i, const Features& features) {
    for (std::size_t f = kFeaturesOfLaunch; f < kFeatures; ++f) values[f][i] = features.values[f];
  }
};

using Sums = std::array<std::int32_t, kTogether>;

// Of the first kPlans plans.
template <std::size_t kPlans, std::size_t kLanes>
[[gnu::always_inline]] inline void add_leaves(std::span<const Tree> trees, const Together& plans,
                                              Sums& sums) {
  constexpr std::size_t kVectors = kPlans / kLanes;
  for (const Tree& tree : trees) {
    typename Vectors<kLanes>::Ints answers[kVectors] = {};
    for (std::size_t i = std::size(tree.splits); i-- > 0;) {
      const float* values = plans.values[static_cast<std::size_t>(tree.splits[i].feature)].data();
      const float threshold = tree.splits[i].threshold;
      for (std::size_t v = 0; v < kVectors; ++v) {
        typename Vectors<kLanes>::Floats lanes;
        std::memcpy(&lanes, values + v * kLanes, sizeof lanes);
        answers[v] = answers[v] + answers[v] - (lanes > threshold);  // what is true is -1
      }
    }
    std::array<std::int32_t, kPlans> leaves;
    std::memcpy(leaves.data(), answers, sizeof leaves);
    for (std::size_t i = 0; i < kPlans; ++i) sums[i] += tree.leaves[leaves[i]];
  }
}
template <std::size_t kLanes>
[[gnu::always_inline]] inline Sums sums_of_leaves_in(std::span<const Tree> trees, const Together& plans,
                                                     std::size_t count) {
  Sums sums{};
  if (count <= kTogether / 4)
    add_leaves<kTogether / 4, 4>(trees, plans, sums);
  else if (count <= kTogether / 2)
    add_leaves<kTogether / 2, kLanes>(trees, plans, sums);
  else
    add_leaves<kTogether, kLanes>(trees, plans, sums);
  return sums;
}

// Of the first `count` plans, in the instructions for four lanes that every processor has, or for eight.
#ifdef __x86_64__
__attribute__((target("avx2"))) Sums sums_of_leaves_avx2(std::span<const Tree> trees, const Together& plans,
                                                         std::size_t count) {
  return sums_of_leaves_in<8>(trees, plans, count);
}
#endif
Sums sums_of_leaves(std::span<const Tree> trees, const Together& plans, std::size_t count) {
#ifdef __x86_64__
  static const bool wide = __builtin_cpu_supports("avx2");
  if (wide) return sums_of_leaves_avx2(trees, plans, count);
#endif
  return sums_of_leaves_in<4>(trees, plans, count);
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
    {"rows begin anywhere", Feature::unaligned, 0, true},
    {"one block does all", Feature::alone, 0, true},
    {"parameters come late", Feature::early, 1, false},
};

}  // namespace

std::vector<float> costs_of(std::span<const Plan> plans, const PlanUse& use) {
  const std::span<const Tree> trees = trees_of(family_of(use.spec));
  const LaunchFeatures launch(use.spec, use.device, use.rows());
  std::vector<float> costs(plans.size());
  std::vector<Features> features;
  features.reserve(plans.size());
  for (const Plan& plan : plans) features.push_back(launch.of(plan));
  // Adds what these trees say of the plans with these indices in a launch, in which features_of(i) are
  // theirs.
  const auto add = [&](std::span<const std::size_t> those, std::span<const Tree> say,
                       const LaunchFeatures& in, const auto& features_of) {
    Together together(in.common());
    for (std::size_t begin = 0; begin < those.size(); begin += kTogether) {
      const std::size_t count = std::min(kTogether, those.size() - begin);
      for (std::size_t i = 0; i < count; ++i) together.set(i, features_of(those[begin + i]));
      const Sums sums = sums_of_leaves(say, together, count);
      for (std::size_t i = 0; i < count; ++i) costs[those[begin + i]] += static_cast<float>(sums[i]) * kUnit;
    }
  };
  // The first trees tell good plans from bad ones. Fewer and fewer plans pass through the others, and those
  // that stay behind cost more than they.
  constexpr struct {
    std::size_t trees, kept;
  } kRounds[] = {{12, 64}, {40, 32}, {160, 16}, {400, 8}, {~std::size_t{0}, 0}};
  std::vector<std::size_t> order(plans.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto by_cost = [&](std::size_t a, std::size_t b) {
    return std::pair(costs[a], a) < std::pair(costs[b], b);  // with every standard library the same
  };
  std::array<std::size_t, std::size(kRounds) + 1> ends{plans.size()};  // of the plans of each round
  std::size_t begin = 0;
  for (std::size_t round = 0; round < std::size(kRounds); ++round) {
    const std::span<std::size_t> those = std::span(order).first(ends[round]);
    const std::size_t end = std::min(kRounds[round].trees, trees.size());
    add(those, trees.subspan(begin, end - begin), launch,
        [&](std::size_t i) -> const Features& { return features[i]; });
    begin = end;
    const std::size_t kept = ends[round + 1] = std::min(kRounds[round].kept, those.size());
    if (kept > 0 && kept < those.size())
      std::nth_element(those.begin(), those.begin() + static_cast<std::ptrdiff_t>(kept), those.end(),
                       by_cost);
  }
  // The plan serves all rows of the regime: of those that are left the mean of its middle and its end.
  if (use.last_rows() > use.rows()) {
    const LaunchFeatures last(use.spec, use.device, use.last_rows());
    const std::span<const std::size_t> those = std::span(order).first(ends[std::size(kRounds) - 1]);
    add(those, trees, last, [&](std::size_t i) { return last.of(plans[i]); });
    for (const std::size_t i : those) costs[i] /= 2;
  }
  for (std::size_t round = std::size(kRounds) - 1; round-- > 0;) {
    const std::span<const std::size_t> kept = std::span(order).first(ends[round + 1]);
    const float worst = costs[*std::ranges::max_element(kept, by_cost)];
    for (const std::size_t left : std::span(order).subspan(ends[round + 1], ends[round] - ends[round + 1]))
      costs[left] = worst + std::exp2(costs[left]);
  }
  // The model knows no generic plan, and not how long one block adds the sums of all groups: 1152 bf16, 32
  // groups of 1024 rows 567 us, and 139 us where all blocks add them. All other plans are faster.
  const auto [least, worst] = std::ranges::minmax(costs);
  const bool in_groups = sums_over_groups(use.spec) > 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const bool alone = in_groups && plans[i].exchange == Exchange::none;
    if (plans[i].strategy == Strategy::generic || alone) costs[i] += worst - least + 1;
  }
  return costs;
}

std::string_view why(const Plan& plan, const PlanUse& use) {
  if (plan.strategy == Strategy::generic) return "the generic kernel reads rows several times";
  const Features features = LaunchFeatures(use.spec, use.device, use.rows()).of(plan);
  // The plan as it is, and without each reason.
  constexpr std::size_t kCases = std::size(kReasons) + 1;
  static_assert(kCases <= kTogether);
  Together cases(features);
  for (std::size_t i = 0; i < kCases; ++i) {
    Features without = features;
    if (i > 0) {
      const Reason& reason = kReasons[i - 1];
      float& value = without[reason.feature];
      value = reason.smaller ? std::min(value, reason.better) : std::max(value, reason.better);
    }
    cases.set(i, without);
  }
  const Sums sums = sums_of_leaves(trees_of(family_of(use.spec)), cases, kCases);
  std::size_t best = 0;
  for (std::size_t i = 1; i < kCases; ++i)
    if (sums[i] < sums[best]) best = i;
  return best == 0 ? "nothing that the model knows of" : kReasons[best - 1].text;
}

}  // namespace normjit
