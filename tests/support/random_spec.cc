// SPDX-License-Identifier: Apache-2.0
#include "tests/support/random_spec.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "normjit/spec/valid.h"

namespace normjit {
namespace {

// Any finite double, all magnitudes alike.
double any_finite(Random& random) {
  for (;;)
    if (const auto value = std::bit_cast<double>(random.bits()); std::isfinite(value)) return value;
}

double random_epsilon(Random& random, bool tame) {
  constexpr double kTame[] = {0.0, 1e-5, 1e-6, 1e-12, 1e-3, 0.5};
  constexpr double kEdges[] = {-0.0, std::numeric_limits<double>::denorm_min(),
                               std::numeric_limits<double>::max(), 0x1.4f8b588e368f2p-17};
  if (tame || random.coin()) return random.one_of(kTame);
  return random.coin() ? random.one_of(kEdges) : std::abs(any_finite(random));
}

double random_scale(Random& random, bool tame) {
  constexpr double kTame[] = {1.0, 1.0, 0.125, -2.0, 0.7978845608028654, 0.0};
  constexpr double kEdges[] = {-0.0, -std::numeric_limits<double>::denorm_min(),
                               -std::numeric_limits<double>::max(),
                               1 + std::numeric_limits<double>::epsilon()};
  if (tame || random.coin()) return random.one_of(kTame);
  return random.coin() ? random.one_of(kEdges) : any_finite(random);
}

// A sum and roundings that do not go with the rest.
void drop_meaningless(NormSpec& spec) {
  spec.sum = spec.sum && (has_prologue(spec) || spec.residual_type != spec.input);
  const bool sum = rounds_sum(spec) && has_prologue(spec) && may_round_to(sum_type(spec), spec);
  const bool norm = rounds_norm(spec) && has_affine_or_modulation(spec) && may_round_to(spec.input, spec);
  const bool y = rounds_y(spec) && spec.quantization != Quantization::none && may_round_to(spec.input, spec);
  spec.rounding = static_cast<Rounding>(sum + 2 * norm + 4 * y);
}

DType random_dtype(Random& random) { return kDTypes[random.below(kInputDTypes)].value; }

// Gives blocks of the result scales, of any format and layout that such blocks may have.
void make_blocks(NormSpec& spec, Random& random) {
  spec.quantization = random.one_of(
      {Quantization::block_16, Quantization::block_32, Quantization::block_64, Quantization::block_128});
  const std::int64_t block = block_columns(spec);
  spec.columns = std::max(block, spec.columns / block * block);
  do {
    spec.scale_format = random.one_of(kScaleFormats).value;
    spec.scale_layout = random.one_of(kScaleLayouts).value;
  } while (!may_have_blocks(spec));
}

// Gives a spec an output of 8 or 4 bits, unless it is computed in f64.
void make_quantized(NormSpec& spec, Random& random) {
  NormSpec quantized = spec;
  quantized.output = random.one_of({DType::e4m3, DType::e5m2, DType::s8});
  quantized.quantization = random.one_of({Quantization::row, Quantization::tensor});
  if (random.below(3) == 0) make_blocks(quantized, random);
  if (spec.channels_first) quantized.quantization = Quantization::tensor;
  if (quantized.output != DType::s8 && random.below(4) == 0) quantized.quantization = Quantization::none;
  if (scales_blocks(quantized) && block_columns(quantized) <= 32 && random.coin())
    quantized.output = DType::e2m1;
  quantized.inverse_scale = random.coin();
  quantized.upper_bound = quantized.output == DType::e4m3 && random.coin();
  if (!spec.channels_first && quantized.quantization != Quantization::none && random.below(4) == 0)
    quantized.also = random.one_of(kAlsos).value;
  if (scales_rows(quantized) || scales_blocks(quantized)) quantized.amax = false;
  if (random.coin()) quantized.rounding = static_cast<Rounding>(static_cast<int>(spec.rounding) % 4 + 4);
  drop_meaningless(quantized);
  if (compute_type(quantized) == DType::f32) spec = quantized;
}

}  // namespace

std::int64_t random_columns(Random& random, std::int64_t most) {
  const int bits = std::bit_width(static_cast<std::uint64_t>(most));
  const std::int64_t power = std::int64_t{1} << random.below(static_cast<std::uint64_t>(bits));
  std::int64_t columns = 1;
  switch (random.below(5)) {
    case 0:
      columns = random.between(1, 128);
      break;
    case 1:
      columns = power;
      break;
    case 2:
      columns = power + random.between(-3, 3);
      break;
    case 3:
      columns = random.between(power, 2 * power - 1);
      break;
    case 4:
      columns = random.between(power, 2 * power - 1) / 8 * 8;
      break;
  }
  return std::clamp(columns, std::int64_t{1}, most);
}

void make_channels_first(NormSpec& spec) {
  spec.channels_first = true;
  spec.affine_rows = false;
  spec.gate = Gate::none;
  spec.modulation = Modulation::none;
  if (scales_rows(spec) || scales_blocks(spec)) spec.quantization = Quantization::tensor;
  if (spec.output == DType::e2m1) spec.output = DType::e4m3;
  spec.also = Also::none;
  spec.amax = false;
  drop_meaningless(spec);
}

void make_backward(NormSpec& spec, Random& random) {
  constexpr std::int64_t kMostModulated = 512;  // columns that a block of any device holds
  const auto wide_enough = [](DType type) { return is_narrow(type) ? DType::f32 : type; };
  spec = {.norm = spec.norm,
          .backward = true,
          .columns = spec.columns,
          .input = spec.input,
          .output = wide_enough(spec.output),
          .weight = spec.weight,
          .gradient_type = random.coin() ? spec.input : random_dtype(random),
          .residual_type = spec.residual_type,
          .modulation_type = spec.modulation_type,
          .epsilon = spec.epsilon,
          .gate = random.below(3) == 0 ? random.one_of(kGates).value : Gate::none,
          .gate_function = random.one_of(kGateFunctions).value,
          .dsum = random.coin(),
          .affine = spec.affine,
          .weight_offset = spec.weight_offset,
          .modulation = spec.columns <= kMostModulated ? spec.modulation : Modulation::none,
          .plain_modulation = spec.plain_modulation,
          .modulation_table = spec.modulation_table,
          .activation = spec.activation,
          .scale = spec.scale,
          .statistics = spec.statistics,
          .need = random.below(3) == 0 ? random.one_of(kNeeds).value : Need::all};
  if (spec.gate != Gate::none) spec.modulation = Modulation::none;
  if (spec.gate == Gate::after) spec.activation = Activation::none;
  if (written_gradients(spec) == 0) spec.need = Need::all;
  if (!writes_dx(spec)) spec.dsum = false;
  // What was computed in f64 may be in f32 now.
  if (spec.epsilon > largest_number(spec)) spec.epsilon = random_epsilon(random, true);
  if (std::fabs(spec.scale) > largest_number(spec)) spec.scale = random_scale(random, true);
}

NormSpec random_spec(Random& random, const SpecRange& range) {
  NormSpec spec{.columns = random_columns(random, range.most_columns), .input = random_dtype(random)};
  if (random.coin()) spec.output = random_dtype(random);
  if (random.coin()) spec.weight = random_dtype(random);
  spec.epsilon = random_epsilon(random, range.tame);
  spec.affine = random.one_of(kAffines).value;
  spec.activation = random.one_of(kActivations).value;
  spec.scale = random_scale(random, range.tame);
  spec.statistics = random.coin();
  if (range.every_norm) {
    spec.norm = random.coin() ? Norm::rms : Norm::layer;
    spec.residual = random.coin() ? Residual::before : random.one_of(kResiduals).value;
    if (random.below(3) == 0) spec.residual_type = random_dtype(random);
    spec.in_bias = random.below(4) == 0;
    if (random.below(3) == 0) {
      spec.gate = random.one_of(kGates).value;
      spec.gate_function = random.one_of(kGateFunctions).value;
      spec.gate_table = random.below(4) == 0;
    }
    if (random.below(3) == 0) {
      spec.modulation = random.one_of(kModulations).value;
      spec.plain_modulation = random.below(4) == 0;
      spec.modulation_table = random.below(4) == 0;
    }
    if (random.below(4) == 0) spec.modulation_type = random_dtype(random);
    if (spec.gate == Gate::after) spec.activation = Activation::none;
    spec.sum = random.coin();
    spec.rounding =
        random.coin() ? Rounding::none : kRoundings[random.below(4)].value;  // y comes with a quantization
    spec.weight_offset = random.below(4) == 0;
    spec.affine_rows = random.below(8) == 0;
    if (range.channels_first && random.below(6) == 0) make_channels_first(spec);
    drop_meaningless(spec);
  }
  if (range.every_norm && !spec.channels_first && compute_type(spec) == DType::f32)
    spec.amax = random.below(8) == 0;
  if (range.every_norm && random.below(4) == 0) make_quantized(spec, random);
  if (range.every_norm && range.backward && random.below(3) == 0) make_backward(spec, random);
  if (!validate(spec)) {  // beyond f32, in a spec that is computed in f32
    spec.epsilon = random_epsilon(random, true);
    spec.scale = random_scale(random, true);
  }
  return spec;
}

}  // namespace normjit
