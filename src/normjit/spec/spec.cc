#include "normjit/spec.h"

#include <bit>
#include <cmath>
#include <limits>

#include "normjit/base/text.h"
#include "normjit/spec/tables.h"
#include "normjit/spec/valid.h"

namespace normjit {
namespace {

constexpr std::size_t kMaxRank = 8;

Error too_many_columns(std::string_view asked) {
  return {Code::TooManyColumns,
          concat({"normalized_shape has ", asked, " elements; at most 2^31 - 1 (2147483647) are supported"})};
}

}  // namespace

std::string_view name(DType dtype) noexcept { return row_of(dtype) ? row_of(dtype)->name : "?"; }
std::string_view name(Affine affine) noexcept { return row_of(affine) ? row_of(affine)->name : "?"; }
std::string_view name(Activation activation) noexcept {
  return row_of(activation) ? row_of(activation)->name : "?";
}
int size_of(DType dtype) noexcept { return row_of(dtype) ? row_of(dtype)->size : 0; }

bool operator==(const NormSpec& a, const NormSpec& b) noexcept {
  const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
  return a.norm == b.norm && a.residual == b.residual && a.sum == b.sum && a.columns == b.columns &&
         a.input == b.input && a.output == b.output && a.weight == b.weight &&
         bits(a.epsilon) == bits(b.epsilon) && a.affine == b.affine && a.activation == b.activation &&
         bits(a.scale) == bits(b.scale) && a.statistics == b.statistics;
}

Result<std::int64_t> columns_of(std::span<const std::int64_t> normalized_shape) {
  if (normalized_shape.empty() || normalized_shape.size() > kMaxRank)
    return Error{Code::BadRank, concat({"normalized_shape has ", shortest(normalized_shape.size()),
                                        " dimensions; 1 to 8 are supported"})};
  std::string shape;
  for (const std::int64_t size : normalized_shape) {
    if (size < 1)
      return Error{Code::BadDimension, concat({"normalized_shape has a dimension of ", shortest(size),
                                               "; every dimension must be at least 1"})};
    shape += (shape.empty() ? "" : "x") + shortest(size);
  }
  std::int64_t columns = 1;
  for (const std::int64_t size : normalized_shape) {
    if (size > kMaxColumns / columns) return too_many_columns(shape);
    columns *= size;
  }
  return columns;
}

Result<void> validate(const NormSpec& spec) {
  if (is_valid(spec)) return {};
  if (spec.columns < 1)
    return Error{Code::BadDimension,
                 concat({"a row of ", shortest(spec.columns), " columns; at least 1 is needed"})};
  if (spec.columns > kMaxColumns) return too_many_columns(shortest(spec.columns));
  for (const auto& [tensor, dtype] :
       {std::pair{"input", spec.input}, std::pair{"output", spec.output}, std::pair{"weight", spec.weight}})
    if (!row_of(dtype))
      return Error{Code::BadDType, concat({"unknown ", tensor, " dtype ", shortest(static_cast<int>(dtype)),
                                           "; use DType::f16, bf16, f32 or f64"})};
  const double largest = compute_type(spec) == DType::f32 ? std::numeric_limits<float>::max()
                                                          : std::numeric_limits<double>::max();
  const auto outside = [&](std::string_view what, double value, std::string_view rule) {
    return concat({what, " is ", shortest(value), "; it must be ", rule, " and at most ", shortest(largest),
                   ", the largest ", name(compute_type(spec)), ", in which this spec is computed"});
  };
  if (!(spec.epsilon >= 0 && spec.epsilon <= largest))
    return Error{Code::BadEpsilon, outside("epsilon", spec.epsilon, "finite, not negative")};
  if (!row_of(spec.affine))
    return Error{Code::BadAffine, concat({"unknown affine mode ", shortest(static_cast<int>(spec.affine)),
                                          "; use Affine::none, weight or weight_bias"})};
  if (!row_of(spec.activation))
    return Error{Code::BadActivation,
                 concat({"unknown activation ", shortest(static_cast<int>(spec.activation)),
                         "; use Activation::none, relu, gelu, gelu_tanh or silu"})};
  if (!(std::fabs(spec.scale) <= largest))
    return Error{Code::BadScale, outside("scale", spec.scale, "finite")};
  return {};
}

NormSpec canonical(const NormSpec& spec) noexcept {
  NormSpec same = spec;
  if (same.affine == Affine::none) same.weight = same.input;
  if (same.epsilon == 0) same.epsilon = 0;  // -0 becomes 0
  return same;
}

DType compute_type(const NormSpec& spec) noexcept {
  const bool wide = spec.input == DType::f64 || spec.output == DType::f64 ||
                    (spec.affine != Affine::none && spec.weight == DType::f64);
  return wide ? DType::f64 : DType::f32;
}

}  // namespace normjit
