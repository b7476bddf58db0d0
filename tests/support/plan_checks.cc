// SPDX-License-Identifier: Apache-2.0
#include "tests/support/plan_checks.h"

#include <gmock/gmock.h>

namespace normjit {

void expect_refused(const NormSpec& spec, const Plan& legal, const std::vector<Broken>& all,
                    const DeviceProfile& device) {
  using testing::AllOf;
  using testing::HasSubstr;
  ASSERT_TRUE(check(legal, spec, device).ok()) << check(legal, spec, device).error().message;
  for (const Broken& broken : all) {
    Plan plan = legal;
    broken.breaking(plan);
    const auto refused = check(plan, spec, device);
    if (refused.code() != Code::IllegalPlan) {
      ADD_FAILURE() << to_text(plan) << " should be refused: " << broken.says;
      continue;
    }
    EXPECT_THAT(refused.error().message, AllOf(HasSubstr(broken.says), HasSubstr(to_text(plan)),
                                               HasSubstr(to_text(spec)), HasSubstr(device.arch.name())));
  }
}

}  // namespace normjit
