// Layer normalization in double precision on the host: what the kernels are measured against. Written from
// the formula in spec.h alone, it shares nothing with the kernels.
#pragma once

#include <cstdint>

#include "normjit/spec.h"

namespace normjit::cli {

struct RowStatistics {
  double mean = 0;
  double rstd = 0;
};

// Mean and 1 / sqrt(variance + epsilon) of a row of spec.columns elements of the input dtype: two passes with
// compensated sums, so that the result is good to the last bits for any length.
RowStatistics row_statistics(const NormSpec& spec, const void* x_row) noexcept;

// One exact output, before it is rounded to the output dtype, and what its error is measured by.
struct ReferenceValue {
  double value = 0;
  double magnitude =
      0;              // |scale| * (|normalized * weight| + |bias|), at least |scale|: the size of the terms
  double offset = 0;  // |scale * mean * rstd * weight|: how much of a row's common offset had to cancel
};

// The outputs of columns [first, first + count) of a row. `weight` and `bias` are whole vectors of the weight
// dtype, null where the spec has none.
void reference_values(const NormSpec& spec, const void* x_row, const void* weight, const void* bias,
                      const RowStatistics& statistics, std::int64_t first, std::int64_t count,
                      ReferenceValue* to) noexcept;

double activate(Activation activation, double value) noexcept;

}  // namespace normjit::cli
