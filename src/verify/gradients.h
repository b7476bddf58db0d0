// SPDX-License-Identifier: Apache-2.0
// The gradients of a backward spec in double precision on the host: what its kernels are measured against.
// Written from the formula in spec.h alone, it shares nothing with the kernels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "normjit/spec.h"
#include "verify/problem.h"
#include "verify/reference.h"

namespace normjit::oracle {

// One exact gradient, before it is rounded, and what its error is measured by. |n| counts as 1 at least, as
// it does in ReferenceValue: rounding moves a normalized value near 0, too.
struct GradientValue {
  double value = 0;
  // The size of the terms, for rounding errors of the compute type. Of dx rstd * (|g| + mean of |g| + |n| *
  // mean of |g * n|) + |dsum|, of dweight the sum of |da * n|, of dbias the sum of |da|. With a smooth
  // activation |dy * scale| * (1 + |n * weight| + |bias|) counts as |da|, since the argument is rounded. The
  // factor of a modulation counts as 1 + |scale| + |table|, and its shift is a term of the argument. A
  // gate in front of the norm multiplies that of dx; of dgate the slope of its function counts as 1 at least.
  double magnitude = 0;
  // By how much a rounding of a row's mean moves it, for an error of one part of the mean, and of that part
  // squared. Such an error moves all n of the row by |mean * rstd| times that part.
  double offset = 0, offset_squared = 0;
  // By how much relative errors of rstd move it, in first order: of dx for an error of 1, of dweight for the
  // shares that were given.
  double share = 0;
  // By how much it moves where arguments of relu are so near 0 that their rounding decides.
  double jump = 0;
};

// What all columns of dx of a row are made of.
struct RowGradients {
  RowStatistics statistics;
  double mean_g = 0;               // 0 for a norm without a mean
  double mean_gn = 0;              // of g * n
  double size_g = 0;               // mean of |g|, as GradientValue::magnitude counts it
  double size_gn = 0;              // mean of |g| * max(1, |n|), likewise
  double bend_g = 0, bend_gn = 0;  // by how much g and g * n move with n, likewise
  double jump_g = 0, jump_gn = 0;  // the means of what jumps
  // By how much n of the row moves, at most, as GradientValue::offset counts it. With a gate in front of the
  // norm 4 times the largest |s * rstd| is added, for the roundings of its function and product.
  double offset = 0;
};
RowGradients row_gradients(const NormSpec& spec, const RowInputs& inputs) noexcept;

// Of dmod_scale and dmod_shift of an element.
struct ModulationGradient {
  GradientValue scale, shift;
};

// dx of columns [first, first + count); and dgate, unless that is null, where the spec has a gate; and the
// gradients of a modulation of this row alone, likewise.
void reference_dx(const NormSpec& spec, const RowInputs& inputs, const RowGradients& row, std::int64_t first,
                  std::int64_t count, GradientValue* to, GradientValue* dgate = nullptr,
                  ModulationGradient* of_modulation = nullptr) noexcept;

// The sums of those of a modulation over so many rows from `first` on. `rstd_shares` as below. Throws
// std::bad_alloc.
std::vector<ModulationGradient> group_gradients(const Problem& problem, std::int64_t first, std::int64_t rows,
                                                std::span<const double> rstd_shares = {});

// dweight and dbias, each empty where it is not written.
struct ColumnGradients {
  std::vector<GradientValue> weight, bias;
};
// Over all rows of the problem. `rstd_shares` has the relative error of each row's rstd, or is empty. Uses
// all cores; the result does not depend on their number. Throws std::bad_alloc.
ColumnGradients column_gradients(const Problem& problem, std::span<const double> rstd_shares = {});

// How far a gradient of this dtype may be from the exact value:
//   f32      1e-5 of the magnitude, and half of the smallest number
//   16 bits  one unit in the last place; where terms cancel, half of one and 4e-6 of the magnitude
//   f64      1e-12 of the magnitude
// and as far as the rounding of a mean moves it, by 2e-7 of the mean in f32 and 4e-16 in f64.
double tolerance(const NormSpec& spec, DType dtype, const GradientValue& expected) noexcept;

}  // namespace normjit::oracle
