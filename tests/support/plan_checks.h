// SPDX-License-Identifier: Apache-2.0
// What tests of plans share: random specs on every device in every use, and limits that a plan breaks.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "normjit/plan.h"
#include "tests/support/random_spec.h"
#include "tests/support/sanitizers.h"

namespace normjit {

inline DeviceProfile h200() { return DeviceProfile::of({.number = 90}).value(); }

// Calls check(spec, device, random) with so many specs make(random), on one of the devices each.
template <class Make, class Check>
void for_random_specs(std::uint64_t count, Make make, Check check) {
#ifdef NORMJIT_ADDRESS_SANITIZER
  constexpr std::uint64_t kStep = 8;  // the planner is slow then: 1,000 specs take two minutes
#else
  constexpr std::uint64_t kStep = 1;
#endif
  for (std::uint64_t seed = 0; seed < count; seed += kStep) {
    Random random(seed);
    const NormSpec spec = make(random);
    const DeviceProfile& device = DeviceProfile::known()[random.below(DeviceProfile::known().size())];
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << to_text(spec) << " on " << device.text());
    check(spec, device, random);
    if (testing::Test::HasFailure()) return;  // one example is enough
  }
}

// And check(spec, device, regime, alignment) with each alignment and some of the regimes.
template <class Make, class Check>
void for_random_uses(std::uint64_t count, Make make, Check check) {
  for_random_specs(count, make, [&](const NormSpec& spec, const DeviceProfile& device, Random& random) {
    for (const RowsRegime regime : {RowsRegime::lone, random.one_of(kRowsRegimes), RowsRegime::many})
      for (const Alignment alignment : kAlignments) {
        SCOPED_TRACE(testing::Message()
                     << name(regime) << " rows, alignment " << static_cast<int>(alignment));
        check(spec, device, regime, alignment);
        if (testing::Test::HasFailure()) return;
      }
  });
}

// A plan depends on the architecture of a device, and not on how large it is.
inline void expect_no_influence_of_size(const NormSpec& spec, const DeviceProfile& device, Random& random) {
  DeviceProfile other = device;
  other.sm_count = static_cast<int>(random.between(1, 500));
  other.l2_bytes = random.between(1, 1 << 28);
  for (const RowsRegime regime : kRowsRegimes)
    for (const Alignment alignment : kAlignments) {
      ASSERT_EQ(choose(spec, other, regime, alignment), choose(spec, device, regime, alignment));
      ASSERT_EQ(fallback(spec, other, regime, alignment), fallback(spec, device, regime, alignment));
    }
}

// A change that makes a plan illegal, and what the error then says.
struct Broken {
  const char* says;
  std::function<void(Plan&)> breaking;
};
// The plan is legal, and is refused with each of the changes.
void expect_refused(const NormSpec& spec, const Plan& legal, const std::vector<Broken>& all,
                    const DeviceProfile& device = h200());

}  // namespace normjit
