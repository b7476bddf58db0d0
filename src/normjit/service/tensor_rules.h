// What a spec asks of the tensors of a launch. All inline: the one-call form asks before it knows the kernel,
// and a launch asks again.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "normjit/plan.h"
#include "normjit/result.h"
#include "normjit/service/operand_block.h"
#include "normjit/spec/operands.h"
#include "normjit/spec/tables.h"

namespace normjit {

// The binary logarithms of the sizes of the dtypes.
inline constexpr auto kLog2Sizes = [] {
  std::array<std::uint8_t, std::size(kDTypes)> all{};
  for (const DTypeRow& row : kDTypes)
    all[static_cast<std::size_t>(row.value)] =
        static_cast<std::uint8_t>(std::countr_zero(static_cast<unsigned>(row.size)));
  return all;
}();

// Follows from kOperands alone, unrolled while compiling. Always inline: calls would take a tenth of a
// launch.
class TensorRules {
 public:
  TensorRules() = default;
  // Of a valid spec.
  [[gnu::always_inline]] explicit TensorRules(const NormSpec& spec) noexcept
      : columns_(spec.columns), operands_(operands_of(spec)) {
    for_each_operand(
        [&](auto i) { log2_sizes_.of[i] = kLog2Sizes[static_cast<std::size_t>(kOperands[i].dtype(spec))]; });
  }

  // With kContiguous filled in, and as if contiguous where there is one row; 0 of what the spec does not
  // have.
  Strides strides(const Tensors& t) const noexcept {
    Strides strides;
    for_each_operand([&](auto i) {
      if constexpr (kOperands[i].extent == Extent::matrix) {
        strides.of[i] = 0;
        if (!has(operands_, i)) return;
        const std::int64_t outer = outer_of(t, kOperands[i]);
        strides.of[i] = t.rows == 1 || outer == kContiguous ? columns_ : outer;
      }
    });
    return strides;
  }

  // Ok, or what is wrong with these tensors for every kernel of the spec. `strides` are those of the tensors.
  [[gnu::always_inline]] Status check(const Tensors& t, const Strides& strides) const noexcept {
    if (t.rows <= 0) return {t.rows < 0 ? Code::BadRows : Code::Ok};
    unsigned given = 0;
    for_each_operand(
        [&](auto i) { given |= static_cast<unsigned>(pointer_of(t, kOperands[i]) != nullptr) << i; });
    if (given != operands_) return {presence_error(given)};
    bool strides_fit = true, separate = true;
    std::uint64_t off = address(t.workspace) % kWorkspaceAlignment;
    for_each_operand([&](auto i) {
      constexpr OperandRow kRow = kOperands[i];
      if constexpr (kRow.extent == Extent::matrix) {
        if (has(operands_, i)) {
          strides_fit &= static_cast<std::uint64_t>(n_of(t, kRow)) <= 1 &&
                         strides.of[i] >= (kRow.output ? columns_ : 0) &&
                         offsets_fit(t.rows, strides.of[i], log2_sizes_.of[i]);
          // In place, a row must be written where it was read.
          if constexpr (kRow.in_place != kRow.operand)
            separate &=
                pointer_of(t, kRow) != pointer_of(t, row_of(kRow.in_place)) ||
                (strides.of[i] == strides[kRow.in_place] && log2_sizes_.of[i] == log2_sizes_[kRow.in_place]);
        }
      } else if constexpr (kRow.extent == Extent::rows) {
        off |= address(pointer_of(t, kRow)) & ((1u << log2_sizes_.of[i]) - 1);
      }
    });
    if (!strides_fit) return {Code::BadStride};
    if (!separate) return {Code::Overlap};
    return {off == 0 ? Code::Ok : Code::Misaligned};
  }

  // The alignment that all of these tensors, which check() accepts, allow; Alignment{0} where one is less
  // aligned than its element.
  [[gnu::always_inline]] Alignment alignment(const Tensors& t, const Strides& strides) const noexcept {
    Alignment least = Alignment::eight;
    for_each_operand([&](auto i) {
      constexpr OperandRow kRow = kOperands[i];
      if constexpr (kRow.extent != Extent::rows) {
        if (!has(operands_, i)) return;
        std::uint64_t all = address(pointer_of(t, kRow));
        if constexpr (kRow.extent == Extent::matrix)  // strides of one row have no meaning
          all |= t.rows == 1 ? 0 : static_cast<std::uint64_t>(strides.of[i]) << log2_sizes_.of[i];
        least = std::min(least, allowed(all, log2_sizes_.of[i]));
      }
    });
    return least;
  }

  // Of an operand that the spec has: the bytes of an element, as their binary logarithm.
  int log2_size(Operand operand) const noexcept { return log2_sizes_[operand]; }
  OperandSet operands() const noexcept { return operands_; }  // that the spec has

 private:
  static constexpr std::uint64_t kWorkspaceAlignment = 16;

  static std::uint64_t address(const void* pointer) noexcept {
    return reinterpret_cast<std::uintptr_t>(pointer);
  }
  // As alignment_of in plan.h.
  static Alignment allowed(std::uint64_t address_and_stride_bytes, int log2_size) noexcept {
    const int aligned = std::countr_zero(address_and_stride_bytes | 16);
    return aligned == 4 ? Alignment::eight
                        : Alignment{static_cast<std::uint8_t>((1 << aligned) >> log2_size)};
  }

  // Of the first operand that is given exactly when the spec does not have it.
  Code presence_error(unsigned given) const noexcept {
    const unsigned first = (given ^ operands_) & -(given ^ operands_);
    return given & first ? Code::UnexpectedPointer : Code::NullPointer;
  }

  // Whether the last element of the last row has an offset that fits in 64 bits, in bytes.
  bool offsets_fit(std::int64_t rows, std::int64_t stride, int log2_size) const noexcept {
    std::int64_t elements = 0, bytes = 0;
    return !__builtin_mul_overflow(rows - 1, stride, &elements) &&
           !__builtin_add_overflow(elements, columns_, &elements) &&
           !__builtin_mul_overflow(elements, std::int64_t{1} << log2_size, &bytes);
  }

  std::int64_t columns_ = 0;
  PerOperand<std::uint8_t> log2_sizes_{};
  OperandSet operands_ = 0;
};

}  // namespace normjit
