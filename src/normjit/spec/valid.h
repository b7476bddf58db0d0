// SPDX-License-Identifier: Apache-2.0
// Whether a spec is valid, at the speed of a launch.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "normjit/spec/fields.h"

namespace normjit {

// Whether a spec is computed in f64.
inline bool is_wide(const NormSpec& s) noexcept {
  return s.input == DType::f64 || s.output == DType::f64 || (has_vectors(s) && s.weight == DType::f64) ||
         (has_residual_type(s) && s.residual_type == DType::f64) ||
         (has_gradient_type(s) && s.gradient_type == DType::f64) ||
         (has_modulation_type(s) && s.modulation_type == DType::f64);
}
// compute_type(), inline.
inline DType accumulator(const NormSpec& s) noexcept { return is_wide(s) ? DType::f64 : DType::f32; }

// Whether something else than x is normalized: x with something added, or multiplied by a gate.
inline bool has_prologue(const NormSpec& s) noexcept {
  return s.in_bias || s.gate == Gate::before || s.residual == Residual::before;
}
// Whether something follows the normalized value that may round it first.
inline bool has_affine_or_modulation(const NormSpec& s) noexcept {
  return s.affine != Affine::none || s.modulation != Modulation::none;
}

// What is rounded: each value of Rounding is the sum of those of its parts.
constexpr bool rounds(const NormSpec& s, Rounding part) noexcept {
  return (static_cast<unsigned>(s.rounding) & static_cast<unsigned>(part)) != 0;
}
inline bool rounds_sum(const NormSpec& s) noexcept { return rounds(s, Rounding::sum); }
inline bool rounds_norm(const NormSpec& s) noexcept { return rounds(s, Rounding::norm); }
inline bool rounds_y(const NormSpec& s) noexcept { return rounds(s, Rounding::y); }

// The type of the second result, where there is one.
constexpr DType also_type(const NormSpec& s) noexcept {
  return s.also == Also::f16 ? DType::f16 : s.also == Also::bf16 ? DType::bf16 : DType::f32;
}
// The type of the scale of a block.
constexpr DType block_scale_type(const NormSpec& s) noexcept {
  return s.scale_format == ScaleFormat::e8m0   ? DType::e8m0
         : s.scale_format == ScaleFormat::e4m3 ? DType::e4m3
                                               : DType::f32;
}
// Whether blocks of so many columns may have scales of this format, and that such a layout.
constexpr bool may_have_format(const NormSpec& s) noexcept {
  const bool e8m0 = s.scale_format == ScaleFormat::e8m0, e4m3 = s.scale_format == ScaleFormat::e4m3;
  return s.quantization == Quantization::block_16   ? e8m0 || e4m3
         : s.quantization == Quantization::block_32 ? e8m0
                                                    : !e4m3;
}
constexpr bool may_have_layout(const NormSpec& s) noexcept {
  return s.scale_layout == ScaleLayout::packed_columns ? s.scale_format == ScaleFormat::e8m0
         : s.scale_layout == ScaleLayout::swizzled     ? block_scale_type(s) != DType::f32
                                                       : true;
}
// Whether an output of 8 or 4 bits may have the quantization of the spec.
constexpr bool may_have_quantization(const NormSpec& s) noexcept {
  return s.output == DType::s8 ? s.quantization != Quantization::none
         : s.output == DType::e2m1
             ? s.quantization == Quantization::block_16 || s.quantization == Quantization::block_32
             : true;
}
// Whether blocks divide the columns, and have scales of a format and layout that go with them.
constexpr bool may_have_blocks(const NormSpec& s) noexcept {
  return s.columns % block_columns(s) == 0 && may_have_format(s) && may_have_layout(s);
}
// The type to which the sum in front of the norm is rounded.
inline DType sum_type(const NormSpec& s) noexcept { return has_residual_type(s) ? s.residual_type : s.input; }
// Whether values may be rounded to a type: one of 16 bits; the compute type changes nothing.
inline bool may_round_to(DType type, const NormSpec& s) noexcept {
  return type == DType::f16 || type == DType::bf16 || type == accumulator(s);
}

// Whether weights, a gate or modulation have rows, which channels first exclude.
inline bool has_rows_of_vectors(const NormSpec& s) noexcept {
  return (s.affine != Affine::none && s.affine_rows) || has_modulation_type(s);
}

// Whether a row makes more than its result and one scale: scales of blocks, a second result, the largest
// magnitude of all.
constexpr bool has_more_results(const NormSpec& s) noexcept {
  return scales_blocks(s) || s.also != Also::none || s.amax;
}

// Whether the gradients of a modulation are written.
constexpr bool writes_dmod(const NormSpec& s) noexcept {
  return s.modulation != Modulation::none && writes_dx(s);
}
// Whether a gradient depends on what the affine makes, n * weight + bias: that of the activation, of the
// scale of a modulation, and of a gate that multiplies it.
constexpr bool needs_argument(const NormSpec& s) noexcept {
  return s.activation != Activation::none || writes_dmod(s) || (s.gate == Gate::after && writes_dx(s));
}
// Whether the shift of a modulation is read. Without an activation no gradient depends on it.
constexpr bool needs_shift(const NormSpec& s) noexcept {
  return s.modulation == Modulation::scale_shift && (!s.backward || s.activation != Activation::none);
}

// The largest number of the compute type.
inline double largest_number(const NormSpec& s) noexcept {
  return is_wide(s) ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
}

// The fields that a backward spec may have besides the types.
template <class T>
constexpr bool is_of_backward(T NormSpec::*member) noexcept {
  if constexpr (std::is_same_v<T, bool>)
    return member == &NormSpec::backward || member == &NormSpec::dsum || member == &NormSpec::weight_offset ||
           member == &NormSpec::plain_modulation || member == &NormSpec::modulation_table ||
           member == &NormSpec::statistics;
  else if constexpr (std::is_same_v<T, double>)
    return member == &NormSpec::epsilon || member == &NormSpec::scale;
  else
    return std::is_same_v<T, Norm> || std::is_same_v<T, std::int64_t> || std::is_same_v<T, DType> ||
           std::is_same_v<T, Gate> || std::is_same_v<T, GateFunction> || std::is_same_v<T, Affine> ||
           std::is_same_v<T, Modulation> || std::is_same_v<T, Activation> || std::is_same_v<T, Need>;
}
// Whether a field is as a backward spec may have it.
template <class T, class HasMeaning>
constexpr bool may_be_backward(const Field<T, HasMeaning>& field, const NormSpec& s) noexcept {
  return is_of_backward(field.member) || !field.has_meaning(s) ||
         word_of(s.*field.member) == word_of(field.default_for(s));
}

// True exactly if validate() is ok.
inline bool is_valid(const NormSpec& s) noexcept {
  const double largest = largest_number(s);
  bool valid = s.columns >= 1 && s.columns <= kMaxColumns && s.epsilon >= 0 &&
               (!s.sum || has_prologue(s) || s.residual_type != s.input) &&
               (!rounds_sum(s) || (has_prologue(s) && may_round_to(sum_type(s), s))) &&
               (!rounds_norm(s) || (has_affine_or_modulation(s) && may_round_to(s.input, s))) &&
               (!rounds_y(s) || (s.quantization != Quantization::none && may_round_to(s.input, s))) &&
               (is_narrow(s.output) ? !s.backward && !is_wide(s) && may_have_quantization(s)
                                    : s.quantization == Quantization::none) &&
               (s.gate != Gate::after || s.activation == Activation::none) &&
               (!scales_blocks(s) || may_have_blocks(s)) &&
               (!(s.upper_bound && scales_rows(s)) || s.output == DType::e4m3) &&
               (s.also == Also::none || s.quantization != Quantization::none) &&
               (!s.amax || !(scales_rows(s) || scales_blocks(s) || is_wide(s))) &&
               (!s.backward || (written_gradients(s) != 0 && (!s.dsum || writes_dx(s)) &&
                                (s.gate == Gate::none || s.modulation == Modulation::none))) &&
               (!s.channels_first || !(has_rows_of_vectors(s) || scales_rows(s) || has_more_results(s)));
  each_field([&](const auto& field) {
    const auto value = s.*field.member;
    if constexpr (std::is_enum_v<decltype(value)>) valid = valid && field.may_be(value);
    if constexpr (std::is_same_v<decltype(value), const double>) valid = valid && std::fabs(value) <= largest;
    valid = valid && (!s.backward || may_be_backward(field, s));
  });
  return valid;
}

static_assert(static_cast<int>(Rounding::sum) == 1 && static_cast<int>(Rounding::norm) == 2 &&
              static_cast<int>(Rounding::sum_norm) == 3 && static_cast<int>(Rounding::y) == 4 &&
              static_cast<int>(Rounding::sum_norm_y) == 7);

// canonical(), inline.
[[gnu::always_inline]] inline NormSpec canonical_now(const NormSpec& spec) noexcept {
  NormSpec same = spec;
  each_field([&](const auto& field) __attribute__((always_inline)) {
    if (!field.has_meaning(same)) same.*field.member = field.default_for(same);
  });
  const bool sum = rounds_sum(same) && sum_type(same) != accumulator(same);
  const bool input = same.input != accumulator(same);
  same.rounding =
      static_cast<Rounding>(sum + 2 * (rounds_norm(same) && input) + 4 * (rounds_y(same) && input));
  if (same.need != Need::all && written_gradients(same) != 0)
    same.need = need_for(written_gradients(same), same.affine);
  same.epsilon += 0.0;  // -0 becomes 0
  return same;
}

}  // namespace normjit
