// SPDX-License-Identifier: Apache-2.0
#include "verify/reference.h"

#include <algorithm>
#include <cmath>

#include "normjit/spec/valid.h"
#include "verify/element.h"

namespace normjit::oracle {
namespace {

constexpr std::int64_t kBatch = 1024;  // elements converted to double at a time

// Neumaier's sum: the error of each addition is kept and added at the end.
class Sum {
 public:
  void add(double value) noexcept {
    const double sum = sum_ + value;
    lost_ += std::fabs(sum_) >= std::fabs(value) ? sum_ - sum + value : value - sum + sum_;
    sum_ = sum;
  }
  // Without the compensation, which is NaN then, where an infinity was added.
  double value() const noexcept { return std::isfinite(sum_) ? sum_ + lost_ : sum_; }

 private:
  double sum_ = 0, lost_ = 0;
};

// The mean of term(s) over a row.
template <class Term>
double mean_over(const NormSpec& spec, const RowInputs& inputs, Term term) {
  Sum sum;
  double s[kBatch];
  for (std::int64_t first = 0; first < spec.columns; first += kBatch) {
    const std::int64_t count = std::min(kBatch, spec.columns - first);
    reference_sums(spec, inputs, first, count, s);
    for (std::int64_t i = 0; i < count; ++i) sum.add(term(s[i]));
  }
  return sum.value() / static_cast<double>(spec.columns);
}

// By how much an activation stretches the distance of two arguments, at most: gelu by 1.129 near sqrt(2),
// silu by 1.0999 near 2.4.
double steepest(Activation activation) {
  return activation == Activation::none || activation == Activation::relu ? 1 : 1.13;
}

// Sets unit and margin of a value whose normalized value, `exact`, is rounded; `offset` as there, unscaled.
void set_rounding(const NormSpec& spec, double exact, double offset, double factor, ReferenceValue& value) {
  if (!rounds_norm(spec) || !std::isfinite(exact)) return;
  const double unit = unit_in_last_place(spec.input, exact), below = std::floor(exact / unit) * unit;
  const double distance = std::fabs(exact - below - unit / 2);
  value.unit = factor * unit;
  value.margin = std::max(0.0, distance - 2e-7 * offset) / std::max(1.0, std::fabs(exact));
}

// An element of a table, 0 where the spec has none.
double table_at(const NormSpec& spec, const RowInputs& inputs, Operand table, std::int64_t column) {
  double value = 0;
  if (inputs[table] != nullptr) load(row_of(table).dtype(spec), inputs[table], column, 1, &value);
  return value;
}

// Loads part of an operand that the spec has.
void load_of(const NormSpec& spec, const RowInputs& inputs, Operand operand, std::int64_t first,
             std::int64_t count, double* to) {
  const OperandRow& row = row_of(operand);
  load(row.dtype(spec), inputs[operand], first, count, is_matrix(row, spec) ? inputs.step : 1, to);
}
// Loads part of an operand, or leaves what is there where the spec has none.
void load_if_given(const NormSpec& spec, const RowInputs& inputs, Operand operand, std::int64_t first,
                   std::int64_t count, double* to) {
  if (inputs[operand] != nullptr) load_of(spec, inputs, operand, first, count, to);
}

// Raises the largest number so far to another one; NaN stays.
void raise(double& largest, double value) {
  if (!(value <= largest) && !std::isnan(largest)) largest = value;
}

}  // namespace

RowStatistics row_statistics(const NormSpec& spec, const RowInputs& inputs) noexcept {
  if (reads_statistics(spec)) {
    RowStatistics given;
    const DType dtype = compute_type(spec);
    if (spec.norm == Norm::layer) load(dtype, inputs[Operand::saved_mean], 0, 1, &given.mean);
    load(dtype, inputs[Operand::saved_rstd], 0, 1, &given.rstd);
    return given;
  }
  const double mean = spec.norm == Norm::layer ? mean_over(spec, inputs, [](double s) { return s; }) : 0;
  const double square = mean_over(spec, inputs, [mean](double s) { return (s - mean) * (s - mean); });
  return {mean, 1 / std::sqrt(square + spec.epsilon)};
}

void reference_sums(const NormSpec& spec, const RowInputs& inputs, std::int64_t first, std::int64_t count,
                    double* to) noexcept {
  load_of(spec, inputs, Operand::x, first, count, to);
  const bool more = spec.gate == Gate::before || spec.residual == Residual::before;
  // Calls each(sum, value of the operand).
  const auto with = [&](Operand operand, auto each) {
    double values[kBatch];
    for (std::int64_t done = 0; done < count; done += kBatch) {
      const std::int64_t batch = std::min(kBatch, count - done);
      load_of(spec, inputs, operand, first + done, batch, values);
      for (std::int64_t i = 0; i < batch; ++i) each(to[done + i], values[i], done + i);
    }
  };
  const auto add = [&](Operand operand) {
    with(operand, [&](double& sum, double added, std::int64_t) {
      sum += added;
      if (rounds_sum(spec) || (more && operand == Operand::in_bias)) sum = rounded(compute_type(spec), sum);
    });
  };
  if (spec.in_bias) add(Operand::in_bias);
  if (spec.gate == Gate::before)
    with(Operand::gate, [&](double& sum, double gate, std::int64_t i) {
      sum *= gate_factor(spec.gate_function, gate + table_at(spec, inputs, Operand::gate_table, first + i));
    });
  if (spec.residual == Residual::before) add(Operand::residual);
  if (rounds_sum(spec))
    for (std::int64_t i = 0; i < count; ++i) to[i] = rounded(sum_type(spec), to[i]);
}

void reference_sum_errors(const NormSpec& spec, const RowInputs& inputs, std::int64_t first,
                          std::int64_t count, const double* sums, double* to) noexcept {
  std::fill(to, to + count, 0.0);
  if (spec.gate != Gate::before) return;
  if (spec.residual == Residual::before) load_if_given(spec, inputs, Operand::residual, first, count, to);
  // Of two terms one is at most the sum and the other one.
  const double share = compute_type(spec) == DType::f64 ? 4e-15 : 2e-6;
  for (std::int64_t i = 0; i < count; ++i) to[i] = share * (std::fabs(sums[i]) + 2 * std::fabs(to[i]));
}

void reference_values(const NormSpec& spec, const RowInputs& inputs, const RowStatistics& statistics,
                      std::int64_t first, std::int64_t count, ReferenceValue* to) noexcept {
  const double scale = std::fabs(spec.scale);
  const double offset = std::fabs(statistics.mean * statistics.rstd);
  double s[kBatch], w[kBatch], b[kBatch], m[kBatch], t[kBatch], g[kBatch], r[kBatch];
  std::fill(w, w + kBatch, 1.0);
  for (double* const absent : {b, m, t, g, r}) std::fill(absent, absent + kBatch, 0.0);
  const bool modulates = spec.modulation != Modulation::none, gates = spec.gate == Gate::after;
  const double one = modulates && spec.plain_modulation ? 0 : 1;
  for (std::int64_t done = 0; done < count; done += kBatch) {
    const std::int64_t batch = std::min(kBatch, count - done);
    reference_sums(spec, inputs, first + done, batch, s);
    load_if_given(spec, inputs, Operand::weight, first + done, batch, w);
    load_if_given(spec, inputs, Operand::bias, first + done, batch, b);
    load_if_given(spec, inputs, Operand::mod_scale, first + done, batch, m);
    load_if_given(spec, inputs, Operand::mod_shift, first + done, batch, t);
    load_if_given(spec, inputs, Operand::gate, first + done, batch, g);
    load_if_given(spec, inputs, Operand::residual, first + done, batch, r);
    for (std::int64_t i = 0; i < batch; ++i) {
      const auto table = [&](Operand operand) { return table_at(spec, inputs, operand, first + done + i); };
      const double weight = spec.weight_offset ? 1 + w[i] : w[i];
      const double factor = one + m[i] + table(Operand::mod_scale_table);
      const double shift = t[i] + table(Operand::mod_shift_table);
      const double gate = gates ? gate_factor(spec.gate_function, g[i] + table(Operand::gate_table)) : 1;
      const double behind = spec.residual == Residual::after ? r[i] : 0;
      const double exact = (s[i] - statistics.mean) * statistics.rstd;
      const double normalized = rounds_norm(spec) ? rounded(spec.input, exact) : exact;
      const double weighted = normalized * weight;
      const double terms = (std::fabs(weighted) + std::fabs(b[i])) * std::fabs(factor) + std::fabs(shift);
      const double all = scale * std::fabs(gate), of_normalized = spec.scale * weight * factor * gate;
      ReferenceValue& one_value = to[done + i] = {
          .value = spec.scale * activate(spec.activation, (weighted + b[i]) * factor + shift) * gate + behind,
          .magnitude = all * std::max(1.0, terms) + std::fabs(behind),
          .offset = offset * std::fabs(of_normalized)};
      const double of_rounding = std::fabs(of_normalized) * steepest(spec.activation);
      set_rounding(spec, exact, offset, of_rounding, one_value);
      if (spec.gate != Gate::before) continue;
      // The product with the gate is rounded once, or twice; its terms may cancel in the sum.
      const double added = spec.residual == Residual::before ? std::fabs(r[i]) : 0;
      one_value.offset += 4 * (std::fabs(s[i]) + 2 * added) * statistics.rstd * std::fabs(of_normalized);
      if (!rounds_sum(spec) || !std::isfinite(s[i])) continue;
      one_value.unit += unit_in_last_place(sum_type(spec), s[i]) * statistics.rstd * of_rounding;
      one_value.margin = 0;
    }
  }
}

double before_quantization(const NormSpec& spec, double y) noexcept {
  const double value = rounded(DType::f32, y);
  return rounds_y(spec) ? rounded(spec.input, value) : value;
}

double quantized(const NormSpec& spec, double y, double scale) noexcept {
  const auto value = static_cast<float>(before_quantization(spec, y)), by = static_cast<float>(scale);
  if (spec.quantization == Quantization::none) return rounded(spec.output, value);
  if (spec.quantization == Quantization::tensor)
    return rounded(spec.output, value * (spec.inverse_scale ? by : 1 / by));
  const ScaleFormat format = scales_blocks(spec) ? spec.scale_format : ScaleFormat::f32;
  if (format == ScaleFormat::e4m3) return rounded(spec.output, value * by);
  const bool divides = format == ScaleFormat::f32 && spec.output != DType::s8;
  return rounded(spec.output, divides ? value / by : value * (1 / by));
}

void Largest::add(double y, double error) noexcept {
  const double size = std::fabs(y), by = std::isfinite(error) ? error : 0;
  raise(exact, size);
  raise(least, by < size ? size - by : std::isnan(y) ? y : 0);
  raise(most, size + by);
}

void Largest::add(const Largest& other) noexcept {
  raise(exact, other.exact);
  raise(least, other.least);
  raise(most, other.most);
}

double scale_for(const NormSpec& spec, double largest, double given) noexcept {
  const auto size = static_cast<float>(before_quantization(spec, largest)), by = static_cast<float>(given);
  const auto all = static_cast<float>(largest_quantized(spec.output));
  if (scales_rows(spec)) {
    const bool is_bound = spec.upper_bound && size > by;
    const float scale = (is_bound ? by : size) / all;
    const float floor = spec.output == DType::s8 ? 0x1p-23f : 1 / (512 * all);
    return scale < floor ? floor : scale;
  }
  if (spec.scale_format == ScaleFormat::e4m3) return rounded(DType::e4m3, by * (size * (1 / all)));
  const float scale = (size < 1e-10f ? 1e-10f : size) / all;
  const bool is_power = spec.scale_format == ScaleFormat::e8m0 ||
                        (spec.scale_format == ScaleFormat::power_of_two && !std::isinf(scale));
  return is_power ? rounded(DType::e8m0, scale) : scale;
}

double factor_of(double stored_scale, double global_scale) noexcept {
  const auto scale = static_cast<float>(stored_scale), global = static_cast<float>(global_scale);
  return scale == 0 ? 0 : global / scale;
}

double largest_quantized(DType output) noexcept {
  return output == DType::e4m3 ? 448 : output == DType::e5m2 ? 57344 : output == DType::e2m1 ? 6 : 127;
}

// sqrt(1 / 2), and sqrt(2 / pi). Gelu takes more digits than a double has, since those of value * kRootHalf
// decide about small results.
constexpr long double kRootHalf = 0.707106781186547524400844L;
constexpr long double kWideRoot = 0.797884560802865355879892L;
constexpr auto kRootTwoOverPi = static_cast<double>(kWideRoot);

double activate(Activation activation, double value) noexcept {
  switch (activation) {
    case Activation::none:
      return value;
    case Activation::relu:
      return value < 0 ? 0 : value;
    case Activation::gelu:  // 1 + erf(v) is erfc(-v), without the cancellation where erf is near -1
      return static_cast<double>(value * std::erfc(-value * kRootHalf) / 2);
    case Activation::gelu_tanh: {  // (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)), likewise
      const double u = kRootTwoOverPi * (value + 0.044715 * value * value * value);
      return value / (1 + std::exp(-2 * u));
    }
    case Activation::silu:
      return value / (1 + std::exp(-value));
  }
  return value;
}

double activation_slope(Activation activation, double value) noexcept {
  if (activation == Activation::none) return 1;
  if (std::isnan(value)) return value;
  if (activation == Activation::relu || std::isinf(value)) return value > 0 ? 1 : 0;
  switch (activation) {
    case Activation::gelu:
      return static_cast<double>(std::erfc(-value * kRootHalf) / 2 +
                                 value * kWideRoot / 2 * std::exp(-0.5L * value * value));
    case Activation::gelu_tanh: {
      const double u = kRootTwoOverPi * (value + 0.044715 * value * value * value);
      const double of_u = kRootTwoOverPi * (1 + 3 * 0.044715 * value * value), cosh = std::cosh(u);
      const double falls = std::isinf(cosh) ? 0 : value * 0.5 * of_u / (cosh * cosh);
      return 1 / (1 + std::exp(-2 * u)) + falls;
    }
    default: {  // silu
      const double lower = 1 / (1 + std::exp(value)), upper = 1 / (1 + std::exp(-value));
      return upper * (1 + value * lower);
    }
  }
}

double gate_factor(GateFunction function, double gate) noexcept {
  switch (function) {
    case GateFunction::none:
      return gate;
    case GateFunction::silu:
      return activate(Activation::silu, gate);
    case GateFunction::sigmoid:
      return 1 / (1 + std::exp(-gate));
    case GateFunction::tanh:
      return std::tanh(gate);
  }
  return gate;
}

}  // namespace normjit::oracle
