// The block that a kernel takes as its first parameter: struct Operands of the templates.
#pragma once

#include <cstddef>
#include <cstdint>

#include "normjit/spec/operands.h"

namespace normjit {

// The row strides of a launch, in elements. Only those of matrices have a meaning.
using Strides = PerOperand<std::int64_t>;

// Words without padding: the rows, the workspace, then for each operand that the kernel has, in the order of
// the table, its pointer, and behind that of a matrix its row stride.
struct OperandBlock {
  [[gnu::always_inline]] OperandBlock(OperandSet operands, const Tensors& tensors,
                                      const Strides& strides) noexcept {
    words[0] = static_cast<std::uint64_t>(tensors.rows);
    words[1] = reinterpret_cast<std::uintptr_t>(tensors.workspace);
    std::uint64_t* next = words + kFirst;
    for_each_operand([&](auto i) __attribute__((always_inline)) {
      constexpr OperandRow kRow = kOperands[i];
      if (!has(operands, i)) return;
      *next++ = reinterpret_cast<std::uintptr_t>(pointer_of(tensors, kRow));
      if constexpr (kRow.extent == Extent::matrix)
        *next++ = static_cast<std::uint64_t>(strides[kRow.operand]);
    });
  }

  // Where the pointer of an operand that the kernel has lies in the block, in bytes.
  static constexpr std::size_t offset_of(Operand operand, OperandSet operands) noexcept {
    if (operand == Operand::workspace) return sizeof(std::uint64_t);
    std::size_t word = kFirst;
    for (std::size_t i = 0; i < static_cast<std::size_t>(operand); ++i)
      if (has(operands, i)) word += words_of(kOperands[i]);
    return word * sizeof(std::uint64_t);
  }
  // The bytes of a kernel's block.
  static constexpr std::size_t bytes_of(OperandSet operands) noexcept {
    return offset_of(static_cast<Operand>(kOperandCount), operands);
  }

 private:
  static constexpr std::size_t kFirst = 2;
  static constexpr std::size_t words_of(const OperandRow& row) noexcept {
    return row.extent == Extent::matrix ? 2 : 1;
  }

 public:
  std::uint64_t words[kFirst + 2 * kOperandCount];  // more than any kernel reads
};

}  // namespace normjit
