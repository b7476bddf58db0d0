// SPDX-License-Identifier: Apache-2.0
// One run of one kernel on the CPU: what is computed, how, and on which data. A plain value that a line of
// text holds completely, so that a failure can be repeated from its message alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "normjit/plan.h"
#include "normjit/spec/operands.h"
#include "verify/problem.h"

namespace normjit::testing {

// What the rows of x and of a residual are like; dy has mean 0 and deviation 1. Weights are around 1 and
// biases around 0, but for extreme_affine.
enum class InputKind : std::uint8_t {
  unit,            // mean 0.25, deviation 1
  near_epsilon,    // mean 0, variance about epsilon
  large_mean,      // mean 1e4 or -1e4, deviation 1
  constant_rows,   // each row one number
  subnormal,       // around the smallest normal number of the input type
  nan_row,         // unit, with one NaN in one row of x, the residual or dy
  inf_row,         // likewise with one infinity
  mixed,           // rows of the first four kinds
  extreme_affine,  // unit, with weights and biases from 0 to 1e30, and infinite biases
};
inline constexpr InputKind kInputKinds[] = {
    InputKind::unit,          InputKind::near_epsilon, InputKind::large_mean,
    InputKind::constant_rows, InputKind::subnormal,    InputKind::nan_row,
    InputKind::inf_row,       InputKind::mixed,        InputKind::extreme_affine};
std::string_view name(InputKind kind) noexcept;
inline constexpr Strategy kAllStrategies[] = {
    Strategy::warp_rows,        Strategy::staged_rows,    Strategy::block_row,     Strategy::persistent_row,
    Strategy::split_row,        Strategy::channels_first, Strategy::gradient_rows, Strategy::gradient_ring,
    Strategy::gradient_columns, Strategy::generic};

// On which side every tensor meets a page that nobody may touch.
enum class Guard : std::uint8_t { before, behind };

struct KernelCase {
  NormSpec spec;  // canonical
  Plan plan;
  DeviceProfile device;  // of a known architecture, with few multiprocessors, so that few blocks share work
  std::int64_t rows = 1;
  std::int64_t plane = 0;  // with channels first: the rows of a sample, which is a row to all that follows
  // Elements between rows, of a second result twice as many as of y; -columns makes all rows of an input one.
  // Of dy it is scale_gap, of dsum residual_gap, of dx y_gap, of dgate shift_gap, of the gradients
  // of a modulation sum_gap.
  std::int64_t x_gap = 0, gate_gap = 0, residual_gap = 0, scale_gap = 0, shift_gap = 0, y_gap = 0,
               sum_gap = 0;
  // Rows come in groups of so many, with group_gap elements between groups. Gate and modulation then are the
  // same for a group, and weights for each row are those of a group.
  std::int64_t group = 1, group_gap = 0;
  // Elements between a tensor and its guard page; x_shift that of the residual, y_shift that of the sum, too.
  int x_shift = 0, y_shift = 0, weight_shift = 0, bias_shift = 0;
  Guard guard = Guard::behind;
  bool in_place = false;      // y is x, or dx is dy
  bool sum_in_place = false;  // the sum is the residual, or dgate is the gate
  bool overlaps = false;      // begins before the launch in front is done (sm_90)
  std::int64_t blocks = 0;    // of the launch; 0: as many as the plan asks for
  int runs = 1;               // one after the other, with the same workspace
  InputKind inputs = InputKind::unit;
  std::uint64_t seed = 0;  // of the numbers in the tensors

  friend bool operator==(const KernelCase&, const KernelCase&) = default;

  // Whether an output lies in the memory of the input that it may be.
  bool is_in_place(Operand output) const {
    if (output == (spec.backward ? Operand::dx : Operand::y)) return in_place;
    return output == (spec.backward ? Operand::dgate : Operand::sum) && sum_in_place;
  }
  // Elements of a row of a matrix: of a sample with channels first.
  std::int64_t elements_of_row() const { return spec.columns * (plane == 0 ? 1 : plane); }
  // Elements from one row of a matrix to the next, in a group.
  std::int64_t stride_of(Operand matrix) const;
  // Where the rows of an operand begin that has some.
  oracle::RowLayout layout_of(Operand operand) const;
};

// Whether the service would launch this, and the executor can: a legal plan, aligned tensors, rows of outputs
// that do not overlap, numbers for which a result is promised, no more blocks that must run together than the
// executor takes, and at least one row of gradients.
bool legal(const KernelCase& c);

// One line without quotes; case_from_text(to_text(c)) == c.
std::string to_text(const KernelCase& c);
// Nothing for a text that is no case. Fields that are left out have their defaults.
std::optional<KernelCase> case_from_text(std::string_view text);

// Blocks of a launch of the case.
std::uint32_t blocks_of(const KernelCase& c);

// A legal case, small enough to take milliseconds. Its plan is what choose() says, or any legal plan of any
// strategy; with `forced` always a random legal one of that strategy.
KernelCase random_case(std::uint64_t seed, std::optional<Strategy> forced = {});

}  // namespace normjit::testing
