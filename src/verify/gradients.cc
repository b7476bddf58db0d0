// SPDX-License-Identifier: Apache-2.0
#include "verify/gradients.h"

#include <algorithm>
#include <cmath>

#include "normjit/base/run_on_threads.h"
#include "normjit/spec/valid.h"
#include "verify/element.h"

namespace normjit::oracle {
namespace {

constexpr std::int64_t kBatch = 1024;     // elements converted to double at a time
constexpr std::int64_t kPiece = 1 << 15;  // elements a thread takes at a time, in whole rows
// Pieces into which the sums over rows are cut where columns alone make fewer. Fixed, so that the order of
// additions is the same on every machine.
constexpr std::int64_t kFewestPieces = 64;
constexpr std::int64_t kFewestRows = 64;  // of a piece

// Of a normalized value; NaN stays.
double size_of_normalized(double n) { return std::fabs(n) < 1 ? 1 : std::fabs(n); }

// n and g of some columns of a row.
struct Terms {
  double n[kBatch], g[kBatch];

  void load_from(const NormSpec& spec, const RowInputs& inputs, const RowStatistics& statistics,
                 std::int64_t first, std::int64_t count) noexcept {
    double w[kBatch];
    const bool weighs = inputs[Operand::weight] != nullptr;
    reference_sums(spec, inputs, first, count, n);
    load(spec.output, inputs[Operand::dy], first, count, inputs.step, g);
    if (weighs) load(spec.weight, inputs[Operand::weight], first, count, w);
    for (std::int64_t i = 0; i < count; ++i) {
      n[i] = (n[i] - statistics.mean) * statistics.rstd;
      if (weighs) g[i] *= spec.weight_offset ? 1 + w[i] : w[i];
    }
  }
};

// The sums of a column over some rows.
struct ColumnSums {
  double dweight = 0, weight_size = 0, offset = 0, share = 0;
  double dbias = 0, bias_size = 0;

  void add(double dy, double n, double row_offset, double row_share) noexcept {
    const double size = std::fabs(dy);
    dweight += dy * n;
    weight_size += size * size_of_normalized(n);
    offset += size * row_offset;
    share += size * std::fabs(n) * row_share;
    dbias += dy;
    bias_size += size;
  }
  void add(const ColumnSums& other) noexcept {
    dweight += other.dweight;
    weight_size += other.weight_size;
    offset += other.offset;
    share += other.share;
    dbias += other.dbias;
    bias_size += other.bias_size;
  }
};

std::vector<RowStatistics> statistics_of_rows(const Problem& problem) {
  std::vector<RowStatistics> all(static_cast<std::size_t>(problem.rows));
  const std::int64_t piece = std::max<std::int64_t>(1, kPiece / problem.spec.columns);
  parallel_for(problem.rows, piece, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      all[static_cast<std::size_t>(row)] = row_statistics(problem.spec, inputs_of(problem, row));
  });
  return all;
}

}  // namespace

RowGradients row_gradients(const NormSpec& spec, const RowInputs& inputs) noexcept {
  RowGradients row{.statistics = row_statistics(spec, inputs)};
  Terms terms;
  for (std::int64_t first = 0; first < spec.columns; first += kBatch) {
    const std::int64_t count = std::min(kBatch, spec.columns - first);
    terms.load_from(spec, inputs, row.statistics, first, count);
    // Batch by batch, so that a long row loses no more than a short one.
    RowGradients batch;
    for (std::int64_t i = 0; i < count; ++i) {
      const double n = terms.n[i], g = terms.g[i];
      batch.mean_g += g;
      batch.mean_gn += g * n;
      batch.size_g += std::fabs(g);
      batch.size_gn += std::fabs(g) * size_of_normalized(n);
    }
    row.mean_g += batch.mean_g;
    row.mean_gn += batch.mean_gn;
    row.size_g += batch.size_g;
    row.size_gn += batch.size_gn;
  }
  for (double* const sum : {&row.mean_g, &row.mean_gn, &row.size_g, &row.size_gn})
    *sum /= static_cast<double>(spec.columns);
  if (spec.norm != Norm::layer) row.mean_g = 0;
  return row;
}

void reference_dx(const NormSpec& spec, const RowInputs& inputs, const RowGradients& row, std::int64_t first,
                  std::int64_t count, GradientValue* to) noexcept {
  const double rstd = row.statistics.rstd, offset = std::fabs(row.statistics.mean * rstd);
  const bool adds = inputs[Operand::dsum] != nullptr;
  Terms terms;
  double dsum[kBatch] = {};
  for (std::int64_t done = 0; done < count; done += kBatch) {
    const std::int64_t batch = std::min(kBatch, count - done);
    terms.load_from(spec, inputs, row.statistics, first + done, batch);
    if (adds) load(spec.residual_type, inputs[Operand::dsum], first + done, batch, inputs.step, dsum);
    for (std::int64_t i = 0; i < batch; ++i) {
      const double n = terms.n[i], g = terms.g[i], size = size_of_normalized(n);
      const double own = rstd * (std::fabs(g) + row.size_g + size * row.size_gn);
      to[done + i] = {.value = rstd * (g - row.mean_g - n * row.mean_gn) + dsum[i],
                      .magnitude = own + std::fabs(dsum[i]),
                      .offset = rstd * offset * (std::fabs(row.mean_gn) + size * row.size_g),
                      .offset_squared = rstd * offset * offset * row.size_g,
                      // rstd is a factor of all of it, and of both n.
                      .share = 3 * own};
    }
  }
}

ColumnGradients column_gradients(const Problem& problem, std::span<const double> rstd_shares) {
  const NormSpec& spec = problem.spec;
  ColumnGradients result;
  if (!has_gradient_type(spec)) return result;
  const std::vector<RowStatistics> statistics = statistics_of_rows(problem);

  const std::int64_t blocks = (spec.columns + kBatch - 1) / kBatch;
  const std::int64_t wanted = std::max<std::int64_t>(1, kFewestPieces / blocks);
  const std::int64_t rows_of_slice = std::max(kFewestRows, (problem.rows + wanted - 1) / wanted);
  const std::int64_t slices = std::max<std::int64_t>(1, (problem.rows + rows_of_slice - 1) / rows_of_slice);
  std::vector<ColumnSums> sums(static_cast<std::size_t>(slices * spec.columns));
  parallel_for(slices * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    double x[kBatch], dy[kBatch];
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const std::int64_t slice = piece / blocks, first = piece % blocks * kBatch;
      const std::int64_t count = std::min(kBatch, spec.columns - first);
      ColumnSums* const to = sums.data() + slice * spec.columns + first;
      const std::int64_t last = std::min(problem.rows, (slice + 1) * rows_of_slice);
      for (std::int64_t row = slice * rows_of_slice; row < last; ++row) {
        const auto& [mean, rstd] = statistics[static_cast<std::size_t>(row)];
        const double share = rstd_shares.empty() ? 0 : rstd_shares[static_cast<std::size_t>(row)];
        load(spec.input, problem.row(Operand::x, row), first, count, x);
        load(spec.output, problem.row(Operand::dy, row), first, count, dy);
        for (std::int64_t i = 0; i < count; ++i)
          to[i].add(dy[i], (x[i] - mean) * rstd, std::fabs(mean * rstd), share);
      }
    }
  });

  const auto columns = static_cast<std::size_t>(spec.columns);
  result.weight.resize(columns);
  if (row_of(Operand::dbias).present(spec)) result.bias.resize(columns);
  for (std::size_t i = 0; i < columns; ++i) {
    ColumnSums all = sums[i];
    for (std::size_t slice = 1; slice < static_cast<std::size_t>(slices); ++slice)
      all.add(sums[slice * columns + i]);
    result.weight[i] = {
        .value = all.dweight, .magnitude = all.weight_size, .offset = all.offset, .share = all.share};
    if (!result.bias.empty()) result.bias[i] = {.value = all.dbias, .magnitude = all.bias_size};
  }
  return result;
}

double tolerance(const NormSpec& spec, DType dtype, const GradientValue& expected) noexcept {
  const double part = compute_type(spec) == DType::f64 ? 4e-16 : 2e-7;
  const double moved = part * expected.offset + part * part * expected.offset_squared;
  switch (dtype) {
    case DType::f64:
      return 1e-12 * expected.magnitude + moved;
    case DType::f32:  // what is below half of its smallest number becomes 0
      return 1e-5 * expected.magnitude + moved + 0x1p-150;
    default: {
      const double unit = std::isfinite(expected.value) ? unit_in_last_place(dtype, expected.value) : 0;
      // Gradients are sums whose terms may cancel. What shows then is the last rounding on top of the error.
      return std::max(unit, unit / 2 + 4e-6 * expected.magnitude + moved);
    }
  }
}

}  // namespace normjit::oracle
