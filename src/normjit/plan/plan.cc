// The facts of a plan: its text, its legality, its launch.
#include "normjit/plan.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>

#include "normjit/base/text.h"
#include "normjit/plan/footprint.h"

namespace normjit {
namespace {

constexpr std::string_view kStrategyNames[] = {"packed_rows", "resident_row", "two_reads"};
constexpr std::int64_t kMaxGrid = std::numeric_limits<std::int32_t>::max();
constexpr int kMaxThreads = 1024;

}  // namespace

std::string_view name(Strategy strategy) noexcept {
  const auto index = static_cast<std::size_t>(strategy);
  return index < std::size(kStrategyNames) ? kStrategyNames[index] : "?";
}
std::string_view name(RowsRegime regime) noexcept { return regime == RowsRegime::few ? "few" : "many"; }

RowsRegime regime_of(std::int64_t rows, const DeviceProfile& device) noexcept {
  return rows < device.sm_count ? RowsRegime::few : RowsRegime::many;
}

Alignment alignment_of(std::uint64_t address_and_stride_bytes, DType dtype) noexcept {
  const std::uint64_t bytes =
      address_and_stride_bytes | 16;  // more than 16 bytes an access is never asked for
  const int aligned = 1 << std::countr_zero(bytes);
  return aligned == 16 ? Alignment::eight : Alignment{static_cast<std::uint8_t>(aligned / size_of(dtype))};
}

std::string to_text(const Plan& plan) {
  return concat({name(plan.strategy), " threads=", shortest(plan.threads), " lanes=", shortest(plan.lanes),
                 " vector=", shortest(plan.vector), " per_thread=", shortest(plan.per_thread),
                 " group_rows=", shortest(plan.group_rows), " blocks_per_sm=", shortest(plan.blocks_per_sm)});
}

std::int64_t rows_per_block(const Plan& plan) noexcept {
  return plan.strategy == Strategy::packed_rows ? plan.threads / plan.lanes : 1;
}

std::int64_t columns_per_block(const Plan& plan) noexcept {
  return std::int64_t{plan.lanes} * plan.vector * plan.per_thread;
}

namespace {

// Of two_reads: the blocks that are resident at once, and the chunks of a row.
std::int64_t resident_blocks(const Plan& plan, const DeviceProfile& device) {
  return std::int64_t{device.sm_count} * plan.blocks_per_sm;
}
std::int64_t chunks_of(const Plan& plan, const LayerNormSpec& spec) {
  return ceil_div(spec.columns, columns_per_block(plan));
}

// The ring of rows in its workspace, as templates/two_reads.cu works it out.
constexpr std::int64_t kMaxRingRows = 1024;
struct Ring {
  std::int64_t chunks, lag, rows;
};

Ring ring_of(const Plan& plan, const LayerNormSpec& spec, const DeviceProfile& device) {
  const std::int64_t blocks = resident_blocks(plan, device), chunks = chunks_of(plan, spec);
  const std::int64_t lag = plan.group_rows * chunks + 2 * blocks;
  const auto wanted = static_cast<std::uint64_t>(plan.group_rows + (lag + blocks) / chunks + 2);
  return {chunks, lag, std::min(kMaxRingRows, static_cast<std::int64_t>(std::bit_ceil(wanted)))};
}

}  // namespace

std::int64_t grid_blocks(const Plan& plan, const LayerNormSpec& spec, const DeviceProfile& device,
                         std::int64_t rows) noexcept {
  if (plan.strategy != Strategy::two_reads) return std::min(ceil_div(rows, rows_per_block(plan)), kMaxGrid);
  const std::int64_t resident = resident_blocks(plan, device);
  return rows >= resident ? resident : std::min(resident, rows * chunks_of(plan, spec));
}

// The layout is that of `struct Workspace` in templates/two_reads.cu: a header and counters of a fixed size,
// then for each row of the ring its statistics and the moments of its chunks.
std::size_t workspace_bytes(const Plan& plan, const LayerNormSpec& spec,
                            const DeviceProfile& device) noexcept {
  if (plan.strategy != Strategy::two_reads) return 0;
  constexpr std::int64_t kHeader = 32, kCounters = kMaxRingRows * 32;
  const Ring ring = ring_of(plan, spec, device);
  const std::int64_t moments = 4 * size_of(compute_type(spec));
  return static_cast<std::size_t>(kHeader + kCounters + ring.rows * (1 + ring.chunks) * moments);
}

Result<void> check(const Plan& plan, const LayerNormSpec& spec, const DeviceProfile& device) {
  const auto illegal = [&](std::string_view why) {
    return Error{Code::IllegalPlan, concat({"plan '", to_text(plan), "' for ", to_text(spec), " on ",
                                            device.arch.name(), ": ", why})};
  };
  const auto power_of_two = [](int n) { return n > 0 && std::has_single_bit(static_cast<unsigned>(n)); };
  if (static_cast<std::size_t>(plan.strategy) >= std::size(kStrategyNames))
    return illegal("unknown strategy");
  if (plan.threads < kWarp || plan.threads > kMaxThreads || !power_of_two(plan.threads))
    return illegal("threads must be a power of two from 32 to 1024");
  if (!power_of_two(plan.vector) || plan.vector > 8 || spec.columns % plan.vector != 0)
    return illegal("vector must be 1, 2, 4 or 8 and divide the columns");
  if (plan.per_thread < 1) return illegal("per_thread must be at least 1");
  if (const std::int64_t held = held_registers(plan, spec),
      most = max_held_registers(plan.threads, plan.vector, spec);
      held > most)
    return illegal(
        concat({"a thread would hold ", shortest(held), " registers of the row; at most ", shortest(most)}));
  if (plan.strategy == Strategy::packed_rows) {
    if (!power_of_two(plan.lanes) || plan.lanes > kWarp)
      return illegal("lanes must be a power of two up to 32");
  } else if (plan.lanes != plan.threads) {
    return illegal("all threads share a row, so lanes must equal threads");
  }
  if (plan.strategy != Strategy::two_reads && columns_per_block(plan) < spec.columns)
    return illegal("the lanes do not cover the row");
  if (plan.group_rows < 1 || (plan.group_rows > 4 && plan.group_rows % 4 != 0))
    return illegal("group_rows must be 1 to 4 or a multiple of 4");
  if (plan.blocks_per_sm < 1 || plan.blocks_per_sm > device.blocks_per_sm ||
      plan.threads * plan.blocks_per_sm > device.threads_per_sm)
    return illegal(concat({"blocks_per_sm exceeds ", shortest(device.blocks_per_sm), " blocks or ",
                           shortest(device.threads_per_sm), " threads of a multiprocessor"}));
  if (plan.threads * plan.blocks_per_sm * needed_registers(plan, spec) > device.registers_per_sm)
    return illegal(concat({"needs about ", shortest(needed_registers(plan, spec)),
                           " registers a thread; a multiprocessor has ", shortest(device.registers_per_sm)}));
  if (plan.strategy == Strategy::two_reads) {
    const Ring ring = ring_of(plan, spec, device);
    if (ring.lag > (ring.rows - plan.group_rows) * ring.chunks)
      return illegal("so many blocks would wait for rows that the workspace has no place for");
  }
  return {};
}

}  // namespace normjit
