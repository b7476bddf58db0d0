// The operands of a launch: which there are, where they lie in memory, and the arguments that a launch takes.
#pragma once

#include <cstdint>
#include <string_view>

#include "normjit/export.h"

namespace normjit {

// Everything that a kernel reads or writes. What each is of a spec, its dtype and who has it, stands in one
// table (spec/operands.h).
enum class Operand : std::uint8_t {
  x,         // [rows, columns], input dtype
  residual,  // [rows, columns], input dtype: added to x in front of the norm
  weight,    // [columns], weight dtype
  bias,      // [columns], weight dtype
  y,         // [rows, columns], output dtype: the result
  sum,       // [rows, columns], input dtype: x + residual, rounded
  mean,      // [rows], compute type
  rstd,      // [rows], compute type

  workspace = 255,  // Tensors::workspace: no row of the table, every kernel has room for its pointer
};
NORMJIT_API std::string_view name(Operand) noexcept;  // "x", "residual", ...

// The distance from one row to the next when rows follow each other without a gap.
inline constexpr std::int64_t kContiguous = -1;

// An operand with `columns` elements for each row. Row r begins
//   (r / n) * outer + (r % n) * inner   elements behind `pointer`.
// With n = 1, rows are `outer` elements apart, which may be 0 for what is read (one row for all). kContiguous
// stands for n * columns in outer; inner has no meaning then, and none for n = 1. A plain pointer is
// contiguous rows. n must be 1 for now (0 counts as 1), else BadStride: a later version serves others.
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
// Rows that are so many elements apart.
constexpr InputRows strided(const void* pointer, std::int64_t row_stride) { return {pointer, 1, row_stride}; }
constexpr OutputRows strided(void* pointer, std::int64_t row_stride) { return {pointer, 1, row_stride}; }

// The arguments of one launch: device pointers, which stay the caller's, and sizes. All memory must be
// reachable from the stream's device. What the spec does not have stays null. y may be x itself, and sum may
// be residual itself (same pointer, row stride and element size); otherwise outputs overlap nothing. A launch
// refuses the same pointer with another row stride or element size; Kernel::check finds every overlap.
struct Tensors {
  InputRows x{};
  OutputRows y{};
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* mean = nullptr;
  void* rstd = nullptr;
  std::int64_t rows = 0;  // 0 is a success that launches nothing
  // Kernel::workspace_bytes() bytes, 16-byte aligned. Zeroed once by the caller; each launch leaves it ready
  // for the next. One workspace serves one launch at a time: launches that may run at once need one each.
  void* workspace = nullptr;
  InputRows residual{};
  OutputRows sum{};
};

}  // namespace normjit
