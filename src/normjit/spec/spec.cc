// SPDX-License-Identifier: Apache-2.0
#include "normjit/spec.h"

#include <cmath>

#include "normjit/base/text.h"
#include "normjit/spec/fields.h"
#include "normjit/spec/operands.h"
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
    if (!field.may_be(value))
      return Error{field.mistake,
                   concat({field.name, " is ",
                           is_in_set(value) ? std::string(name(value)) : shortest(static_cast<int>(value)),
                           "; it must be one of ", names_of<T>(", ", 0, field.choices())})};
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
  const std::string_view compute = name(compute_type(spec));
  if (spec.backward && is_narrow(spec.output))
    return bad({"a backward spec has no output of ", name(spec.output),
                ": roundings to 8 and 4 bits have no gradients. Give the type of dy (/out=f32, ...)"});
  Result<void> of_backward;
  each_field([&](const auto& field) {
    if (of_backward && spec.backward && !may_be_backward(field, spec))
      of_backward = bad({"a backward spec excludes ", field.name,
                         ": leave it out, or take the gradients of the norm alone (_bwd has weight, bias, "
                         "weight_offset, a gate or a modulation, activation, scale, dsum, stats and need)"});
  });
  if (!of_backward) return of_backward;
  if (spec.backward && written_gradients(spec) == 0)
    return bad(
        {"no gradient remains: need is ", name(spec.need), ", and there is no ",
         spec.affine == Affine::none ? "weight" : "bias",
         ". Add it (/w, /wb), or need what there is (/need=", spec.affine == Affine::none ? "dx)" : "dw)"});
  if (spec.backward && spec.dsum && !writes_dx(spec))
    return bad({"dsum is added to dx, which need=", name(spec.need),
                " leaves out: leave out dsum (/dsum), too, or need dx"});
  if (spec.backward && spec.gate != Gate::none && spec.modulation != Modulation::none)
    return bad({"a backward spec has a gate or a modulation, not both: leave out ", name(spec.gate), " or ",
                name(spec.modulation)});
  if (spec.sum && !has_prologue(spec) && spec.residual_type == spec.input)
    return bad(
        {"sum needs something that happens to x before the norm, or another residual type than the input's: "
         "else the sum is x. Add the residual (/add), in_bias (/inb) or a gate (/gate), or leave the sum out "
         "(/sum)"});
  if (rounds_sum(spec) && !has_prologue(spec))
    return bad(
        {"rounding of the sum needs something that happens to x before the norm: a residual (/add), in_bias "
         "(/inb) or a gate (/gate)"});
  if (rounds_sum(spec) && !may_round_to(sum_type(spec), spec))
    return bad({"rounding of the sum needs a residual type of 16 bits, and it is ", name(sum_type(spec)),
                ", while the spec is computed in ", compute});
  if (rounds_norm(spec) && !has_affine_or_modulation(spec))
    return bad(
        {"rounding of the norm needs a weight or a modulation that follows: the result is rounded anyway. "
         "Add "
         "the weight (/w) or the modulation (/mod), or leave the rounding out (/round=norm)"});
  if (rounds_norm(spec) && !may_round_to(spec.input, spec))
    return bad({"rounding of the norm needs an input of 16 bits, and it is ", name(spec.input),
                ", while the spec is computed in ", compute});
  const std::string_view output = name(spec.output);
  if (is_narrow(spec.output) && is_wide(spec))
    return bad({"an output of ", output,
                " is rounded from f32, and this spec is computed in f64: leave out f64, or the output (/out=",
                output, ")"});
  if (spec.output == DType::s8 && !may_have_quantization(spec))
    return bad(
        {"an output of s8 needs a scale: one that you give (/q=tensor), one for each row (/q=row), or one "
         "for each block (/q=128)"});
  if (spec.output == DType::e2m1 && !may_have_quantization(spec))
    return bad(
        {"an output of e2m1 needs a scale for each block of 16 or 32 columns (/q=16:e4m3, /q=32:e8m0)"});
  if (!is_narrow(spec.output) && spec.quantization != Quantization::none)
    return bad({"quantization needs an output of 8 or 4 bits, and it is ", output,
                ": add one (/out=e4m3, /out=e5m2, /out=s8 or /out=e2m1), or leave the quantization out (/q=",
                name(spec.quantization), ")"});
  if (rounds_y(spec) && spec.quantization == Quantization::none)
    return bad(
        {"rounding of y needs a quantization that follows: the result is rounded anyway. Add the "
         "quantization "
         "(/q=tensor, /q=row or /q=128), or leave the rounding out (/round=y)"});
  if (rounds_y(spec) && !may_round_to(spec.input, spec))
    return bad({"rounding of y needs an input of 16 bits, and it is ", name(spec.input),
                ", while the spec is computed in ", compute});
  if (scales_blocks(spec)) {
    const std::string_view block = name(spec.quantization);
    if (spec.columns % block_columns(spec) != 0)
      return bad({"blocks of ", block, " columns do not divide rows of ", shortest(spec.columns),
                  ": give a scale for each row (/q=row), or blocks that do"});
    if (!may_have_format(spec))
      return bad({"blocks of ", block, " columns have no scales in ", name(spec.scale_format),
                  ": of 16 they are e8m0 or e4m3, of 32 e8m0 (/q=32:e8m0), of 64 and 128 f32, p2 or e8m0"});
    if (!may_have_layout(spec))
      return bad({"scales in ", name(spec.scale_format), " cannot be laid out as ", name(spec.scale_layout),
                  ": cols4 needs e8m0, sw needs e8m0 or e4m3"});
  }
  if (spec.upper_bound && scales_rows(spec) && spec.output != DType::e4m3)
    return bad({"an upper bound needs an output of e4m3, and it is ", output,
                ": leave out the bound (:ub), or take that output (/out=e4m3)"});
  if (spec.also != Also::none && spec.quantization == Quantization::none)
    return bad({"a second result in ", name(spec.also),
                " needs a quantization of the first: add one (/q=...), or leave it out (/also=",
                name(spec.also), ")"});
  if (spec.amax && (scales_rows(spec) || scales_blocks(spec)))
    return bad(
        {"amax excludes a scale for each row or block, which have it: leave out amax (/amax), or give one "
         "scale (/q=tensor)"});
  if (spec.amax && is_wide(spec))
    return bad({"amax is of f32, and this spec is computed in f64: leave out f64, or amax (/amax)"});
  if (spec.gate == Gate::after && spec.activation != Activation::none)
    return bad({"a gate behind the norm excludes an activation: leave out the activation (/",
                name(spec.activation), ") or the gate (/gateafter)"});
  if (!spec.channels_first) return {};
  if (spec.affine != Affine::none && spec.affine_rows)
    return bad(
        {"channels first exclude a weight for each row: leave out the rows (:rows) or the order (/cf)"});
  if (spec.gate != Gate::none)
    return bad(
        {"channels first exclude a gate: leave out the gate (/", name(spec.gate), ") or the order (/cf)"});
  if (spec.modulation != Modulation::none)
    return bad({"channels first exclude modulation: leave out the modulation (/", name(spec.modulation),
                ") or the order (/cf)"});
  if (scales_rows(spec))
    return bad(
        {"channels first exclude a scale for each row: give one (/q=tensor), or leave out the order (/cf)"});
  if (scales_blocks(spec))
    return bad(
        {"channels first exclude a scale for each block: give one (/q=tensor), or leave out the order "
         "(/cf)"});
  if (spec.also != Also::none || spec.amax)
    return bad({"channels first exclude ",
                spec.amax ? std::string("amax: leave out amax (/amax)")
                          : concat({"a second result: leave it out (/also=", name(spec.also), ")"}),
                ", or the order (/cf)"});
  return {};
}

}  // namespace

std::string_view name(Norm norm) noexcept { return name_of(norm); }
std::string_view name(DType dtype) noexcept { return name_of(dtype); }
std::string_view name(Gate gate) noexcept { return name_of(gate); }
std::string_view name(GateFunction function) noexcept { return name_of(function); }
std::string_view name(Modulation modulation) noexcept { return name_of(modulation); }
std::string_view name(Residual residual) noexcept { return name_of(residual); }
std::string_view name(Rounding rounding) noexcept { return name_of(rounding); }
std::string_view name(Quantization quantization) noexcept { return name_of(quantization); }
std::string_view name(ScaleFormat format) noexcept { return name_of(format); }
std::string_view name(ScaleLayout layout) noexcept { return name_of(layout); }
std::string_view name(Also also) noexcept { return name_of(also); }
std::string_view name(Affine affine) noexcept { return name_of(affine); }
std::string_view name(Need need) noexcept { return name_of(need); }
std::string_view name(Activation activation) noexcept { return name_of(activation); }

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

Result<std::vector<std::int64_t>> block_scale_shape(const NormSpec& spec, std::int64_t rows) {
  if (rows < 0) return Error{Code::BadRows, concat({shortest(rows), " rows are fewer than none"})};
  if (!scales_blocks(spec)) return std::vector<std::int64_t>();
  const ScaleShape shape = scale_shape(spec, rows);
  switch (spec.scale_layout) {
    case ScaleLayout::rows:
      return std::vector{shape.rows, shape.blocks};
    case ScaleLayout::columns:
      return std::vector{shape.blocks, shape.rows};
    case ScaleLayout::packed_columns:
      return std::vector<std::int64_t>{shape.blocks / 4, shape.rows, 4};
    default:
      return std::vector<std::int64_t>{shape.rows / 128, shape.blocks / 4, 512};
  }
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

DType compute_type(const NormSpec& spec) noexcept { return accumulator(spec); }

}  // namespace normjit
