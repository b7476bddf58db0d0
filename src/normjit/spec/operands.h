// SPDX-License-Identifier: Apache-2.0
// The operands of a norm, a row each: the one place that says which there are. Tensor rules, launches, graph
// nodes, templates, the host executor, the reference and the bindings follow from it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string_view>
#include <type_traits>
#include <utility>

#include "normjit/spec.h"
#include "normjit/spec/valid.h"
#include "normjit/tensors.h"

namespace normjit {

// How many elements an operand has.
enum class Extent : std::uint8_t {
  matrix,   // `columns` for each row, at the address of its row (RowsAt)
  shared,   // likewise, but neighbouring rows mostly have the same, so that it counts as a vector
  columns,  // `columns`, the same for all rows
  affine,   // a matrix with NormSpec::affine_rows, else columns
  rows,     // one for each row
  one,      // a single element
  blocks,   // one for each block of the result, and padding: scale_shape()
};

struct OperandRow {
  Operand operand;
  std::string_view name;  // in the tool, in messages, and in the templates' struct Operands
  bool output;            // the kernel writes it
  Extent extent;
  std::size_t offset;        // in Tensors: of an InputRows or OutputRows (matrix, affine), or of a pointer
  std::string_view storage;  // the type of its elements in the templates
  DType (*dtype)(const NormSpec&) noexcept;
  bool (*present)(const NormSpec&) noexcept;
  Operand in_place;  // an output may be this input itself, row by row; itself: none
};

// `present` of an operand that every spec has.
constexpr bool always(const NormSpec&) noexcept { return true; }
// In the order in which kernels take them; each row stands at its operand's number.
inline constexpr OperandRow kOperands[] = {
    {Operand::x, "x", false, Extent::matrix, offsetof(Tensors, x), "Input",
     [](const NormSpec& s) noexcept { return s.input; }, &always, Operand::x},
    {Operand::in_bias, "in_bias", false, Extent::columns, offsetof(Tensors, in_bias), "Weight",
     [](const NormSpec& s) noexcept { return s.weight; },
     [](const NormSpec& s) noexcept { return s.in_bias; }, Operand::in_bias},
    {Operand::gate, "gate", false, Extent::matrix, offsetof(Tensors, gate), "Mod",
     [](const NormSpec& s) noexcept { return s.modulation_type; },
     [](const NormSpec& s) noexcept { return s.gate != Gate::none; }, Operand::gate},
    {Operand::gate_table, "gate_table", false, Extent::columns, offsetof(Tensors, gate_table), "Weight",
     [](const NormSpec& s) noexcept { return s.weight; }, &has_gate_table, Operand::gate_table},
    {Operand::residual, "residual", false, Extent::matrix, offsetof(Tensors, residual), "Residual",
     [](const NormSpec& s) noexcept { return s.residual_type; },
     [](const NormSpec& s) noexcept { return s.residual != Residual::none; }, Operand::residual},
    {Operand::weight, "weight", false, Extent::affine, offsetof(Tensors, weight), "Weight",
     [](const NormSpec& s) noexcept { return s.weight; },
     [](const NormSpec& s) noexcept { return s.affine != Affine::none; }, Operand::weight},
    {Operand::bias, "bias", false, Extent::affine, offsetof(Tensors, bias), "Weight",
     [](const NormSpec& s) noexcept { return s.weight; },
     [](const NormSpec& s) noexcept {
       return s.affine == Affine::weight_bias && (!s.backward || needs_argument(s));
     },
     Operand::bias},
    {Operand::mod_scale, "mod_scale", false, Extent::shared, offsetof(Tensors, mod_scale), "Mod",
     [](const NormSpec& s) noexcept { return s.modulation_type; },
     [](const NormSpec& s) noexcept { return s.modulation != Modulation::none; }, Operand::mod_scale},
    {Operand::mod_scale_table, "mod_scale_table", false, Extent::columns, offsetof(Tensors, mod_scale_table),
     "Weight", [](const NormSpec& s) noexcept { return s.weight; }, &has_modulation_table,
     Operand::mod_scale_table},
    {Operand::mod_shift, "mod_shift", false, Extent::shared, offsetof(Tensors, mod_shift), "Mod",
     [](const NormSpec& s) noexcept { return s.modulation_type; }, &needs_shift, Operand::mod_shift},
    {Operand::mod_shift_table, "mod_shift_table", false, Extent::columns, offsetof(Tensors, mod_shift_table),
     "Weight", [](const NormSpec& s) noexcept { return s.weight; },
     [](const NormSpec& s) noexcept { return needs_shift(s) && s.modulation_table; },
     Operand::mod_shift_table},
    {Operand::tensor_scale, "tensor_scale", false, Extent::one, offsetof(Tensors, tensor_scale), "float",
     [](const NormSpec&) noexcept { return DType::f32; },
     [](const NormSpec& s) noexcept { return s.quantization == Quantization::tensor; },
     Operand::tensor_scale},
    {Operand::upper_bound, "upper_bound", false, Extent::one, offsetof(Tensors, upper_bound), "float",
     [](const NormSpec&) noexcept { return DType::f32; },
     [](const NormSpec& s) noexcept { return s.upper_bound && scales_rows(s); }, Operand::upper_bound},
    {Operand::global_scale, "global_scale", false, Extent::one, offsetof(Tensors, global_scale), "float",
     [](const NormSpec&) noexcept { return DType::f32; },
     [](const NormSpec& s) noexcept { return scales_blocks(s) && s.scale_format == ScaleFormat::e4m3; },
     Operand::global_scale},
    {Operand::y, "y", true, Extent::matrix, offsetof(Tensors, y), "Output",
     [](const NormSpec& s) noexcept { return s.output; },
     [](const NormSpec& s) noexcept { return !s.backward; }, Operand::x},
    {Operand::sum, "sum", true, Extent::matrix, offsetof(Tensors, sum), "Residual",
     [](const NormSpec& s) noexcept { return s.residual_type; },
     [](const NormSpec& s) noexcept { return s.sum; }, Operand::residual},
    {Operand::mean, "mean", true, Extent::rows, offsetof(Tensors, mean), "Acc", &accumulator,
     [](const NormSpec& s) noexcept { return writes_statistics(s) && s.norm == Norm::layer; }, Operand::mean},
    {Operand::rstd, "rstd", true, Extent::rows, offsetof(Tensors, rstd), "Acc", &accumulator,
     &writes_statistics, Operand::rstd},
    {Operand::also, "also", true, Extent::matrix, offsetof(Tensors, also), "AlsoOutput", &also_type,
     [](const NormSpec& s) noexcept { return s.also != Also::none; }, Operand::also},
    {Operand::row_scale, "row_scale", true, Extent::rows, offsetof(Tensors, row_scale), "float",
     [](const NormSpec&) noexcept { return DType::f32; }, &scales_rows, Operand::row_scale},
    {Operand::block_scale, "block_scale", true, Extent::blocks, offsetof(Tensors, block_scale), "BlockScale",
     &block_scale_type, &scales_blocks, Operand::block_scale},
    {Operand::amax, "amax", true, Extent::one, offsetof(Tensors, amax), "float",
     [](const NormSpec&) noexcept { return DType::f32; }, [](const NormSpec& s) noexcept { return s.amax; },
     Operand::amax},
    {Operand::dy, "dy", false, Extent::matrix, offsetof(Tensors, dy), "Output",
     [](const NormSpec& s) noexcept { return s.output; },
     [](const NormSpec& s) noexcept { return s.backward; }, Operand::dy},
    {Operand::dsum, "dsum", false, Extent::matrix, offsetof(Tensors, dsum), "Residual",
     [](const NormSpec& s) noexcept { return s.residual_type; },
     [](const NormSpec& s) noexcept { return s.backward && s.dsum; }, Operand::dsum},
    {Operand::dx, "dx", true, Extent::matrix, offsetof(Tensors, dx), "Input",
     [](const NormSpec& s) noexcept { return s.input; }, &writes_dx, Operand::dy},
    {Operand::dweight, "dweight", true, Extent::columns, offsetof(Tensors, dweight), "Gradient",
     [](const NormSpec& s) noexcept { return s.gradient_type; }, &writes_dweight, Operand::dweight},
    {Operand::dbias, "dbias", true, Extent::columns, offsetof(Tensors, dbias), "Gradient",
     [](const NormSpec& s) noexcept { return s.gradient_type; }, &writes_dbias, Operand::dbias},
    {Operand::dgate, "dgate", true, Extent::matrix, offsetof(Tensors, dgate), "Mod",
     [](const NormSpec& s) noexcept { return s.modulation_type; },
     [](const NormSpec& s) noexcept { return writes_dx(s) && s.gate != Gate::none; }, Operand::gate},
    {Operand::dmod_scale, "dmod_scale", true, Extent::shared, offsetof(Tensors, dmod_scale), "Mod",
     [](const NormSpec& s) noexcept { return s.modulation_type; }, &writes_dmod, Operand::dmod_scale},
    {Operand::dmod_shift, "dmod_shift", true, Extent::shared, offsetof(Tensors, dmod_shift), "Mod",
     [](const NormSpec& s) noexcept { return s.modulation_type; },
     [](const NormSpec& s) noexcept { return writes_dmod(s) && s.modulation == Modulation::scale_shift; },
     Operand::dmod_shift},
    {Operand::saved_mean, "saved_mean", false, Extent::rows, offsetof(Tensors, saved_mean), "Acc",
     &accumulator, [](const NormSpec& s) noexcept { return reads_statistics(s) && s.norm == Norm::layer; },
     Operand::saved_mean},
    {Operand::saved_rstd, "saved_rstd", false, Extent::rows, offsetof(Tensors, saved_rstd), "Acc",
     &accumulator, &reads_statistics, Operand::saved_rstd},
};

inline constexpr std::size_t kOperandCount = std::size(kOperands);

constexpr const OperandRow& row_of(Operand operand) { return kOperands[static_cast<std::size_t>(operand)]; }

static_assert([] {
  for (std::size_t i = 0; i < kOperandCount; ++i)
    if (static_cast<std::size_t>(kOperands[i].operand) != i) return false;
  return true;
}());

// Whether Tensors has the address of each row of an operand, as rows do that are no column.
constexpr bool has_rows(const OperandRow& row) {
  return row.extent == Extent::matrix || row.extent == Extent::shared || row.extent == Extent::affine;
}
// Whether the rows of a group may share a row of an output, which becomes a sum: gradients of a modulation.
constexpr bool may_share_sums(const OperandRow& row) { return row.output && row.extent == Extent::shared; }
// Whether the rows of a sample often share a row of an operand: of gate and modulation, and of the sums.
constexpr bool may_be_of_samples(const OperandRow& row) {
  return row.storage == "Mod" && (!row.output || may_share_sums(row));
}
// Whether an operand of a spec has `columns` elements for each row, or the same for all rows.
constexpr bool is_matrix(const OperandRow& row, const NormSpec& spec) noexcept {
  return row.extent == Extent::matrix || row.extent == Extent::shared ||
         (row.extent == Extent::affine && spec.affine_rows);
}
constexpr bool is_columns(const OperandRow& row, const NormSpec& spec) noexcept {
  return row.extent == Extent::columns || (row.extent == Extent::affine && !spec.affine_rows);
}
// Whether all rows have the same of an operand.
constexpr bool is_single(const OperandRow& row, const NormSpec& spec) noexcept {
  return is_columns(row, spec) || row.extent == Extent::one;
}
// Whether an operand is one element, or one for each row or block.
constexpr bool is_scalar(const OperandRow& row) noexcept {
  return row.extent == Extent::rows || row.extent == Extent::one || row.extent == Extent::blocks;
}
// Whether rows in groups need a kernel of their own. With channels first every kernel takes such addresses.
inline bool needs_grouped_rows(const NormSpec& spec, bool grouped) noexcept {
  return grouped && !spec.channels_first;
}
// Whether so many rows may have this Tensors::plane: whole samples with channels first, else none.
constexpr bool has_whole_samples(bool channels_first, std::int64_t rows, std::int64_t plane) noexcept {
  return channels_first ? plane >= 1 && rows % plane == 0 : plane == 0;
}

// A value for each operand of the table.
template <class T>
struct PerOperand {
  std::array<T, kOperandCount> of;

  constexpr T& operator[](Operand operand) { return of[static_cast<std::size_t>(operand)]; }
  constexpr const T& operator[](Operand operand) const { return of[static_cast<std::size_t>(operand)]; }
};

// Calls each(i) for every row number of the table as a compile-time constant, so that what it asks of
// kOperands[i] is one, too.
template <class Each>
[[gnu::always_inline]] constexpr void for_each_operand(Each&& each) {
  [&]<std::size_t... i>(std::index_sequence<i...>) __attribute__((always_inline)) {
    (each(std::integral_constant<std::size_t, i>()), ...);
  }
  (std::make_index_sequence<kOperandCount>());
}

// Bytes of one column of a row in all matrices of a spec that are inputs, or outputs. Weights and modulation
// are not counted: rows share them.
inline int matrix_bytes(const NormSpec& spec, bool outputs) noexcept {
  int bytes = 0;
  for_each_operand([&](auto i) {
    constexpr OperandRow kRow = kOperands[i];
    if constexpr (kRow.extent == Extent::matrix)
      if (kRow.output == outputs && kRow.present(spec)) bytes += size_of(kRow.dtype(spec));
  });
  return bytes;
}

// Columns in an element of a type.
constexpr int columns_in(DType type) noexcept { return type == DType::e2m1 ? 2 : 1; }
// Elements in a row of an operand that has columns.
inline std::int64_t row_elements(const OperandRow& row, const NormSpec& spec) noexcept {
  return spec.columns / columns_in(row.dtype(spec));
}

// A set of operands: bit i is row i of the table.
using OperandSet = std::uint64_t;
static_assert(kOperandCount <= 63);
// The set of one, and of one or none.
constexpr OperandSet set_of(std::size_t i, bool there = true) { return OperandSet{there} << i; }
constexpr OperandSet set_of(Operand operand) { return set_of(static_cast<std::size_t>(operand)); }
// Those that a spec has.
inline OperandSet operands_of(const NormSpec& spec) noexcept {
  OperandSet all = 0;
  for_each_operand([&](auto i) { all |= set_of(i, kOperands[i].present(spec)); });
  return all;
}
constexpr bool has(OperandSet operands, std::size_t i) { return (operands >> i & 1) != 0; }

// The scales of the blocks of so many rows, padding included, as ScaleLayout lays them.
struct ScaleShape {
  std::int64_t rows, blocks;  // padded
};
constexpr ScaleShape scale_shape(const NormSpec& spec, std::int64_t rows) noexcept {
  const auto up = [](std::int64_t number, std::int64_t to) { return (number + to - 1) / to * to; };
  const std::int64_t blocks = scales_blocks(spec) ? spec.columns / block_columns(spec) : 0;
  switch (spec.scale_layout) {
    case ScaleLayout::rows:
      return {rows, blocks};
    case ScaleLayout::columns:
      return {up(rows, 4), blocks};
    case ScaleLayout::packed_columns:
      return {up(rows, 4), up(blocks, 4)};
    default:
      return {up(rows, 128), up(blocks, 4)};
  }
}
// Where the scale of block k of row r lies among them.
constexpr std::int64_t scale_place(const NormSpec& spec, std::int64_t rows, std::int64_t r,
                                   std::int64_t k) noexcept {
  const ScaleShape shape = scale_shape(spec, rows);
  switch (spec.scale_layout) {
    case ScaleLayout::rows:
      return r * shape.blocks + k;
    case ScaleLayout::columns:
      return k * shape.rows + r;
    case ScaleLayout::packed_columns:
      return (k / 4 * shape.rows + r) * 4 + k % 4;
    default:
      return (r / 128 * (shape.blocks / 4) + k / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + k % 4;
  }
}

// Elements of an operand whose rows, if it has any, follow each other without a gap.
inline std::int64_t elements_of(const OperandRow& row, const NormSpec& spec, std::int64_t rows) noexcept {
  if (row.extent == Extent::blocks) {
    const ScaleShape shape = scale_shape(spec, rows);
    return shape.rows * shape.blocks;
  }
  return (is_single(row, spec) ? 1 : rows) * (is_scalar(row) ? 1 : row_elements(row, spec));
}

// --- The operands in Tensors ---

static_assert(std::is_trivially_copyable_v<Tensors> && offsetof(InputRows, pointer) == 0 &&
              sizeof(InputRows) == sizeof(OutputRows));

// The pointer of an operand, null where it is not given.
inline const void* pointer_of(const Tensors& tensors, const OperandRow& row) noexcept {
  const void* pointer;
  std::memcpy(&pointer, reinterpret_cast<const std::byte*>(&tensors) + row.offset, sizeof pointer);
  return pointer;
}
// The members of the rows of an operand that has_rows(), of an output's, too.
inline std::int64_t row_member_of(const Tensors& tensors, const OperandRow& row,
                                  std::size_t offset) noexcept {
  std::int64_t value;
  std::memcpy(&value, reinterpret_cast<const std::byte*>(&tensors) + row.offset + offset, sizeof value);
  return value;
}
inline std::int64_t n_of(const Tensors& tensors, const OperandRow& row) noexcept {
  return row_member_of(tensors, row, offsetof(InputRows, n));
}
inline std::int64_t outer_of(const Tensors& tensors, const OperandRow& row) noexcept {
  return row_member_of(tensors, row, offsetof(InputRows, outer));
}
inline std::int64_t inner_of(const Tensors& tensors, const OperandRow& row) noexcept {
  return row_member_of(tensors, row, offsetof(InputRows, inner));
}
// Sets the pointer of an operand alone.
inline void set_pointer(Tensors& tensors, const OperandRow& row, const void* pointer) noexcept {
  std::memcpy(reinterpret_cast<std::byte*>(&tensors) + row.offset, &pointer, sizeof pointer);
}
// Sets an operand; of one that has no rows the pointer alone.
inline void set(Tensors& tensors, const OperandRow& row, const InputRows& rows) noexcept {
  std::memcpy(reinterpret_cast<std::byte*>(&tensors) + row.offset, &rows,
              has_rows(row) ? sizeof rows : sizeof rows.pointer);
}
inline void set(Tensors& tensors, const OperandRow& row, const void* pointer,
                std::int64_t row_stride = kContiguous) noexcept {
  set(tensors, row, strided(pointer, row_stride));
}

}  // namespace normjit
