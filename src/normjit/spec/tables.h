// The closed sets of a spec, a row each. A new dtype or activation is a row here, its storage type or formula
// in templates/, and its float64 reference in the tests.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "normjit/spec.h"

namespace normjit {

struct DTypeRow {
  DType dtype;
  std::string_view name;     // in spec texts
  std::string_view storage;  // in templates
  int size;                  // bytes
};
inline constexpr DTypeRow kDTypes[] = {
    {DType::f16, "f16", "F16", 2},
    {DType::bf16, "bf16", "BF16", 2},
    {DType::f32, "f32", "float", 4},
    {DType::f64, "f64", "double", 8},
};

struct AffineRow {
  Affine affine;
  std::string_view name;
};
inline constexpr AffineRow kAffines[] = {
    {Affine::none, "none"}, {Affine::weight, "w"}, {Affine::weight_bias, "wb"}};

struct ActivationRow {
  Activation activation;
  std::string_view name;  // in spec texts, and Activation::NAME in templates
};
inline constexpr ActivationRow kActivations[] = {
    {Activation::none, "none"},           {Activation::relu, "relu"}, {Activation::gelu, "gelu"},
    {Activation::gelu_tanh, "gelu_tanh"}, {Activation::silu, "silu"},
};

// The row of a value, or null for a value outside the set.
template <class Row, std::size_t n, class Value>
constexpr const Row* row_of(const Row (&rows)[n], Value Row::*member, const Value& value) {
  for (const Row& row : rows)
    if (row.*member == value) return &row;
  return nullptr;
}
// Whether a value is in the set, without a search: each row stands at its value's number.
template <class Row, std::size_t n, class Value>
constexpr bool is_in(const Row (&)[n], Value value) {
  return static_cast<std::size_t>(value) < n;
}
template <class Row, std::size_t n, class Value>
consteval bool in_order(const Row (&rows)[n], Value Row::*member) {
  for (std::size_t i = 0; i < n; ++i)
    if (static_cast<std::size_t>(rows[i].*member) != i) return false;
  return true;
}
static_assert(in_order(kDTypes, &DTypeRow::dtype) && in_order(kAffines, &AffineRow::affine) &&
              in_order(kActivations, &ActivationRow::activation));

inline const DTypeRow* row_of(DType dtype) { return row_of(kDTypes, &DTypeRow::dtype, dtype); }
inline const AffineRow* row_of(Affine affine) { return row_of(kAffines, &AffineRow::affine, affine); }
inline const ActivationRow* row_of(Activation activation) {
  return row_of(kActivations, &ActivationRow::activation, activation);
}

}  // namespace normjit
