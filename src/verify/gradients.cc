// SPDX-License-Identifier: Apache-2.0
#include "verify/gradients.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

// What gradients of an element are made of, and how far their errors reach.
struct Term {
  double n, d, da, g;  // d: the gradient of the argument of the activation; da: of what the affine makes
  double weight;       // what da is multiplied by
  double size_of_d;    // of the terms of d
  double size_of_da;   // of the terms of da, and of g
  double arrives;      // dy * scale
  double affine;       // what the affine makes of n
  double size_of_affine;
  double gate = 1, slope = 0;  // what the gate multiplies by, and its derivative
  double bend = 0;             // by how much da moves with n, at most: of a smooth activation
  double jump = 0;             // of da, where the rounding of the argument of relu decides
  double bend_of_d = 0, jump_of_d = 0;
};

// What the slope of a gate's function counts as: that of sigmoid and tanh is a difference of terms up to 1.
double size_of_slope(double slope) { return std::fabs(slope) < 1 ? 1 : std::fabs(slope); }

double gate_slope(GateFunction function, double gate) {
  switch (function) {
    case GateFunction::none:
      return 1;
    case GateFunction::silu:
      return activation_slope(Activation::silu, gate);
    case GateFunction::sigmoid:
      return 1 / (1 + std::exp(-gate)) / (1 + std::exp(gate));
    case GateFunction::tanh: {
      const double cosh = std::cosh(gate);
      return 1 / cosh / cosh;
    }
  }
  return 1;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// What jumps by that may become anything, whatever it is multiplied by.
double jump_by(double jump, double factor) noexcept { return std::isinf(jump) ? jump : jump * factor; }

// A gradient that is multiplied, by a factor whose terms have a size.
GradientValue times(const GradientValue& gradient, double factor, double size) {
  return {.value = gradient.value * factor,
          .magnitude = gradient.magnitude * size,
          .offset = gradient.offset * size,
          .offset_squared = gradient.offset_squared * size,
          .share = gradient.share * size,
          .jump = jump_by(gradient.jump, size)};
}

// Adds what sums over rows are made of.
void add(const GradientValue& one, GradientValue& to) noexcept {
  for (const auto member : {&GradientValue::value, &GradientValue::magnitude, &GradientValue::offset,
                            &GradientValue::share, &GradientValue::jump})
    to.*member += one.*member;
}

// How much the slope of an activation changes with its argument, at most: 0.8 of gelu.
constexpr double kMostBend = 1;
// Beyond this argument, on either side, the slope of every activation is 0 or 1 to the last bit of a double.
constexpr double kFlat = 40;
// How far the argument of the activation may be off, relative to its terms; and the mean, relative to itself.
double share_of_rounding(const NormSpec& spec) { return compute_type(spec) == DType::f64 ? 1e-12 : 1e-5; }
double share_of_mean(const NormSpec& spec) { return compute_type(spec) == DType::f64 ? 4e-16 : 2e-7; }

// Those of some columns of a row.
struct Terms {
  Term at[kBatch];

  // The terms; `offset` is by how much all n move, as RowGradients::offset has it.
  void load_from(const NormSpec& spec, const RowInputs& inputs, const RowStatistics& statistics,
                 double offset, std::int64_t first, std::int64_t count) noexcept {
    double x[kBatch], dy[kBatch], w[kBatch], b[kBatch], gate[kBatch];
    double mod_scale[kBatch] = {}, scale_table[kBatch] = {}, mod_shift[kBatch] = {}, shift_table[kBatch] = {};
    std::fill(w, w + kBatch, 1.0);
    std::fill(b, b + kBatch, 0.0);
    const bool weighs = inputs[Operand::weight] != nullptr;
    reference_sums(spec, inputs, first, count, x);
    load(spec.output, inputs[Operand::dy], first, count, inputs.step, dy);
    if (weighs) load(spec.weight, inputs[Operand::weight], first, count, w);
    if (inputs[Operand::bias] != nullptr) load(spec.weight, inputs[Operand::bias], first, count, b);
    const bool gates = inputs[Operand::gate] != nullptr;
    if (gates) load(spec.modulation_type, inputs[Operand::gate], first, count, inputs.step, gate);
    const auto load_if_given = [&](Operand operand, std::int64_t step, double* to) {
      if (inputs[operand] != nullptr)
        load(row_of(operand).dtype(spec), inputs[operand], first, count, step, to);
    };
    load_if_given(Operand::mod_scale, inputs.step, mod_scale);
    load_if_given(Operand::mod_scale_table, 1, scale_table);
    load_if_given(Operand::mod_shift, inputs.step, mod_shift);
    load_if_given(Operand::mod_shift_table, 1, shift_table);
    const bool modulates = spec.modulation != Modulation::none;
    const double added = !modulates || !spec.plain_modulation ? 1 : 0;
    for (std::int64_t i = 0; i < count; ++i) {
      Term& term = at[i];
      term.n = (x[i] - statistics.mean) * statistics.rstd;
      term.weight = weighs && spec.weight_offset ? 1 + w[i] : w[i];
      if (gates) {
        term.gate = gate_factor(spec.gate_function, gate[i]);
        term.slope = gate_slope(spec.gate_function, gate[i]);
      }
      term.arrives = spec.scale * dy[i];
      const double arrives = spec.gate == Gate::after ? term.arrives * term.gate : term.arrives;
      const double factor = added + mod_scale[i] + scale_table[i];
      const double size_of_factor = added + std::fabs(mod_scale[i]) + std::fabs(scale_table[i]);
      const double size = std::fabs(term.weight * factor);
      term.affine = term.n * term.weight + b[i];
      term.size_of_affine = std::fabs(term.weight) * size_of_normalized(term.n) + std::fabs(b[i]);
      const double argument = term.affine * factor + mod_shift[i] + shift_table[i];
      term.d = arrives * activation_slope(spec.activation, argument);
      if (spec.activation == Activation::relu && argument <= 0) term.d = 0;  // also of an infinite dy
      term.size_of_d = std::fabs(term.d);
      term.bend_of_d = term.jump_of_d = 0;
      const double terms =
          term.size_of_affine * size_of_factor + std::fabs(mod_shift[i]) + std::fabs(shift_table[i]);
      const double near = share_of_rounding(spec) * terms + share_of_mean(spec) * offset * size;
      if (spec.activation == Activation::relu) {
        if (std::fabs(argument) <= near)
          term.jump_of_d = std::isnan(arrives) ? kInfinity : std::fabs(arrives);
      } else if (spec.activation != Activation::none) {
        term.size_of_d = std::fabs(arrives);
        // An infinite bias makes `near` infinite too, and the argument moves nowhere.
        const bool flat = std::isinf(argument) || std::fabs(argument) - near > kFlat;
        if (!flat) {
          term.bend_of_d = kMostBend * term.size_of_d * size;
          term.size_of_d *= 1 + kMostBend * terms;
        }
      }
      term.da = modulates ? term.d * factor : term.d;
      term.g = term.da * term.weight;
      term.size_of_da = term.size_of_d * size_of_factor;
      term.bend = term.bend_of_d * std::fabs(factor);
      term.jump = jump_by(term.jump_of_d, std::fabs(factor));
    }
  }
};

// The sums of a column over some rows.
struct ColumnSums {
  GradientValue dweight, dbias;

  void add(const Term& term, double row_offset, double row_share) noexcept {
    const double n = std::fabs(term.n), normalized = size_of_normalized(n);
    dweight.value += term.da * term.n;
    dweight.magnitude += term.size_of_da * normalized;
    dweight.offset += (std::fabs(term.da) + term.bend * normalized) * row_offset;
    dweight.share += (std::fabs(term.da) + term.bend * n) * n * row_share;
    dweight.jump += jump_by(term.jump, n);
    dbias.value += term.da;
    dbias.magnitude += term.size_of_da;
    // Without an activation a NaN in x is none in dbias.
    dbias.offset += term.bend > 0 ? term.bend * row_offset : 0;
    dbias.share += term.bend > 0 ? term.bend * n * row_share : 0;
    dbias.jump += term.jump;
  }
  void add(const ColumnSums& other) noexcept {
    oracle::add(other.dweight, dweight);
    oracle::add(other.dbias, dbias);
  }
};

// Of an element. What moves with rstd does by `share` of itself.
ModulationGradient modulation_gradient(const Term& term, double offset, double share) noexcept {
  const double n = std::fabs(term.n), d = std::fabs(term.d), w = std::fabs(term.weight);
  const double affine = std::fabs(term.affine), bend = term.bend_of_d;
  return {.scale = {.value = term.d * term.affine,
                    .magnitude = term.size_of_d * term.size_of_affine,
                    .offset = (d * w + bend * term.size_of_affine) * offset,
                    .share = (d * w + bend * affine) * n * share,
                    .jump = jump_by(term.jump_of_d, affine)},
          // Without an activation a NaN in x is none here.
          .shift = {.value = term.d,
                    .magnitude = term.size_of_d,
                    .offset = bend > 0 ? bend * offset : 0,
                    .share = bend > 0 ? bend * n * share : 0,
                    .jump = term.jump_of_d}};
}

// By how much all n of a row move, as RowGradients::offset has it.
double offset_of_row(const NormSpec& spec, const RowInputs& inputs, const RowStatistics& statistics) {
  const double of_mean = std::fabs(statistics.mean * statistics.rstd);
  if (spec.gate != Gate::before) return of_mean;
  double s[kBatch], largest = 0;
  for (std::int64_t first = 0; first < spec.columns; first += kBatch) {
    const std::int64_t count = std::min(kBatch, spec.columns - first);
    reference_sums(spec, inputs, first, count, s);
    for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(s[i]));
  }
  // An infinite element makes the rms infinite, whatever the others are.
  return std::isfinite(largest) ? of_mean + 4 * largest * statistics.rstd : of_mean;
}

struct MeasuredRow {
  RowStatistics statistics;
  double offset;
};
std::vector<MeasuredRow> measured_rows(const Problem& problem) {
  std::vector<MeasuredRow> all(static_cast<std::size_t>(problem.rows));
  const std::int64_t piece = std::max<std::int64_t>(1, kPiece / problem.spec.columns);
  parallel_for(problem.rows, piece, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const RowInputs inputs = inputs_of(problem, row);
      const RowStatistics statistics = row_statistics(problem.spec, inputs);
      all[static_cast<std::size_t>(row)] = {statistics, offset_of_row(problem.spec, inputs, statistics)};
    }
  });
  return all;
}

constexpr double RowGradients::*kMeans[] = {
    &RowGradients::mean_g, &RowGradients::mean_gn, &RowGradients::size_g, &RowGradients::size_gn,
    &RowGradients::bend_g, &RowGradients::bend_gn, &RowGradients::jump_g, &RowGradients::jump_gn};

}  // namespace

RowGradients row_gradients(const NormSpec& spec, const RowInputs& inputs) noexcept {
  RowGradients row{.statistics = row_statistics(spec, inputs)};
  row.offset = offset_of_row(spec, inputs, row.statistics);
  Terms terms;
  for (std::int64_t first = 0; first < spec.columns; first += kBatch) {
    const std::int64_t count = std::min(kBatch, spec.columns - first);
    terms.load_from(spec, inputs, row.statistics, row.offset, first, count);
    // Batch by batch, so that a long row loses no more than a short one.
    RowGradients batch;
    for (std::int64_t i = 0; i < count; ++i) {
      const Term& term = terms.at[i];
      const double w = std::fabs(term.weight), size = size_of_normalized(term.n);
      batch.mean_g += term.g;
      batch.mean_gn += term.g * term.n;
      batch.size_g += term.size_of_da * w;
      batch.size_gn += term.size_of_da * w * size;
      batch.bend_g += term.bend * w;
      batch.bend_gn += term.bend * w * size;
      batch.jump_g += jump_by(term.jump, w);
      batch.jump_gn += jump_by(term.jump, w * std::fabs(term.n));
    }
    for (const auto sum : kMeans) row.*sum += batch.*sum;
  }
  for (const auto sum : kMeans) row.*sum /= static_cast<double>(spec.columns);
  if (spec.norm != Norm::layer) row.mean_g = 0;
  return row;
}

void reference_dx(const NormSpec& spec, const RowInputs& inputs, const RowGradients& row, std::int64_t first,
                  std::int64_t count, GradientValue* to, GradientValue* dgate,
                  ModulationGradient* of_modulation) noexcept {
  const double rstd = row.statistics.rstd, offset = row.offset;
  const bool adds = inputs[Operand::dsum] != nullptr;
  Terms terms;
  double dsum[kBatch] = {}, x[kBatch];
  for (std::int64_t done = 0; done < count; done += kBatch) {
    const std::int64_t batch = std::min(kBatch, count - done);
    terms.load_from(spec, inputs, row.statistics, offset, first + done, batch);
    load(spec.input, inputs[Operand::x], first + done, batch, inputs.step, x);
    if (adds) load(spec.residual_type, inputs[Operand::dsum], first + done, batch, inputs.step, dsum);
    for (std::int64_t i = 0; i < batch; ++i) {
      const Term& term = terms.at[i];
      const double n = term.n, w = std::fabs(term.weight), size = size_of_normalized(n);
      const double own = rstd * (term.size_of_da * w + row.size_g + size * row.size_gn);
      const double bend = term.bend * w + row.bend_g + size * row.bend_gn;
      const GradientValue ds = {
          .value = rstd * (term.g - row.mean_g - n * row.mean_gn) + dsum[i],
          .magnitude = own + std::fabs(dsum[i]),
          .offset = rstd * offset * (std::fabs(row.mean_gn) + size * row.size_g + bend),
          .offset_squared = rstd * offset * offset * row.size_g,
          // rstd is a factor of all of it, and of both n; and of that in da.
          .share = (bend > 0 ? 4 : 3) * own,
          .jump = jump_by(jump_by(term.jump, w) + row.jump_g + jump_by(row.jump_gn, std::fabs(n)), rstd)};
      const bool before = spec.gate == Gate::before;
      to[done + i] = before ? times(ds, term.gate, std::fabs(term.gate)) : ds;
      if (of_modulation != nullptr) of_modulation[done + i] = modulation_gradient(term, offset, 1);
      if (dgate == nullptr) continue;
      const double slope = size_of_slope(term.slope);
      dgate[done + i] = before ? times(ds, x[i] * term.slope, std::fabs(x[i]) * slope)
                               : times({.value = term.affine,
                                        .magnitude = term.size_of_affine,
                                        .offset = w * offset,
                                        .share = w * std::fabs(n)},
                                       term.arrives * term.slope, std::fabs(term.arrives) * slope);
    }
  }
}

ColumnGradients column_gradients(const Problem& problem, std::span<const double> rstd_shares) {
  const NormSpec& spec = problem.spec;
  ColumnGradients result;
  if (!has_gradient_type(spec)) return result;
  const std::vector<MeasuredRow> measured = measured_rows(problem);

  const std::int64_t blocks = (spec.columns + kBatch - 1) / kBatch;
  const std::int64_t wanted = std::max<std::int64_t>(1, kFewestPieces / blocks);
  const std::int64_t rows_of_slice = std::max(kFewestRows, (problem.rows + wanted - 1) / wanted);
  const std::int64_t slices = std::max<std::int64_t>(1, (problem.rows + rows_of_slice - 1) / rows_of_slice);
  std::vector<ColumnSums> sums(static_cast<std::size_t>(slices * spec.columns));
  parallel_for(slices * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    Terms terms;
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const std::int64_t slice = piece / blocks, first = piece % blocks * kBatch;
      const std::int64_t count = std::min(kBatch, spec.columns - first);
      ColumnSums* const to = sums.data() + slice * spec.columns + first;
      const std::int64_t last = std::min(problem.rows, (slice + 1) * rows_of_slice);
      for (std::int64_t row = slice * rows_of_slice; row < last; ++row) {
        const MeasuredRow& of_row = measured[static_cast<std::size_t>(row)];
        const double share = rstd_shares.empty() ? 0 : rstd_shares[static_cast<std::size_t>(row)];
        terms.load_from(spec, inputs_of(problem, row), of_row.statistics, of_row.offset, first, count);
        for (std::int64_t i = 0; i < count; ++i) to[i].add(terms.at[i], of_row.offset, share);
      }
    }
  });

  const auto columns = static_cast<std::size_t>(spec.columns);
  if (writes_dweight(spec)) result.weight.resize(columns);
  if (writes_dbias(spec)) result.bias.resize(columns);
  for (std::size_t i = 0; i < columns; ++i) {
    ColumnSums all = sums[i];
    for (std::size_t slice = 1; slice < static_cast<std::size_t>(slices); ++slice)
      all.add(sums[slice * columns + i]);
    if (!result.weight.empty()) result.weight[i] = all.dweight;
    if (!result.bias.empty()) result.bias[i] = all.dbias;
  }
  return result;
}

std::vector<ModulationGradient> group_gradients(const Problem& problem, std::int64_t first, std::int64_t rows,
                                                std::span<const double> rstd_shares) {
  const NormSpec& spec = problem.spec;
  std::vector<ModulationGradient> sums(static_cast<std::size_t>(spec.columns));
  const std::int64_t blocks = (spec.columns + kBatch - 1) / kBatch;
  for (std::int64_t row = first; row < first + rows; ++row) {
    const RowInputs inputs = inputs_of(problem, row);
    const RowStatistics statistics = row_statistics(spec, inputs);
    const double offset = offset_of_row(spec, inputs, statistics);
    const double share = rstd_shares.empty() ? 0 : rstd_shares[static_cast<std::size_t>(row)];
    parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      Terms terms;
      for (std::int64_t block = begin; block < end; ++block) {
        const std::int64_t column = block * kBatch, count = std::min(kBatch, spec.columns - column);
        terms.load_from(spec, inputs, statistics, offset, column, count);
        for (std::int64_t i = 0; i < count; ++i) {
          const ModulationGradient one = modulation_gradient(terms.at[i], offset, share);
          ModulationGradient& to = sums[static_cast<std::size_t>(column + i)];
          add(one.scale, to.scale);
          add(one.shift, to.shift);
        }
      }
    });
  }
  return sums;
}

double tolerance(const NormSpec& spec, DType dtype, const GradientValue& expected) noexcept {
  const double part = share_of_mean(spec);
  const double moved = part * expected.offset + part * part * expected.offset_squared + expected.jump;
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
