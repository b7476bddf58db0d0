// What a spec asks of the tensors of a launch. All inline: the one-call form asks before it knows the kernel,
// and a launch asks again.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "normjit/service.h"
#include "normjit/spec/tables.h"

namespace normjit {

// The row strides of a launch, in elements.
struct Strides {
  std::int64_t x = 0, y = 0;
};

// The binary logarithms of the sizes of the dtypes.
inline constexpr auto kLog2Sizes = [] {
  std::array<std::uint8_t, std::size(kDTypes)> all{};
  for (const DTypeRow& row : kDTypes)
    all[static_cast<std::size_t>(row.dtype)] =
        static_cast<std::uint8_t>(std::countr_zero(static_cast<unsigned>(row.size)));
  return all;
}();

class TensorRules {
 public:
  TensorRules() = default;
  // Of a valid spec.
  explicit TensorRules(const NormSpec& spec) noexcept
      : columns_(spec.columns),
        input_(log2_size(spec.input)),
        output_(log2_size(spec.output)),
        weight_(log2_size(spec.weight)),
        statistics_(log2_size(compute_type(spec))),
        wanted_(mask(true, true, spec.affine != Affine::none, spec.affine == Affine::weight_bias,
                     spec.statistics, spec.statistics)) {}

  // With kContiguous filled in, and as if contiguous where there is but one row.
  Strides strides(const Tensors& t) const noexcept {
    const auto filled = [&](std::int64_t stride) {
      return t.rows == 1 || stride == kContiguous ? columns_ : stride;
    };
    return {filled(t.x_row_stride), filled(t.y_row_stride)};
  }

  // Ok, or what is wrong with these tensors for every kernel of the spec. `strides` are those of the tensors.
  Status check(const Tensors& t, Strides strides) const noexcept {
    if (t.rows <= 0) return {t.rows < 0 ? Code::BadRows : Code::Ok};
    const unsigned given = mask(t.x, t.y, t.weight, t.bias, t.mean, t.rstd);
    if (given != wanted_) return {presence_error(given)};
    if (strides.x < 0 || strides.y < columns_ || !offsets_fit(t.rows, strides.x, input_) ||
        !offsets_fit(t.rows, strides.y, output_))
      return {Code::BadStride};
    // In place, a row must be written where it was read.
    if (t.x == t.y && (strides.x != strides.y || input_ != output_)) return {Code::BadStride};
    const std::uint64_t statistics = address(t.mean) | address(t.rstd);
    if ((statistics & ((1u << statistics_) - 1)) != 0 || address(t.workspace) % kWorkspaceAlignment != 0)
      return {Code::Misaligned};
    return {};
  }

  // The alignment that all of these tensors, which check() accepts, allow; Alignment{0} where one is less
  // aligned than its element.
  Alignment alignment(const Tensors& t, Strides strides) const noexcept {
    const std::uint64_t x = address(t.x), y = address(t.y), affine = address(t.weight) | address(t.bias);
    const bool one_row = t.rows == 1;  // then strides have no meaning
    return std::min({allowed(x | (one_row ? 0 : bytes(strides.x, input_)), input_),
                     allowed(y | (one_row ? 0 : bytes(strides.y, output_)), output_),
                     allowed(affine, weight_)});
  }

 private:
  static constexpr std::uint64_t kWorkspaceAlignment = 16;

  static std::uint64_t address(const void* pointer) noexcept {
    return reinterpret_cast<std::uintptr_t>(pointer);
  }
  static std::uint8_t log2_size(DType dtype) noexcept { return kLog2Sizes[static_cast<std::size_t>(dtype)]; }
  static std::uint64_t bytes(std::int64_t elements, int log2_size) noexcept {
    return static_cast<std::uint64_t>(elements) << log2_size;
  }
  // As alignment_of in plan.h.
  static Alignment allowed(std::uint64_t address_and_stride_bytes, int log2_size) noexcept {
    const int aligned = std::countr_zero(address_and_stride_bytes | 16);
    return aligned == 4 ? Alignment::eight
                        : Alignment{static_cast<std::uint8_t>((1 << aligned) >> log2_size)};
  }

  template <class... There>
  static std::uint8_t mask(There... there) noexcept {
    unsigned bit = 1, all = 0;
    ((all |= there ? bit : 0, bit <<= 1), ...);
    return static_cast<std::uint8_t>(all);
  }
  // Of the first tensor that is there exactly when the spec does not have it.
  Code presence_error(unsigned given) const noexcept {
    const unsigned first = (given ^ wanted_) & -(given ^ wanted_);
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
  std::uint8_t input_ = 0, output_ = 0, weight_ = 0, statistics_ = 0;  // binary logarithms of element sizes
  std::uint8_t wanted_ = 0;  // a bit for each of x, y, weight, bias, mean and rstd
};

}  // namespace normjit
