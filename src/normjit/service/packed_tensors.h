// SPDX-License-Identifier: Apache-2.0
// From the tensors of a launch to what its kernel takes: checked and packed in one pass over the operands.
// All of it is inline: every launch packs, and the one-call form packs before it knows the kernel.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "normjit/plan.h"
#include "normjit/result.h"
#include "normjit/spec/operands.h"
#include "normjit/spec/tables.h"

namespace normjit {

// The block that a kernel takes as its first parameter: struct Operands of the templates. Words without
// padding: the rows, the workspace, then for each operand of the kernel, in the order of the table, its
// pointer, and behind the pointer of a matrix its row stride in elements.
struct OperandBlock {
  OperandBlock() noexcept {}  // uninitialised: zeroing the words would cost every launch

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
  // The block of the generic kernel, which has all operands, out of that of a kernel with these operands.
  OperandBlock of_all(OperandSet operands) const noexcept;

  static constexpr std::size_t kFirst = 2;
  static constexpr std::size_t words_of(const OperandRow& row) noexcept {
    return row.extent == Extent::matrix ? 2 : 1;
  }
  std::uint64_t words[kFirst + 2 * kOperandCount];  // more than any kernel reads
};

// The tensors of a launch, as the rules of a spec see them.
struct PackedTensors {
  PackedTensors() noexcept {}  // uninitialised: TensorRules::pack() sets everything

  Status status;        // what is wrong with them for every kernel of the spec. Else, with rows:
  Alignment alignment;  // that all of them allow, at least Alignment::one
  OperandSet operands;  // of the spec; the block is of these
  OperandBlock block;

  std::int64_t rows() const noexcept { return static_cast<std::int64_t>(block.words[0]); }
  bool has_workspace() const noexcept { return block.words[1] != 0; }
};

// The binary logarithms of the sizes of the dtypes.
inline constexpr auto kLog2Sizes = [] {
  std::array<std::uint8_t, std::size(kDTypes)> all{};
  for (const DTypeRow& row : kDTypes)
    all[static_cast<std::size_t>(row.value)] =
        static_cast<std::uint8_t>(std::countr_zero(static_cast<unsigned>(row.size)));
  return all;
}();

// What a spec asks of the tensors of a launch. Follows from kOperands alone, unrolled while compiling.
class TensorRules {
 public:
  TensorRules() = default;
  // Of a valid spec.
  [[gnu::always_inline]] explicit TensorRules(const NormSpec& spec) noexcept
      : columns_(spec.columns), operands_(operands_of(spec)) {
    for_each_operand(
        [&](auto i) { log2_sizes_.of[i] = kLog2Sizes[static_cast<std::size_t>(kOperands[i].dtype(spec))]; });
  }

  // The rules are tested together at the end. Only if one is broken, or numbers are so large that products
  // might overflow, mistake() looks again and tells which.
  [[gnu::always_inline]] void pack(const Tensors& t, PackedTensors& packed) const noexcept {
    std::uint64_t* next = packed.block.words;
    *next++ = static_cast<std::uint64_t>(t.rows);
    *next++ = address(t.workspace);
    bool broken = false;
    std::uint64_t unexpected = 0, n = 0, strides = 0, bits = low_bits(address(t.workspace), kLog2Workspace);
    for_each_operand([&](auto i) __attribute__((always_inline)) {
      constexpr OperandRow kRow = kOperands[i];
      const std::uint64_t pointer = address(pointer_of(t, kRow));
      if (kRow.present != &always && !has(operands_, i)) {
        unexpected |= pointer;
        return;
      }
      broken |= pointer == 0;
      *next++ = pointer;
      const int log2_size = log2_sizes_.of[i];
      if constexpr (kRow.extent == Extent::matrix) {
        const std::int64_t stride = stride_of(t, kRow);
        *next++ = static_cast<std::uint64_t>(stride);
        n |= static_cast<std::uint64_t>(n_of(t, kRow));
        strides |= static_cast<std::uint64_t>(stride);
        if constexpr (kRow.output) broken |= stride < columns_;
        if constexpr (kRow.in_place != kRow.operand) broken |= moves_in_place(t, kRow);
        // A stride between no rows does not count.
        const auto stride_bytes = static_cast<std::uint64_t>(t.rows == 1 ? 0 : stride) << log2_size;
        bits |= low_bits(pointer | stride_bytes, log2_size);
      } else {
        // Of mean and rstd, which are stored element by element, only what lies below an element counts.
        const std::uint64_t counts = kRow.extent == Extent::rows ? (1u << log2_size) - 1 : 15;
        bits |= low_bits(pointer & counts, log2_size);
      }
    });
    const std::uint64_t large = strides >> 28 | (static_cast<std::uint64_t>(t.rows) - 1) >> 31;
    broken |= (unexpected | n >> 1 | bits >> kMisaligned | large) != 0;
    packed.status = broken ? TensorRules(*this).mistake(t) : Status{};  // a copy: *this stays in registers
    packed.alignment = Alignment{static_cast<std::uint8_t>(1 << std::countr_zero(bits | 8))};
    packed.operands = operands_;
  }

  // Elements from one row of a matrix to the next: as if contiguous where there is one row.
  std::int64_t stride_of(const Tensors& t, const OperandRow& row) const noexcept {
    const std::int64_t outer = outer_of(t, row);
    return t.rows == 1 || outer == kContiguous ? columns_ : outer;
  }
  // Of an operand that the spec has: the bytes of an element, as their binary logarithm.
  int log2_size(Operand operand) const noexcept { return log2_sizes_[operand]; }
  OperandSet operands() const noexcept { return operands_; }  // that the spec has

 private:
  static constexpr int kLog2Workspace = 4;  // of the alignment of a workspace, in bytes
  static constexpr int kMisaligned = 60;    // low_bits() has what lies below an element from this bit on

  static std::uint64_t address(const void* pointer) noexcept {
    return reinterpret_cast<std::uintptr_t>(pointer);
  }
  // The bits of an address or a stride in bytes that limit the access to it, counted in elements: the lowest
  // one set is the alignment. None is set where 16 bytes are aligned, which every access is content with.
  // Bits below an element go to the top.
  static std::uint64_t low_bits(std::uint64_t bytes, int log2_size) noexcept {
    return std::rotr(bytes & 15, log2_size);
  }

  // Whether an output overwrites its input at other places than were read.
  bool moves_in_place(const Tensors& t, const OperandRow& row) const noexcept {
    const OperandRow& input = row_of(row.in_place);
    return pointer_of(t, row) == pointer_of(t, input) &&
           (stride_of(t, row) != stride_of(t, input) ||
            log2_sizes_[row.operand] != log2_sizes_[row.in_place]);
  }

  // The first rule that is broken; Ok if none is.
  Status mistake(const Tensors& t) const noexcept;

  std::int64_t columns_ = 0;
  PerOperand<std::uint8_t> log2_sizes_{};
  OperandSet operands_ = 0;
};

// The same, out of line: the tensors of a valid spec, and the block that a plan's kernel takes.
PackedTensors pack(const NormSpec& spec, const Tensors& tensors) noexcept;
OperandBlock block_of(const Plan& plan, const NormSpec& spec, const Tensors& tensors) noexcept;
// The operands in that block: those of the spec, or all for the generic kernel.
OperandSet kernel_operands(const Plan& plan, const NormSpec& spec) noexcept;

}  // namespace normjit
