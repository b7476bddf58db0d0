// SPDX-License-Identifier: Apache-2.0
// The fields of a spec: one table with a row for each. Texts, canonical specs, validity, comparisons, the key
// of a use, the constants of the templates, reports and the C interface are derived from it. Everything folds
// at compile time, because every launch builds a canonical spec and a key.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "normjit/base/text.h"
#include "normjit/spec.h"
#include "normjit/spec/tables.h"

namespace normjit {

inline constexpr std::int64_t kMaxColumns = std::numeric_limits<std::int32_t>::max();

// Whether something has a table added to it.
inline bool has_gate_table(const NormSpec& s) noexcept { return s.gate != Gate::none && s.gate_table; }
inline bool has_modulation_table(const NormSpec& s) noexcept {
  return s.modulation != Modulation::none && s.modulation_table;
}
// Whether the dtypes of the vectors, of gate and modulation, and of residual and sum have a meaning.
inline bool has_vectors(const NormSpec& s) noexcept {
  return s.affine != Affine::none || s.in_bias || has_gate_table(s) || has_modulation_table(s);
}
inline bool has_modulation_type(const NormSpec& s) noexcept {
  return s.gate != Gate::none || s.modulation != Modulation::none;
}
inline bool has_residual_type(const NormSpec& s) noexcept {
  return s.residual != Residual::none || s.sum || (s.backward && s.dsum);
}
// Whether mean and rstd of each row are written, or given.
constexpr bool writes_statistics(const NormSpec& s) noexcept { return s.statistics && !s.backward; }
constexpr bool reads_statistics(const NormSpec& s) noexcept { return s.statistics && s.backward; }
// The gradients of a backward spec, a bit each.
enum : unsigned { kOfX = 1, kOfWeight = 2, kOfBias = 4 };
// Those that its norm has; those that are asked for; and those that are written.
constexpr unsigned gradients_of(Affine affine) noexcept {
  return affine == Affine::none     ? kOfX
         : affine == Affine::weight ? kOfX | kOfWeight
                                    : kOfX | kOfWeight | kOfBias;
}
constexpr unsigned asked_by(Need need) noexcept {
  constexpr unsigned kAsked[] = {kOfX | kOfWeight | kOfBias, kOfX,      kOfX | kOfWeight, kOfX | kOfBias,
                                 kOfWeight | kOfBias,        kOfWeight, kOfBias};
  return static_cast<std::size_t>(need) < std::size(kAsked) ? kAsked[static_cast<std::size_t>(need)] : 0;
}
constexpr unsigned written_gradients(const NormSpec& s) noexcept {
  return s.backward ? gradients_of(s.affine) & asked_by(s.need) : 0;
}
constexpr bool writes_dx(const NormSpec& s) noexcept { return (written_gradients(s) & kOfX) != 0; }
constexpr bool writes_dweight(const NormSpec& s) noexcept { return (written_gradients(s) & kOfWeight) != 0; }
constexpr bool writes_dbias(const NormSpec& s) noexcept { return (written_gradients(s) & kOfBias) != 0; }
// Whether the dtype of the gradients of weight and bias has a meaning.
constexpr bool has_gradient_type(const NormSpec& s) noexcept { return writes_dweight(s) || writes_dbias(s); }
// The value that says so; all where that is what the norm has.
constexpr Need need_for(unsigned written, Affine affine) noexcept {
  if (written == gradients_of(affine)) return Need::all;
  for (std::size_t i = 1; i < kChoices<Need>; ++i)
    if (asked_by(kNeeds[i].value) == written) return kNeeds[i].value;
  return Need::all;
}

// Whether a type is of 8 or 4 bits, which no input is.
constexpr bool is_narrow(DType type) noexcept { return static_cast<std::size_t>(type) >= kInputDTypes; }

// The columns of a block that has a scale; 0: none has.
constexpr int block_columns(const NormSpec& s) noexcept {
  return s.quantization < Quantization::block_16
             ? 0
             : 16 << (static_cast<int>(s.quantization) - static_cast<int>(Quantization::block_16));
}
static_assert(block_columns({.quantization = Quantization::block_128}) == 128);
// Whether each row, or each block of a row, has a scale that the kernel finds.
constexpr bool scales_rows(const NormSpec& s) noexcept { return s.quantization == Quantization::row; }
constexpr bool scales_blocks(const NormSpec& s) noexcept { return block_columns(s) > 0; }

// Whether a spec uses a field. Each predicate is a type of its own, so that it is inlined.
struct Always {
  constexpr bool operator()(const NormSpec&) const noexcept { return true; }
};

// A member of type T: an enumeration with a set, a switch, a number, or the columns.
template <class T, class HasMeaning>
struct Field {
  using Value = T;

  T NormSpec::*member;
  std::string_view name;  // of the member, in C++ and in C
  // In texts, as "key=value", or alone for a switch; empty: the value stands alone. A field whose key does
  // not begin with a letter is a part, and stands directly behind the field before it: "w1:rows",
  // "gate:silu".
  std::string_view key;
  bool always;                // written to texts even if it is the default
  std::string_view constant;  // its placeholder in the templates; empty: it has none of its own
  Code mistake;               // the error of a value outside its range
  HasMeaning has_meaning{};   // if not, canonical() sets the field to its default

  // The value of a field that a text does not give: as NormSpec initializes it, which depends on the input.
  constexpr T default_for(const NormSpec& spec) const noexcept {
    return NormSpec{.input = spec.input}.*member;
  }
  // Whether it stands directly behind the field before it.
  constexpr bool is_part() const noexcept {
    return !key.empty() && !(key.front() >= 'a' && key.front() <= 'z');
  }
  // How many values of an enumeration it may have, the first ones of the set.
  constexpr std::size_t choices() const noexcept {
    if constexpr (std::is_same_v<T, DType>)
      return member == &NormSpec::output ? kOutputDTypes : kInputDTypes;
    else if constexpr (std::is_enum_v<T>)
      return kChoices<T>;
    return 0;
  }
  // Whether it may have this value of an enumeration.
  constexpr bool may_be(T value) const noexcept { return static_cast<std::size_t>(value) < choices(); }
  // The bits that a valid value needs.
  constexpr int bits() const noexcept {
    if constexpr (std::is_enum_v<T>) return std::bit_width(choices() - 1);
    if constexpr (std::is_same_v<T, std::int64_t>)
      return std::bit_width(static_cast<std::uint64_t>(kMaxColumns));
    return std::is_same_v<T, bool> ? 1 : 64;
  }
};
template <class T>
Field(T NormSpec::*, std::string_view, std::string_view, bool, std::string_view, Code) -> Field<T, Always>;
template <class T, class HasMeaning>
Field(T NormSpec::*, std::string_view, std::string_view, bool, std::string_view, Code, HasMeaning)
    -> Field<T, HasMeaning>;

// In the order of the canonical text and of the checks of validate(). The first begins every text.
inline constexpr std::tuple kFields{
    Field{&NormSpec::norm, "norm", "", true, "norm", Code::BadArgument},
    Field{&NormSpec::backward, "backward", "_bwd", false, "backward", Code::BadArgument},
    Field{&NormSpec::columns, "columns", "cols", true, "columns", Code::BadDimension},
    Field{&NormSpec::input, "input", "", true, "input", Code::BadDType},
    Field{&NormSpec::output, "output", "out", false, "output", Code::BadDType},
    Field{&NormSpec::weight, "weight", "w", false, "weight", Code::BadDType,
          [](const NormSpec& s) noexcept { return has_vectors(s); }},
    Field{&NormSpec::gradient_type, "gradient_type", "dw", false, "gradient_type", Code::BadDType,
          [](const NormSpec& s) noexcept { return has_gradient_type(s); }},
    Field{&NormSpec::residual_type, "residual_type", "res", false, "residual_type", Code::BadDType,
          [](const NormSpec& s) noexcept { return has_residual_type(s); }},
    Field{&NormSpec::modulation_type, "modulation_type", "mod", false, "modulation_type", Code::BadDType,
          [](const NormSpec& s) noexcept { return has_modulation_type(s); }},
    Field{&NormSpec::epsilon, "epsilon", "eps", true, "epsilon", Code::BadEpsilon},
    Field{&NormSpec::in_bias, "in_bias", "inb", false, "has_in_bias", Code::BadArgument},
    Field{&NormSpec::gate, "gate", "", false, "gate", Code::BadArgument},
    Field{&NormSpec::gate_function, "gate_function", ":", false, "gate_function", Code::BadArgument,
          [](const NormSpec& s) noexcept { return s.gate != Gate::none; }},
    Field{&NormSpec::gate_table, "gate_table", ":table", false, "has_gate_table", Code::BadArgument,
          [](const NormSpec& s) noexcept { return s.gate != Gate::none; }},
    Field{&NormSpec::residual, "residual", "", false, "residual", Code::BadArgument},
    Field{&NormSpec::sum, "sum", "sum", false, "writes_sum", Code::BadArgument},
    Field{&NormSpec::dsum, "dsum", "dsum", false, "adds_dsum", Code::BadArgument,
          [](const NormSpec& s) noexcept { return s.backward; }},
    Field{&NormSpec::rounding, "rounding", "round", false, "rounding", Code::BadArgument},
    Field{&NormSpec::affine, "affine", "", false, "", Code::BadAffine},
    Field{&NormSpec::weight_offset, "weight_offset", "1", false, "weight_offset", Code::BadArgument,
          [](const NormSpec& s) noexcept { return s.affine != Affine::none; }},
    Field{&NormSpec::affine_rows, "affine_rows", ":rows", false, "affine_rows", Code::BadArgument,
          [](const NormSpec& s) noexcept { return s.affine != Affine::none; }},
    Field{&NormSpec::modulation, "modulation", "", false, "modulation", Code::BadArgument},
    Field{&NormSpec::plain_modulation, "plain_modulation", "0", false, "plain_modulation", Code::BadArgument,
          [](const NormSpec& s) noexcept { return s.modulation != Modulation::none; }},
    Field{&NormSpec::modulation_table, "modulation_table", ":table", false, "has_modulation_table",
          Code::BadArgument, [](const NormSpec& s) noexcept { return s.modulation != Modulation::none; }},
    Field{&NormSpec::activation, "activation", "", false, "activation", Code::BadActivation},
    Field{&NormSpec::scale, "scale", "scale", false, "scale", Code::BadScale},
    Field{&NormSpec::quantization, "quantization", "q", false, "quantization", Code::BadArgument},
    Field{&NormSpec::inverse_scale, "inverse_scale", ":inv", false, "inverse_scale", Code::BadArgument,
          [](const NormSpec& s) noexcept { return s.quantization == Quantization::tensor; }},
    Field{&NormSpec::upper_bound, "upper_bound", ":ub", false, "has_upper_bound", Code::BadArgument,
          [](const NormSpec& s) noexcept { return scales_rows(s); }},
    Field{&NormSpec::scale_format, "scale_format", ":", false, "scale_format", Code::BadArgument,
          [](const NormSpec& s) noexcept { return scales_blocks(s); }},
    Field{&NormSpec::scale_layout, "scale_layout", ":", false, "scale_layout", Code::BadArgument,
          [](const NormSpec& s) noexcept { return scales_blocks(s); }},
    Field{&NormSpec::also, "also", "also", false, "also", Code::BadArgument},
    Field{&NormSpec::amax, "amax", "amax", false, "writes_amax", Code::BadArgument},
    Field{&NormSpec::statistics, "statistics", "stats", false, "has_statistics", Code::BadArgument},
    Field{&NormSpec::channels_first, "channels_first", "cf", false, "channels_first", Code::BadArgument},
    Field{&NormSpec::need, "need", "need", false, "", Code::BadArgument,
          [](const NormSpec& s) noexcept { return s.backward; }},
};
inline constexpr std::size_t kFieldCount = std::tuple_size_v<decltype(kFields)>;

// Calls visit(field) for each, in order.
template <class Visit>
constexpr void each_field(Visit visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, kFields);
}

// The bits of a value as a number, for comparing and packing.
template <class T>
constexpr std::uint64_t word_of(T value) noexcept {
  if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<std::uint64_t>(value);
  else
    return static_cast<std::uint64_t>(value);
}

// A value as in spec texts and reports; "yes" or "no" for a switch.
template <class T>
std::string text_of(T value) {
  if constexpr (std::is_enum_v<T>)
    return std::string(name(value));
  else if constexpr (std::is_same_v<T, bool>)
    return value ? "yes" : "no";
  else
    return shortest(value);
}

}  // namespace normjit
