// SPDX-License-Identifier: Apache-2.0
#include "bench/suite.h"

#include "cli/measure.h"
#include "cli/table.h"

namespace normjit::bench {

using namespace cli;

namespace {

constexpr std::int64_t kMB = 1'000'000;
constexpr std::int64_t kReferenceColumns = 64 * 256 * 256;
constexpr std::int64_t kWidest = 1 << 20;  // of the long rows that have a target
// The longest row that stays on chip between its statistics and its output: 132 multiprocessors keep 5.9
// million f32 beside what else they need.
constexpr std::int64_t kOnChipRowBytes = 23'600'000;

bool is_16_bit(DType dtype) { return size_of(dtype) == 2; }

bool whole_vectors(const NormSpec& spec) {
  constexpr int kVectorBytes = 16;
  return spec.columns * size_of(spec.input) % kVectorBytes == 0 &&
         spec.columns * size_of(spec.output) % kVectorBytes == 0;
}

bool is_reference(const NormSpec& spec, std::int64_t rows) {
  const NormSpec wide{.columns = kReferenceColumns, .input = spec.input, .affine = Affine::weight_bias};
  const NormSpec narrow{.columns = 64, .affine = Affine::weight_bias, .activation = Activation::gelu};
  return (rows == 16 && (spec.input == DType::f32 || spec.input == DType::bf16) && spec == wide) ||
         (rows == kReferenceColumns && spec == narrow);
}

Target reference_target(const NormSpec& spec) {
  const double microseconds = spec.columns == 64 ? 522 : spec.input == DType::f32 ? 150 : 80;
  return {Target::Kind::microseconds, microseconds};
}

Target activation_target(const NormSpec& spec, std::int64_t moved) {
  if (moved <= 64 * kMB || compute_type(spec) == DType::f64) return {};
  return {Target::Kind::of_plain, is_16_bit(spec.input) ? 1.10 : 1.03};
}

Target decode_target(const NormSpec& spec, std::int64_t rows) {
  if (rows == 1 && spec.input == DType::f16 && spec.columns == 4096) return {Target::Kind::microseconds, 1.7};
  if (rows == 1 && spec.input == DType::f16 && spec.columns == 16384)
    return {Target::Kind::microseconds, 2.2};
  return {Target::Kind::of_peers, 1.0};
}

Target few_target(const NormSpec& spec, std::int64_t moved) {
  if (moved <= 64 * kMB) return {};
  if (spec.columns * size_of(spec.input) <= kOnChipRowBytes) return {Target::Kind::of_copy, 0.85};
  return {Target::Kind::of_split_row, 0.95};
}

Target long_target(const NormSpec& spec, std::int64_t moved) {
  if (moved <= 64 * kMB || spec.columns > kWidest) return {};
  return {Target::Kind::of_copy, moved > 256 * kMB ? 0.93 : 0.90};
}

Target ordinary_target(std::int64_t moved) {
  if (moved < 8 * kMB) return {};
  return {Target::Kind::of_copy, moved > 64 * kMB ? 0.96 : 0.90};
}

// By rows and columns alone.
Regime shape_regime(const NormSpec& spec, std::int64_t rows) {
  if (rows <= 256 && spec.columns >= 1024 && spec.columns <= 16384 && is_16_bit(spec.input))
    return Regime::decode;
  if (rows <= 131 && spec.columns >= 65536) return Regime::few;
  if (!whole_vectors(spec)) return Regime::odd;
  if (spec.columns > 16384) return Regime::longer;
  return spec.columns >= 16 ? Regime::ordinary : Regime::narrow;
}

Target shape_target(Regime regime, const NormSpec& spec, std::int64_t moved) {
  switch (regime) {
    case Regime::few:
      return few_target(spec, moved);
    case Regime::odd:
      return moved > 64 * kMB ? Target{Target::Kind::of_copy, 0.90} : Target{};
    case Regime::longer:
      return long_target(spec, moved);
    case Regime::ordinary:
      return ordinary_target(moved);
    default:
      return {};
  }
}

// Whether it is more than a LayerNorm with affine, activation, scale and statistics.
bool is_fused(const NormSpec& spec) {
  return spec.norm != Norm::layer || spec.in_bias || spec.residual != Residual::none || spec.sum ||
         spec.rounding != Rounding::none || spec.weight_offset || spec.affine_rows ||
         spec.gate != Gate::none || spec.modulation != Modulation::none;
}

}  // namespace

std::string_view name(Regime regime) noexcept {
  switch (regime) {
    case Regime::reference:
      return "reference";
    case Regime::channels_first:
      return "channels_first";
    case Regime::quantized:
      return "quantized";
    case Regime::fused:
      return "fused";
    case Regime::activation:
      return "activation";
    case Regime::decode:
      return "decode";
    case Regime::few:
      return "few";
    case Regime::odd:
      return "odd";
    case Regime::longer:
      return "long";
    case Regime::ordinary:
      return "ordinary";
    case Regime::narrow:
      break;
  }
  return "narrow";
}

std::string regime_names() {
  std::string names;
  for (const Regime regime : kRegimes) names += (names.empty() ? "" : ", ") + std::string(name(regime));
  return names;
}

Result<Regime> parse_regime(std::string_view text) {
  for (const Regime regime : kRegimes)
    if (name(regime) == text) return regime;
  return Error{Code::BadArgument,
               "--regime is '" + std::string(text) + "'; it may be one of " + regime_names()};
}

Regime suite_regime(const NormSpec& spec, std::int64_t rows) noexcept {
  if (spec.channels_first) return Regime::channels_first;
  if (is_narrow(spec.output)) return Regime::quantized;
  if (is_fused(spec)) return Regime::fused;
  if (is_reference(spec, rows)) return Regime::reference;
  if (!(plain(spec) == spec)) return Regime::activation;
  return shape_regime(spec, rows);
}

std::string to_text(const Target& target) {
  switch (target.kind) {
    case Target::Kind::none:
      break;
    case Target::Kind::microseconds:
      return "<= " + fixed(target.bound, target.bound < 10 ? 1 : 0) + " us";
    case Target::Kind::of_copy:
      return ">= " + fixed(target.bound, 2) + " of copy";
    case Target::Kind::of_split_row:
      return ">= " + fixed(target.bound, 2) + " of two reads";
    case Target::Kind::of_plain:
      return "<= " + fixed(target.bound, 2) + " of plain";
    case Target::Kind::of_peers:
      return "<= fastest peer";
  }
  return "none";
}

Target target_of(const NormSpec& spec, std::int64_t rows) noexcept {
  const std::int64_t moved = bytes_moved(spec, rows);
  const Regime regime = suite_regime(spec, rows), shape = shape_regime(spec, rows);
  switch (regime) {
    case Regime::channels_first:
      return moved > 64 * kMB ? Target{Target::Kind::of_copy, 0.90} : Target{};
    case Regime::quantized:
      if (moved <= 64 * kMB || shape == Regime::odd) return {};
      return {Target::Kind::of_copy, spec.output == DType::e2m1                        ? 0.70
                                     : scales_blocks(spec) && block_columns(spec) < 64 ? 0.85
                                                                                       : 0.95};
    case Regime::reference:
      return reference_target(spec);
    case Regime::activation:
      return activation_target(spec, moved);
    case Regime::decode:
      return decode_target(spec, rows);
    case Regime::fused:
      if (shape == Regime::decode) return {Target::Kind::of_peers, 1.0};
      return shape_target(shape, spec, moved);
    default:
      return shape_target(regime, spec, moved);
  }
}

NormSpec plain(NormSpec spec) noexcept {
  spec.activation = Activation::none;
  spec.scale = 1.0;
  return spec;
}

}  // namespace normjit::bench
