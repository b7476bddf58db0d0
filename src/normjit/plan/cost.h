// SPDX-License-Identifier: Apache-2.0
// What a plan costs: the estimated time for a typical number of rows of the regime, as a multiple of the time
// in which a plain copy moves the same bytes.
#pragma once

#include <algorithm>

#include "normjit/plan.h"
#include "normjit/plan/footprint.h"

namespace normjit {

// A use of a spec on the default device of an architecture.
struct PlanUse {
  const NormSpec& spec;
  const DeviceProfile& device;
  RowsRegime regime;
  Alignment alignment;

  // A number of rows that stands for the regime. `many` rows keep the memory busy for a long time.
  std::int64_t rows() const {
    constexpr std::int64_t kLong = std::int64_t{256} << 20;
    const int together = spec.channels_first ? kRowsTogether : 1;
    if (regime == RowsRegime::lone) return std::max(1, device.sm_count / 32) * together;
    if (regime == RowsRegime::few) return std::max(1, device.sm_count / 2) * together;
    return std::max<std::int64_t>(16 * device.sm_count * together, kLong / row_bytes());
  }
  std::int64_t row_bytes() const { return spec.columns * (read_bytes(spec) + written_bytes(spec)); }
  // Of weight and bias.
  std::int64_t affine_bytes() const {
    return spec.columns * size_of(spec.weight) * static_cast<int>(spec.affine);
  }
};

// The plan with its cost, and with the largest part of it in `why`.
Candidate evaluate(const Plan& plan, const PlanUse& use);

}  // namespace normjit
