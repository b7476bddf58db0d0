// SPDX-License-Identifier: Apache-2.0
// What a plan takes of a multiprocessor: registers, the limit that shapes every plan, and shared memory.
#pragma once

#include <algorithm>
#include <array>

#include "normjit/plan.h"
#include "normjit/spec/operands.h"

// The arithmetic that kernels and planner share.
#define NJ_MATH constexpr
#include <plan_math.cuh>
#undef NJ_MATH

namespace normjit {

// The beginning of a workspace, in which blocks meet (templates/schedule/workspace.cuh): what must be zero.
inline constexpr std::int64_t kMeetingBytes = plan_math::kHeaderBytes +
                                              plan_math::kMaxRingRows * plan_math::kRingRowBytes +
                                              plan_math::kMaxSlots * plan_math::kSlotBytes;

inline constexpr int kWarp = 32;
inline constexpr int kRowsTogether = 64;             // rows that count as one with channels first: RowsRegime
inline constexpr int kMultiprocessorsOfLoneRow = 8;  // at least: RowsRegime::lone
inline constexpr int kMaxCluster = 8;  // blocks of a cluster that every GPU with clusters supports
using plan_math::ceil_div;

// The most rows of all regimes below this one.
inline std::int64_t rows_below(RowsRegime regime, const NormSpec& spec, const DeviceProfile& device) {
  if (regime == RowsRegime::lone) return 0;
  return most_rows(static_cast<RowsRegime>(static_cast<int>(regime) - 1), spec, device);
}

// Whether a kernel takes the addresses of rows as GroupedRows of the templates: in groups, or in planes.
inline bool has_grouped_addresses(const Plan& plan, const NormSpec& spec) {
  return plan.strategy == Strategy::generic || plan.grouped_rows || spec.channels_first;
}

// The plan for rows that may come in groups. The generic kernel takes any.
inline Plan in_groups(Plan plan, const NormSpec& spec, bool grouped) {
  plan.grouped_rows = needs_grouped_rows(spec, grouped) && plan.strategy != Strategy::generic;
  return plan;
}

// ---- Facts of a spec ----

// Bytes per column that the kernel reads from, or writes to, matrices.
inline int read_bytes(const NormSpec& spec) { return matrix_bytes(spec, false); }
inline int written_bytes(const NormSpec& spec) { return matrix_bytes(spec, true); }

// Bytes per column of what passes through the ring of persistent_row: x and a residual, but no gate.
inline int ring_bytes(const NormSpec& spec) {
  return size_of(spec.input) + (spec.residual == Residual::none ? 0 : size_of(spec.residual_type));
}

// Whether the kernel reads more of a row than x.
inline bool adds_rows(const NormSpec& spec) {
  return spec.residual != Residual::none || spec.in_bias || spec.gate == Gate::before;
}
// Operands behind the norm that each row has: kRowParameters of templates/op/sink.cuh.
inline int row_parameters(const NormSpec& spec) {
  return static_cast<int>(spec.modulation) + (spec.gate == Gate::after);
}

// Whether rows are read or written besides x and y, or columns that are added to them. They may begin at
// another offset from an aligned address than x.
inline bool moves_other_rows(const NormSpec& spec) {
  return adds_rows(spec) || spec.sum || row_parameters(spec) > 0;
}

// The type in which rows are held on chip: Held of templates/op/source.cuh.
inline DType held_type(const NormSpec& spec) {
  if (!has_prologue(spec)) return spec.input;
  return rounds_sum(spec) ? sum_type(spec) : compute_type(spec);
}
// Whether the ring of persistent_row keeps the sum in the place of x: kKeepsSum of
// templates/schedule/ring.cuh.
inline bool keeps_sum(const NormSpec& spec) {
  return spec.residual == Residual::before && size_of(held_type(spec)) == size_of(spec.input);
}
// Tiles of a warp of staged_rows: of x and y, of the residual, and of the sum, which else stands where the
// residual did.
inline int staged_tiles(const NormSpec& spec) {
  return 1 + (spec.residual != Residual::none) + (spec.sum && spec.residual != Residual::before);
}

// The size of the largest type of a row that is read or written.
inline int widest_element(const NormSpec& spec) {
  return std::max({size_of(spec.input), size_of(spec.output),
                   has_residual_type(spec) ? size_of(spec.residual_type) : 0,
                   spec.backward && has_modulation_type(spec) ? size_of(spec.modulation_type) : 0,
                   spec.also != Also::none ? size_of(also_type(spec)) : 0});
}

// Whether all operands have one dtype, but for an output of 8 or 4 bits.
inline bool same_dtypes(const NormSpec& spec) {
  return (spec.output == spec.input || is_narrow(spec.output)) &&
         (!has_vectors(spec) || spec.weight == spec.input) &&
         (!has_residual_type(spec) || spec.residual_type == spec.input) &&
         (!has_modulation_type(spec) || spec.modulation_type == spec.input);
}

// Whether the activation calls a mathematical function.
inline bool calls_function(const NormSpec& spec) {
  return (spec.activation != Activation::none && spec.activation != Activation::relu) ||
         (spec.gate != Gate::none && spec.gate_function != GateFunction::none);
}

// Whether the activation is so long that the compiler stops unrolling loops over more than 32 elements. Then
// all of the elements spill.
inline bool has_long_code(const NormSpec& spec) {
  return spec.activation == Activation::gelu || spec.activation == Activation::gelu_tanh ||
         (spec.gate != Gate::none && spec.gate_function == GateFunction::tanh);
}

// Sums over rows: of dweight, and of dbias.
inline int sums_over_rows(const NormSpec& spec) { return writes_dweight(spec) + writes_dbias(spec); }
// The same of those rows that share scale and shift: of dmod_scale, and of dmod_shift.
inline int sums_over_groups(const NormSpec& spec) {
  return writes_dmod(spec) ? static_cast<int>(spec.modulation) : 0;
}
// Both, of which each block of the generic kernel has a part.
inline int all_sums(const NormSpec& spec) { return sums_over_rows(spec) + sums_over_groups(spec); }
// Sums that a thread of gradients holds for each element, at most. Of rows that share a scale two are all
// that it takes, those of d and of d * n: templates/op/gradients.cuh.
inline int held_sums(const NormSpec& spec) {
  if (!writes_dmod(spec)) return sums_over_rows(spec);
  return spec.affine == Affine::weight_bias || spec.modulation == Modulation::scale_shift ? 2 : 1;
}

// Whether gradient_rows keeps what arrives in front of the activation until dx is written: its kKeeps.
inline bool keeps_gradients(const NormSpec& spec) {
  return spec.activation != Activation::none && writes_dx(spec);
}
// Of gradients, whether the sums of a row wait for its statistics: kWeighs of templates/op/gradients.cuh.
inline bool weighs(const NormSpec& spec) { return keeps_gradients(spec) && !reads_statistics(spec); }
// Rows or batches from the one that is measured to the one that is written.
inline int rows_behind(const NormSpec& spec) { return plan_math::rows_behind(weighs(spec)); }
// The fewest rows in a ring of gradients: those that are worked on, and one on its way.
inline int fewest_stages(const NormSpec& spec) { return 2 + rows_behind(spec); }

// The most elements of a row that a thread of gradients holds, and rows of a batch of gradient_columns.
inline constexpr int kMostGradientElements = 32, kMostBatchRows = 512;
// The same of a lane of a warp that has a row of 16-bit x and dy, without a gate.
inline constexpr int kMostElementsOfLane = 40;

// ---- How a plan divides rows ----

// Whether the plan is one of gradients.
inline bool is_of_gradients(const Plan& plan) {
  return plan.strategy == Strategy::gradient_rows || plan.strategy == Strategy::gradient_ring ||
         plan.strategy == Strategy::gradient_columns;
}
// The most elements of a row that a thread of this plan may hold.
inline int most_elements_of_gradients(const Plan& plan, const NormSpec& spec) {
  const bool in_warps = plan.strategy == Strategy::gradient_rows && plan.threads_per_row == kWarp;
  const bool halves = size_of(spec.input) == 2 && size_of(spec.output) == 2 && spec.gate == Gate::none;
  return in_warps && halves ? kMostElementsOfLane : kMostGradientElements;
}
// Whether the kernel lets all blocks of its launch meet, which must be resident for that.
inline bool all_blocks_meet(const Plan& plan, const NormSpec& spec) {
  return plan.exchange == Exchange::grid ||
         (plan.exchange == Exchange::cluster && is_of_gradients(plan) && sums_over_rows(spec) > 0);
}

// Whether the threads of a row are lanes of one warp.
inline bool in_warps(const Plan& plan) {
  return plan.strategy == Strategy::warp_rows || plan.strategy == Strategy::staged_rows;
}
// Rows of which a thread holds elements at the same time.
inline int rows_per_thread(const Plan& plan) {
  return plan.strategy == Strategy::staged_rows ? plan.group_rows : 1;
}

// Whether unaligned rows can be moved in such vectors: of at least 4 bytes, and without other operands of
// columns than weight and bias, which lie in shared memory.
inline bool can_realign(int vector, const NormSpec& spec) {
  return vector > 1 && vector * std::min(size_of(spec.input), size_of(spec.output)) >= 4 && !spec.in_bias &&
         !has_gate_table(spec) && !has_modulation_table(spec) && spec.output != DType::e2m1 &&
         !scales_blocks(spec);
}

// Elements in 16 bytes, which bulk copies move, of the narrowest row that is read.
inline int bulk_elements(const NormSpec& spec) {
  const bool adds = spec.residual != Residual::none || spec.dsum;
  const bool gates = spec.backward && spec.gate != Gate::none;
  return 16 / std::min({size_of(spec.input), adds ? size_of(spec.residual_type) : size_of(spec.input),
                        gates ? size_of(spec.modulation_type) : size_of(spec.input),
                        spec.backward ? size_of(spec.output) : size_of(spec.input)});
}
// How many consecutive elements must be aligned in every row of a launch: those of an access.
inline int needed_alignment(const Plan& plan, const NormSpec& spec) {
  if (plan.unaligned) return 1;
  const bool copies_bulk =
      plan.strategy == Strategy::persistent_row || plan.strategy == Strategy::gradient_ring;
  return copies_bulk ? bulk_elements(spec) : plan.vector;
}

// The columns that vectors must cover. If one block has an unaligned row, single elements at its ends are
// handled apart.
inline std::int64_t covered(const Plan& plan, const NormSpec& spec) {
  const bool whole_row = plan.blocks_per_row == 1 && plan.strategy != Strategy::persistent_row;
  return plan_math::covered(spec.columns, plan.vector, plan.unaligned && whole_row);
}

// Whether one block has the row, and threads remain that have no part of it. The compiler then hoists many
// loads of weights, since nothing waits for them, and holds their values in registers.
inline bool has_idle_threads(const Plan& plan, const NormSpec& spec) {
  return plan.blocks_per_row == 1 && !plan.unaligned && spec.columns % columns_per_block(plan) != 0;
}

// Whether check() finds nothing, for plans by the hundred: without the sentence that it makes of the limit.
bool is_legal(const Plan& plan, const NormSpec& spec, const DeviceProfile& device);

// ---- Shared memory ----

// channels_first: the parts of the statistics of a tile, what they make, and the parameters of all channels.
// At most 48 KiB can be static.
inline constexpr std::int64_t kMostStaticShared = 48 * 1024;
inline std::int64_t bytes_of_tile(const Plan& plan, const NormSpec& spec) {
  const int parameter = static_cast<int>(spec.affine) * size_of(spec.weight);
  const bool shares = plan_math::shares_parameters(columns_per_block(plan), spec.columns, parameter);
  const std::int64_t parts = plan_math::parts_of_tile(plan.threads, plan.threads_per_row, plan.vector);
  const std::int64_t merged = plan.threads_per_row > 1 ? rows_per_block(plan) : 1;
  return (parts * (spec.norm == Norm::layer ? 3 : 1) + 3 * merged) * size_of(compute_type(spec)) +
         (shares ? spec.columns * parameter : 0);
}

// An upper bound of a block's shared memory besides the dynamic part: what the system reserves; two slots for
// the statistics of each warp of the block, or of its cluster, and for its largest result; of persistent_row
// the statistics of the rows in flight, and the barriers of the ring.
inline std::int64_t static_shared_bytes(const Plan& plan, const NormSpec& spec) {
  constexpr std::int64_t kReserved = 1024, kOthers = 512;
  const std::int64_t statistics = 3 * size_of(compute_type(spec));
  if (plan.strategy == Strategy::persistent_row) {
    const std::int64_t rows =
        plan_math::row_depth(plan.stages, spec.columns / columns_per_block(plan), plan.blocks_per_row);
    return kReserved + kOthers + std::int64_t{keeps_sum(spec) ? 32 : 16} * plan.stages +
           rows * (16 + 5 * statistics);
  }
  if (plan.strategy == Strategy::gradient_ring)
    return kReserved + kOthers + 8 * plan.stages +
           (3 * plan.threads / kWarp * 5 + 4 * plan.blocks_per_row * 9) * size_of(compute_type(spec)) +
           (sums_over_rows(spec) > 0 ? 16 * plan.threads : 0);
  if (plan.strategy == Strategy::staged_rows) return kReserved;
  if (plan.strategy == Strategy::channels_first) return kReserved + bytes_of_tile(plan, spec);
  const int warps = plan.threads / kWarp * (plan.exchange == Exchange::cluster ? plan.blocks_per_row : 1);
  return kReserved + kOthers + 2 * warps * (statistics + 8 + (scales_rows(spec) ? 16 : 0));
}

// An upper bound of what a block takes of a multiprocessor's shared memory, which has units of 128 bytes.
inline std::int64_t all_shared_bytes(const Plan& plan, const NormSpec& spec) {
  constexpr std::int64_t kUnit = 128;
  return ceil_div(shared_bytes(plan, spec) + static_shared_bytes(plan, spec), kUnit) * kUnit;
}

// ---- Registers, of 32 bits ----

// The registers that a thread can have if so many blocks run on a multiprocessor at once. The warps of a
// block are dealt to its four partitions, which have registers each, and a warp takes them in units.
inline int registers_of_a_thread(int threads, int blocks, const DeviceProfile& device) {
  constexpr int kPartitions = 4, kUnit = 8, kMost = 255;
  const int warps = static_cast<int>(ceil_div(threads / kWarp * blocks, kPartitions));
  return std::min(kMost, device.registers_per_sm / kPartitions / (kWarp * warps) / kUnit * kUnit);
}

// Registers of one vector as a thread holds it: of all matrices as they are read, of their sum in the compute
// type, or of the weights, whichever is the most. A single 16-bit element takes a whole register.
inline int registers_per_vector(int vector, const NormSpec& spec) {
  const int weight = has_vectors(spec) ? size_of(spec.weight) : 0;
  const int after = spec.residual == Residual::after ? size_of(spec.residual_type) : 0;
  const int held = size_of(has_prologue(spec) ? compute_type(spec) : spec.input) + after;
  return std::max(1, vector * std::max({read_bytes(spec), held, weight}) / 4);
}

// With channels first a vector is of rows, which have one weight. Each operand has words of its own.
inline int registers_per_channel(int vector, const NormSpec& spec) {
  const auto of = [&](DType dtype) { return std::max(1, vector * size_of(dtype) / 4); };
  const int residual = spec.residual == Residual::none ? 0 : of(spec.residual_type);
  return std::max(of(spec.input) + residual,
                  of(held_type(spec)) + (spec.residual == Residual::after ? residual : 0));
}

// The most registers that a thread may hold of a row as it was loaded; with more, kernels spill on some
// architecture. Rows of f32 throughout may have 64. 16-bit elements and mixed dtypes have half of it, since
// they are converted to as many values. Less is left for accesses of less than 16 bytes, which need more
// addresses and predicates, and in blocks of more than 256 threads.
inline int max_held_registers(int threads, int vector, const NormSpec& spec) {
  const int per_vector = registers_per_vector(vector, spec);
  const bool long_code = has_long_code(spec);
  int most = same_dtypes(spec) && spec.input == DType::f32 ? 64 : 32;
  if (threads > 256) most = size_of(spec.input) == 2 ? 32 : 16;
  if (per_vector < 4) most = long_code ? 8 : 16;
  return long_code ? std::min(most, 32 / vector * per_vector) : most;
}

// Whether a spec adds a residual, gates x or modulates, all in one dtype, and has nothing else that takes
// registers: what registers_of_fusion() and the costs of sums are measured for.
inline bool is_measured_fusion(const NormSpec& spec) {
  const bool any = spec.residual != Residual::none || spec.gate == Gate::before || row_parameters(spec) > 0;
  return any && same_dtypes(spec) && spec.input != DType::f64 && spec.gate != Gate::after && !spec.in_bias &&
         !has_gate_table(spec) && !has_modulation_table(spec) && !spec.affine_rows && !calls_function(spec);
}

// The registers that threads need for aligned rows of such a spec, in a warp, a block, or whole slices in a
// cluster: from the compiler's reports, but no less than 64 for several vectors of sums, since more than 1024
// threads gain nothing: 4096 bf16 columns, four blocks of 256: 0.98, five: 0.965. 0: not known, see
// needed_registers().
inline int registers_of_fusion(const Plan& plan, const NormSpec& spec) {
  const bool in_warp = plan.strategy == Strategy::warp_rows;
  if (!is_measured_fusion(spec) || plan.unaligned || (!in_warp && plan.strategy != Strategy::block_row))
    return 0;
  const bool converts = size_of(spec.input) == 2, layer = spec.norm == Norm::layer;
  const bool modulates = row_parameters(spec) > 0, adds = adds_rows(spec);
  const bool whole = spec.columns % columns_per_block(plan) == 0;
  const int vectors = plan.per_thread;
  if (plan.blocks_per_row > 1)
    return plan.exchange == Exchange::cluster && whole && !modulates && !(converts && layer) &&
                   vectors <= 4 && plan.vector * size_of(spec.input) == 16
               ? 64
               : 0;
  if (plan.vector == 1 && !in_warp && spec.gate == Gate::none && !modulates)
    return vectors <= (converts ? 17 : 9) ? 64 : 0;
  if (plan.vector * size_of(spec.input) != 16) return 0;
  if (!converts && !modulates && vectors > 5 && vectors <= 7 && !in_warp) return 80;
  if (vectors > 5) return 0;
  if (converts && layer && adds && !modulates && whole && plan.threads == 512) return 64;
  const bool shifts = row_parameters(spec) > 1;
  const auto of_vectors = [&]() -> std::array<int, 5> {
    if (!modulates && !layer) return {40, 64, 64, 64, 80};
    if (!modulates && converts) return {56, 80, 80, 80, 80};
    if (!modulates) return {40, 64, 64, 64, 64};
    const bool affine = spec.affine != Affine::none;
    // In a warp all that scales and shifts comes in together with x.
    if (in_warp && shifts && affine) return {56, 72, 96, 128, 168};
    if (in_warp && adds && (shifts || affine)) return {56, 72, 72, 96, 128};
    if (in_warp && (adds || shifts || affine)) return {48, 64, 64, 96, 96};
    if (in_warp) return {40, 40, 64, 64, 80};
    if (!adds && !shifts && !affine) return {40, 40, 48, 64, 64};
    if (!adds) return {40, 56, 64, 72, 80};
    if (!shifts || !converts) return {48, 64, 64, 72, 80};
    return {56, 64, 72, 80, 96};
  };
  return of_vectors()[static_cast<std::size_t>(vectors) - 1];
}

// The most elements that a thread may hold of its rows, where this allows less than max_held_registers().
// Blocks that share a row also hold what they exchange.
inline int max_held_elements(const Plan& plan, const NormSpec& spec) {
  const bool in_double = compute_type(spec) == DType::f64;
  if (plan.strategy == Strategy::staged_rows)
    // The compiler hoists more loads of weights where they are vectors, so these rows have at most four.
    return in_double         ? (adds_rows(spec) && row_parameters(spec) > 0 ? 8 : 16)
           : plan.vector > 1 ? std::min(32, 4 * plan.vector * plan.group_rows)
           : row_parameters(spec) > 0 && !same_dtypes(spec) ? 16
           : has_long_code(spec) || row_parameters(spec) > 0 ||
                   (adds_rows(spec) && (!same_dtypes(spec) || spec.norm == Norm::layer))
               ? 32
           : scales_rows(spec) ? 48
                               : 64;
  const bool shared_row = plan.blocks_per_row > 1, large = plan.threads > 512;
  if (scales_rows(spec) && shared_row && adds_rows(spec) && row_parameters(spec) > 0) return 8;
  if (plan.unaligned) return in_double ? 16 : scales_rows(spec) && row_parameters(spec) > 0 ? 32 : 64;
  if (shared_row && large) return plan.exchange == Exchange::grid ? 8 : 16;
  const bool hoists = spec.input == DType::f32 && spec.affine != Affine::none && has_idle_threads(plan, spec);
  return hoists ? 60 : 64;
}

// The most that a thread can have, and the least that a kernel needs besides the row that it holds. check()
// asks for no more than these; the planner asks for needed_registers(), with which nothing spills.
inline constexpr int kMaxRegisters = 255, kWorkingRegisters = 16;
// What a kernel needs besides x and its parameters, with a function behind them.
inline constexpr int kWithEarlyParameters = 52;

// Registers of a thread of gradients: sums over rows in the compute type, and but for the ring x, dy and the
// gate as they were loaded, of this row and the next; behind an activation also what arrives in front of it.
// Weights and modulation come from L1 as they are used.
inline std::int64_t registers_of_gradients(const Plan& plan, const NormSpec& spec) {
  const auto of = [&](DType dtype) {
    return plan.per_thread * std::max<std::int64_t>(1, std::int64_t{plan.vector} * size_of(dtype) / 4);
  };
  const bool keeps = keeps_gradients(spec) && plan.strategy == Strategy::gradient_rows;
  const std::int64_t gate = spec.gate != Gate::none ? of(spec.modulation_type) : 0;
  return std::int64_t{plan.per_thread} * plan.vector * (held_sums(spec) + keeps) *
             size_of(compute_type(spec)) / 4 +
         (plan.strategy == Strategy::gradient_ring ? 0 : 2 * (of(spec.input) + of(spec.output) + gate));
}

// Registers of a thread for its elements of x. Rows that stay in shared memory or are read again take none;
// elements read from a tile are held in the compute type.
inline std::int64_t held_registers(const Plan& plan, const NormSpec& spec) {
  if (is_of_gradients(plan)) return registers_of_gradients(plan, spec);
  if (plan.strategy == Strategy::staged_rows)
    return std::int64_t{plan.per_thread} * plan.vector * plan.group_rows * size_of(compute_type(spec)) / 4;
  if (plan.strategy == Strategy::channels_first)
    return std::int64_t{plan.per_thread} * registers_per_channel(plan.vector, spec);
  return plan.strategy == Strategy::persistent_row || plan.strategy == Strategy::generic
             ? 0
             : std::int64_t{plan.per_thread} * registers_per_vector(plan.vector, spec);
}

// channels_first: the most channels that a thread may hold: of all, and where they pass in pieces. With more
// elements the compiler unrolls the loops over them no longer, which puts them into local memory.
inline int most_channels(int vector, const NormSpec& spec) {
  const int elements = compute_type(spec) == DType::f64 ? 16 : has_long_code(spec) ? 32 : 64;
  return std::min(48, elements / vector);
}
inline int most_channels_of_piece(int vector, const NormSpec& spec) {
  return (compute_type(spec) == DType::f64 ? 8 : 16) / vector;
}

// Registers of a thread of channels_first besides the channels that it holds: addresses, and for each of its
// positions statistics and what is being converted.
inline int channels_first_registers(const Plan& plan, const NormSpec& spec) {
  const bool in_double = compute_type(spec) == DType::f64, same = same_dtypes(spec);
  const bool adds = has_prologue(spec) || spec.residual != Residual::none;
  const bool in_single = same && size_of(spec.input) == 4;
  const int each = in_double ? 16 : in_single ? 4 : 8;
  int others = (in_double ? 40 : 20) + each * plan.vector;
  const bool plain = in_single && !adds && !calls_function(spec);
  if (plain) others = std::max(24, others - 4);
  // Loops over more 16-bit elements hold converted copies of them.
  if (size_of(spec.input) == 2) {
    others += 2 * std::max(0, plan.per_thread - 16);
    if (plan.per_thread * plan.vector > 48) others += 24;
  }
  if (spec.columns % columns_per_block(plan) != 0) others += 8;
  if (spec.columns > columns_per_block(plan))
    others += (adds ? 40 : 32) + 12 * plan.vector;  // sums in double over the pieces
  if (adds) others += 8 + each * plan.vector;
  if (spec.in_bias) others += 8 + plan.per_thread * (spec.weight == DType::f64 ? 2 : 1);
  if (calls_function(spec)) others += 8;
  if (in_double && !same) others += 8;
  return std::max(plain ? 32 : 40, static_cast<int>(ceil_div(held_registers(plan, spec) + others, 8) * 8));
}

// Words of a vector of x with its parameters: kVectorWords of templates/schedule/fragment.cuh.
inline int words_with_parameters(const Plan& plan, const NormSpec& spec) {
  return plan.vector *
         (size_of(held_type(spec)) + 2 * size_of(spec.weight) +
          row_parameters(spec) * size_of(spec.modulation_type)) /
         4;
}
// Whether a thread loads its parameters together with x: kEarlyParameters of templates/schedule/fragment.cuh.
inline bool loads_parameters_early(const Plan& plan, const NormSpec& spec, bool low_occupancy) {
  return plan_math::early_parameters(plan.per_thread, words_with_parameters(plan, spec), low_occupancy,
                                     row_parameters(spec) > 0 && plan.threads_per_row <= kWarp,
                                     plan.unaligned);
}

// The registers of a thread that has vectors of unaligned rows: from the compiler's reports. With a residual
// or a gate in front of the norm it holds sums in the compute type.
inline int registers_of_unaligned(const Plan& plan, const NormSpec& spec) {
  const bool adds = adds_rows(spec), after = spec.residual == Residual::after;
  const int each =
      (adds ? size_of(compute_type(spec)) : size_of(spec.input)) + (after ? size_of(spec.residual_type) : 0);
  const std::int64_t held = std::int64_t{plan.per_thread} * plan.vector * each / 4;
  const bool more = plan.exchange == Exchange::grid || plan.strategy == Strategy::split_row;
  if (compute_type(spec) == DType::f64) {
    if (adds || (more && row_parameters(spec) > 0)) {
      const int most = row_parameters(spec) > 0 ? 8 : 16;
      if (more || calls_function(spec)) return held <= most && same_dtypes(spec) ? 128 : 168;
      return held <= 8 ? 80 : held <= 16 ? 96 : 168;
    }
    return held <= 16 ? (more ? 96 : 80) : held <= 32 ? 128 : 168;
  }
  if (adds && more) return held > 32 ? 168 : held > 8 || calls_function(spec) ? 128 : held > 4 ? 96 : 80;
  const bool calls_two = spec.gate != Gate::none && spec.activation != Activation::none;
  if (adds && calls_function(spec))
    return held <= 8 ? 80 : held <= 16 && !calls_two ? 96 : held <= 32 ? 128 : 168;
  if (adds || after) return held <= 8 ? 64 : held <= 16 ? 72 : held <= 32 ? 96 : held <= 64 ? 128 : 168;
  if (row_parameters(spec) > 0 && held > (more || calls_function(spec) ? 4 : 8))
    return held <= 16 ? (more && calls_function(spec) ? 96 : 80) : held <= 36 && !more ? 96 : 128;
  if (held > 64) return 168;
  if (more) return held <= 8 ? 64 : held <= 12 ? 72 : held <= 20 ? 80 : held <= 36 ? 96 : 128;
  return held <= 20 ? 64 : held <= 24 ? 72 : held <= 28 ? 80 : held <= 36 ? 96 : 128;
}

// All registers that a thread needs so as not to spill, from the compiler's reports over all dtypes,
// activations and architectures, which the nvrtc tests repeat. An f64 value takes two registers, 16-bit types
// also hold converted copies, and narrow accesses need more addresses.
inline int needed_registers(const Plan& plan, const NormSpec& spec) {
  if (plan.strategy == Strategy::persistent_row) return 128;
  if (plan.strategy == Strategy::channels_first) return channels_first_registers(plan, spec);
  if (plan.unaligned) return registers_of_unaligned(plan, spec);
  const std::int64_t held = held_registers(plan, spec);
  // Scale and shift of each row come in beside x. This refuses blocks of 1024 threads, which have 64
  // registers each.
  if (row_parameters(spec) > 0 && plan.threads > 512 && held > 4) return 72;
  if (const int registers = registers_of_fusion(plan, spec)) return registers;
  const bool adds = adds_rows(spec), same = same_dtypes(spec), calls = calls_function(spec);
  const bool shared_row = plan.blocks_per_row > 1;
  if (compute_type(spec) == DType::f64) {
    const int elements = plan.per_thread * plan.vector * rows_per_thread(plan);
    // Less suffices without function calls and conversions. Measured: 4096 columns, one block of 256 threads
    // per SM: 0.86, three: 0.95.
    if (plan.strategy == Strategy::block_row && !shared_row && plan.vector == 2 && same && !calls &&
        !moves_other_rows(spec))
      return elements <= 16 ? 80 : 128;
    if (adds && (shared_row || plan.strategy == Strategy::split_row))
      return elements <= 4 && plan.strategy != Strategy::split_row ? 128 : 168;
    const bool all_at_once = adds && row_parameters(spec) > 0 && elements > 2;
    const bool more = calls && ((shared_row && !same) || all_at_once);
    const bool long_code = plan.strategy == Strategy::warp_rows && has_long_code(spec) && elements > 1;
    return elements <= 4 && !all_at_once && !long_code ? 96 : elements <= 8 && !more ? 128 : 168;
  }
  if (plan.strategy == Strategy::staged_rows) {
    const bool more = has_long_code(spec) || (plan.vector > 1 && (plan.group_rows > 1 || held > 24));
    const int grouped = plan.group_rows >= 4 ? 4 : 0;
    const int others = adds ? (same && plan.vector == 1 ? 64 : 72) + 2 * grouped : more ? 52 : 36 + grouped;
    // Parameters of each row are loaded while those of another are in use.
    const int of_rows = !spec.affine_rows && row_parameters(spec) == 0 ? 0 : same ? 32 : 56;
    return static_cast<int>(ceil_div(held + others + of_rows, 8) * 8);
  }
  // Scale and shift of each row, which wait beside x for the statistics.
  if (plan.strategy == Strategy::warp_rows && row_parameters(spec) > 0 && plan.per_thread > 2 &&
      loads_parameters_early(plan, spec, /*low_occupancy=*/false))
    return std::min(
        168,
        static_cast<int>(
            ceil_div(plan.per_thread * words_with_parameters(plan, spec) + kWithEarlyParameters, 8) * 8));
  const bool narrow = registers_per_vector(plan.vector, spec) < 4, converts = size_of(spec.input) == 2;
  // rmsnorm and residuals in shared rows: 13 f32 vectors of rmsnorm in a cluster, 7 of a sum over the grid.
  if ((adds || spec.norm != Norm::layer) && shared_row && held > (same ? 48 : 24)) return 168;
  // x and the residual are loaded at once. This refuses blocks of 1024 threads, which have 64 registers each.
  if (adds && !same && plan.threads > 512 && held > 8) return 72;
  if (plan.strategy == Strategy::split_row) {
    if (row_parameters(spec) > 0) return adds && held > 32 ? 168 : 128;
    if (adds && !same && held <= 8) return narrow && calls ? 128 : 80;
    if (converts || (adds && held > 8)) return 128;
    // A group of rows needs more than a single one.
    if (plan.group_rows > 1 && spec.affine == Affine::weight_bias && held > 16) return 128;
  }
  // Parameters of each row come in while sums are held.
  if (adds && shared_row && (row_parameters(spec) > 0 ? held > 8 : spec.in_bias && held > 16)) return 168;
  if (narrow || !same) {
    // 56 single elements of 16 bits spill 456 bytes in 128 registers.
    if (narrow && converts && held > (shared_row ? 24 : 48)) return 168;
    if (narrow && shared_row && held > 64) return 168;
    // held_registers() counts wider weights, which are not held. Measured: 4096 bf16 columns with f32
    // weights, four blocks per SM: 0.76, six: 0.92.
    if (!narrow && converts && !adds && !shared_row && plan.threads <= 512 && held > 8 && held <= 32)
      return 80;
    if (held <= 4) return 64;
    if (adds && shared_row && converts) return spec.in_bias && held > 8 ? 128 : 96;
    if (held <= 8) return converts ? 72 : 64;
    if (held <= 16) return narrow ? 96 : plan.threads > 512 ? 64 : converts ? 96 : 80;
    return 128;
  }
  if (plan.exchange == Exchange::grid && held > 60) return 168;
  if (plan.strategy == Strategy::warp_rows) {
    if (!converts && calls && spec.affine == Affine::none && held > 24 && held <= 32) return 96;
    return held <= 8 ? 56 : held <= 16 ? (converts ? 72 : 56) : held <= 32 && !converts ? 72 : 128;
  }
  const int exchanging = shared_row ? 16 : 0;
  if (held <= 8) return plan.threads > 512 ? 64 : 64 + exchanging / 2;
  // One more block per multiprocessor gains much. Measured: 8192 bf16 columns, three blocks of 256 threads:
  // 0.92 of copy speed, four: 0.96; 6232 columns, four blocks of 128 threads: 0.92, five: 0.97. Beyond 900
  // threads registers gain more: 4096 columns, seven blocks of 128 threads: 0.97, eight: 0.96.
  if (converts && !shared_row && plan.threads <= 512) {
    const bool one_more_block = plan.threads > 128 && !has_long_code(spec);
    return held <= 16 ? (one_more_block ? 64 : 72) : held <= 20 ? 72 : 96;
  }
  if (!converts && !shared_row && held > 16 && held <= 32) return 72;
  if (held <= 16) return plan.threads > 512 ? 64 : (converts ? 80 : 64) + exchanging;
  if (!converts && spec.affine == Affine::weight_bias && has_idle_threads(plan, spec) && held > 32)
    return held <= 44 ? 128 : 168;
  if (held <= 32 && !converts) return 80 + exchanging;
  return 128;
}

// The registers of a thread for aligned rows of 16 bits in a warp or a block, with results of 8 bits and
// nothing else that takes registers: from the compiler's reports. 0: not known, see needed_registers().
inline int registers_of_8_bits(const Plan& plan, const NormSpec& spec, Arch arch) {
  constexpr int kMost = 8;
  const bool in_warp = plan.strategy == Strategy::warp_rows, rows = scales_rows(spec);
  const bool by_instruction = spec.output == DType::s8 || arch.number >= 90;
  if (!is_narrow(spec.output) || !by_instruction || size_of(spec.input) != 2 || !same_dtypes(spec) ||
      plan.vector != 8 || plan.unaligned || plan.blocks_per_row != 1 || plan.per_thread > kMost ||
      (!in_warp && plan.strategy != Strategy::block_row))
    return 0;
  if (calls_function(spec) || spec.gate != Gate::none || spec.modulation != Modulation::none ||
      spec.in_bias || spec.affine_rows || spec.residual == Residual::after || spec.also != Also::none ||
      spec.amax)
    return 0;
  constexpr int kTensor[] = {56, 56, 56, 64, 72, 80, 96, 96}, kRow[] = {56, 56, 56, 64, 72, 80, 128, 128},
                kRowInWarp[] = {64, 64, 72, 96, 128, 168, 168, 168},
                kBlock[] = {56, 56, 64, 72, 80, 96, 128, 128};
  const auto& of_vectors = rows && in_warp       ? kRowInWarp
                           : rows                ? kRow
                           : scales_blocks(spec) ? kBlock
                                                 : kTensor;
  const bool whole = spec.columns % columns_per_block(plan) == 0;
  return of_vectors[plan.per_thread - 1] + (whole ? 0 : 8);
}

// Whether persistent_row, whose threads have 128 registers, spills. Of 16 bits behind a function the compiler
// spills 208 to 220 bytes for sm_121, up to 140 for sm_120, and none for sm_100.
inline bool spills_in_ring(const NormSpec& spec, Arch arch) {
  return arch.number > 120 && size_of(spec.input) == 2 && calls_function(spec);
}

// What a thread of gradient_ring needs besides sums over rows.
inline int registers_of_ring(const NormSpec& spec) { return compute_type(spec) == DType::f64 ? 96 : 64; }

// The same of gradients, from the compiler's reports. Single elements need more addresses, and 16-bit ones
// are converted.
inline int needed_registers_of_gradients(const Plan& plan, const NormSpec& spec) {
  constexpr int kFewest = 64;
  const int elements = plan.per_thread * plan.vector;
  const bool converts = std::min(size_of(spec.input), size_of(spec.output)) == 2, single = plan.vector == 1;
  const bool in_double = compute_type(spec) == DType::f64, in_rows = plan.strategy == Strategy::gradient_rows;
  // A function of the gate and its slope, or bias and modulation, of as many elements as are under way.
  const bool weighs_affine = spec.activation != Activation::none && spec.affine != Affine::none;
  const bool holds_two = (in_rows && (converts || in_double)) || weighs_affine;
  // With given statistics a gate behind the norm is under way twice, for the sums and for dgate.
  const bool again = reads_statistics(spec) && spec.gate == Gate::after;
  const int gated = !has_modulation_type(spec) ? 0 : (holds_two ? 2 + again : 1) * elements;
  const auto in_all = [&](std::int64_t others) {
    return static_cast<int>(ceil_div(registers_of_gradients(plan, spec) + others, 8) * 8);
  };
  if (in_rows && elements > kMostGradientElements) {  // a row of a warp, from reports of its own
    const int more = spec.modulation == Modulation::none ? spec.dsum ? elements / 2 : 0
                     : spec.affine == Affine::none       ? elements / 4
                                                         : 2 * elements;
    return in_all((!keeps_gradients(spec) ? 84 : reads_statistics(spec) ? 76 : 60) + more);
  }
  // Of sums over groups gradient_columns holds addresses while it writes rows.
  const bool in_columns = plan.strategy == Strategy::gradient_columns;
  const bool ends_groups = in_columns && sums_over_groups(spec) > 0;
  const int in_groups = !ends_groups ? 0 : weighs_affine ? 40 : 24;
  const auto with_sums = [&](int others) { return std::max(kFewest, in_all(others + gated + in_groups)); };
  // Behind an activation more is under way, and what a vector of columns is multiplied by is held longer. Of
  // a short one the compiler has more elements in hand at once.
  if (spec.activation != Activation::none && plan.strategy == Strategy::gradient_ring)
    return with_sums(in_double ? 120 : 24 + 3 * elements);
  if (spec.activation != Activation::none && in_rows)
    return with_sums((in_double ? 88 + gated : 40 + elements / 2 + (has_long_code(spec) ? 0 : 8)) +
                     (reads_statistics(spec) ? 8 : 0));
  if (plan.strategy == Strategy::gradient_ring) return in_all(registers_of_ring(spec) + gated);
  const int others = in_double       ? 88
                     : converts      ? 36 + elements * 3 / 2
                     : in_rows       ? 48 + (single ? elements / 2 : 0)
                     : single        ? 72 + 2 * elements
                     : elements < 16 ? 48
                                     : 32;
  const bool wide_weights = spec.affine != Affine::none && size_of(spec.weight) > size_of(spec.input);
  const int wide = wide_weights && (in_columns || (in_rows && reads_statistics(spec))) ? 8 : 0;
  return with_sums(others + wide + (spec.activation != Activation::none ? 4 * elements : 0));
}

// The same on an architecture. Without an instruction numbers become those of 8 bits in several steps. Where
// rows have a scale, all that results are made of is needed twice, and more so where blocks share a row.
inline int needed_registers(const Plan& plan, const NormSpec& spec, Arch arch) {
  if (is_of_gradients(plan)) return needed_registers_of_gradients(plan, spec);
  if (const int registers = registers_of_8_bits(plan, spec, arch)) return registers;
  int needed = needed_registers(plan, spec);
  const bool staged = plan.strategy == Strategy::staged_rows, shared_row = plan.blocks_per_row > 1;
  const bool modulates = row_parameters(spec) > 0;
  // From sm_100 on the compiler computes f32 in pairs of registers. In 128 registers a chunk of 16 elements
  // beside a residual or a gate spills 60 to 1000 bytes, one of 8 none.
  if (arch.number >= 100 && plan.strategy == Strategy::split_row && adds_rows(spec) &&
      (size_of(spec.input) == 4 || plan.unaligned) && held_registers(plan, spec) > 8)
    needed = std::max(needed, 168);
  // 33 single elements and more take local memory in 80 registers.
  if (staged && plan.vector == 1 && plan.per_thread > 32 && arch.number < 90) needed += 16;
  if (has_more_results(spec)) needed += spec.amax && plan.exchange == Exchange::grid ? 40 : 8;
  if (plan.strategy == Strategy::persistent_row || !is_narrow(spec.output)) return needed;
  if (spec.output != DType::s8)
    needed += (staged ? plan.per_thread > 32 ? 16 : 8 : 0) + (arch.number < 90 ? 8 : 0);
  if (scales_blocks(spec) && shared_row && modulates) return std::max(needed, 168);
  if (!scales_rows(spec)) return needed;
  if (modulates && plan.threads_per_row > kWarp)
    return shared_row && adds_rows(spec) ? std::max(needed, 168) : needed + (shared_row ? 56 : 48);
  if (plan.exchange == Exchange::grid) return needed + 40;
  return needed + (plan.strategy == Strategy::warp_rows ? modulates ? 32 : 16 : shared_row ? 16 : 8);
}

}  // namespace normjit
