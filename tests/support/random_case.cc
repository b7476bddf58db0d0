// SPDX-License-Identifier: Apache-2.0
// Which cases random_case draws. A kernel does the interesting things at edges: one row more than a block
// holds, a chunk of one vector, more rows than the ring has places. So sizes are drawn around those edges,
// and plans are small, which lets small rows have many chunks and many blocks.
#include <algorithm>
#include <vector>

#include "normjit/plan/footprint.h"
#include "tests/support/kernel_case.h"
#include "tests/support/random_spec.h"

namespace normjit::testing {
namespace {

constexpr std::int64_t kFewElements = 8'000, kSomeElements = 20'000, kManyElements = 300'000;
// Threads of a whole launch, each one a fiber.
constexpr std::int64_t kMostThreads = 16'384;
constexpr std::int64_t kMostRows = 1'100;  // a row more than any block holds, and some

DeviceProfile random_device(Random& random, std::optional<Strategy> strategy = {}) {
  const auto known = DeviceProfile::known();
  DeviceProfile device;
  do {
    device = known[random.below(known.size())];
  } while (strategy == Strategy::persistent_row && device.arch.number < 90);
  device.sm_count = static_cast<int>(random.between(1, 8));
  return device;
}

int random_power(Random& random, int first, int last) {
  int power = first;
  while (power < last && random.coin()) power *= 2;
  return power;
}

// Blocks that share a row: clusters where there are any, or teams.
void share(Random& random, Plan& plan, const DeviceProfile& device) {
  const bool clusters = device.arch.number >= 90 && random.coin();
  const std::int64_t resident = std::int64_t{device.sm_count} * plan.blocks_per_sm;
  if (!clusters && resident < 2) return;
  plan.exchange = clusters ? Exchange::cluster : Exchange::grid;
  plan.blocks_per_row = clusters ? 2 << random.below(3)
                                 : static_cast<int>(random.between(2, std::min<std::int64_t>(resident, 8)));
}

// Chunks of 4 to 16 KiB, in a ring that a slice fills or that has room for several rows.
std::optional<Plan> random_streamed_plan(Random& random, const NormSpec& spec, const DeviceProfile& device) {
  Plan plan{.strategy = Strategy::persistent_row,
            .threads = 512,
            .threads_per_row = 256,
            .vector = 16 / size_of(spec.input),
            .per_thread = static_cast<int>(random.between(1, 4)),
            .unaligned = spec.columns % (16 / size_of(spec.input)) != 0 || random.below(4) == 0};
  const std::int64_t chunks = ceil_div(spec.columns, columns_per_block(plan));
  const std::int64_t most = std::min<std::int64_t>(chunks, device.sm_count);
  plan.blocks_per_row = static_cast<int>(random.coin() ? 1 : random.between(1, most));
  if (plan.blocks_per_row > 1) plan.exchange = Exchange::grid;
  const std::int64_t own = ceil_div(chunks, plan.blocks_per_row);
  plan.stages = static_cast<int>(std::clamp<std::int64_t>(own + random.between(0, 2 * own), 2, 24));
  plan.grouped_rows = random.below(4) == 0;
  return check(plan, spec, device) ? std::optional(plan) : std::nullopt;
}

// The same for gradients, of a plan that has no more than a strategy and its threads.
std::optional<Plan> random_gradient_plan(Random& random, Plan plan, const NormSpec& spec,
                                         const DeviceProfile& device) {
  const auto divides = static_cast<int>(spec.columns & -spec.columns);
  plan.vector = std::min(1 << random.between(0, 3), divides);
  plan.blocks_per_sm = static_cast<int>(random.between(1, 4));
  if (random.coin()) plan.exchange = Exchange::grid;
  plan.threads_per_row = plan.threads;
  if (plan.strategy == Strategy::gradient_columns) {
    constexpr int kGroups[] = {1, 2, 3, 4, 8, 16};
    plan.per_thread = static_cast<int>(random.between(1, 4));
    plan.group_rows = random.one_of(kGroups);
  } else if (plan.strategy == Strategy::gradient_ring) {
    plan.vector = std::min(plan.vector, 16 / widest_element(spec));
    plan.blocks_per_row = 1 << random.between(0, 3);
    if (plan.blocks_per_row > 1) plan.exchange = Exchange::cluster;
    const std::int64_t slice = ceil_div(spec.columns, std::int64_t{plan.vector} * plan.blocks_per_row);
    if (random.coin()) plan.threads = plan.threads_per_row = kWarp * static_cast<int>(random.between(1, 32));
    plan.per_thread = static_cast<int>(std::min<std::int64_t>(ceil_div(slice, plan.threads), 32));
    plan.stages = static_cast<int>(random.between(fewest_stages(spec), 8));
  } else {
    // Long rows need many threads, since each holds up to 32 elements.
    if (spec.columns <= kWarp * 32 && random.below(3) != 0) {
      plan.threads_per_row = 1 << random.between(0, 5);
    } else if (random.coin()) {
      plan.threads = plan.threads_per_row = kWarp * static_cast<int>(random.between(1, 32));
    }
    const std::int64_t a_vector_each = std::int64_t{plan.threads_per_row} * plan.vector;
    plan.per_thread = static_cast<int>(
        std::min<std::int64_t>(ceil_div(spec.columns, a_vector_each) + (random.below(4) == 0), 32));
  }
  plan.grouped_rows = random.below(4) == 0;
  return check(plan, spec, device) ? std::optional(plan) : std::nullopt;
}

// A legal plan of the strategy, or nothing when the dice fell badly.
std::optional<Plan> random_plan(Random& random, Strategy strategy, const NormSpec& spec,
                                const DeviceProfile& device) {
  if (strategy == Strategy::persistent_row) return random_streamed_plan(random, spec, device);
  if (strategy == Strategy::generic)
    return random.coin() ? generic_plan()
                         : Plan{.strategy = strategy,
                                .threads = random_power(random, 32, 256),
                                .threads_per_row = kWarp,
                                .vector = 1,
                                .per_thread = static_cast<int>(random.between(1, 40))};
  Plan plan{.strategy = strategy};
  plan.threads = random_power(random, 32, 1024);
  if (strategy == Strategy::channels_first) {
    plan.threads_per_row = random_power(random, 1, plan.threads);
    plan.vector = 1 << random.between(0, 3);
    const std::int64_t all = std::min<std::int64_t>(ceil_div(spec.columns, plan.threads_per_row), 40);
    plan.per_thread = static_cast<int>(random.below(3) == 0 ? random.between(1, all) : all);
    plan.blocks_per_sm = static_cast<int>(random.between(1, 4));
    return check(plan, spec, device) ? std::optional(plan) : std::nullopt;
  }
  if (is_of_gradients(plan)) return random_gradient_plan(random, plan, spec, device);
  plan.threads_per_row = in_warps(plan) ? 1 << random.between(0, 5) : plan.threads;
  const auto divides = static_cast<int>(spec.columns & -spec.columns);
  plan.unaligned = !in_warps(plan) && random.below(3) == 0;
  plan.vector = plan.unaligned ? 1 << random.between(1, 3) : std::min(1 << random.between(0, 3), divides);
  plan.blocks_per_sm = static_cast<int>(random.between(1, 4));
  if (strategy == Strategy::block_row && random.coin()) share(random, plan, device);
  if (strategy == Strategy::block_row && plan.blocks_per_row == 1 && !plan.unaligned && random.below(3) == 0)
    plan.threads = plan.threads_per_row = kWarp * static_cast<int>(random.between(1, 32));
  const std::int64_t a_vector_each = std::int64_t{plan.threads_per_row} * plan.vector * plan.blocks_per_row;
  if (strategy == Strategy::staged_rows) plan.group_rows = static_cast<int>(random.between(1, 4));
  if (strategy == Strategy::split_row) {
    constexpr int kGroups[] = {1, 1, 1, 2, 3, 4, 8, 12, 16};
    plan.per_thread = static_cast<int>(random.between(1, 4));
    plan.group_rows = random.one_of(kGroups);
  } else {
    // Sometimes more than it takes.
    plan.per_thread = static_cast<int>(
        std::min<std::int64_t>(ceil_div(spec.columns, a_vector_each) + (random.below(4) == 0), 1024));
  }
  plan.grouped_rows = random.below(4) == 0;
  return check(plan, spec, device) ? std::optional(plan) : std::nullopt;
}

// The rows that the ring of a split_row launch has room for, as templates/split_row.cu works them out.
std::int64_t ring_rows(const KernelCase& c) {
  const std::int64_t reads = scales_rows(c.spec) ? 2 : 1;
  const std::int64_t items = reads * ceil_div(c.spec.columns, columns_per_block(c.plan));
  const std::int64_t blocks = std::int64_t{c.device.sm_count} * c.plan.blocks_per_sm;
  std::int64_t rows = 1;
  while (rows < 2 * c.plan.group_rows + 3 * blocks / items + 2) rows *= 2;
  return rows;
}

// What a row costs in threads that do something.
std::int64_t threads_a_row(const KernelCase& c) {
  if (in_warps(c.plan) || c.plan.strategy == Strategy::gradient_rows) return c.plan.threads_per_row;
  if (c.plan.strategy == Strategy::channels_first)
    return std::max<std::int64_t>(1, c.plan.threads_per_row / c.plan.vector);
  if (c.plan.strategy == Strategy::generic && c.spec.columns <= columns_per_block(c.plan)) return kWarp;
  if (c.plan.strategy != Strategy::split_row && c.plan.strategy != Strategy::gradient_columns)
    return c.plan.threads * c.plan.blocks_per_row;
  const int reads = scales_rows(c.spec) ? 3 : 2;
  return reads * c.plan.threads * ceil_div(c.spec.columns, columns_per_block(c.plan));
}

std::int64_t random_rows(Random& random, const KernelCase& c, std::int64_t elements) {
  const std::int64_t most = std::max<std::int64_t>(
      1, std::min({elements / c.spec.columns, kMostThreads / threads_a_row(c), kMostRows}));
  const std::int64_t resident = std::int64_t{c.device.sm_count} * c.plan.blocks_per_sm;
  const bool stays = c.plan.strategy == Strategy::persistent_row || c.plan.exchange == Exchange::grid;
  const std::int64_t edge =
      c.plan.strategy == Strategy::split_row       ? ring_rows(c)
      : c.plan.strategy == Strategy::gradient_rows ? resident * rows_per_block(c.plan) * random.between(1, 2)
      : c.plan.strategy == Strategy::gradient_ring
          ? (resident / c.plan.blocks_per_row + 1) * random.between(1, c.plan.stages + 2)
      : c.plan.strategy == Strategy::gradient_columns ? c.plan.group_rows * random.between(1, 4)
      : stays                                ? resident / c.plan.blocks_per_row * random.between(1, 4)
      : c.plan.strategy == Strategy::generic ? c.plan.threads / kWarp
                                             : rows_per_block(c.plan) * random.between(1, 4);
  std::int64_t rows = 1;
  switch (random.below(4)) {
    case 0:
      rows = random.between(1, most);
      break;
    case 1:
      rows = random.between(1, 4);
      break;
    case 2:
      rows = edge + random.between(-1, 1);
      break;
    case 3:
      rows = random.between(edge, 3 * edge);
      break;
  }
  return std::clamp<std::int64_t>(rows, 1, most);
}

// Elements between rows, or in front of a tensor: what the plan needs at a time, so many times.
std::int64_t random_distance(Random& random, int unit, std::int64_t most) {
  return random.coin() ? 0 : unit * random.between(1, most);
}

// Everything but the spec and the plan.
void fill_in(Random& random, KernelCase& c, std::int64_t elements) {
  c.rows = random_rows(random, c, elements);
  const int unit = c.plan.unaligned ? 1 : c.plan.vector;
  if (c.spec.channels_first) {
    c.plane = unit * random.between(1, std::max<std::int64_t>(1, random.coin() ? 9 : c.rows / unit));
    c.rows = std::max<std::int64_t>(1, c.rows / c.plane) * c.plane;
  } else if (c.plan.grouped_rows || c.plan.strategy == Strategy::generic) {
    c.group = random.between(1, std::min<std::int64_t>(c.rows, 5));
    c.rows -= c.rows % c.group;
  }
  const bool has_result = !c.spec.backward || writes_dx(c.spec);
  c.in_place = has_result && size_of(c.spec.input) == size_of(c.spec.output) && random.below(4) == 0;
  if (c.group > 1) c.group_gap = random_distance(random, unit, 20);
  c.x_gap = random_distance(random, unit, 20);
  if (!c.in_place) c.y_gap = random_distance(random, unit, 20);
  for (int* const shift : {&c.x_shift, &c.y_shift, &c.weight_shift, &c.bias_shift})
    *shift = static_cast<int>(random_distance(random, unit, 9));
  c.guard = random.coin() ? Guard::before : Guard::behind;
  const std::int64_t planned = grid_blocks(c.plan, c.spec, c.device, c.rows);
  if (random.coin()) c.blocks = random.between(1, planned / c.plan.blocks_per_row) * c.plan.blocks_per_row;
  c.overlaps = c.device.arch.number >= 90 && random.below(4) == 0;
  c.runs = random.coin() ? 1 : 2;
  c.inputs = random.one_of(kInputKinds);
  c.seed = random.below(1'000'000);
  const auto overlap = [&](std::int64_t& gap) {
    gap = -random.between(0, c.elements_of_row() / unit) * unit;
  };
  if (!c.in_place && random.below(8) == 0) overlap(c.x_gap);
  c.sum_in_place = c.spec.sum && c.spec.residual == Residual::before && random.coin();
  if (c.spec.sum && !c.sum_in_place) c.sum_gap = random_distance(random, unit, 20);
  const auto lay = [&](bool present, std::int64_t& gap, bool may_overlap) {
    if (!present) return;
    gap = random_distance(random, unit, 20);
    if (may_overlap && random.below(4) == 0) overlap(gap);
  };
  lay(c.spec.residual != Residual::none || c.spec.dsum, c.residual_gap, !c.sum_in_place);
  const bool has_dgate = row_of(Operand::dgate).present(c.spec);
  if (has_dgate) c.sum_in_place = c.group == 1 && random.below(4) == 0;
  lay(c.spec.gate != Gate::none, c.gate_gap, !c.sum_in_place || !has_dgate);
  lay(c.spec.modulation != Modulation::none || c.spec.backward, c.scale_gap,
      !(c.spec.backward && c.in_place));
  lay(row_of(Operand::mod_shift).present(c.spec) || (has_dgate && !c.sum_in_place), c.shift_gap, !has_dgate);
  if (row_of(Operand::dmod_scale).present(c.spec)) c.sum_gap = random_distance(random, unit, 20);
}

// One of the plans that users get, or nothing where the device has none.
std::optional<KernelCase> planned_case(Random& random) {
  KernelCase c;
  c.device = random_device(random);
  // Rows that are long enough for split_row are rare, since they take as long as twenty others.
  const bool huge = random.below(16) == 0;
  const SpecRange range{.most_columns = huge ? kManyElements : kFewElements,
                        .tame = true,
                        .channels_first = !huge,
                        .every_norm = random.coin(),
                        .backward = random.coin()};
  c.spec = canonical(random_spec(random, range));
  if (huge && c.spec.columns < kManyElements / 16)
    c.spec.columns = random.between(kManyElements / 16, kManyElements / 4);
  const RowsRegime regime = random.one_of(kRowsRegimes);
  const Alignment alignment = random.one_of(kAlignments);
  c.plan = choose(c.spec, c.device, regime, alignment);
  // A device as small as this may have no room for as many slices as the one that the planner knows.
  if (!check(c.plan, c.spec, c.device)) c.plan = fallback(c.spec, c.device, regime, alignment);
  if (!check(c.plan, c.spec, c.device)) return {};
  c.plan.grouped_rows = !c.spec.channels_first && random.below(4) == 0;
  fill_in(random, c, huge ? kManyElements : kSomeElements);
  return c;
}

KernelCase forced_case(Random& random, Strategy strategy) {
  for (;;) {
    KernelCase c;
    c.device = random_device(random, strategy);
    const bool is_short = in_warps({.strategy = strategy});
    const SpecRange range{
        .most_columns = is_short ? 2048 : kFewElements, .tame = true, .every_norm = random.coin()};
    c.spec = canonical(random_spec(random, range));
    if (strategy == Strategy::channels_first || (strategy == Strategy::generic && random.below(4) == 0)) {
      make_channels_first(c.spec);
      c.spec = canonical(c.spec);
    }
    if (strategy == Strategy::persistent_row && random.coin()) {
      const int vector = 16 / size_of(c.spec.input);
      c.spec.columns = ceil_div(c.spec.columns, vector) * vector;
    }
    if (is_of_gradients({.strategy = strategy})) {
      make_backward(c.spec, random);
      if (strategy == Strategy::gradient_ring)
        c.spec.columns = ceil_div(c.spec.columns, bulk_elements(c.spec)) * bulk_elements(c.spec);
      c.spec = canonical(c.spec);
    }
    const auto plan = random_plan(random, strategy, c.spec, c.device);
    if (!plan) continue;
    c.plan = *plan;
    fill_in(random, c, kSomeElements);
    return c;
  }
}

}  // namespace

KernelCase random_case(std::uint64_t seed, std::optional<Strategy> forced) {
  // The most difficult one twice as often.
  constexpr Strategy kWeighted[] = {
      Strategy::warp_rows,     Strategy::staged_rows,   Strategy::block_row,       Strategy::persistent_row,
      Strategy::split_row,     Strategy::split_row,     Strategy::channels_first,  Strategy::generic,
      Strategy::gradient_rows, Strategy::gradient_ring, Strategy::gradient_columns};
  Random random(seed);
  for (;;) {
    const std::optional<KernelCase> c = forced          ? forced_case(random, *forced)
                                        : random.coin() ? planned_case(random)
                                                        : forced_case(random, random.one_of(kWeighted));
    if (c && legal(*c)) return *c;
  }
}

}  // namespace normjit::testing
