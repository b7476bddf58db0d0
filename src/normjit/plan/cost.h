// SPDX-License-Identifier: Apache-2.0
// What plans cost: the time that the model expects for the rows of the regime.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "normjit/plan.h"
#include "normjit/plan/footprint.h"

namespace normjit {

// The architecture whose plans have been measured. Others have their own limits, and otherwise its physics.
inline constexpr Arch kMeasuredArch{90};

// A use of a spec on the default device of an architecture.
struct PlanUse {
  const NormSpec& spec;
  const DeviceProfile& device;
  RowsRegime regime;
  Alignment alignment;
  bool batch_invariant = false;

  // A number of rows that stands for the regime: the middle between its least and its most, but no more than
  // are enough.
  std::int64_t rows() const {
    const std::int64_t together = spec.channels_first ? kRowsTogether : 1;
    if (regime == RowsRegime::lone) return std::max(1, device.sm_count / 25) * together;
    if (regime == RowsRegime::many) return enough_rows();
    const std::int64_t less = rows_below(regime, spec, device);
    return std::min(std::max(less * 7 / 5, less + together), enough_rows());
  }
  // Near the end of the regime, where blocks may need one wave more than in its middle.
  std::int64_t last_rows() const {
    if (regime == RowsRegime::lone || regime == RowsRegime::many) return rows();
    return std::max(rows(), std::min(rows_below(regime, spec, device) * 39 / 20, enough_rows()));
  }
  // So many keep the memory busy for a long time, and are at least 16 a multiprocessor: more change nothing.
  std::int64_t enough_rows() const {
    constexpr std::int64_t kLong = std::int64_t{512} << 10;  // bytes of a multiprocessor
    const std::int64_t together = spec.channels_first ? kRowsTogether : 1;
    return device.sm_count * std::max(16 * together, kLong / row_bytes());
  }
  std::int64_t row_bytes() const { return spec.columns * (read_bytes(spec) + written_bytes(spec)); }
};

// Every plan of the search space of this use: those that spill on some GPU, and those that no model would
// rank high, among them. Each is listed once; the order means nothing.
std::vector<Plan> every_plan(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                             Alignment alignment);

// The binary logarithm of the time of each plan, up to a number that is the same for all plans of the use: of
// the 8 best plans. That of the others tells their order alone.
std::vector<float> costs_of(std::span<const Plan> plans, const PlanUse& use);

// What costs the plan most: the reason without which the model expects the largest gain.
std::string_view why(const Plan& plan, const PlanUse& use);

}  // namespace normjit
