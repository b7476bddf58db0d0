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

// Sets unit and margin of a value whose normalized value, `exact`, is rounded; `offset` as there, unscaled.
void set_rounding(const NormSpec& spec, double exact, double offset, double factor, ReferenceValue& value) {
  if (!rounds_norm(spec) || !std::isfinite(exact)) return;
  const double unit = unit_in_last_place(spec.input, exact), below = std::floor(exact / unit) * unit;
  const double distance = std::fabs(exact - below - unit / 2);
  value.unit = std::fabs(factor) * unit;
  value.margin = std::max(0.0, distance - 2e-7 * offset) / std::max(1.0, std::fabs(exact));
}

// Loads part of an operand, or leaves what is there where the spec has none.
void load_if_given(const NormSpec& spec, const RowInputs& inputs, Operand operand, std::int64_t first,
                   std::int64_t count, double* to) {
  if (inputs[operand] != nullptr) load(row_of(operand).dtype(spec), inputs[operand], first, count, to);
}

}  // namespace

RowStatistics row_statistics(const NormSpec& spec, const RowInputs& inputs) noexcept {
  const double mean = spec.norm == Norm::layer ? mean_over(spec, inputs, [](double s) { return s; }) : 0;
  const double square = mean_over(spec, inputs, [mean](double s) { return (s - mean) * (s - mean); });
  return {mean, 1 / std::sqrt(square + spec.epsilon)};
}

void reference_sums(const NormSpec& spec, const RowInputs& inputs, std::int64_t first, std::int64_t count,
                    double* to) noexcept {
  load(spec.input, inputs[Operand::x], first, count, to);
  const bool both = spec.in_bias && spec.residual == Residual::before;
  const auto add = [&](Operand operand) {
    double added[kBatch];
    for (std::int64_t done = 0; done < count; done += kBatch) {
      const std::int64_t batch = std::min(kBatch, count - done);
      load(row_of(operand).dtype(spec), inputs[operand], first + done, batch, added);
      for (std::int64_t i = 0; i < batch; ++i) {
        double& sum = to[done + i];
        sum += added[i];
        if (rounds_sum(spec) || (both && operand == Operand::in_bias)) sum = rounded(compute_type(spec), sum);
      }
    }
  };
  if (spec.in_bias) add(Operand::in_bias);
  if (spec.residual == Residual::before) add(Operand::residual);
  if (rounds_sum(spec))
    for (std::int64_t i = 0; i < count; ++i) to[i] = rounded(sum_type(spec), to[i]);
}

void reference_values(const NormSpec& spec, const RowInputs& inputs, const RowStatistics& statistics,
                      std::int64_t first, std::int64_t count, ReferenceValue* to) noexcept {
  const double scale = std::fabs(spec.scale);
  const double offset = std::fabs(statistics.mean * statistics.rstd);
  double s[kBatch], w[kBatch], b[kBatch], behind[kBatch];
  std::fill(w, w + kBatch, 1.0);
  std::fill(b, b + kBatch, 0.0);
  std::fill(behind, behind + kBatch, 0.0);
  for (std::int64_t done = 0; done < count; done += kBatch) {
    const std::int64_t batch = std::min(kBatch, count - done);
    reference_sums(spec, inputs, first + done, batch, s);
    load_if_given(spec, inputs, Operand::weight, first + done, batch, w);
    load_if_given(spec, inputs, Operand::bias, first + done, batch, b);
    if (spec.residual == Residual::after)
      load_if_given(spec, inputs, Operand::residual, first + done, batch, behind);
    for (std::int64_t i = 0; i < batch; ++i) {
      const double weight = spec.weight_offset ? 1 + w[i] : w[i];
      const double exact = (s[i] - statistics.mean) * statistics.rstd;
      const double normalized = rounds_norm(spec) ? rounded(spec.input, exact) : exact;
      const double weighted = normalized * weight;
      to[done + i] = {
          .value = spec.scale * activate(spec.activation, weighted + b[i]) + behind[i],
          .magnitude = scale * std::max(1.0, std::fabs(weighted) + std::fabs(b[i])) + std::fabs(behind[i]),
          .offset = scale * offset * std::fabs(weight)};
      set_rounding(spec, exact, offset, spec.scale * weight, to[done + i]);
    }
  }
}

double activate(Activation activation, double value) noexcept {
  constexpr double kRootHalf = 0.70710678118654752440;       // sqrt(1 / 2)
  constexpr double kRootTwoOverPi = 0.79788456080286535588;  // sqrt(2 / pi)
  switch (activation) {
    case Activation::none:
      return value;
    case Activation::relu:
      return value < 0 ? 0 : value;
    case Activation::gelu:  // 1 + erf(v) is erfc(-v), without the cancellation where erf is near -1
      return 0.5 * value * std::erfc(-value * kRootHalf);
    case Activation::gelu_tanh: {  // (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)), likewise
      const double u = kRootTwoOverPi * (value + 0.044715 * value * value * value);
      return value / (1 + std::exp(-2 * u));
    }
    case Activation::silu:
      return value / (1 + std::exp(-value));
  }
  return value;
}

}  // namespace normjit::oracle
