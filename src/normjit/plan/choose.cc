// The planner: which strategy, and in which shape. Each rule stands with its reason; none names a column
// count.
#include <algorithm>
#include <bit>
#include <optional>

#include "normjit/plan.h"
#include "normjit/plan/footprint.h"

namespace normjit {
namespace {

// Elements an access: what the launch's tensors allow, what divides the row, and no more than 16 bytes of the
// wider of input and output.
int vector_of(const LayerNormSpec& spec, Alignment alignment) {
  const int widest = 16 / std::max(size_of(spec.input), size_of(spec.output));
  const auto divides = static_cast<int>(spec.columns & -spec.columns);
  return std::min({static_cast<int>(alignment), widest, divides});
}

// As many blocks as a multiprocessor has registers for. Told to the compiler, this is what keeps enough loads
// in flight: without it, a row of 8192 f32 reached 0.68 of copy speed on an H200 instead of 0.98.
Plan with_occupancy(Plan plan, const LayerNormSpec& spec, const DeviceProfile& device) {
  plan.blocks_per_sm =
      std::max(1, std::min({device.registers_per_sm / (plan.threads * needed_registers(plan, spec)),
                            device.threads_per_sm / plan.threads, device.blocks_per_sm}));
  return plan;
}

Plan packed_rows(int lanes, int vector, int each) {
  // Small blocks end and begin independently: 128 threads 0.92, 256 threads 0.78 of copy speed at 1024 bf16
  // columns.
  return {Strategy::packed_rows, 128, lanes, vector, each, 1, 1};
}

Plan resident_row(int threads, int vector, int each) {
  return {Strategy::resident_row, threads, threads, vector, each, 1, 1};
}

Plan two_reads(const LayerNormSpec& spec, const DeviceProfile& device, RowsRegime regime, int vector) {
  // 256 threads with 32 KiB of a row: 230 us for 16 x 4,194,304 f32 on an H200, 128 threads
  // 242, 512 threads 225 but spilling in other specs.
  constexpr int kThreads = 256;
  const int held = size_of(spec.input) == 2 ? 16 : max_held_registers(kThreads, vector, spec);
  Plan plan{Strategy::two_reads, kThreads, kThreads, vector, held / registers_per_vector(vector, spec), 1, 1};
  // With few rows a row must be cut finely enough to occupy the device.
  constexpr int kChunksToFill = 256;
  if (regime != RowsRegime::many)
    while (plan.per_thread > 1 && ceil_div(spec.columns, columns_per_block(plan)) < kChunksToFill)
      plan.per_thread /= 2;
  // Weights that leave no room for x in L2 are read once for a group of rows, 230 us instead of 292 for the
  // shape above; smaller ones stay in L2 by themselves, and then rows are applied one by one, while they are
  // there too.
  constexpr int kGroup = 16, kShare = 8;
  const std::int64_t weights = spec.columns * size_of(spec.weight) * static_cast<int>(spec.affine);
  if (weights > device.l2_bytes / kShare) plan.group_rows = kGroup;
  return plan;
}

}  // namespace

// Only the architecture of the device counts, not its size, so that what is prebuilt for sm_90 serves every
// GPU of it.
Plan choose(const LayerNormSpec& spec, const DeviceProfile& any, RowsRegime regime,
            Alignment alignment) noexcept {
  const auto named = DeviceProfile::of(any.arch);
  const DeviceProfile& device = named ? *named : any;
  const int vector = vector_of(spec, alignment);
  const int registers = registers_per_vector(vector, spec);
  const std::int64_t vectors = spec.columns / vector;
  const bool few = regime != RowsRegime::many;

  // A. Two vectors a lane, then more: 0.99 of copy speed at 64 f32 columns with GELU where one a lane reached
  // 0.93. With few rows latency counts, and more than two vectors a lane are better spread over more threads.
  const auto pairs = static_cast<std::uint64_t>(ceil_div(vectors, 2));
  const auto lanes = static_cast<int>(std::min<std::uint64_t>(kWarp, std::bit_ceil(pairs)));
  if (const auto each = static_cast<int>(ceil_div(vectors, lanes)); each * registers <= (few ? 8 : 16))
    return with_occupancy(packed_rows(lanes, vector, each), spec, device);

  // B. With few rows as many threads as it takes to hold 16 bytes each. Otherwise as few as can hold the row,
  // so that many independent blocks run.
  const auto resident = [&](int threads, int most) -> std::optional<Plan> {
    const Plan plan = resident_row(threads, vector, static_cast<int>(ceil_div(vectors, threads)));
    if (held_registers(plan, spec) > most || threads * needed_registers(plan, spec) > device.registers_per_sm)
      return {};
    return with_occupancy(plan, spec, device);
  };
  constexpr int kThin = 4;
  for (const int threads : {128, 256, 512, 1024})
    if (const auto plan = few ? resident(threads, kThin) : std::nullopt) return *plan;
  for (const int threads : {128, 256, 512, 1024})
    if (const auto plan = resident(threads, max_held_registers(threads, vector, spec))) return *plan;

  // C. Sliced rows, which keep a longer row on chip over several blocks, belong here.

  // D. Anything longer.
  return with_occupancy(two_reads(spec, device, regime, vector), spec, device);
}

std::vector<Plan> plans(const LayerNormSpec& spec, const DeviceProfile& device) {
  std::vector<Plan> all;
  for (const RowsRegime regime : kRowsRegimes)
    for (const Alignment alignment : kAlignments) {
      const Plan plan = choose(spec, device, regime, alignment);
      if (std::find(all.begin(), all.end(), plan) == all.end()) all.push_back(plan);
    }
  return all;
}

}  // namespace normjit
