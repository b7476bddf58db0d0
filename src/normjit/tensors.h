// SPDX-License-Identifier: Apache-2.0
// The operands of a launch, their layout in memory, and the arguments of a launch.
#pragma once

#include <cstdint>
#include <string_view>

#include "normjit/export.h"

namespace normjit {

// Everything that a kernel reads or writes. One table (spec/operands.h) gives the dtype of each operand and
// the specs that have it.
enum class Operand : std::uint8_t {
  x,                // [rows, columns], input dtype
  in_bias,          // [columns], weight dtype: added to x before the norm
  gate,             // [rows, columns], modulation type: multiplies x before the norm, or the result
  gate_table,       // [columns], weight dtype: added to each row of the gate
  residual,         // [rows, columns], residual type: added to x before the norm, or to the result
  weight,           // [columns], weight dtype; with affine_rows [rows, columns]
  bias,             // likewise
  mod_scale,        // [rows, columns], modulation type: multiplies the value behind the affine
  mod_scale_table,  // [columns], weight dtype: added to each row of mod_scale
  mod_shift,        // [rows, columns], modulation type: added behind mod_scale
  mod_shift_table,  // [columns], weight dtype: added to each row of mod_shift
  tensor_scale,     // one f32: what the result is divided by; its inverse with inverse_scale
  upper_bound,      // one f32: what the largest magnitude of a row counts as at most
  global_scale,     // one f32: what the scales of blocks are multiplied by where they are stored in e4m3
  y,                // [rows, columns], output dtype: the result; in e2m1 [rows, columns / 2] bytes
  sum,              // [rows, columns], residual type: what is normalized, rounded
  mean,             // [rows], compute type
  rstd,             // [rows], compute type
  also,             // [rows, columns], a float type: the result before its quantization
  row_scale,        // [rows], f32: what each row of the result was divided by
  block_scale,      // what each block was divided by; shape and type: ScaleLayout and ScaleFormat
  amax,             // one f32: the largest magnitude of the result; NaN if one is
  dy,               // [rows, columns], output dtype: the gradient of y
  dsum,             // [rows, columns], residual type: a gradient of the sum, which is added to dx
  dx,               // [rows, columns], input dtype: the gradient of what is normalized
  dweight,          // [columns], gradient type: that of the weight, over all rows
  dbias,            // [columns], gradient type: that of the bias, over all rows
  dgate,            // [rows, columns], modulation type: that of the gate
  dmod_scale,       // [rows, columns], modulation type: that of mod_scale, or its sum over groups of rows
  dmod_shift,       // likewise of mod_shift
  saved_mean,       // [rows], compute type: mean, as the forward wrote it
  saved_rstd,       // [rows], compute type: rstd, likewise

  workspace = 255,  // Tensors::workspace: not in the table, because every kernel takes its pointer
};
NORMJIT_API std::string_view name(Operand) noexcept;  // "x", "residual", ...

// The distance from one row to the next when rows follow each other without a gap.
inline constexpr std::int64_t kContiguous = -1;

// An operand with `columns` elements for each row; y in e2m1 has half as many. Row r begins
//   (r / n) * outer + (r % n) * inner   elements behind `pointer`.
// With n = 1 (0 counts as 1), rows are `outer` elements apart, and inner has no meaning. kContiguous in outer
// stands for contiguous rows, whatever n and inner are; so does a plain pointer. For an input, outer and
// inner may be 0: rows that are the same. The rows of an output must be separate: inner at least the columns
// and outer at least n * inner, or outer at least the columns and inner at least (rows / n) * outer. The rows
// of a launch must be a multiple of n, and rows * n less than 2^64. All else is BadStride.
//
// Of dmod_scale and dmod_shift the rows of a group may also share a row, with inner = 0 and outer at least
// the columns: it becomes the sum over the rows of the group. Where neighbouring rows share mod_scale or
// mod_shift in this way, both gradients must be shared by the same n rows, and where each row has its own,
// by none; where all rows of the launch share one, by any n rows or none.
//
// Examples, of heads of D elements: the q heads of projected rows of Q elements are {q, heads, Q, D}; weights
// for each head are {w, heads, 0, D}; a residual that is the same for each sample of S rows is {r, S, 0, D};
// a scale that each sample of S rows has, the k-th of six parts of a projection, is {p + k * D, S, 6 * D, 0}.
//
// A launch in which an operand needs n > 1 takes another kernel than one that does not.
//
// With channels_first x, residual, y and sum are [samples, columns, plane], and row r is position r % plane
// of sample r / plane. Column c of it lies
//   (r / plane) * outer + c * plane + r % plane   elements behind `pointer`.
// `outer` is the distance of samples: kContiguous, for an input at least 0, for an output at least columns *
// plane. n must be 0 or 1, and inner 0.
template <class T>
struct RowsAt {
  T* pointer = nullptr;
  std::int64_t n = 1, outer = kContiguous, inner = 0;

  constexpr RowsAt() = default;
  constexpr RowsAt(T* pointer, std::int64_t n = 1, std::int64_t outer = kContiguous, std::int64_t inner = 0)
      : pointer(pointer), n(n), outer(outer), inner(inner) {}
};
using InputRows = RowsAt<const void>;
using OutputRows = RowsAt<void>;
// Rows that are `row_stride` elements apart.
constexpr InputRows strided(const void* pointer, std::int64_t row_stride) { return {pointer, 1, row_stride}; }
constexpr OutputRows strided(void* pointer, std::int64_t row_stride) { return {pointer, 1, row_stride}; }

// The arguments of one launch: sizes, and device pointers that the caller owns. All memory must be reachable
// from the stream's device. Operands that the spec does not have stay null. y may be x itself, sum may be
// residual itself, dx may be dy itself, and dgate may be gate itself (same pointer, rows and element size);
// otherwise no output may overlap another operand. A launch refuses the same pointer with other rows or
// another element size; Kernel::check finds every overlap.
struct Tensors {
  InputRows x{};
  OutputRows y{};
  InputRows weight{};  // a plain pointer without affine_rows
  InputRows bias{};
  void* mean = nullptr;
  void* rstd = nullptr;
  std::int64_t rows = 0;  // 0 is a success that launches nothing
  // Kernel::workspace_bytes() bytes, 16-byte aligned. The caller zeroes it once; each launch leaves it ready
  // for the next. A workspace serves one launch at a time: launches that may run at once need one each.
  void* workspace = nullptr;
  InputRows residual{};
  OutputRows sum{};
  const void* in_bias = nullptr;
  InputRows gate{};
  const void* gate_table = nullptr;
  InputRows mod_scale{};
  const void* mod_scale_table = nullptr;
  InputRows mod_shift{};
  const void* mod_shift_table = nullptr;
  // With channels_first the positions of a sample: height * width, or depth * height * width. Else 0.
  std::int64_t plane = 0;
  const void* tensor_scale = nullptr;
  void* row_scale = nullptr;
  const void* upper_bound = nullptr;
  const void* global_scale = nullptr;
  OutputRows also{};
  void* block_scale = nullptr;
  void* amax = nullptr;
  InputRows dy{};
  InputRows dsum{};
  OutputRows dx{};
  void* dweight = nullptr;
  void* dbias = nullptr;
  OutputRows dgate{};
  OutputRows dmod_scale{};
  OutputRows dmod_shift{};
  const void* saved_mean = nullptr;
  const void* saved_rstd = nullptr;
};

}  // namespace normjit
