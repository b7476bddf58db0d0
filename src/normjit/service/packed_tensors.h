// SPDX-License-Identifier: Apache-2.0
// From the tensors of a launch to what its kernel takes: checked and packed in one pass over the operands.
// All of it is inline: every launch packs, and the one-call form packs before it knows the kernel.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>

#include "normjit/plan.h"
#include "normjit/result.h"
#include "normjit/spec/operands.h"
#include "normjit/spec/tables.h"

namespace normjit {

// Which operands a kernel takes, and how.
struct OperandLayout {
  OperandSet operands;
  OperandSet matrices;  // those of them whose rows have addresses
  bool grouped;         // these addresses are GroupedRows of the templates, not Rows

  // The words of operand i in the block of a kernel; 0: it has none.
  constexpr std::size_t words_of(std::size_t i) const noexcept {
    return !has(operands, i) ? 0 : !has(matrices, i) ? 1 : grouped ? 5 : 2;
  }
  friend bool operator==(const OperandLayout&, const OperandLayout&) = default;
};
// Of the generic kernels, which have all operands.
inline constexpr OperandLayout kGenericLayout{(OperandSet{1} << kOperandCount) - 1,
                                              [] {
                                                OperandSet all = 0;
                                                for (std::size_t i = 0; i < kOperandCount; ++i)
                                                  all |= set_of(i, has_rows(kOperands[i]));
                                                return all;
                                              }(),
                                              true};

// The block that a kernel takes as its first parameter: struct Operands of the templates. Words without
// padding: the rows, the workspace, then for each operand of the kernel, in the order of the table, its
// pointer, and behind the pointer of a matrix what its layout says, in elements.
struct OperandBlock {
  OperandBlock() noexcept {}  // uninitialised: zeroing the words would cost every launch

  // Where the pointer of an operand that the kernel has lies in the block, in bytes.
  static constexpr std::size_t offset_of(Operand operand, const OperandLayout& layout) noexcept {
    if (operand == Operand::workspace) return sizeof(std::uint64_t);
    std::size_t word = kFirst;
    for (std::size_t i = 0; i < static_cast<std::size_t>(operand); ++i) word += layout.words_of(i);
    return word * sizeof(std::uint64_t);
  }
  // The bytes of a kernel's block.
  static constexpr std::size_t bytes_of(const OperandLayout& layout) noexcept {
    return offset_of(static_cast<Operand>(kOperandCount), layout);
  }
  // The block of another kernel with the same tensors. What this block does not have is null there; vectors
  // become matrices of equal rows.
  OperandBlock converted(const OperandLayout& from, const OperandLayout& to) const noexcept;

  static constexpr std::size_t kFirst = 2;
  // As many as the largest block has.
  static constexpr std::size_t kWords = [] {
    std::size_t all = kFirst;
    for (std::size_t i = 0; i < kOperandCount; ++i) all += kGenericLayout.words_of(i);
    return all;
  }();
  std::uint64_t words[kWords];
};

// The tensors of a launch, as the rules of a spec see them.
struct PackedTensors {
  PackedTensors() noexcept {}  // uninitialised: TensorRules::pack() sets everything

  Status status;         // what is wrong with them for every kernel of the spec. Else, with rows:
  Alignment alignment;   // that all of them allow, at least Alignment::one; of channels first, of positions
  OperandLayout layout;  // of the block; grouped where an operand needs it
  OperandBlock block;

  std::int64_t rows() const noexcept { return static_cast<std::int64_t>(block.words[0]); }
  bool has_workspace() const noexcept { return block.words[1] != 0; }
};

// The binary logarithms of the sizes of the dtypes.
inline constexpr auto kLog2Sizes = [] {
  std::array<std::uint8_t, std::size(kDTypes)> all{};
  for (const auto& row : kDTypes)
    all[static_cast<std::size_t>(row.value)] =
        static_cast<std::uint8_t>(std::countr_zero(static_cast<unsigned>(size_of(row.value))));
  return all;
}();

// Where the rows of a matrix begin: RowsAt with n >= 1, and n > 1 only where no single stride says it. With
// channels first {plane, distance of samples, 1}; n is then also the distance of columns.
struct RowAddress {
  std::int64_t n, outer, inner;
  friend bool operator==(const RowAddress&, const RowAddress&) = default;
};

// What a spec asks of the tensors of a launch. Follows from kOperands alone, unrolled while compiling.
class TensorRules {
 public:
  TensorRules() = default;
  // Of a valid spec.
  [[gnu::always_inline]] explicit TensorRules(const NormSpec& spec) noexcept
      : columns_(spec.columns),
        y_elements_(row_elements(row_of(Operand::y), spec)),
        operands_(operands_of(spec)),
        residual_after_(spec.residual == Residual::after),
        channels_first_(spec.channels_first) {
    OperandSet matrices = 0;
    for_each_operand([&](auto i) {
      constexpr OperandRow kRow = kOperands[i];
      log2_sizes_.of[i] = kLog2Sizes[static_cast<std::size_t>(kRow.dtype(spec))];
      matrices |= set_of(i, is_matrix(kRow, spec));
    });
    matrices_ = matrices & operands_;
  }

  // The rules are tested together at the end. Only if one is broken, numbers are so large that products might
  // overflow, or rows come in groups or planes, pack_exactly() looks again.
  [[gnu::always_inline]] void pack(const Tensors& t, PackedTensors& packed) const noexcept {
    std::uint64_t* next = packed.block.words;
    *next++ = static_cast<std::uint64_t>(t.rows);
    *next++ = address(t.workspace);
    bool broken = channels_first_;
    std::uint64_t unexpected = static_cast<std::uint64_t>(t.plane), n = 0, strides = 0,
                  bits = low_bits(address(t.workspace), kLog2Workspace);
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
      if (kRow.extent == Extent::affine ? has(matrices_, i) : has_rows(kRow)) {
        const std::int64_t stride = stride_of(t, kRow);
        *next++ = static_cast<std::uint64_t>(stride);
        n |= static_cast<std::uint64_t>(n_of(t, kRow));
        strides |= static_cast<std::uint64_t>(stride);
        if constexpr (kRow.output) broken |= stride < elements_of(kRow);
        if constexpr (kRow.in_place != kRow.operand) {
          constexpr OperandRow kInput = row_of(kRow.in_place);
          broken |= pointer == address(pointer_of(t, kInput)) &&
                    (!may_be_in_place(kRow) || stride != stride_of(t, kInput));
        }
        // A stride between no rows does not count.
        const auto stride_bytes = static_cast<std::uint64_t>(t.rows == 1 ? 0 : stride) << log2_size;
        bits |= low_bits(pointer | stride_bytes, log2_size);
      } else {
        // Of scalars, which are moved one by one, only what lies below an element counts.
        const std::uint64_t counts = is_scalar(kRow) ? (1u << log2_size) - 1 : 15;
        bits |= low_bits(pointer & counts, log2_size);
      }
    });
    const std::uint64_t large = strides >> 28 | (static_cast<std::uint64_t>(t.rows) - 1) >> 31;
    broken |= (unexpected | n >> 1 | bits >> kMisaligned | large) != 0;
    packed.status = Status{};
    packed.alignment = Alignment{static_cast<std::uint8_t>(1 << std::countr_zero(bits | 8))};
    packed.layout = {operands_, matrices_, false};
    if (broken) TensorRules(*this).pack_exactly(t, packed);  // a copy: *this stays in registers
  }

  // Where the rows of a matrix of the spec begin. Nothing if RowsAt does not say so, or if rows of an output
  // share elements, or begin beyond what 64 bits count in bytes.
  std::optional<RowAddress> address_of(const Tensors& t, const OperandRow& row) const noexcept;

  // Whether an output of the spec may be its input itself, with the same rows. The residual that is added to
  // the result is read after the sum is written.
  bool may_be_in_place(const OperandRow& row) const noexcept {
    return row.in_place != row.operand && log2_sizes_[row.operand] == log2_sizes_[row.in_place] &&
           !(row.operand == Operand::sum && residual_after_);
  }
  // Of an operand that the spec has: the bytes of an element, as their binary logarithm.
  int log2_size(Operand operand) const noexcept { return log2_sizes_[operand]; }
  OperandSet operands() const noexcept { return operands_; }  // that the spec has
  OperandSet matrices() const noexcept { return matrices_; }  // those of them that are matrices

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

  // Elements in a row of a matrix.
  std::int64_t elements_of(const OperandRow& row) const noexcept {
    return row.operand == Operand::y ? y_elements_ : columns_;
  }
  // Elements from one row to the next, where n is 1: as if contiguous where there is one row.
  std::int64_t stride_of(const Tensors& t, const OperandRow& row) const noexcept {
    const std::int64_t outer = outer_of(t, row);
    return t.rows == 1 || outer == kContiguous ? elements_of(row) : outer;
  }

  // address_of() with channels first.
  std::optional<RowAddress> samples_of(const Tensors& t, const OperandRow& row) const noexcept;

  // Whether the rows that share a row of dmod_scale and dmod_shift, as Tensors has it, are those that share
  // mod_scale and mod_shift. `addresses` are those of the operands of the spec.
  bool has_sums_of_groups(const PerOperand<RowAddress>& addresses, std::int64_t rows) const noexcept;

  // As pack(), rule by rule: the first one that is broken, and blocks of groups of rows.
  void pack_exactly(const Tensors& t, PackedTensors& packed) const noexcept;

  std::int64_t columns_ = 0, y_elements_ = 0;
  PerOperand<std::uint8_t> log2_sizes_{};
  OperandSet operands_ = 0, matrices_ = 0;
  bool residual_after_ = false, channels_first_ = false;
};

// The same, out of line: the tensors of a valid spec, and the block that a plan's kernel takes.
PackedTensors pack(const NormSpec& spec, const Tensors& tensors) noexcept;
OperandBlock block_of(const Plan& plan, const NormSpec& spec, const Tensors& tensors) noexcept;
// How the kernel of a plan takes its operands.
OperandLayout kernel_layout(const Plan& plan, const NormSpec& spec) noexcept;

}  // namespace normjit
