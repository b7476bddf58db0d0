// What the planner chooses, pinned: whoever changes how it gets there sees whether a choice has changed.
#include <gtest/gtest.h>

#include "normjit/base/digest.h"
#include "normjit/plan.h"
#include "tests/support/random_spec.h"

namespace normjit {
namespace {

// Every choice, and its fallback, of random specs on every known device.
std::string digest_of_choices(std::uint64_t specs) {
  std::string all;
  for (std::uint64_t seed = 0; seed < specs; ++seed) {
    Random random(seed);
    const NormSpec spec = canonical(random_spec(random));
    for (const DeviceProfile& device : DeviceProfile::known())
      for (const RowsRegime regime : kRowsRegimes)
        for (const Alignment alignment : kAlignments)
          all += to_text(choose(spec, device, regime, alignment)) + "\n" +
                 to_text(fallback(spec, device, regime, alignment)) + "\n";
  }
  return digest(all);
}

// A change of the costs, or of a known device, changes this on purpose: then the new digest belongs here, and
// the measurements that it is for into the commit message.
TEST(Choose, ChoicesOfRandomSpecsAreThoseOfTheMeasuredCosts) {
  EXPECT_EQ(digest_of_choices(300), "64f77dfe15f5c056f1ade73440d3d39f");
}

}  // namespace
}  // namespace normjit
