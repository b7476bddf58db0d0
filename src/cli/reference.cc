#include "cli/reference.h"

#include <algorithm>
#include <cmath>

#include "cli/element.h"

namespace normjit::cli {
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

// The sum of term(x) over a row.
template <class Term>
double sum_over(const NormSpec& spec, const void* x_row, Term term) {
  Sum sum;
  double x[kBatch];
  for (std::int64_t first = 0; first < spec.columns; first += kBatch) {
    const std::int64_t count = std::min(kBatch, spec.columns - first);
    load(spec.input, x_row, first, count, x);
    for (std::int64_t i = 0; i < count; ++i) sum.add(term(x[i]));
  }
  return sum.value();
}

}  // namespace

RowStatistics row_statistics(const NormSpec& spec, const void* x_row) noexcept {
  const double columns = static_cast<double>(spec.columns);
  const double mean = sum_over(spec, x_row, [](double x) { return x; }) / columns;
  const double variance =
      sum_over(spec, x_row, [mean](double x) { return (x - mean) * (x - mean); }) / columns;
  return {mean, 1 / std::sqrt(variance + spec.epsilon)};
}

void reference_values(const NormSpec& spec, const void* x_row, const void* weight, const void* bias,
                      const RowStatistics& statistics, std::int64_t first, std::int64_t count,
                      ReferenceValue* to) noexcept {
  const double scale = std::fabs(spec.scale);
  const double offset = std::fabs(statistics.mean * statistics.rstd);
  double x[kBatch], w[kBatch], b[kBatch];
  std::fill(w, w + kBatch, 1.0);
  std::fill(b, b + kBatch, 0.0);
  for (std::int64_t done = 0; done < count; done += kBatch) {
    const std::int64_t batch = std::min(kBatch, count - done);
    load(spec.input, x_row, first + done, batch, x);
    if (weight != nullptr) load(spec.weight, weight, first + done, batch, w);
    if (bias != nullptr) load(spec.weight, bias, first + done, batch, b);
    for (std::int64_t i = 0; i < batch; ++i) {
      const double weighted = (x[i] - statistics.mean) * statistics.rstd * w[i];
      to[done + i] = {.value = spec.scale * activate(spec.activation, weighted + b[i]),
                      .magnitude = scale * std::max(1.0, std::fabs(weighted) + std::fabs(b[i])),
                      .offset = scale * offset * std::fabs(w[i])};
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

}  // namespace normjit::cli
