// SPDX-License-Identifier: Apache-2.0
#include "normjit/spec.h"

#include <cmath>

#include "normjit/base/text.h"
#include "normjit/spec/fields.h"
#include "normjit/spec/valid.h"

namespace normjit {
namespace {

constexpr std::size_t kMaxRank = 8;

Error too_many_columns(std::string_view asked) {
  return {Code::TooManyColumns,
          concat({"normalized_shape has ", asked, " elements; at most 2^31 - 1 (2147483647) are supported"})};
}

template <class Enum>
std::string_view name_of(Enum value) noexcept {
  const auto* row = row_of(value);
  return row != nullptr ? row->name : "?";
}

// What is wrong with one field; ok if nothing is.
template <class T, class HasMeaning>
Result<void> mistake_in(const Field<T, HasMeaning>& field, const NormSpec& spec) {
  const T value = spec.*field.member;
  if constexpr (std::is_enum_v<T>) {
    if (!is_in_set(value))
      return Error{field.mistake, concat({field.name, " is ", shortest(static_cast<int>(value)),
                                          "; it must be one of ", names_of<T>(", ")})};
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    if (value > kMaxColumns) return too_many_columns(shortest(value));
    if (value < 1)
      return Error{field.mistake, concat({"a row of ", shortest(value), " columns; at least 1 is needed"})};
  } else if constexpr (std::is_same_v<T, double>) {
    const bool not_negative = field.member == &NormSpec::epsilon;
    const double largest = largest_number(spec);
    if (!(std::fabs(value) <= largest) || (not_negative && value < 0))
      return Error{field.mistake, concat({field.name, " is ", shortest(value), "; it must be finite",
                                          not_negative ? ", not negative" : "", " and at most ",
                                          shortest(largest), ", the largest ", name(compute_type(spec)),
                                          ", the type in which this spec is computed"})};
  }
  return {};
}

// Fields that do not go together.
Result<void> mistake_in_combination(const NormSpec& spec) {
  const auto bad = [](std::initializer_list<std::string_view> why) {
    return Error{Code::BadCombination, concat(why)};
  };
  if (spec.sum && spec.residual == Residual::none)
    return bad(
        {"sum needs residual: without a residual there is no sum to write. Add the residual (/add), or "
         "leave the sum out (/sum)"});
  if (is_held(spec) && spec.columns > kMaxHeldColumns)
    return bad({"columns are ", shortest(spec.columns), " and ",
                spec.norm != Norm::layer ? "norm is rmsnorm" : "there is a residual",
                ", which this version computes in rows of at most ", shortest(kMaxHeldColumns), " columns"});
  return {};
}

}  // namespace

std::string_view name(Norm norm) noexcept { return name_of(norm); }
std::string_view name(DType dtype) noexcept { return name_of(dtype); }
std::string_view name(Residual residual) noexcept { return name_of(residual); }
std::string_view name(Affine affine) noexcept { return name_of(affine); }
std::string_view name(Activation activation) noexcept { return name_of(activation); }
int size_of(DType dtype) noexcept { return is_in_set(dtype) ? row_of(dtype)->size : 0; }

bool operator==(const NormSpec& a, const NormSpec& b) noexcept {
  bool equal = true;
  each_field([&](const auto& field) { equal &= word_of(a.*field.member) == word_of(b.*field.member); });
  return equal;
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
  Result<void> first;
  each_field([&](const auto& field) {
    if (first) first = mistake_in(field, spec);
  });
  return first ? mistake_in_combination(spec) : first;
}

NormSpec canonical(const NormSpec& spec) noexcept { return canonical_now(spec); }

DType compute_type(const NormSpec& spec) noexcept { return is_wide(spec) ? DType::f64 : DType::f32; }

}  // namespace normjit
