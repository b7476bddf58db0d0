// SPDX-License-Identifier: Apache-2.0
// Converts values between the C interface and the C++ one. Conversions for a launch are inline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "normjit/c_api.h"
#include "normjit/c_api/call.h"
#include "normjit/service.h"
#include "normjit/spec/fields.h"
#include "normjit/spec/operands.h"

namespace normjit::c_api {

// The C++ value of an enumeration that begins with 1 in C and with 0 in C++; `otherwise` for 0.
template <class Enum>
Enum enum_of(std::int32_t number, Enum otherwise) noexcept {
  return number == 0 ? otherwise : static_cast<Enum>(static_cast<std::uint32_t>(number) - 1);
}
template <class Enum>
std::int32_t number_of(Enum value) noexcept {
  return static_cast<std::int32_t>(value) + 1;
}
inline bool is_within(std::int32_t number, std::int32_t last) noexcept {
  return static_cast<std::uint32_t>(number) <= static_cast<std::uint32_t>(last);
}

static_assert(
    NORMJIT_F16 - 1 == static_cast<int>(DType::f16) && NORMJIT_BF16 - 1 == static_cast<int>(DType::bf16) &&
    NORMJIT_F32 - 1 == static_cast<int>(DType::f32) && NORMJIT_F64 - 1 == static_cast<int>(DType::f64) &&
    NORMJIT_E4M3 - 1 == static_cast<int>(DType::e4m3) && NORMJIT_E5M2 - 1 == static_cast<int>(DType::e5m2) &&
    NORMJIT_S8 - 1 == static_cast<int>(DType::s8) && NORMJIT_E2M1 - 1 == static_cast<int>(DType::e2m1) &&
    NORMJIT_E8M0 - 1 == static_cast<int>(DType::e8m0) && NORMJIT_E8M0 == kChoices<DType>);
static_assert(NORMJIT_LAYER - 1 == static_cast<int>(Norm::layer) &&
              NORMJIT_RMS - 1 == static_cast<int>(Norm::rms) && NORMJIT_RMS == kChoices<Norm>);
static_assert(NORMJIT_NO_GATE - 1 == static_cast<int>(Gate::none) &&
              NORMJIT_GATE_BEFORE - 1 == static_cast<int>(Gate::before) &&
              NORMJIT_GATE_AFTER - 1 == static_cast<int>(Gate::after) &&
              NORMJIT_GATE_AFTER == kChoices<Gate>);
static_assert(NORMJIT_NO_GATE_FUNCTION - 1 == static_cast<int>(GateFunction::none) &&
              NORMJIT_GATE_SILU - 1 == static_cast<int>(GateFunction::silu) &&
              NORMJIT_GATE_SIGMOID - 1 == static_cast<int>(GateFunction::sigmoid) &&
              NORMJIT_GATE_TANH - 1 == static_cast<int>(GateFunction::tanh) &&
              NORMJIT_GATE_TANH == kChoices<GateFunction>);
static_assert(NORMJIT_NO_MODULATION - 1 == static_cast<int>(Modulation::none) &&
              NORMJIT_MOD_SCALE - 1 == static_cast<int>(Modulation::scale) &&
              NORMJIT_MOD_SCALE_SHIFT - 1 == static_cast<int>(Modulation::scale_shift) &&
              NORMJIT_MOD_SCALE_SHIFT == kChoices<Modulation>);
static_assert(NORMJIT_NO_RESIDUAL - 1 == static_cast<int>(Residual::none) &&
              NORMJIT_RESIDUAL_BEFORE - 1 == static_cast<int>(Residual::before) &&
              NORMJIT_RESIDUAL_AFTER - 1 == static_cast<int>(Residual::after) &&
              NORMJIT_RESIDUAL_AFTER == kChoices<Residual>);
static_assert(NORMJIT_NO_ROUNDING - 1 == static_cast<int>(Rounding::none) &&
              NORMJIT_ROUND_SUM - 1 == static_cast<int>(Rounding::sum) &&
              NORMJIT_ROUND_NORM - 1 == static_cast<int>(Rounding::norm) &&
              NORMJIT_ROUND_SUM_NORM - 1 == static_cast<int>(Rounding::sum_norm) &&
              NORMJIT_ROUND_Y - 1 == static_cast<int>(Rounding::y) &&
              NORMJIT_ROUND_SUM_Y - 1 == static_cast<int>(Rounding::sum_y) &&
              NORMJIT_ROUND_NORM_Y - 1 == static_cast<int>(Rounding::norm_y) &&
              NORMJIT_ROUND_SUM_NORM_Y - 1 == static_cast<int>(Rounding::sum_norm_y) &&
              NORMJIT_ROUND_SUM_NORM_Y == kChoices<Rounding>);
static_assert(NORMJIT_NO_QUANTIZATION - 1 == static_cast<int>(Quantization::none) &&
              NORMJIT_QUANTIZE_BY_TENSOR - 1 == static_cast<int>(Quantization::tensor) &&
              NORMJIT_QUANTIZE_BY_ROW - 1 == static_cast<int>(Quantization::row) &&
              NORMJIT_QUANTIZE_BY_BLOCK_16 - 1 == static_cast<int>(Quantization::block_16) &&
              NORMJIT_QUANTIZE_BY_BLOCK_32 - 1 == static_cast<int>(Quantization::block_32) &&
              NORMJIT_QUANTIZE_BY_BLOCK_64 - 1 == static_cast<int>(Quantization::block_64) &&
              NORMJIT_QUANTIZE_BY_BLOCK_128 - 1 == static_cast<int>(Quantization::block_128) &&
              NORMJIT_QUANTIZE_BY_BLOCK_128 == kChoices<Quantization>);
static_assert(NORMJIT_SCALE_F32 - 1 == static_cast<int>(ScaleFormat::f32) &&
              NORMJIT_SCALE_POWER_OF_TWO - 1 == static_cast<int>(ScaleFormat::power_of_two) &&
              NORMJIT_SCALE_E8M0 - 1 == static_cast<int>(ScaleFormat::e8m0) &&
              NORMJIT_SCALE_E4M3 - 1 == static_cast<int>(ScaleFormat::e4m3) &&
              NORMJIT_SCALE_E4M3 == kChoices<ScaleFormat>);
static_assert(NORMJIT_SCALE_LAYOUT_ROWS - 1 == static_cast<int>(ScaleLayout::rows) &&
              NORMJIT_SCALE_LAYOUT_COLUMNS - 1 == static_cast<int>(ScaleLayout::columns) &&
              NORMJIT_SCALE_LAYOUT_PACKED_COLUMNS - 1 == static_cast<int>(ScaleLayout::packed_columns) &&
              NORMJIT_SCALE_LAYOUT_SWIZZLED - 1 == static_cast<int>(ScaleLayout::swizzled) &&
              NORMJIT_SCALE_LAYOUT_SWIZZLED == kChoices<ScaleLayout>);
static_assert(NORMJIT_NO_ALSO - 1 == static_cast<int>(Also::none) &&
              NORMJIT_ALSO_F16 - 1 == static_cast<int>(Also::f16) &&
              NORMJIT_ALSO_BF16 - 1 == static_cast<int>(Also::bf16) &&
              NORMJIT_ALSO_F32 - 1 == static_cast<int>(Also::f32) && NORMJIT_ALSO_F32 == kChoices<Also>);
static_assert(NORMJIT_NEED_ALL - 1 == static_cast<int>(Need::all) &&
              NORMJIT_NEED_DX - 1 == static_cast<int>(Need::dx) &&
              NORMJIT_NEED_DX_DWEIGHT - 1 == static_cast<int>(Need::dx_dweight) &&
              NORMJIT_NEED_DX_DBIAS - 1 == static_cast<int>(Need::dx_dbias) &&
              NORMJIT_NEED_DWEIGHT_DBIAS - 1 == static_cast<int>(Need::dweight_dbias) &&
              NORMJIT_NEED_DWEIGHT - 1 == static_cast<int>(Need::dweight) &&
              NORMJIT_NEED_DBIAS - 1 == static_cast<int>(Need::dbias) &&
              NORMJIT_NEED_DBIAS == kChoices<Need>);
static_assert(NORMJIT_NO_AFFINE - 1 == static_cast<int>(Affine::none) &&
              NORMJIT_WEIGHT - 1 == static_cast<int>(Affine::weight) &&
              NORMJIT_WEIGHT_BIAS - 1 == static_cast<int>(Affine::weight_bias) &&
              NORMJIT_WEIGHT_BIAS == kChoices<Affine>);
static_assert(NORMJIT_NO_ACTIVATION - 1 == static_cast<int>(Activation::none) &&
              NORMJIT_RELU - 1 == static_cast<int>(Activation::relu) &&
              NORMJIT_GELU - 1 == static_cast<int>(Activation::gelu) &&
              NORMJIT_GELU_TANH - 1 == static_cast<int>(Activation::gelu_tanh) &&
              NORMJIT_SILU - 1 == static_cast<int>(Activation::silu) && NORMJIT_SILU == kChoices<Activation>);
static_assert(NORMJIT_EAGER - 1 == static_cast<int>(Mode::eager) &&
              NORMJIT_LAZY - 1 == static_cast<int>(Mode::lazy) &&
              NORMJIT_CACHED_ONLY - 1 == static_cast<int>(Mode::cached_only));
static_assert(NORMJIT_THAWED - 1 == static_cast<int>(Frozen::no) &&
              NORMJIT_FROZEN_WARN - 1 == static_cast<int>(Frozen::warn) &&
              NORMJIT_FROZEN_ERROR - 1 == static_cast<int>(Frozen::error));
static_assert(NORMJIT_LOG_DEBUG - 1 == static_cast<int>(LogLevel::debug) &&
              NORMJIT_LOG_INFO - 1 == static_cast<int>(LogLevel::info) &&
              NORMJIT_LOG_WARN - 1 == static_cast<int>(LogLevel::warn) &&
              NORMJIT_LOG_ERROR - 1 == static_cast<int>(LogLevel::error));

// The members of normjit_spec, in the order of kFields.
inline constexpr std::tuple kSpecMembers{&normjit_spec::norm,
                                         &normjit_spec::backward,
                                         &normjit_spec::columns,
                                         &normjit_spec::input,
                                         &normjit_spec::output,
                                         &normjit_spec::weight,
                                         &normjit_spec::gradient_type,
                                         &normjit_spec::residual_type,
                                         &normjit_spec::modulation_type,
                                         &normjit_spec::epsilon,
                                         &normjit_spec::in_bias,
                                         &normjit_spec::gate,
                                         &normjit_spec::gate_function,
                                         &normjit_spec::gate_table,
                                         &normjit_spec::residual,
                                         &normjit_spec::sum,
                                         &normjit_spec::dsum,
                                         &normjit_spec::rounding,
                                         &normjit_spec::affine,
                                         &normjit_spec::weight_offset,
                                         &normjit_spec::affine_rows,
                                         &normjit_spec::modulation,
                                         &normjit_spec::plain_modulation,
                                         &normjit_spec::modulation_table,
                                         &normjit_spec::activation,
                                         &normjit_spec::scale,
                                         &normjit_spec::quantization,
                                         &normjit_spec::inverse_scale,
                                         &normjit_spec::upper_bound,
                                         &normjit_spec::scale_format,
                                         &normjit_spec::scale_layout,
                                         &normjit_spec::also,
                                         &normjit_spec::amax,
                                         &normjit_spec::statistics,
                                         &normjit_spec::channels_first,
                                         &normjit_spec::need};
static_assert(std::tuple_size_v<decltype(kSpecMembers)> == kFieldCount);

// Calls visit(field, pointer to the member of normjit_spec) for each, in order.
template <class Visit>
constexpr void each_member(Visit visit) {
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    (visit(std::get<i>(kFields), std::get<i>(kSpecMembers)), ...);
  }
  (std::make_index_sequence<kFieldCount>());
}

// The greatest number of an enumeration or a switch in C; the least is 0.
template <class Value>
inline constexpr std::int32_t kLast = 1;
template <class Enum>
requires std::is_enum_v<Enum>
inline constexpr std::int32_t kLast<Enum> = static_cast<std::int32_t>(kChoices<Enum>);

// Each convert() returns false for a value out of range; the function below that returns an Error or a Result
// says why. All ranges share one branch, because every launch converts.
inline bool convert(const normjit_spec& given, NormSpec& spec) noexcept {
  normjit_spec own;
  const normjit_spec* const s = read(given, own);
  if (s == nullptr) return false;
  spec = {};
  bool sound = true;
  each_member([&](const auto& field, auto in_c) {
    auto& to = spec.*field.member;
    const auto given_value = s->*in_c;
    using Value = std::remove_reference_t<decltype(to)>;
    if constexpr (std::is_enum_v<Value> || std::is_same_v<Value, bool>)
      sound &= is_within(given_value, kLast<Value>);
    if constexpr (std::is_enum_v<Value>)
      to = enum_of(given_value, field.default_for(spec));
    else
      to = static_cast<Value>(given_value);
  });
  return sound;
}

inline bool convert(const normjit_tensors& given, Tensors& tensors) noexcept {
  normjit_tensors own;
  const normjit_tensors* const t = read(given, own);
  if (t == nullptr) return false;
  // In two parts, each so short that compilers copy it without a call, which took 7 ns more.
  constexpr std::size_t kHalf = sizeof tensors / 2;
  auto* const to = reinterpret_cast<std::byte*>(&tensors);
  const auto* const from = reinterpret_cast<const std::byte*>(t) + sizeof(std::size_t);
  std::memcpy(to, from, kHalf);
  std::memcpy(to + kHalf, from + kHalf, sizeof tensors - kHalf);
  return true;
}
// After struct_size, normjit_tensors has the members of Tensors in their order.
static_assert(sizeof(normjit_tensors) == sizeof(std::size_t) + sizeof(Tensors) &&
              sizeof(normjit_input_rows) == sizeof(InputRows) &&
              offsetof(normjit_input_rows, n) == offsetof(InputRows, n) &&
              offsetof(normjit_input_rows, outer) == offsetof(InputRows, outer) &&
              offsetof(normjit_input_rows, inner) == offsetof(InputRows, inner));
static_assert(kContiguous == -1);

// Null stands for the defaults.
inline bool convert(const normjit_launch_options* given, LaunchOptions& options) noexcept {
  if (given == nullptr) return true;
  normjit_launch_options own;
  const normjit_launch_options* const o = read(*given, own);
  if (o == nullptr || !is_within(o->overlap_previous, 1) || !is_within(o->miss_in_capture, 1)) return false;
  options.overlap_previous = o->overlap_previous != 0;
  options.miss_in_capture = o->miss_in_capture != 0;
  return true;
}
// Why convert() returned false.
Error mistake_in(const normjit_launch_options& given);

// --- Not for launches ---

// BadArgument, or the code of the enumeration; not those of validate.
Result<NormSpec> spec_of(const normjit_spec* given);
// The codes of validate, too.
Result<NormSpec> valid_spec_of(const normjit_spec* given);
Result<Tensors> tensors_of(const normjit_tensors* given);
// Null stands for the defaults.
Result<PrepareOptions> prepare_options_of(const normjit_prepare_options* given);

// The parts of "a:b" that are not empty.
std::vector<std::string> paths_of(std::string_view list);

// False, with nothing written: the structure has no room for a member that is not 0.
bool write(const NormSpec& spec, normjit_spec& to) noexcept;

}  // namespace normjit::c_api
