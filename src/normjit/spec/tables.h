// SPDX-License-Identifier: Apache-2.0
// The enumerations of a spec, one table each. A new dtype or activation needs a row here, its storage type or
// formula in templates/, and its float64 reference in the tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include "normjit/spec.h"

namespace normjit {

// A value of an enumeration.
template <class Enum>
struct Choice {
  Enum value;
  std::string_view name;      // in spec texts
  std::string_view constant;  // in templates
};
inline constexpr Choice<DType> kDTypes[] = {
    {DType::f16, "f16", "F16"},    {DType::bf16, "bf16", "BF16"}, {DType::f32, "f32", "float"},
    {DType::f64, "f64", "double"}, {DType::e4m3, "e4m3", "E4M3"}, {DType::e5m2, "e5m2", "E5M2"},
    {DType::s8, "s8", "S8"},       {DType::e2m1, "e2m1", "E2M1"}, {DType::e8m0, "e8m0", "E8M0"},
};
static_assert(std::ranges::all_of(kDTypes, [](const auto& row) { return size_of(row.value) > 0; }));
// The first of them may be inputs, too.
inline constexpr std::size_t kInputDTypes = 4;
// All but the last may be outputs.
inline constexpr std::size_t kOutputDTypes = 8;
inline constexpr std::span kInputDTypeRows{kDTypes, kInputDTypes};
inline constexpr Choice<Norm> kNorms[] = {{Norm::layer, "layernorm", "layer"}, {Norm::rms, "rmsnorm", "rms"}};
inline constexpr Choice<Gate> kGates[] = {
    {Gate::none, "none", "none"}, {Gate::before, "gate", "before"}, {Gate::after, "gateafter", "after"}};
inline constexpr Choice<GateFunction> kGateFunctions[] = {{GateFunction::none, "none", "none"},
                                                          {GateFunction::silu, "silu", "silu"},
                                                          {GateFunction::sigmoid, "sigmoid", "sigmoid"},
                                                          {GateFunction::tanh, "tanh", "tanh"}};
inline constexpr Choice<Modulation> kModulations[] = {{Modulation::none, "none", "none"},
                                                      {Modulation::scale, "mods", "scale"},
                                                      {Modulation::scale_shift, "mod", "scale_shift"}};
inline constexpr Choice<Residual> kResiduals[] = {{Residual::none, "none", "none"},
                                                  {Residual::before, "add", "before"},
                                                  {Residual::after, "addafter", "after"}};
inline constexpr Choice<Rounding> kRoundings[] = {{Rounding::none, "none", "none"},
                                                  {Rounding::sum, "sum", "sum"},
                                                  {Rounding::norm, "norm", "norm"},
                                                  {Rounding::sum_norm, "sum+norm", "sum_norm"},
                                                  {Rounding::y, "y", "y"},
                                                  {Rounding::sum_y, "sum+y", "sum_y"},
                                                  {Rounding::norm_y, "norm+y", "norm_y"},
                                                  {Rounding::sum_norm_y, "sum+norm+y", "sum_norm_y"}};
inline constexpr Choice<Quantization> kQuantizations[] = {{Quantization::none, "none", "none"},
                                                          {Quantization::tensor, "tensor", "tensor"},
                                                          {Quantization::row, "row", "row"},
                                                          {Quantization::block_16, "16", "block_16"},
                                                          {Quantization::block_32, "32", "block_32"},
                                                          {Quantization::block_64, "64", "block_64"},
                                                          {Quantization::block_128, "128", "block_128"}};
inline constexpr Choice<ScaleFormat> kScaleFormats[] = {{ScaleFormat::f32, "f32", "f32"},
                                                        {ScaleFormat::power_of_two, "p2", "power_of_two"},
                                                        {ScaleFormat::e8m0, "e8m0", "e8m0"},
                                                        {ScaleFormat::e4m3, "e4m3", "e4m3"}};
inline constexpr Choice<ScaleLayout> kScaleLayouts[] = {
    {ScaleLayout::rows, "rows", "rows"},
    {ScaleLayout::columns, "cols", "columns"},
    {ScaleLayout::packed_columns, "cols4", "packed_columns"},
    {ScaleLayout::swizzled, "sw", "swizzled"}};
inline constexpr Choice<Also> kAlsos[] = {{Also::none, "none", "none"},
                                          {Also::f16, "f16", "f16"},
                                          {Also::bf16, "bf16", "bf16"},
                                          {Also::f32, "f32", "f32"}};
inline constexpr Choice<Need> kNeeds[] = {{Need::all, "all", "all"},
                                          {Need::dx, "dx", "dx"},
                                          {Need::dx_dweight, "dx+dw", "dx_dweight"},
                                          {Need::dx_dbias, "dx+db", "dx_dbias"},
                                          {Need::dweight_dbias, "dw+db", "dweight_dbias"},
                                          {Need::dweight, "dw", "dweight"},
                                          {Need::dbias, "db", "dbias"}};
inline constexpr Choice<Affine> kAffines[] = {
    {Affine::none, "none", "none"},
    {Affine::weight, "w", "weight"},
    {Affine::weight_bias, "wb", "weight_bias"},
};
inline constexpr Choice<Activation> kActivations[] = {
    {Activation::none, "none", "none"}, {Activation::relu, "relu", "relu"},
    {Activation::gelu, "gelu", "gelu"}, {Activation::gelu_tanh, "gelu_tanh", "gelu_tanh"},
    {Activation::silu, "silu", "silu"},
};

// All values of an enumeration.
constexpr const auto& set_of(DType) { return kDTypes; }
constexpr const auto& set_of(Norm) { return kNorms; }
constexpr const auto& set_of(Gate) { return kGates; }
constexpr const auto& set_of(GateFunction) { return kGateFunctions; }
constexpr const auto& set_of(Modulation) { return kModulations; }
constexpr const auto& set_of(Residual) { return kResiduals; }
constexpr const auto& set_of(Rounding) { return kRoundings; }
constexpr const auto& set_of(Quantization) { return kQuantizations; }
constexpr const auto& set_of(ScaleFormat) { return kScaleFormats; }
constexpr const auto& set_of(ScaleLayout) { return kScaleLayouts; }
constexpr const auto& set_of(Also) { return kAlsos; }
constexpr const auto& set_of(Need) { return kNeeds; }
constexpr const auto& set_of(Affine) { return kAffines; }
constexpr const auto& set_of(Activation) { return kActivations; }

template <class Enum>
inline constexpr std::size_t kChoices = std::size(set_of(Enum{}));

// Whether a value is in its set, without a search: each row stands at its value's number.
template <class Enum>
constexpr bool is_in_set(Enum value) {
  return static_cast<std::size_t>(value) < kChoices<Enum>;
}
template <class Enum>
consteval bool in_order() {
  for (std::size_t i = 0; i < kChoices<Enum>; ++i)
    if (static_cast<std::size_t>(set_of(Enum{})[i].value) != i) return false;
  return true;
}
static_assert(in_order<DType>() && in_order<Norm>() && in_order<Gate>() && in_order<GateFunction>() &&
              in_order<Modulation>() && in_order<Residual>() && in_order<Rounding>() &&
              in_order<Quantization>() && in_order<ScaleFormat>() && in_order<ScaleLayout>() &&
              in_order<Also>() && in_order<Need>() && in_order<Affine>() && in_order<Activation>());

// The row of a value, or null for a value outside the set.
template <class Enum>
constexpr auto* row_of(Enum value) {
  return is_in_set(value) ? &set_of(value)[static_cast<std::size_t>(value)] : nullptr;
}

// The names of the values from number `first` on, in front of number `end`, joined by `between`.
template <class Enum>
std::string names_of(std::string_view between, std::size_t first = 0, std::size_t end = kChoices<Enum>) {
  std::string all;
  for (std::size_t i = first; i < end; ++i) (all += i == first ? "" : between) += set_of(Enum{})[i].name;
  return all;
}

}  // namespace normjit
