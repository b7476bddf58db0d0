// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/packed_tensors.h"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "normjit/plan/footprint.h"

namespace normjit {
namespace {

// a + b * c + ...: whether it fits in 63 bits.
class Checked {
 public:
  explicit Checked(std::int64_t value) : value_(value) {}
  Checked& add(std::int64_t a, std::int64_t b) {
    std::int64_t product = 0;
    fits_ =
        fits_ && !__builtin_mul_overflow(a, b, &product) && !__builtin_add_overflow(value_, product, &value_);
    return *this;
  }
  bool fits_times(std::int64_t factor) const {
    std::int64_t product = 0;
    return fits_ && !__builtin_mul_overflow(value_, factor, &product);
  }

 private:
  std::int64_t value_;
  bool fits_ = true;
};

// Whether inverse_of() tells the groups of so many rows.
bool has_inverse(std::int64_t rows, std::int64_t n) {
  return n == 1 || n == rows ||
         static_cast<unsigned __int128>(rows) * static_cast<std::uint64_t>(n) >> 64 == 0;
}

// 2^64 / n, rounded up. What row times it has above 64 bits is row / n as long as row * n < 2^64: it is too
// large by less than 1 / n.
std::uint64_t inverse_of(std::int64_t n) {
  return std::numeric_limits<std::uint64_t>::max() / static_cast<std::uint64_t>(n) + 1;
}

}  // namespace

OperandBlock OperandBlock::converted(const OperandLayout& from, const OperandLayout& to) const noexcept {
  OperandBlock other;
  const std::uint64_t* own = words + kFirst;
  std::copy_n(words, kFirst, other.words);
  std::uint64_t* next = other.words + kFirst;
  for (std::size_t i = 0; i < kOperandCount; ++i) {
    const std::size_t given = from.words_of(i), asked = to.words_of(i);
    if (given == asked) {
      std::copy_n(own, asked, next);
    } else if (asked > 0) {
      std::fill_n(next, asked, 0);
      if (given > 0) next[0] = own[0];
      if (given == 2) next[2] = own[1];  // the stride, inside of one group
      if (asked > 1) next[4] = 1;
    }
    own += given;
    next += asked;
  }
  return other;
}

std::optional<RowAddress> TensorRules::samples_of(const Tensors& t, const OperandRow& row) const noexcept {
  if (n_of(t, row) < 0 || n_of(t, row) > 1 || inner_of(t, row) != 0) return {};
  const std::int64_t samples = t.rows / t.plane;
  std::int64_t sample = 0, outer = outer_of(t, row);  // elements of a sample, and from one to the next
  if (__builtin_mul_overflow(columns_, t.plane, &sample)) return {};
  if (outer == kContiguous || samples == 1) outer = sample;
  if (outer < (row.output ? sample : 0)) return {};
  if (!Checked(sample).add(samples - 1, outer).fits_times(std::int64_t{1} << log2_size(row.operand)) ||
      !has_inverse(t.rows, t.plane))
    return {};
  return RowAddress{t.plane, outer, 1};
}

std::optional<RowAddress> TensorRules::address_of(const Tensors& t, const OperandRow& row) const noexcept {
  if (channels_first_) return samples_of(t, row);
  const std::int64_t n = std::max<std::int64_t>(1, n_of(t, row));
  if (n_of(t, row) < 0 || t.rows % n != 0) return {};
  const std::int64_t groups = t.rows / n, elements = elements_of(row);
  std::int64_t outer = outer_of(t, row), inner = n == 1 ? 0 : inner_of(t, row);
  if (outer == kContiguous) outer = inner = elements;
  if (outer < 0 || inner < 0) return {};
  if (!Checked(elements)
           .add(groups - 1, outer)
           .add(n - 1, inner)
           .fits_times(std::int64_t{1} << log2_size(row.operand)))
    return {};
  RowAddress address = {n, outer, inner};
  if (may_share_sums(row) && t.rows > 1 && n > 1 && inner == 0) {
    if (outer < elements || !has_inverse(t.rows, n)) return {};
    return address;
  }
  if (t.rows == 1) {
    address = {1, elements, 0};
  } else if (outer_of(t, row) == kContiguous || n == 1) {
    address = {1, outer, 0};
  } else if (groups == 1 || (outer % n == 0 && outer / n == inner)) {
    address = {1, inner, 0};
  }
  if (!has_inverse(t.rows, address.n)) return {};
  if (row.output) {
    const auto separate = [&](std::int64_t within, std::int64_t count, std::int64_t beyond) {
      return within >= elements && beyond / count >= within;
    };
    if (address.n == 1 ? address.outer < elements
                       : !separate(address.inner, address.n, address.outer) &&
                             !separate(address.outer, groups, address.inner))
      return {};
  }
  return address;
}

bool TensorRules::has_sums_of_groups(const PerOperand<RowAddress>& addresses,
                                     std::int64_t rows) const noexcept {
  // Of the rows that share what an operand has: 1 where each row has its own, 0 where all rows are the same.
  const auto shared_by = [&](Operand operand) -> std::int64_t {
    const RowAddress& address = addresses[operand];
    if (address.n > 1) return address.inner == 0 ? address.n : 1;
    return address.outer == 0 ? 0 : 1;
  };
  const auto given = [&](Operand operand) { return has(operands_, static_cast<std::size_t>(operand)); };
  if (!given(Operand::dmod_scale) || rows == 1) return true;
  const std::int64_t sums = shared_by(Operand::dmod_scale);
  if (given(Operand::dmod_shift) && shared_by(Operand::dmod_shift) != sums) return false;
  for (const Operand input : {Operand::mod_scale, Operand::mod_shift})
    if (given(input) && shared_by(input) != 0 && shared_by(input) != sums) return false;
  return true;
}

void TensorRules::pack_exactly(const Tensors& t, PackedTensors& packed) const noexcept {
  Status& status = packed.status;
  if (t.rows <= 0) {
    status = {t.rows < 0 ? Code::BadRows : Code::Ok};
    return;
  }
  for (std::size_t i = 0; i < kOperandCount; ++i)
    if (const bool given = pointer_of(t, kOperands[i]) != nullptr; given != has(operands_, i)) {
      status = {given ? Code::UnexpectedPointer : Code::NullPointer};
      return;
    }

  if (!has_whole_samples(channels_first_, t.rows, t.plane)) {
    status = {Code::BadPlane};
    return;
  }

  PerOperand<RowAddress> addresses{};
  bool grouped = channels_first_;
  std::uint64_t bits = low_bits(address(t.workspace), kLog2Workspace);
  for (std::size_t i = 0; i < kOperandCount; ++i) {
    const OperandRow& row = kOperands[i];
    if (!has(operands_, i)) continue;
    const int log2_size = log2_sizes_.of[i];
    std::uint64_t bytes = address(pointer_of(t, row));
    // What is not moved in vectors. With channels first a vector is of positions, and parameters are single.
    if (is_scalar(row) || (channels_first_ && !has(matrices_, i))) bytes &= (1u << log2_size) - 1;
    if (has(matrices_, i)) {
      const auto found = address_of(t, row);
      if (!found) {
        status = {Code::BadStride};
        return;
      }
      addresses.of[i] = *found;
      grouped |= found->n > 1;
      const std::int64_t distances = channels_first_ ? found->n | found->outer
                                     : t.rows > 1    ? found->outer | found->inner
                                                     : 0;
      bytes |= static_cast<std::uint64_t>(distances) << log2_size;
    }
    bits |= low_bits(bytes, log2_size);
  }
  if (!has_sums_of_groups(addresses, t.rows)) {
    status = {Code::BadStride};
    return;
  }
  for (const OperandRow& row : kOperands) {
    const Operand input = row.in_place;
    if (input != row.operand && has(operands_, static_cast<std::size_t>(row.operand)) &&
        pointer_of(t, row) == pointer_of(t, row_of(input)) &&
        (!may_be_in_place(row) || addresses[row.operand] != addresses[input])) {
      status = {Code::Overlap};
      return;
    }
  }
  if (bits >> kMisaligned != 0) {
    status = {Code::Misaligned};
    return;
  }

  packed.layout.grouped = grouped;
  packed.alignment = Alignment{static_cast<std::uint8_t>(1 << std::countr_zero(bits | 8))};
  std::uint64_t* next = packed.block.words + OperandBlock::kFirst;
  for (std::size_t i = 0; i < kOperandCount; ++i) {
    if (!has(operands_, i)) continue;
    *next++ = address(pointer_of(t, kOperands[i]));
    if (!has(matrices_, i)) continue;
    const auto& [n, outer, inner] = addresses.of[i];
    if (!grouped) {
      *next++ = static_cast<std::uint64_t>(outer);
      continue;
    }
    const bool alone = n == 1 || n == t.rows;  // one group
    *next++ = alone ? 0 : inverse_of(n);
    *next++ = static_cast<std::uint64_t>(n == 1 ? outer : inner);
    *next++ = alone ? 0
                    : static_cast<std::uint64_t>(outer) -
                          static_cast<std::uint64_t>(n) * static_cast<std::uint64_t>(inner);
    *next++ = static_cast<std::uint64_t>(n);
  }
}

PackedTensors pack(const NormSpec& spec, const Tensors& tensors) noexcept {
  PackedTensors packed;
  TensorRules(spec).pack(tensors, packed);
  return packed;
}

OperandBlock block_of(const Plan& plan, const NormSpec& spec, const Tensors& tensors) noexcept {
  const PackedTensors packed = pack(spec, tensors);
  return packed.block.converted(packed.layout, kernel_layout(plan, spec));
}

OperandLayout kernel_layout(const Plan& plan, const NormSpec& spec) noexcept {
  if (plan.strategy == Strategy::generic) return kGenericLayout;
  const TensorRules rules(spec);
  return {rules.operands(), rules.matrices(), has_grouped_addresses(plan, spec)};
}

}  // namespace normjit
