// SPDX-License-Identifier: Apache-2.0
// Comparing the outputs of a problem with the reference.
#pragma once

#include <algorithm>
#include <cstdint>

#include "verify/problem.h"
#include "verify/reference.h"

namespace normjit::oracle {

// How far an output of this spec may be from the exact value. For unit-scale data that is
//   f32 outputs     1e-5
//   16-bit outputs  one unit in the last place of the output dtype or 2e-6, whichever is larger
//   f64 outputs     1e-12
//   8-bit outputs   1e-5, before they are rounded: then they have expected_quantized()
// The absolute numbers grow with the size of the terms that are added up (ReferenceValue::magnitude), and
// with a common offset of the row, whose mean is rounded in compute_type: by 2e-7 of the offset in f32 (2e-3
// at mean 1e4 and deviation 1), 4e-16 in f64.
double tolerance(const NormSpec& spec, const ReferenceValue& expected) noexcept;

// What is stored in 8 bits of a result whose exact value is known up to an error, and how far from it `got`
// may be: as far as what the result may become on that side. An error that is not finite bounds nothing.
struct ExpectedQuantized {
  double value, tolerance;
};
ExpectedQuantized expected_quantized(const NormSpec& spec, double exact, double error, double scale,
                                     double got) noexcept;
// By what the results of a row are divided, or multiplied: tensor_scale, or row_scale as the launch wrote it;
// 1 where there is neither.
double written_scale(const Problem& problem, std::int64_t row) noexcept;

// The distance of a result from the exact value. NaN equals NaN, and a result is right to be infinite where
// the exact value rounds to that infinity; any other NaN or infinity is infinitely far.
double error_of(DType dtype, double got, double expected) noexcept;

// One compared value.
struct Deviation {
  std::int64_t row = -1, column = -1;
  double got = 0, expected = 0, error = -1, tolerance = 0;
};

// The comparison of one output tensor.
struct Comparison {
  std::int64_t values = 0;  // compared
  // Beyond their tolerance; NaN where a number is expected counts, as do a number where NaN is expected, and
  // anything but the same infinity where one is.
  std::int64_t wrong = 0;
  Deviation largest;      // the largest absolute error; the first of equal ones
  Deviation first_wrong;  // in reading order
};

struct CheckReport {
  std::int64_t rows = 0;  // compared
  // Each output: y by tolerance(), sum to one unit in the last place, mean and rstd within 1e-5 (f64: 1e-12)
  // of max(1, |value|), row_scale as far as tolerance() moves the largest |y|. What is divided by row_scale
  // is held against the one that the launch wrote.
  PerOperand<Comparison> outputs;
  std::int64_t overwritten = 0;  // bytes between the rows of outputs that the kernel changed

  const Comparison& operator[](Operand output) const { return outputs[output]; }
  bool ok() const {
    return overwritten == 0 && std::all_of(outputs.of.begin(), outputs.of.end(),
                                           [](const auto& each) { return each.wrong == 0; });
  }
};

// Compares `rows` rows spread evenly over the problem, first and last included; all of them when there are no
// more. Uses all cores.
CheckReport check(const Problem& problem, std::int64_t rows);

}  // namespace normjit::oracle
