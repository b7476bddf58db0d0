// SPDX-License-Identifier: Apache-2.0
#include "onnxruntime/operands.h"

#include <array>

namespace normjit::onnxruntime {

std::int64_t elements_of(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

std::string text_of(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::vector<Input> inputs_of(const normjit_spec& spec) {
  using T = normjit_tensors;
  const bool has_gate = spec.gate > NORMJIT_NO_GATE, modulates = spec.modulation > NORMJIT_NO_MODULATION;
  const bool shifts = spec.modulation == NORMJIT_MOD_SCALE_SHIFT;
  const Extent affine = spec.affine_rows ? Extent::rows : Extent::vector;
  const struct {
    bool present;
    Input input;
  } all[] = {
      {true, {"x", Extent::rows, spec.input, &T::x}},
      {spec.in_bias != 0, {"in_bias", Extent::vector, spec.weight, nullptr, &T::in_bias}},
      {has_gate, {"gate", Extent::rows, spec.modulation_type, &T::gate}},
      {has_gate && spec.gate_table, {"gate_table", Extent::vector, spec.weight, nullptr, &T::gate_table}},
      {spec.residual > NORMJIT_NO_RESIDUAL, {"residual", Extent::rows, spec.residual_type, &T::residual}},
      {spec.affine >= NORMJIT_WEIGHT, {"weight", affine, spec.weight, &T::weight}},
      {spec.affine == NORMJIT_WEIGHT_BIAS, {"bias", affine, spec.weight, &T::bias}},
      {modulates, {"mod_scale", Extent::rows, spec.modulation_type, &T::mod_scale}},
      {modulates && spec.modulation_table,
       {"mod_scale_table", Extent::vector, spec.weight, nullptr, &T::mod_scale_table}},
      {shifts, {"mod_shift", Extent::rows, spec.modulation_type, &T::mod_shift}},
      {shifts && spec.modulation_table,
       {"mod_shift_table", Extent::vector, spec.weight, nullptr, &T::mod_shift_table}},
      {spec.quantization == NORMJIT_QUANTIZE_BY_TENSOR,
       {"tensor_scale", Extent::one, NORMJIT_F32, nullptr, &T::tensor_scale}},
      {spec.upper_bound != 0, {"upper_bound", Extent::one, NORMJIT_F32, nullptr, &T::upper_bound}},
      {spec.scale_format == NORMJIT_SCALE_E4M3,
       {"global_scale", Extent::one, NORMJIT_F32, nullptr, &T::global_scale}},
  };
  std::vector<Input> inputs;
  for (const auto& each : all)
    if (each.present) inputs.push_back(each.input);
  return inputs;
}

std::vector<Output> outputs_of(const normjit_spec& spec) {
  using T = normjit_tensors;
  const bool wide = spec.input == NORMJIT_F64 || spec.output == NORMJIT_F64 || spec.weight == NORMJIT_F64 ||
                    spec.residual_type == NORMJIT_F64 || spec.modulation_type == NORMJIT_F64;
  const std::int32_t statistic = wide ? NORMJIT_F64 : NORMJIT_F32;
  const std::int32_t scale = spec.scale_format == NORMJIT_SCALE_E8M0   ? NORMJIT_E8M0
                             : spec.scale_format == NORMJIT_SCALE_E4M3 ? NORMJIT_E4M3
                                                                       : NORMJIT_F32;
  const std::int32_t also = spec.also == NORMJIT_ALSO_F16    ? NORMJIT_F16
                            : spec.also == NORMJIT_ALSO_BF16 ? NORMJIT_BF16
                                                             : NORMJIT_F32;
  const struct {
    bool present;
    Output output;
  } all[] = {
      {true, {"y", Extent::rows, spec.output, &T::y}},
      {spec.sum != 0, {"sum", Extent::rows, spec.residual_type, &T::sum}},
      {spec.statistics && spec.norm == NORMJIT_LAYER, {"mean", Extent::row, statistic, nullptr, &T::mean}},
      {spec.statistics != 0, {"rstd", Extent::row, statistic, nullptr, &T::rstd}},
      {spec.also > NORMJIT_NO_ALSO, {"also", Extent::rows, also, &T::also}},
      {spec.quantization == NORMJIT_QUANTIZE_BY_ROW,
       {"row_scale", Extent::row, NORMJIT_F32, nullptr, &T::row_scale}},
      {spec.quantization >= NORMJIT_QUANTIZE_BY_BLOCK_16,
       {"block_scale", Extent::blocks, scale, nullptr, &T::block_scale}},
      {spec.amax != 0, {"amax", Extent::one, NORMJIT_F32, nullptr, &T::amax}},
  };
  std::vector<Output> outputs;
  for (const auto& each : all)
    if (each.present) outputs.push_back(each.output);
  return outputs;
}

Element element_of(std::int32_t type) {
  switch (type) {
    case NORMJIT_F16:
      return kFloat16;
    case NORMJIT_BF16:
      return kBfloat16;
    case NORMJIT_F32:
      return kFloat;
    case NORMJIT_F64:
      return kDouble;
    case NORMJIT_E4M3:
      return kFloat8E4M3;
    case NORMJIT_E5M2:
      return kFloat8E5M2;
    case NORMJIT_S8:
      return kInt8;
    case NORMJIT_E8M0:
      return kUint8;
    default:
      return kUndefined;  // e2m1, which has no tensors in API 18
  }
}

std::string name_of(int element) {
  switch (element) {
    case kFloat:
      return "float";
    case kUint8:
      return "uint8";
    case kInt8:
      return "int8";
    case kFloat16:
      return "float16";
    case kDouble:
      return "double";
    case kBfloat16:
      return "bfloat16";
    case kFloat8E4M3:
      return "float8e4m3fn";
    case kFloat8E5M2:
      return "float8e5m2";
    default:
      return "ONNX type " + std::to_string(element);
  }
}

std::optional<std::size_t> row_dimensions(const Shape& x, std::int64_t columns) {
  std::int64_t count = 1;
  for (std::size_t i = x.rank(); i-- > 0;) {
    count *= x[i];
    if (count == columns) return i;
  }
  return {};
}

std::optional<normjit_input_rows> broadcast_rows(const Shape& own, const Shape& x,
                                                 std::size_t row_dimensions) {
  if (own.rank() > x.rank()) return {};
  const std::size_t missing = x.rank() - own.rank();  // leading dimensions
  const auto size = [&](std::size_t i) { return i < missing ? 1 : own[i - missing]; };
  std::int64_t stride = 1;  // of the dimension that is looked at
  for (std::size_t i = x.rank(); i-- > row_dimensions;) {
    if (size(i) != x[i]) return {};
    stride *= x[i];
  }
  struct Level {
    std::int64_t size, stride;
  };
  std::array<Level, 2> levels{{{1, stride}, {1, 0}}};  // the last dimensions first
  std::size_t count = 0;
  for (std::size_t i = row_dimensions; i-- > 0;) {
    if (size(i) != x[i] && size(i) != 1) return {};
    const std::int64_t here = size(i) == 1 ? 0 : stride;
    stride *= size(i);
    if (x[i] == 1) continue;
    if (count > 0 && here == levels[count - 1].size * levels[count - 1].stride) {
      levels[count - 1].size *= x[i];
    } else {
      if (count == levels.size()) return {};
      levels[count++] = {x[i], here};
    }
  }
  if (count < 2) return normjit_input_rows{nullptr, 1, levels[0].stride, 0};
  return normjit_input_rows{nullptr, levels[0].size, levels[1].stride, levels[0].stride};
}

}  // namespace normjit::onnxruntime
