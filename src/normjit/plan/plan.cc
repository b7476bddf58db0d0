// SPDX-License-Identifier: Apache-2.0
// Whether a plan is legal, and what its launch needs.
#include "normjit/plan.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "normjit/base/text.h"
#include "normjit/plan/footprint.h"
#include "normjit/plan/grid.h"
#include "normjit/spec/valid.h"

namespace normjit {
namespace {

// The most blocks of a grid, and columns of a row.
constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();
// With amax each block that ends joins its largest result with those of the others, which takes about a
// microsecond. So not more blocks are launched than this many times those that run at once.
constexpr std::int64_t kRoundsWithAmax = 4;

// Blocks that run at once. The multiprocessors of a group may be no multiple of a large cluster: an H100,
// with 132, has room for 124 blocks in clusters of four, and for 120 in clusters of eight.
std::int64_t resident_blocks(const Plan& plan, const DeviceProfile& device) {
  const bool large = plan.exchange == Exchange::cluster && plan.blocks_per_row > 2;
  const std::int64_t sms = large ? device.sm_count * 7 / 8 : device.sm_count;
  return sms * plan.blocks_per_sm;
}
std::int64_t chunks_of(const Plan& plan, const NormSpec& spec) {
  return plan_math::chunks(spec.columns, columns_per_block(plan), covered(plan, spec));
}

// The ring of rows in the workspace of split_row.
struct RowRing {
  std::int64_t chunks, items_of_row, lag, rows;
};

// Blocks of the generic kernel that have a part of each sum: so few that the parts of a sum have a million
// elements together, but at least one.
std::int64_t generic_parts(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) {
  constexpr std::int64_t kMostElements = 1 << 20;
  return std::clamp<std::int64_t>(kMostElements / spec.columns, 1, resident_blocks(plan, device));
}

RowRing row_ring_of(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) {
  const std::int64_t blocks = resident_blocks(plan, device), chunks = chunks_of(plan, spec);
  const std::int64_t items = chunks * plan_math::reads_before_writing(scales_rows(spec));
  return {chunks, items, plan_math::split_lag(plan.group_rows, items, blocks),
          std::int64_t{1} << plan_math::split_ring_shift(plan.group_rows, items, blocks)};
}

// Slots of a block for the statistics that it publishes; it uses them in turn.
std::int64_t slots_per_block(const Plan& plan, const NormSpec& spec) {
  if (plan.strategy != Strategy::persistent_row) return 2;
  return plan_math::slot_depth(plan_math::row_depth(plan.stages, chunks_of(plan, spec), plan.blocks_per_row));
}

// Cubins run on later architectures of the same major version. Tegra (87, 88) is apart: it runs no other
// cubins, and its cubins run nowhere else (CUDA programming guide, binary compatibility).
Arch oldest_compatible(int number) {
  return {number == 86 || number == 89 ? 80 : number == 103 ? 100 : number == 121 ? 120 : number};
}

bool power_of_two(int n) { return n > 0 && std::has_single_bit(static_cast<unsigned>(n)); }

// What fits on a multiprocessor.
std::string broken_room(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) {
  if (plan.blocks_per_sm < 1 || plan.blocks_per_sm > device.blocks_per_sm ||
      plan.threads * plan.blocks_per_sm > device.threads_per_sm)
    return concat({"blocks_per_sm must be at least 1, and within the ", shortest(device.blocks_per_sm),
                   " blocks and ", shortest(device.threads_per_sm), " threads of a multiprocessor"});
  if (const std::int64_t least = held_registers(plan, spec) + kWorkingRegisters;
      plan.threads * plan.blocks_per_sm * least > device.registers_per_sm || least > kMaxRegisters)
    return concat({"needs at least ", shortest(least), " registers per thread; a thread can have ",
                   shortest(kMaxRegisters), ", a multiprocessor has ", shortest(device.registers_per_sm)});
  return {};
}

// What is too large for the shared memory.
std::string broken_shared_memory(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) {
  const std::int64_t shared = all_shared_bytes(plan, spec);
  if (shared <= device.shared_per_block && plan.blocks_per_sm * shared <= device.shared_per_sm) return {};
  return concat({"each block needs ", shortest(shared),
                 " bytes of shared memory, too much for a block or for blocks_per_sm blocks"});
}

// Whether the blocks that share a row can run at once.
std::string broken_residency(const Plan& plan, const DeviceProfile& device) {
  const std::int64_t resident = resident_blocks(plan, device);
  if (plan.blocks_per_row <= resident) return {};
  return concat({"the ", shortest(plan.blocks_per_row),
                 " blocks of a row must be resident at once; the device has room for ", shortest(resident)});
}

// The first limit that a plan of gradient_ring breaks.
std::string broken_limit_of_ring(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) {
  if (device.arch.number < 90) return "gradient_ring needs bulk copies, which need sm_90";
  if ((plan.exchange == Exchange::cluster) != (plan.blocks_per_row > 1) || plan.blocks_per_row < 1 ||
      plan.blocks_per_row > kMaxCluster || !power_of_two(plan.blocks_per_row))
    return concat({"blocks_per_row must be 1, or with exchange=cluster 2, 4 or ", shortest(kMaxCluster)});
  const std::int64_t span = columns_per_block(plan);
  if (plan.blocks_per_row * span < spec.columns || (plan.blocks_per_row - 1) * span >= spec.columns)
    return "blocks_per_row slices of threads_per_row * vector * per_thread columns must cover the columns, "
           "and "
           "each must have some";
  if (spec.columns % bulk_elements(spec) != 0)
    return concat({"gradient_ring copies 16 bytes at a time: the columns must be a multiple of ",
                   shortest(bulk_elements(spec))});
  if (plan.vector * widest_element(spec) > 16) return "vector must have at most 16 bytes of each row";
  if (plan.stages < fewest_stages(spec))
    return concat({"stages must be at least ", shortest(fewest_stages(spec))});
  if (std::string why = broken_room(plan, spec, device); !why.empty()) return why;
  if (std::string why = broken_residency(plan, device); !why.empty()) return why;
  return broken_shared_memory(plan, spec, device);
}

// The first limit that a plan of gradients breaks.
std::string broken_limit_of_gradients(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) {
  const bool in_rows = plan.strategy == Strategy::gradient_rows;
  const bool in_ring = plan.strategy == Strategy::gradient_ring;
  const bool in_cluster = plan.exchange == Exchange::cluster;
  const bool whole_block = plan.threads_per_row == plan.threads;
  if (spec.modulation != Modulation::none && in_ring)
    return "gradient_ring has no modulation; gradient_rows and gradient_columns have";
  if (plan.threads < kWarp || plan.threads > 1024 || plan.threads % kWarp != 0 ||
      !(power_of_two(plan.threads) || in_ring || (in_rows && whole_block)))
    return "threads must be a power of two from 32 to 1024, or a multiple of 32 where a block of "
           "gradient_rows or gradient_ring has one row";
  if (!whole_block && !(in_rows && power_of_two(plan.threads_per_row) && plan.threads_per_row <= kWarp))
    return "threads_per_row must be that of a block, or of gradient_rows a power of two up to 32";
  if (!power_of_two(plan.vector) || plan.vector > 8 || spec.columns % plan.vector != 0)
    return "vector must be 1, 2, 4 or 8, and divide the columns";
  const int most = most_elements_of_gradients(plan, spec);
  if (plan.per_thread < 1 || plan.per_thread > most / plan.vector)
    return concat({"per_thread must be at least 1, and times vector at most ", shortest(most)});
  if (in_rows && columns_per_block(plan) < spec.columns)
    return "threads_per_row * vector * per_thread must cover the columns";
  if (plan.unaligned || plan.group_rows < 1 || plan.group_rows > (in_rows || in_ring ? 1 : kMostBatchRows))
    return concat({"gradients need unaligned=0, and group_rows=1, of gradient_columns up to ",
                   shortest(kMostBatchRows)});
  if (in_ring) {
    if (std::string why = broken_limit_of_ring(plan, spec, device); !why.empty()) return why;
  } else if (plan.blocks_per_row != 1 || plan.stages != 0 || in_cluster) {
    return concat({name(plan.strategy), " needs blocks_per_row=1, stages=0, and no exchange=cluster"});
  }
  return broken_room(plan, spec, device);
}

// The first limit that a plan breaks; empty: it is legal.
std::string broken_limit(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) {
  const bool persistent = plan.strategy == Strategy::persistent_row;
  const bool shared_row = plan.blocks_per_row > 1;
  if (plan.strategy > Strategy::generic || plan.exchange > Exchange::grid)
    return "unknown strategy or exchange";
  if (plan.strategy != Strategy::generic && spec.backward != is_of_gradients(plan))
    return spec.backward ? "a backward spec needs gradient_rows, gradient_ring, gradient_columns or generic"
                         : concat({name(plan.strategy), " serves backward specs only"});
  if (is_of_gradients(plan)) return broken_limit_of_gradients(plan, spec, device);
  if (persistent && (spec.in_bias || spec.gate == Gate::before))
    return "persistent_row has no room in its ring for in_bias or a gate before the norm; split_row has";

  if (scales_rows(spec) && (persistent || plan.strategy == Strategy::channels_first))
    return concat(
        {name(plan.strategy),
         " writes results before all of a row are known, which a scale for each row (/q=row) needs; "
         "warp_rows, staged_rows, block_row, split_row and generic do not"});
  if (has_more_results(spec) && (persistent || plan.strategy == Strategy::staged_rows))
    return concat(
        {name(plan.strategy),
         " writes one result and no scales of blocks; a second result (/also), amax and blocks (/q=",
         shortest(std::max(16, block_columns(spec))), ") need warp_rows, block_row, split_row or generic"});

  // The shape of a block.
  const bool whole_block = plan.strategy == Strategy::block_row && !shared_row && !plan.unaligned;
  if (plan.threads < kWarp || plan.threads > 1024 || plan.threads % kWarp != 0 ||
      (!power_of_two(plan.threads) && !whole_block))
    return "threads must be a power of two from 32 to 1024, or a multiple of 32 where one block of block_row "
           "has aligned rows";
  if (spec.channels_first != (plan.strategy == Strategy::channels_first) &&
      plan.strategy != Strategy::generic)
    return spec.channels_first ? "a spec with channels first (/cf) needs channels_first or generic"
                               : "channels_first serves specs with channels first (/cf) only";
  if (spec.channels_first && plan.grouped_rows)
    return "grouped_rows must be 0: rows with channels first come in planes";
  const bool cuts_columns = !plan.unaligned && plan.strategy != Strategy::channels_first;
  if (!power_of_two(plan.vector) || plan.vector > 8 || (cuts_columns && spec.columns % plan.vector != 0))
    return "vector must be 1, 2, 4 or 8, and divide the columns unless rows are unaligned";
  const int vector_bytes = plan.vector * widest_element(spec);
  if (plan.strategy == Strategy::staged_rows && (plan.unaligned || vector_bytes > 16))
    return "staged_rows needs unaligned=0 (its rows may begin anywhere) and a vector of at most 16 bytes";
  if (plan.unaligned && persistent && (spec.columns < 2 * plan.vector || moves_other_rows(spec)))
    return "persistent_row needs unaligned rows of at least 2 * vector columns, without residual, sum, gate "
           "and modulation";
  if (persistent && has_residual_type(spec) && size_of(spec.residual_type) > 2 * size_of(spec.input))
    return "persistent_row needs residuals of at most twice the size of x";
  if (persistent && spec.columns % needed_alignment(plan, spec) != 0)
    return "persistent_row needs rows of whole 16 bytes of x and of a residual";
  if (plan.unaligned && !persistent &&
      (plan.strategy == Strategy::warp_rows || !can_realign(plan.vector, spec) || vector_bytes > 16))
    return "unaligned rows need block_row, split_row or persistent_row, a vector of at least 2 elements "
           "and of 4 to 16 bytes, and no in_bias, table, scales of blocks, or output of 4 bits";
  if (plan.per_thread < 1) return "per_thread must be at least 1";
  if (scales_blocks(spec) && plan.strategy != Strategy::generic &&
      plan.vector * std::min(plan.threads_per_row, kWarp) < block_columns(spec))
    return concat(
        {"a block of ", shortest(block_columns(spec)),
         " columns stays in a warp: vector times threads_per_row, up to 32 threads, must be as many"});
  if (spec.output == DType::e2m1 && plan.strategy != Strategy::generic && plan.vector < 2)
    return "an output of e2m1 has two columns in a byte: vector must be 2, 4 or 8";
  if (plan.strategy == Strategy::generic) {
    if (plan.threads_per_row != kWarp || plan.vector != 1 || plan.unaligned || plan.group_rows != 1 ||
        plan.per_thread > 32768)
      return "generic needs threads_per_row=32, vector=1, unaligned=0, group_rows=1, per_thread <= 32768";
  } else if (in_warps(plan)) {
    if (!power_of_two(plan.threads_per_row) || plan.threads_per_row > kWarp)
      return "threads_per_row must be a power of two up to 32";
  } else if (plan.strategy == Strategy::channels_first) {
    if (!power_of_two(plan.threads_per_row) || plan.threads_per_row > plan.threads)
      return "threads_per_row must be a power of two up to threads";
    if (plan.unaligned || plan.group_rows != 1 || vector_bytes > 16)
      return "channels_first needs unaligned=0, group_rows=1 and a vector of at most 16 bytes";
    if (bytes_of_tile(plan, spec) > kMostStaticShared)
      return concat({"a block's statistics and parameters need ", shortest(bytes_of_tile(plan, spec)),
                     " bytes of static shared memory, more than 48 KiB"});
  } else if (persistent) {
    if (plan.threads != 512 || plan.threads_per_row != 256 || plan.vector * size_of(spec.input) != 16 ||
        plan.blocks_per_sm != 1)
      return "persistent_row needs threads=512, threads_per_row=256, blocks_per_sm=1 and a vector of 16 "
             "bytes of x";
  } else if (plan.threads_per_row != plan.threads) {
    return concat({name(plan.strategy), " needs threads_per_row equal to threads"});
  }

  // Blocks that share a row.
  if (plan.blocks_per_row < 1 || shared_row != (plan.exchange != Exchange::none))
    return "blocks_per_row must be 1 without an exchange, and more than 1 with one";
  if (shared_row && !persistent && plan.strategy != Strategy::block_row)
    return "only block_row and persistent_row can have blocks_per_row above 1";
  if (plan.exchange == Exchange::cluster) {
    if (persistent) return "persistent_row needs exchange=grid, not cluster";
    if (device.arch.number < 90) return "clusters need sm_90";
    if (plan.blocks_per_row > kMaxCluster || !power_of_two(plan.blocks_per_row))
      return concat({"blocks_per_row of a cluster must be 2, 4 or ", shortest(kMaxCluster)});
  }
  if (plan.exchange == Exchange::grid) {
    if (std::string why = broken_residency(plan, device); !why.empty()) return why;
    if (resident_blocks(plan, device) * slots_per_block(plan, spec) > plan_math::kMaxSlots)
      return concat({"the resident blocks need more than the ", shortest(plan_math::kMaxSlots),
                     " slots in the workspace to publish statistics"});
  }

  // Shared memory, and the columns that the threads have.
  if (std::string why = broken_shared_memory(plan, spec, device); !why.empty()) return why;
  if (persistent) {
    const std::int64_t chunks = chunks_of(plan, spec);
    if (device.arch.number < 90) return "persistent_row needs bulk copies, which need sm_90";
    if (plan.stages < 2) return "stages must be at least 2";
    if (chunks < plan.blocks_per_row) return "blocks_per_row must be at most the number of chunks of a row";
    if (ceil_div(chunks, plan.blocks_per_row) > plan.stages)
      return "stages must be at least the number of chunks that a block has of a row";
  } else if (plan.stages != 0) {
    return "stages must be 0: only persistent_row has a ring";
  } else if (plan.strategy != Strategy::split_row && plan.strategy != Strategy::channels_first &&
             plan.strategy != Strategy::generic &&
             plan.blocks_per_row * columns_per_block(plan) < covered(plan, spec)) {
    return "threads_per_row * vector * per_thread * blocks_per_row must cover the columns";
  }

  // What fits on a multiprocessor, and in the workspace.
  if (plan.group_rows < 1 || (plan.group_rows > 4 && plan.group_rows % 4 != 0))
    return "group_rows must be 1 to 4 or a multiple of 4";
  if (std::string why = broken_room(plan, spec, device); !why.empty()) return why;
  if (plan.strategy == Strategy::split_row) {
    const RowRing ring = row_ring_of(plan, spec, device);
    if (ring.lag > (ring.rows - plan.group_rows) * ring.items_of_row)
      return "the resident blocks would wait for more rows than the workspace holds: lower blocks_per_sm";
  }
  return {};
}

// The parameters of unaligned rows in shared memory.
std::int64_t planes_bytes(const Plan& plan, const NormSpec& spec) {
  const int sharing = plan.strategy == Strategy::persistent_row ? std::max(1, plan.blocks_per_row) : 0;
  const std::int64_t span = plan_math::columns_of_block(spec.columns, columns_per_block(plan), sharing);
  const std::int64_t columns = span < covered(plan, spec) ? span : spec.columns;
  const int size = static_cast<int>(spec.affine) * size_of(spec.weight) * (spec.affine_rows ? 2 : 1);
  return std::min<std::int64_t>(plan_math::planes_bytes(columns, plan.vector, size), kMaxInt);
}

}  // namespace

RowsRegime regime_of(const NormSpec& spec, std::int64_t rows, const DeviceProfile& device) noexcept {
  return regime_of(spec.channels_first ? ceil_div(rows, kRowsTogether) : rows, device);
}

RowsRegime regime_of(std::int64_t rows, const DeviceProfile& device) noexcept {
  // Eighths of a row for each multiprocessor. Regime k has up to 2^k of them.
  const std::int64_t multiprocessors = std::max(1, device.sm_count);
  const std::int64_t most = multiprocessors << static_cast<int>(RowsRegime::many);
  const std::int64_t eighths =
      (kMultiprocessorsOfLoneRow * std::clamp(rows, std::int64_t{1}, most) - 1) / multiprocessors;
  return std::min(RowsRegime::many,
                  static_cast<RowsRegime>(std::bit_width(static_cast<std::uint64_t>(eighths))));
}

std::int64_t most_rows(RowsRegime regime, const NormSpec& spec, const DeviceProfile& device) noexcept {
  if (regime == RowsRegime::many) return std::numeric_limits<std::int64_t>::max();
  const std::int64_t eighths = std::int64_t{device.sm_count} << static_cast<int>(regime);
  return eighths / kMultiprocessorsOfLoneRow * (spec.channels_first ? kRowsTogether : 1);
}

std::string rows_text(RowsRegime first, RowsRegime last, const NormSpec& spec, const DeviceProfile& device) {
  const std::int64_t before = rows_below(first, spec, device), most = most_rows(last, spec, device);
  if (most <= before) return "no";
  if (last == RowsRegime::many)
    return before == 0 ? std::string("all") : concat({shortest(before + 1), " and more"});
  return concat({shortest(before + 1), " to ", shortest(most)});
}

Alignment alignment_of(std::uint64_t address_and_stride_bytes, DType dtype) noexcept {
  constexpr int kWidestAccess = 16;
  const int aligned = 1 << std::countr_zero(address_and_stride_bytes | kWidestAccess);
  return aligned == kWidestAccess ? Alignment::eight
                                  : Alignment{static_cast<std::uint8_t>(aligned / size_of(dtype))};
}

Alignment contiguous_alignment(const NormSpec& spec) noexcept {
  if (spec.channels_first) return Alignment::eight;
  const auto of = [&](DType dtype) {
    return alignment_of(static_cast<std::uint64_t>(spec.columns * size_of(dtype)), dtype);
  };
  return std::min(of(spec.input), of(spec.output));
}

std::int64_t rows_per_block(const Plan& plan) noexcept {
  const std::int64_t side_by_side = plan.threads / plan.threads_per_row;
  if (plan.strategy == Strategy::channels_first) return side_by_side * plan.vector;
  if (plan.strategy == Strategy::gradient_rows) return side_by_side;
  return in_warps(plan) ? side_by_side * rows_per_thread(plan) : 1;
}

std::int64_t columns_per_block(const Plan& plan) noexcept {
  const int vector = plan.strategy == Strategy::channels_first ? 1 : plan.vector;
  return std::int64_t{plan.threads_per_row} * vector * plan.per_thread;
}

Grid grid_of(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) noexcept {
  const auto grid = [](auto... members) { return Grid{static_cast<std::uint32_t>(members)...}; };
  if (plan.strategy == Strategy::generic) {
    const bool row_per_warp = spec.columns <= columns_per_block(plan);
    const std::int64_t most = all_sums(spec) > 0 ? generic_parts(plan, spec, device)
                              : spec.amax        ? resident_blocks(plan, device) * kRoundsWithAmax
                                                 : kMaxInt;
    return grid(row_per_warp ? plan.threads / kWarp : 1, most, 1, most);
  }
  const std::int64_t resident = resident_blocks(plan, device);
  if (plan.strategy == Strategy::split_row) return grid(1, resident, chunks_of(plan, spec), resident);
  if (plan.strategy == Strategy::gradient_rows) return grid(rows_per_block(plan), resident, 1, resident);
  if (plan.strategy == Strategy::gradient_ring) {
    const std::int64_t teams = resident / plan.blocks_per_row;
    return grid(1, teams, plan.blocks_per_row, teams * plan.blocks_per_row);
  }
  if (plan.strategy == Strategy::gradient_columns)
    return plan.exchange == Exchange::grid ? grid(1, resident, chunks_of(plan, spec), resident)
                                           : grid(1, 1, 1, 1);
  // Blocks of unaligned rows copy the parameters to shared memory, once for all of their rows.
  const bool persistent = plan.strategy == Strategy::persistent_row || plan.exchange == Exchange::grid ||
                          (plan.unaligned && spec.affine != Affine::none);
  const std::int64_t most = persistent ? resident : spec.amax ? resident * kRoundsWithAmax : kMaxInt;
  const std::int64_t parts = std::max<std::int64_t>(1, most / plan.blocks_per_row);
  return grid(rows_per_block(plan), parts, plan.blocks_per_row, parts * plan.blocks_per_row);
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
  return canonical({.backward = spec.backward,
                    .columns = kMaxInt,
                    .input = compute_type(spec),
                    .statistics = !spec.backward});
}

NormSpec source_spec(const Plan& plan, const NormSpec& spec) noexcept {
  return plan.strategy == Strategy::generic ? generic_spec(spec) : canonical(spec);
}

std::int64_t grid_blocks(const Plan& plan, const NormSpec& spec, const DeviceProfile& device,
                         std::int64_t rows) noexcept {
  return grid_of(plan, spec, device).blocks(rows);
}

Arch target_of(const Plan& plan, const NormSpec& spec, Arch arch) noexcept {
  if (plan.strategy == Strategy::persistent_row || (spec.output == DType::e2m1 && arch.number >= 100))
    arch.suffix = 'a';
  return plan.strategy == Strategy::generic ? oldest_compatible(arch.number) : arch;
}

int shared_bytes(const Plan& plan, const NormSpec& spec) noexcept {
  std::int64_t bytes;  // each factor is at most kMaxInt, so that the product fits
  if (plan.strategy == Strategy::gradient_ring) {
    const std::int64_t place = std::min<std::int64_t>(columns_per_block(plan), kMaxInt) * read_bytes(spec);
    bytes = std::max(0, plan.stages) * std::min(place, kMaxInt);
  } else if (plan.strategy == Strategy::staged_rows) {
    bytes = staged_tiles(spec) * std::min(rows_per_block(plan), kMaxInt) *
            std::min<std::int64_t>(plan_math::tile_bytes(1, spec.columns, widest_element(spec)), kMaxInt);
  } else if (plan.unaligned && plan.strategy != Strategy::persistent_row) {
    bytes = planes_bytes(plan, spec);
  } else {
    const std::int64_t room = plan_math::ring_room(columns_per_block(plan), plan.vector, plan.unaligned);
    const auto places_of = [&](std::int64_t places, int column) {
      return places * std::min<std::int64_t>(room * column, kMaxInt);
    };
    const int stages = std::max(0, plan.stages);
    if (keeps_sum(spec)) {
      const std::int64_t chunk = spec.columns / chunks_of(plan, spec) * ring_bytes(spec);
      bytes = places_of(stages, size_of(spec.input)) +
              places_of(plan_math::residual_places(stages, chunk), size_of(spec.residual_type));
    } else {
      bytes = places_of(stages, ring_bytes(spec)) + (plan.unaligned ? planes_bytes(plan, spec) : 0);
    }
  }
  return static_cast<int>(std::min(bytes, kMaxInt));
}

std::size_t workspace_bytes(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) noexcept {
  std::int64_t bytes = kMeetingBytes;
  if (spec.backward && plan.strategy == Strategy::generic) {
    const std::int64_t sums = all_sums(spec) * generic_parts(plan, spec, device) * spec.columns;
    if (sums == 0) return 0;
    bytes += ceil_div(sums * size_of(compute_type(spec)), 16) * 16;
  } else if (is_of_gradients(plan)) {
    // Sums over rows of each block, or of the blocks that share columns.
    const bool in_rows = plan.strategy != Strategy::gradient_columns;
    const Grid grid = grid_of(plan, spec, device);
    const std::int64_t chunks = chunks_of(plan, spec);
    const std::int64_t parts = in_rows ? grid.max_parts : std::max<std::int64_t>(1, grid.max_blocks / chunks);
    const int size = size_of(compute_type(spec));
    // Of rows that share scale and shift the parts of a group: those of some are under way, or a part is of
    // its two sums and of what is written for them.
    const int of_groups = !plan.grouped_rows || !writes_dmod(spec) ? 0
                          : in_rows                                ? sums_over_groups(spec) + held_sums(spec)
                                                                   : plan_math::kBatches * held_sums(spec);
    const int sums = sums_over_rows(spec) + of_groups;
    if (in_rows && sums == 0) return 0;
    if (!in_rows) bytes += plan_math::measured_bytes(plan.group_rows, chunks, size);
    bytes += ceil_div(sums * parts * spec.columns * size, 16) * 16;
  } else if (plan.strategy == Strategy::split_row) {
    // The statistics of each row in the ring and of each of its chunks: four numbers.
    const RowRing ring = row_ring_of(plan, spec, device);
    bytes += ring.rows * (1 + ring.chunks) * 4 * size_of(compute_type(spec));
  } else if (plan.exchange != Exchange::grid) {
    bytes = spec.amax ? plan_math::kHeaderBytes : 0;
  }
  return static_cast<std::size_t>(bytes);
}

bool is_legal(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) {
  return broken_limit(plan, spec, device).empty();
}

Result<void> check(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) {
  const std::string why = broken_limit(plan, spec, device);
  if (why.empty()) return {};
  return Error{Code::IllegalPlan, concat({"plan '", to_text(plan), "' for ", to_text(spec), " on ",
                                          device.arch.name(), ": ", why})};
}

}  // namespace normjit
