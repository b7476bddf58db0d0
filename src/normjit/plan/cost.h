// What a plan would cost: the estimated time for a typical number of rows of the regime, as a multiple of the
// time in which a plain copy moves the same bytes.
#pragma once

#include <algorithm>
#include <string_view>

#include "normjit/plan.h"
#include "normjit/plan/footprint.h"

namespace normjit {

// A use of a spec on the named device of an architecture.
struct PlanUse {
  const NormSpec& spec;
  const DeviceProfile& device;
  RowsRegime regime;
  Alignment alignment;

  // Rows that stand for the regime: many keep the memory busy for long.
  std::int64_t rows() const {
    constexpr std::int64_t kLong = std::int64_t{256} << 20;
    if (regime == RowsRegime::lone) return std::max(1, device.sm_count / 32);
    if (regime == RowsRegime::few) return std::max(1, device.sm_count / 2);
    return std::max<std::int64_t>(16 * device.sm_count, kLong / row_bytes());
  }
  std::int64_t row_bytes() const { return spec.columns * (read_bytes(spec) + written_bytes(spec)); }
  // Weight and bias.
  std::int64_t affine_bytes() const {
    return spec.columns * size_of(spec.weight) * static_cast<int>(spec.affine);
  }
};

// A Candidate that has not been written down: every choice weighs dozens of them, and nobody reads most.
struct Weighed {
  Plan plan;
  double cost = 0;
  std::string_view why;  // of a literal
};

// The plan with its cost, and what costs most.
Weighed weighed(const Plan& plan, const PlanUse& use);

}  // namespace normjit
