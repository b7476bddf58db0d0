// SPDX-License-Identifier: Apache-2.0
// Plans, on a line; then, where there is one, the spec, on a second line. A plan that is legal for an
// architecture must have a grid, a workspace and shared memory that the architecture has.
#include <limits>

#include "cli/commands.h"
#include "normjit/base/text.h"
#include "normjit/plan.h"
#include "tests/fuzz/fuzz.h"

using namespace normjit;

namespace {

void use(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) {
  if (const Result<void> legal = check(plan, spec, device); !legal) {
    fuzz::expect_message(legal.error().message);
    return;
  }
  for (const std::int64_t rows :
       {std::int64_t{1}, std::int64_t{1000}, std::numeric_limits<std::int64_t>::max()}) {
    const std::int64_t blocks = grid_blocks(plan, spec, device, rows);
    fuzz::expect(blocks >= 1 && blocks <= std::numeric_limits<std::int32_t>::max(), "a grid has its bounds",
                 shortest(blocks));
  }
  fuzz::expect(rows_per_block(plan) >= 1 && columns_per_block(plan) >= 1, "a block has rows and columns");
  const int shared = shared_bytes(plan, spec);
  fuzz::expect(shared >= 0 && shared <= device.shared_per_block, "shared memory fits", shortest(shared));
  const std::size_t workspace = workspace_bytes(plan, spec, device);
  fuzz::expect(workspace <= std::size_t{1} << 32, "a workspace is small", shortest(workspace));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto lines = split(fuzz::text_of(data, size), '\n');
  const Result<Plan> plan = parse_plan(lines[0]);
  const Result<Plan> shown = cli::plan_from(lines[0]);  // the same, with a message for a terminal
  fuzz::expect(plan.ok() == shown.ok(), "the tool takes the same plans");
  if (!plan) {
    fuzz::expect_message(shown.error().message);
    return 0;
  }
  const std::string text = to_text(*plan);
  const Result<Plan> again = parse_plan(text);
  fuzz::expect(again.ok() && *again == *plan, "a plan reads back", text);

  const Result<NormSpec> spec = lines.size() > 1 ? parse_spec(lines[1]) : NormSpec{.columns = 4096};
  if (!spec) return 0;
  for (const DeviceProfile& device : DeviceProfile::known()) use(*plan, *spec, device);
  return 0;
}
