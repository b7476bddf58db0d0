// What a thread of a plan holds in registers: the limit that shapes every plan.
#pragma once

#include <algorithm>

#include "normjit/plan.h"
#include "normjit/plan/plan_math.h"
#include "normjit/spec/operands.h"

namespace normjit {

inline constexpr int kWarp = 32;
inline constexpr int kMaxCluster = 8;  // that every GPU with clusters has
using plan_math::ceil_div;

// Bytes of one column of a row in all matrices that are read, or written.
inline int read_bytes(const NormSpec& spec) { return matrix_bytes(spec, false); }
inline int written_bytes(const NormSpec& spec) { return matrix_bytes(spec, true); }

// Whether rows are added up as they are read: of more than one matrix.
inline bool adds_rows(const NormSpec& spec) { return read_bytes(spec) > size_of(spec.input); }

// 32-bit registers of one vector as a thread holds it, or of the parameters, which are wider in some specs:
// what is read of it, or the sum of that in the compute type. A lone 16-bit element takes a whole register.
inline int registers_per_vector(int vector, const NormSpec& spec) {
  const int weight = spec.affine == Affine::none ? 0 : size_of(spec.weight);
  const int sum = adds_rows(spec) ? size_of(compute_type(spec)) : 0;
  return std::max(1, vector * std::max({read_bytes(spec), sum, weight}) / 4);
}

// Whether lanes of a warp share a row; then rows of a block that they pass one after the other.
inline bool in_warps(const Plan& plan) {
  return plan.strategy == Strategy::warp_rows || plan.strategy == Strategy::staged_rows;
}
inline int rows_of_lanes(const Plan& plan) {
  return plan.strategy == Strategy::staged_rows ? plan.group_rows : 1;
}

// Rows that begin anywhere are moved in vectors of at least a word. Rows that are added up, vector by vector,
// may begin at different places.
inline bool can_realign(int vector, const NormSpec& spec) {
  return vector > 1 && vector * std::min(size_of(spec.input), size_of(spec.output)) >= 4 && !adds_rows(spec);
}

// The columns that vectors must cover; the few others of an unaligned row come one by one.
inline std::int64_t covered(const Plan& plan, const NormSpec& spec) {
  const bool alone = plan.blocks_per_row == 1 && plan.strategy != Strategy::persistent_row;
  return plan_math::covered(spec.columns, plan.vector, plan.unaligned && alone);
}

// Whether x, y and the weights have one dtype.
inline bool same_dtypes(const NormSpec& spec) {
  return spec.output == spec.input && (spec.affine == Affine::none || spec.weight == spec.input);
}

// Shared memory of a block besides the dynamic one, with what the system reserves, at most: the parts that
// its warps, or those of its cluster, leave for each other, twice; and what persistent_row passes on for each
// row, and the barriers of its ring.
inline std::int64_t static_shared_bytes(const Plan& plan, const NormSpec& spec) {
  constexpr std::int64_t kReserved = 1024, kOthers = 512;
  const std::int64_t moments = 3 * size_of(compute_type(spec));
  if (plan.strategy == Strategy::persistent_row) {
    const std::int64_t places =
        plan_math::row_depth(plan.stages, spec.columns / columns_per_block(plan), plan.blocks_per_row);
    return kReserved + kOthers + std::int64_t{16} * plan.stages + places * (16 + 5 * moments);
  }
  if (plan.strategy == Strategy::staged_rows) return kReserved;
  const int parts = plan.threads / kWarp * (plan.exchange == Exchange::cluster ? plan.blocks_per_row : 1);
  return kReserved + kOthers + 2 * parts * (moments + 8);
}

// All that a block takes of a multiprocessor's shared memory, at most; it is given in pieces.
inline std::int64_t all_shared_bytes(const Plan& plan, const NormSpec& spec) {
  constexpr std::int64_t kPiece = 128;
  return ceil_div(shared_bytes(plan, spec) + static_shared_bytes(plan, spec), kPiece) * kPiece;
}

// Whether the activation takes so many instructions that the compiler no longer unrolls the loops over more
// than 32 elements; then all of them land in local memory.
inline bool has_long_code(const NormSpec& spec) {
  return spec.activation == Activation::gelu || spec.activation == Activation::gelu_tanh;
}

// A thread holds its part of the row as it was loaded, and this much of it at most; beyond, kernels spill on
// some architecture: 256 bytes, half of that of 16-bit elements, which are as many, and of two dtypes; a
// quarter in accesses of less than 16 bytes, which need more addresses and predicates, and in blocks that
// leave no more than 64 registers a thread.
inline int max_held_registers(int threads, int vector, const NormSpec& spec) {
  const int per_vector = registers_per_vector(vector, spec);
  const bool same = same_dtypes(spec);
  const bool converts = size_of(spec.input) == 2;
  int most = same && spec.input == DType::f32 ? 64 : 32;
  if (threads > 256) most = converts ? 32 : 16;
  const bool long_code = has_long_code(spec);
  if (per_vector < 4) most = long_code ? 8 : 16;
  if (long_code) most = std::min(most, 32 / vector * per_vector);
  return most;
}

// Whether lanes without work are left in a row that a block has alone. The compiler then moves many loads of
// weights ahead, for which nothing waits, and holds what they bring.
inline bool ends_early(const Plan& plan, const NormSpec& spec) {
  return plan.blocks_per_row == 1 && !plan.unaligned && spec.columns % columns_per_block(plan) != 0;
}

// Elements that a thread may hold of a row, at most, where less suffices than max_held_registers() says. What
// is unaligned is held twice for a moment, and blocks that share a row exchange its moments meanwhile.
inline int max_held_elements(const Plan& plan, const NormSpec& spec) {
  if (plan.strategy == Strategy::staged_rows)
    // Of vectors of weights the compiler loads more ahead than of single ones, so a row has four at most.
    return compute_type(spec) == DType::f64 ? 16
           : plan.vector > 1                ? std::min(32, 4 * plan.vector * plan.group_rows)
           : has_long_code(spec)            ? 32
                                            : 64;
  const bool shared = plan.blocks_per_row > 1, large = plan.threads > 512;
  const bool calls = spec.activation != Activation::none && spec.activation != Activation::relu;
  if (plan.unaligned && !shared) return large && calls && size_of(spec.input) == 2 ? 24 : 32;
  if (plan.unaligned) return large || compute_type(spec) == DType::f64 ? 8 : 16;
  if (shared && large) return plan.exchange == Exchange::grid ? 8 : 16;
  const bool loads_ahead = spec.input == DType::f32 && spec.affine != Affine::none && ends_early(plan, spec);
  return loads_ahead ? 60 : 64;
}

// Whether persistent rows that begin anywhere leave weight and bias in registers from row to row, as kKeeps
// in templates/scalar.cuh.
inline bool keeps_affine(const Plan& plan, const NormSpec& spec) {
  const std::int64_t own = ceil_div(ceil_div(spec.columns, columns_per_block(plan)), plan.blocks_per_row);
  return plan_math::keeps_parameters(own * plan.per_thread * plan.vector, static_cast<int>(spec.affine),
                                     size_of(compute_type(spec)), 128);
}

// What no thread can have more of, and what every kernel needs besides the row that it holds. A legal plan
// has at least these; the planner asks for needed_registers(), with which nothing spills.
inline constexpr int kMaxRegisters = 255, kWorkingRegisters = 16;

// Of x, in a thread. A row that passes through shared memory is not held, nor is one that is read again; what
// is read from a tile is held widened.
inline std::int64_t held_registers(const Plan& plan, const NormSpec& spec) {
  if (plan.strategy == Strategy::staged_rows)
    return std::int64_t{plan.per_thread} * plan.vector * plan.group_rows * size_of(compute_type(spec)) / 4;
  return plan.strategy == Strategy::persistent_row || plan.strategy == Strategy::generic
             ? 0
             : std::int64_t{plan.per_thread} * registers_per_vector(plan.vector, spec);
}

// The registers that the kernel needs in all, so as not to spill: read off the compiler's reports over all
// dtypes, activations and architectures, which the nvrtc tests repeat. f64 takes two registers a value,
// 16-bit types hold converted copies, and narrow accesses more addresses.
inline int needed_registers(const Plan& plan, const NormSpec& spec) {
  if (plan.strategy == Strategy::persistent_row) return 128;
  const std::int64_t held = held_registers(plan, spec);
  const bool adds = adds_rows(spec);
  if (compute_type(spec) == DType::f64) {
    const int elements = plan.per_thread * plan.vector * rows_of_lanes(plan);
    const bool shares_more = plan.blocks_per_row > 1 && (plan.unaligned || adds);
    // Without calls and conversions: 4096 columns in one block of 256 threads 0.86, in three 0.95.
    if (plan.strategy == Strategy::block_row && plan.blocks_per_row == 1 && !plan.unaligned &&
        plan.vector == 2 && same_dtypes(spec) &&
        (spec.activation == Activation::none || spec.activation == Activation::relu))
      return elements <= 16 ? 80 : 128;
    return elements <= 4 ? 96 : elements <= 8 && !shares_more ? 128 : 168;
  }
  if (plan.strategy == Strategy::staged_rows) {
    const bool more = has_long_code(spec) || (plan.vector > 1 && (plan.group_rows > 1 || held > 24));
    return static_cast<int>(ceil_div(held + (more ? 52 : plan.group_rows >= 4 ? 40 : 36), 8) * 8);
  }
  const bool narrow = registers_per_vector(plan.vector, spec) < 4;
  const bool converts = size_of(spec.input) == 2;
  const bool same = same_dtypes(spec);
  const bool split_row = plan.strategy == Strategy::split_row;
  // Shared rows of other specs: 13 vectors of f32 of rmsnorm in a cluster, 7 of a sum over the grid.
  if ((adds || spec.norm != Norm::layer) && plan.blocks_per_row > 1 && held > 48) return 168;
  // All that is added up is asked for at once. A block of 1024 threads has no more than 64 registers for
  // each.
  if (adds && !same && plan.threads > 512 && held > 8) return 72;
  if (split_row && plan.unaligned && held <= 8) return 80;
  if (split_row && (converts || plan.unaligned)) return 128;
  // Groups of rows take more.
  if (split_row && plan.group_rows > 1 && spec.affine == Affine::weight_bias && held > 16) return 128;
  // What a block has alone and in order needs less than what is shared or unaligned.
  const bool plain = !plan.unaligned && plan.blocks_per_row == 1;
  if (narrow || !same) {
    // Wider weights count as held here, and are not. 4096 bf16 columns with f32 weights in four blocks 0.76,
    // in six 0.92.
    if (!narrow && converts && plain && plan.threads <= 512 && held > 8 && held <= 32) return 80;
    if (held <= 4) return 64;
    if (held <= 8) return converts ? 72 : 64;
    if (held <= 16) return narrow ? 96 : plan.threads > 512 ? 64 : converts ? 96 : 80;
    return 128;
  }
  if (plan.exchange == Exchange::grid && held > 60) return 168;
  const int shares = plan.blocks_per_row > 1 ? 16 : 0;
  if (plan.strategy == Strategy::warp_rows) {
    // So do activations without weights.
    const bool calls = spec.activation != Activation::none && spec.activation != Activation::relu;
    if (!converts && calls && spec.affine == Affine::none && held > 24 && held <= 32) return 96;
    return held <= 8 ? 56 : held <= 16 ? (converts ? 72 : 56) : held <= 32 && !converts ? 72 : 128;
  }
  if (held <= 8) return plan.threads > 512 ? 64 : 64 + shares / 2;
  // A block more on a multiprocessor is worth much: 8192 bf16 columns in three blocks of 256 threads 0.92 of
  // copy speed, in four 0.96; 6232 columns in four of 128 threads 0.92, in five 0.97. Beyond 900 threads it
  // is worth less than the registers: 4096 columns in seven blocks of 128 threads 0.97, in eight 0.96.
  if (converts && plain && plan.threads <= 512) {
    const bool presses = plan.threads > 128 && !has_long_code(spec);
    return held <= 16 ? (presses ? 64 : 72) : held <= 20 ? 72 : 96;
  }
  if (!converts && plain && held > 16 && held <= 32) return 72;
  if (held <= 16)
    return plan.threads > 512 ? 64 : (converts || (shares > 0 && plan.unaligned) ? 80 : 64) + shares;
  if (!converts && spec.affine == Affine::weight_bias && ends_early(plan, spec) && held > 32)
    return held <= 44 ? 128 : 168;
  if (held <= 32 && !converts) return plan.unaligned ? 168 : 80 + shares;
  return 128;
}

}  // namespace normjit
