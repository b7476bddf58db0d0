// SPDX-License-Identifier: Apache-2.0
// The norm of a spec in double precision on the host: what the kernels are measured against. Written from
// the formula in spec.h alone, it shares nothing with the kernels.
#pragma once

#include <cstdint>

#include "normjit/spec.h"
#include "normjit/spec/operands.h"

namespace normjit::oracle {

// The inputs of one row: of a matrix this row, of a vector all of it; null where the spec has none.
struct RowInputs : PerOperand<const void*> {
  std::int64_t step = 1;  // from one column to the next in a matrix, in elements
};

// The statistics of a row are those of s, which is x or the sum that stands in front of the norm.
struct RowStatistics {
  double mean = 0;  // 0 for a norm without one
  double rstd = 0;
};

// Layer: mean and 1 / sqrt(variance + epsilon); rms: 1 / sqrt(mean square + epsilon). Two passes with
// compensated sums, so that the result is good to the last bits for any length. Of a backward spec with
// statistics those that are given.
RowStatistics row_statistics(const NormSpec& spec, const RowInputs& inputs) noexcept;

// s of columns [first, first + count), before it is rounded to be stored. What is rounded before s is
// complete, x + in_bias in front of a gate or a residual, and what the spec rounds, is rounded as kernels do.
void reference_sums(const NormSpec& spec, const RowInputs& inputs, std::int64_t first, std::int64_t count,
                    double* to) noexcept;

// How far computing may move s of these columns besides the rounding to be stored: 0 without a gate, whose
// function and product are rounded. `sums` are reference_sums() of them.
void reference_sum_errors(const NormSpec& spec, const RowInputs& inputs, std::int64_t first,
                          std::int64_t count, const double* sums, double* to) noexcept;

// One exact output, before what rounds it (Rounding::y, the quantization, the output dtype), and what its
// error is measured by.
struct ReferenceValue {
  double value = 0;
  // The size of the terms: |scale| * (|normalized * weight| + |bias|), at least |scale|, modulated and gated
  // as they are.
  double magnitude = 0;
  // |scale * mean * rstd * weight|, likewise: how much of a row's common offset had to cancel.
  double offset = 0;
  // Where the normalized value is rounded: what its unit in the last place makes of the result, and how far
  // it is from the middle between two values, where an error decides; relative to it, where that is above 1.
  // Where a sum is rounded that a gate has made inexact, that of the sum, at any distance.
  double unit = 0;
  double margin = 1;
};

// y of columns [first, first + count).
void reference_values(const NormSpec& spec, const RowInputs& inputs, const RowStatistics& statistics,
                      std::int64_t first, std::int64_t count, ReferenceValue* to) noexcept;

// A result as it meets the quantization, also and amax: in f32, or with Rounding::y rounded to the input
// type.
double before_quantization(const NormSpec& spec, double y) noexcept;

// What a result becomes that is stored in 8 or 4 bits: every operation is rounded in f32, as spec.h has them,
// so that there is one right answer for each y, which grows with y, or with a negative scale falls. The scale
// is that of the tensor, of the row or of the block, or factor_of() the block where there is a global scale;
// it has no meaning without one.
double quantized(const NormSpec& spec, double y, double scale) noexcept;

// The largest magnitude of results that are known up to an error; NaN if one is. An error that is not finite
// counts as none.
struct Largest {
  double exact = 0, least = 0, most = 0;

  void add(double y, double error) noexcept;
  void add(const Largest& other) noexcept;
};

// The scale that is stored of a row or a block whose results have this largest magnitude. `given` is
// upper_bound or global_scale, and has no meaning where the spec has neither.
double scale_for(const NormSpec& spec, double largest, double given) noexcept;
// What the results of a block are multiplied by whose scale is stored in e4m3.
double factor_of(double stored_scale, double global_scale) noexcept;

// The largest magnitude of a row or block by which it is scaled becomes this: 448, 57344, 127 or 6.
double largest_quantized(DType output) noexcept;

double activate(Activation activation, double value) noexcept;
// Its derivative. That of relu is 0 at 0; that of an infinity is the limit, that of NaN is NaN.
double activation_slope(Activation activation, double value) noexcept;
double gate_factor(GateFunction function, double gate) noexcept;

}  // namespace normjit::oracle
