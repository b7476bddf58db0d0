// The operands of a norm, a row each: the one place that says which there are. Tensor rules, launches, graph
// nodes, templates, the host executor, the reference and the bindings follow from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "normjit/spec.h"
#include "normjit/tensors.h"

namespace normjit {

// How many elements an operand has.
enum class Extent : std::uint8_t {
  matrix,   // `columns` for each row, at the address of its row (RowsAt)
  columns,  // `columns`, the same for all rows
  rows,     // one for each row
};

struct OperandRow {
  Operand operand;
  std::string_view name;  // in the tool, in messages, and in the templates' struct Operands
  bool output;            // the kernel writes it
  Extent extent;
  std::size_t offset;        // in Tensors: of an InputRows or OutputRows (matrix), or of a pointer
  std::string_view storage;  // the type of its elements in the templates
  DType (*dtype)(const NormSpec&) noexcept;
  bool (*present)(const NormSpec&) noexcept;
  Operand in_place;  // an output may be this input itself, row by row; itself: none
};

// In the order in which kernels take them.
inline constexpr OperandRow kOperands[] = {
    {Operand::x, "x", false, Extent::matrix, offsetof(Tensors, x), "Input",
     [](const NormSpec& s) noexcept { return s.input; }, [](const NormSpec&) noexcept { return true; },
     Operand::x},
    {Operand::residual, "residual", false, Extent::matrix, offsetof(Tensors, residual), "Residual",
     [](const NormSpec& s) noexcept { return s.input; },
     [](const NormSpec& s) noexcept { return s.residual != Residual::none; }, Operand::residual},
    {Operand::weight, "weight", false, Extent::columns, offsetof(Tensors, weight), "Weight",
     [](const NormSpec& s) noexcept { return s.weight; },
     [](const NormSpec& s) noexcept { return s.affine != Affine::none; }, Operand::weight},
    {Operand::bias, "bias", false, Extent::columns, offsetof(Tensors, bias), "Weight",
     [](const NormSpec& s) noexcept { return s.weight; },
     [](const NormSpec& s) noexcept { return s.affine == Affine::weight_bias; }, Operand::bias},
    {Operand::y, "y", true, Extent::matrix, offsetof(Tensors, y), "Output",
     [](const NormSpec& s) noexcept { return s.output; }, [](const NormSpec&) noexcept { return true; },
     Operand::x},
    {Operand::sum, "sum", true, Extent::matrix, offsetof(Tensors, sum), "Residual",
     [](const NormSpec& s) noexcept { return s.input; }, [](const NormSpec& s) noexcept { return s.sum; },
     Operand::residual},
    {Operand::mean, "mean", true, Extent::rows, offsetof(Tensors, mean), "Acc", &compute_type,
     [](const NormSpec& s) noexcept { return s.statistics && s.norm == Norm::layer; }, Operand::mean},
    {Operand::rstd, "rstd", true, Extent::rows, offsetof(Tensors, rstd), "Acc", &compute_type,
     [](const NormSpec& s) noexcept { return s.statistics; }, Operand::rstd},
};

// Bytes of one column of a row in all matrices of a spec that are inputs, or outputs.
inline int matrix_bytes(const NormSpec& spec, bool outputs) {
  int bytes = 0;
  for (const OperandRow& row : kOperands)
    if (row.extent == Extent::matrix && row.output == outputs && row.present(spec))
      bytes += size_of(row.dtype(spec));
  return bytes;
}

}  // namespace normjit
