// The facts of a plan: its legality and its launch.
#include "normjit/plan.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>

#include "normjit/base/text.h"
#include "normjit/plan/footprint.h"
#include "normjit/plan/grid.h"
#include "normjit/spec/valid.h"

namespace normjit {
namespace {

constexpr std::int64_t kMaxGrid = std::numeric_limits<std::int32_t>::max();
constexpr int kMaxThreads = 1024;

}  // namespace

RowsRegime regime_of(std::int64_t rows, const DeviceProfile& device) noexcept {
  // From so many rows on, a block of each multiprocessor for every row is all that there is to spread.
  constexpr int kLone = 16;
  if (rows <= device.sm_count / kLone) return RowsRegime::lone;
  return rows < device.sm_count ? RowsRegime::few : RowsRegime::many;
}

Alignment alignment_of(std::uint64_t address_and_stride_bytes, DType dtype) noexcept {
  const std::uint64_t bytes =
      address_and_stride_bytes | 16;  // more than 16 bytes an access is never asked for
  const int aligned = 1 << std::countr_zero(bytes);
  return aligned == 16 ? Alignment::eight : Alignment{static_cast<std::uint8_t>(aligned / size_of(dtype))};
}

Alignment contiguous_alignment(const NormSpec& spec) noexcept {
  const auto of = [&](DType dtype) {
    return alignment_of(static_cast<std::uint64_t>(spec.columns * size_of(dtype)), dtype);
  };
  return std::min(of(spec.input), of(spec.output));
}

std::int64_t rows_per_block(const Plan& plan) noexcept {
  return in_warps(plan) ? std::int64_t{plan.threads / plan.threads_per_row} * rows_of_lanes(plan) : 1;
}

std::int64_t columns_per_block(const Plan& plan) noexcept {
  return std::int64_t{plan.threads_per_row} * plan.vector * plan.per_thread;
}

namespace {

// The blocks that are resident at once, and the chunks of a row.
std::int64_t resident_blocks(const Plan& plan, const DeviceProfile& device) {
  return std::int64_t{device.sm_count} * plan.blocks_per_sm;
}
std::int64_t chunks_of(const Plan& plan, const NormSpec& spec) {
  const std::int64_t span = columns_per_block(plan);
  return plan_math::chunks(spec.columns, span, covered(plan, spec));
}

// The ring of rows in the workspace of split_row.
struct Ring {
  std::int64_t chunks, lag, rows;
};

Ring ring_of(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) {
  const std::int64_t blocks = resident_blocks(plan, device), chunks = chunks_of(plan, spec);
  return {chunks, plan_math::split_lag(plan.group_rows, chunks, blocks),
          std::int64_t{1} << plan_math::split_ring_shift(plan.group_rows, chunks, blocks)};
}

// How many places for what it publishes a block has, in turn.
std::int64_t slot_depth(const Plan& plan, const NormSpec& spec) {
  if (plan.strategy != Strategy::persistent_row) return 2;
  return plan_math::slot_depth(plan_math::row_depth(plan.stages, chunks_of(plan, spec), plan.blocks_per_row));
}

}  // namespace

Grid grid_of(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) noexcept {
  const auto grid = [](std::int64_t rows_per_part, std::int64_t most_parts, std::int64_t blocks_per_part,
                       std::int64_t most_blocks) {
    const auto narrow = [](std::int64_t count) { return static_cast<std::uint32_t>(count); };
    return Grid{narrow(rows_per_part), narrow(most_parts), narrow(blocks_per_part), narrow(most_blocks)};
  };
  if (plan.strategy == Strategy::generic) {
    const bool a_warp_each = spec.columns <= columns_per_block(plan);
    return grid(a_warp_each ? plan.threads / kWarp : 1, kMaxGrid, 1, kMaxGrid);
  }
  const std::int64_t resident = resident_blocks(plan, device);
  if (plan.strategy == Strategy::split_row) return grid(1, resident, chunks_of(plan, spec), resident);
  const bool stays = plan.strategy == Strategy::persistent_row || plan.exchange == Exchange::grid;
  const std::int64_t teams = (stays ? resident : kMaxGrid) / plan.blocks_per_row;
  return grid(rows_per_block(plan), teams, plan.blocks_per_row, teams * plan.blocks_per_row);
}

Plan generic_plan() noexcept {
  return {.strategy = Strategy::generic,
          .threads = 256,
          .threads_per_row = kWarp,
          .vector = 1,
          .per_thread = 32,
          .blocks_per_sm = 2};
}

NormSpec generic_spec(const NormSpec& spec) noexcept {
  constexpr std::int64_t kMostColumns = std::numeric_limits<std::int32_t>::max();
  return canonical({.columns = kMostColumns, .input = compute_type(spec), .statistics = true});
}

NormSpec source_spec(const Plan& plan, const NormSpec& spec) noexcept {
  return plan.strategy == Strategy::generic ? generic_spec(spec) : canonical(spec);
}

std::int64_t grid_blocks(const Plan& plan, const NormSpec& spec, const DeviceProfile& device,
                         std::int64_t rows) noexcept {
  return grid_of(plan, spec, device).blocks(rows);
}

namespace {
// Cubins run on later architectures of the same major version, but not on those of Tegra (87, 88), whose
// cubins run on nothing else (CUDA programming guide, binary compatibility).
Arch oldest_compatible(Arch arch) {
  switch (arch.number) {
    case 86:
    case 89:
      return Arch{80};
    case 103:
      return Arch{100};
    case 121:
      return Arch{120};
    default:
      return Arch{arch.number};
  }
}
}  // namespace

Arch target_of(const Plan& plan, Arch arch) noexcept {
  if (plan.strategy == Strategy::persistent_row) arch.suffix = 'a';
  return plan.strategy == Strategy::generic ? oldest_compatible(arch) : arch;
}

namespace {
std::int64_t wide_shared_bytes(const Plan& plan, const NormSpec& spec) {
  const int largest = std::max(size_of(spec.input), size_of(spec.output));
  if (plan.strategy == Strategy::staged_rows) {
    const std::int64_t row = plan_math::tile_bytes(1, spec.columns, largest);
    return std::min(rows_per_block(plan), kMaxGrid) * std::min(row, kMaxGrid);
  }
  if (plan.unaligned && plan.strategy != Strategy::persistent_row) {
    const std::int64_t span = columns_per_block(plan);
    const std::int64_t columns = span < covered(plan, spec) ? span : spec.columns;
    return plan.threads / plan.threads_per_row * plan_math::stage_bytes(columns, plan.vector, largest);
  }
  // Beyond what any device has, the count no longer matters; so it stays within 64 bits.
  const std::int64_t room = plan_math::ring_room(columns_per_block(plan), plan.vector, plan.unaligned);
  return std::max(0, plan.stages) * std::min<std::int64_t>(room * size_of(spec.input), kMaxGrid);
}
}  // namespace

int shared_bytes(const Plan& plan, const NormSpec& spec) noexcept {
  return static_cast<int>(std::min<std::int64_t>(wide_shared_bytes(plan, spec), kMaxGrid));
}

std::size_t workspace_bytes(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) noexcept {
  std::int64_t bytes = plan_math::kHeaderBytes + plan_math::kMaxRingRows * plan_math::kRingRowBytes +
                       plan_math::kMaxSlots * plan_math::kSlotBytes;
  if (plan.strategy ==
      Strategy::split_row) {  // for each row of the ring its statistics, and its chunks' moments
    const Ring ring = ring_of(plan, spec, device);
    bytes += ring.rows * (1 + ring.chunks) * 4 * size_of(compute_type(spec));
  } else if (plan.exchange != Exchange::grid) {
    bytes = 0;
  }
  return static_cast<std::size_t>(bytes);
}

namespace {

// What a strategy cannot compute; empty: it serves the spec.
std::string check_operation(Strategy strategy, const NormSpec& spec) {
  if (!is_held(spec) || strategy == Strategy::warp_rows || strategy == Strategy::block_row) return {};
  return concat({name(strategy), " does not compute ",
                 spec.norm != Norm::layer ? name(spec.norm)
                 : spec.sum               ? "a residual and its sum"
                                          : "a residual",
                 " yet; warp_rows and block_row do"});
}

// What is wrong with the way in which blocks share a row; empty: nothing.
std::string check_slices(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) {
  const bool streams = plan.strategy == Strategy::persistent_row;
  const bool shares = streams || plan.strategy == Strategy::block_row;
  if (plan.blocks_per_row < 1 || (plan.blocks_per_row > 1) != (plan.exchange != Exchange::none))
    return "slices of a row need an exchange, and a whole row has none";
  if (plan.blocks_per_row > 1 && !shares) return "only resident and persistent rows are shared by blocks";
  if (plan.exchange == Exchange::cluster) {
    if (streams) return "persistent rows exchange through memory";
    if (device.arch.number < 90) return "clusters need sm_90";
    if (plan.blocks_per_row > kMaxCluster || !std::has_single_bit(static_cast<unsigned>(plan.blocks_per_row)))
      return concat({"a cluster has 2, 4 or ", shortest(kMaxCluster), " blocks"});
  }
  if (plan.exchange == Exchange::grid) {
    const std::int64_t resident = resident_blocks(plan, device);
    if (plan.blocks_per_row > resident)
      return concat({"its ", shortest(plan.blocks_per_row),
                     " slices of a row must be resident together; the device has room for ",
                     shortest(resident), " blocks"});
    if (resident * slot_depth(plan, spec) > plan_math::kMaxSlots)
      return concat(
          {"so many blocks would leave more than ", shortest(plan_math::kMaxSlots), " posts for each other"});
  }
  if (const std::int64_t shared = all_shared_bytes(plan, spec);
      shared > device.shared_per_block || plan.blocks_per_sm * shared > device.shared_per_sm)
    return concat({"its blocks need ", shortest(shared_bytes(plan, spec)), " bytes of shared memory each"});
  const std::int64_t chunks = chunks_of(plan, spec);
  if (streams) {
    if (device.arch.number < 90) return "the ring is fed by bulk copies, which need sm_90";
    if (plan.stages < 2) return "the ring must have room for 2 chunks at least";
    if (chunks < plan.blocks_per_row) return "every slice must have a chunk";
    if (ceil_div(chunks, plan.blocks_per_row) > plan.stages) return "a slice does not fit in the ring";
    return {};
  }
  if (plan.stages != 0) return "only persistent rows have a ring";
  if (plan.strategy == Strategy::split_row || plan.strategy == Strategy::generic) return {};
  if (plan.blocks_per_row * columns_per_block(plan) < covered(plan, spec))
    return "the lanes do not cover the row";
  return {};
}

}  // namespace

Result<void> check(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) {
  const auto illegal = [&](std::string_view why) {
    return Error{Code::IllegalPlan, concat({"plan '", to_text(plan), "' for ", to_text(spec), " on ",
                                            device.arch.name(), ": ", why})};
  };
  const auto power_of_two = [](int n) { return n > 0 && std::has_single_bit(static_cast<unsigned>(n)); };
  if (plan.strategy > Strategy::generic || plan.exchange > Exchange::grid)
    return illegal("unknown strategy or exchange");
  if (const auto why = check_operation(plan.strategy, spec); !why.empty()) return illegal(why);
  if (plan.threads < kWarp || plan.threads > kMaxThreads || !power_of_two(plan.threads))
    return illegal("threads must be a power of two from 32 to 1024");
  if (!power_of_two(plan.vector) || plan.vector > 8 || (spec.columns % plan.vector != 0 && !plan.unaligned))
    return illegal("vector must be 1, 2, 4 or 8, and divide the columns unless it is unaligned");
  if (plan.strategy == Strategy::staged_rows &&
      (plan.unaligned || plan.vector * std::max(size_of(spec.input), size_of(spec.output)) > 16))
    return illegal("staged rows begin anywhere, and lanes read at most 16 bytes at a time");
  if (plan.unaligned && plan.strategy == Strategy::persistent_row) {
    if (spec.columns < 2 * plan.vector)
      return illegal("rows of less than two accesses are not streamed unaligned");
  } else if (plan.unaligned && (plan.strategy == Strategy::warp_rows || !can_realign(plan.vector, spec) ||
                                plan.vector * std::max(size_of(spec.input), size_of(spec.output)) > 16)) {
    return illegal(
        "only accesses of more than one element, whole words and at most 16 bytes can be unaligned, of rows "
        "that a block has, without a residual");
  }
  if (plan.per_thread < 1) return illegal("per_thread must be at least 1");
  if (plan.strategy == Strategy::generic) {
    constexpr int kMostChunk = 1 << 20;
    if (plan.threads_per_row != kWarp || plan.vector != 1 || plan.unaligned || plan.group_rows != 1 ||
        columns_per_block(plan) > kMostChunk)
      return illegal("generic rows are read in single elements by the 32 lanes of a warp");
  } else if (in_warps(plan)) {
    if (!power_of_two(plan.threads_per_row) || plan.threads_per_row > kWarp)
      return illegal("lanes must be a power of two up to 32");
  } else if (plan.strategy == Strategy::persistent_row) {
    if (plan.threads != 512 || plan.threads_per_row != 256 || plan.vector * size_of(spec.input) != 16 ||
        plan.blocks_per_sm != 1)
      return illegal("persistent rows are read in 16 bytes, by one block of 512 threads of which 256 apply");
  } else if (plan.threads_per_row != plan.threads) {
    return illegal("all threads share a row, so lanes must equal threads");
  }
  if (const auto why = check_slices(plan, spec, device); !why.empty()) return illegal(why);
  if (plan.group_rows < 1 || (plan.group_rows > 4 && plan.group_rows % 4 != 0))
    return illegal("group_rows must be 1 to 4 or a multiple of 4");
  if (plan.blocks_per_sm < 1 || plan.blocks_per_sm > device.blocks_per_sm ||
      plan.threads * plan.blocks_per_sm > device.threads_per_sm)
    return illegal(concat({"blocks_per_sm exceeds ", shortest(device.blocks_per_sm), " blocks or ",
                           shortest(device.threads_per_sm), " threads of a multiprocessor"}));
  if (const std::int64_t least = held_registers(plan, spec) + kWorkingRegisters;
      plan.threads * plan.blocks_per_sm * least > device.registers_per_sm || least > kMaxRegisters)
    return illegal(
        concat({"needs ", shortest(least), " registers a thread at least; a thread has ",
                shortest(kMaxRegisters), ", a multiprocessor ", shortest(device.registers_per_sm)}));
  if (plan.strategy == Strategy::split_row) {
    const Ring ring = ring_of(plan, spec, device);
    if (ring.lag > (ring.rows - plan.group_rows) * ring.chunks)
      return illegal("so many blocks would wait for rows that the workspace has no place for");
  }
  return {};
}

}  // namespace normjit
