// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/packed_tensors.h"

#include <algorithm>

namespace normjit {
namespace {

// Whether the last element of the last row has an offset that fits in 64 bits, in bytes.
bool offsets_fit(std::int64_t rows, std::int64_t stride, std::int64_t columns, int log2_size) noexcept {
  std::int64_t elements = 0, bytes = 0;
  return !__builtin_mul_overflow(rows - 1, stride, &elements) &&
         !__builtin_add_overflow(elements, columns, &elements) &&
         !__builtin_mul_overflow(elements, std::int64_t{1} << log2_size, &bytes);
}

}  // namespace

OperandBlock OperandBlock::of_all(OperandSet operands) const noexcept {
  OperandBlock all;
  std::ranges::fill(all.words, 0);
  std::copy_n(words, kFirst, all.words);
  const auto word = [](Operand operand, OperandSet of) { return offset_of(operand, of) / sizeof *words; };
  for (std::size_t i = 0; i < kOperandCount; ++i)
    if (const OperandRow& row = kOperands[i]; has(operands, i))
      std::copy_n(words + word(row.operand, operands), words_of(row),
                  all.words + word(row.operand, kAllOperands));
  return all;
}

Status TensorRules::mistake(const Tensors& t) const noexcept {
  if (t.rows <= 0) return {t.rows < 0 ? Code::BadRows : Code::Ok};
  for (std::size_t i = 0; i < kOperandCount; ++i)
    if (const bool given = pointer_of(t, kOperands[i]) != nullptr; given != has(operands_, i))
      return {given ? Code::UnexpectedPointer : Code::NullPointer};
  bool strides_fit = true, separate = true;
  std::uint64_t below = address(t.workspace) % (1 << kLog2Workspace);
  for (std::size_t i = 0; i < kOperandCount; ++i) {
    const OperandRow& row = kOperands[i];
    if (!has(operands_, i)) continue;
    std::uint64_t bytes = address(pointer_of(t, row));
    if (row.extent == Extent::matrix) {
      const std::int64_t stride = stride_of(t, row);
      strides_fit &= static_cast<std::uint64_t>(n_of(t, row)) <= 1 && stride >= (row.output ? columns_ : 0) &&
                     offsets_fit(t.rows, stride, columns_, log2_sizes_.of[i]);
      separate &= row.in_place == row.operand || !moves_in_place(t, row);
      if (t.rows > 1) bytes |= static_cast<std::uint64_t>(stride) << log2_sizes_.of[i];
    }
    below |= bytes & ((1u << log2_sizes_.of[i]) - 1);
  }
  if (!strides_fit) return {Code::BadStride};
  if (!separate) return {Code::Overlap};
  return {below == 0 ? Code::Ok : Code::Misaligned};
}

PackedTensors pack(const NormSpec& spec, const Tensors& tensors) noexcept {
  PackedTensors packed;
  TensorRules(spec).pack(tensors, packed);
  return packed;
}

OperandBlock block_of(const Plan& plan, const NormSpec& spec, const Tensors& tensors) noexcept {
  const PackedTensors packed = pack(spec, tensors);
  return plan.strategy == Strategy::generic ? packed.block.of_all(packed.operands) : packed.block;
}

OperandSet kernel_operands(const Plan& plan, const NormSpec& spec) noexcept {
  return plan.strategy == Strategy::generic ? kAllOperands : operands_of(spec);
}

}  // namespace normjit
