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
//   8-bit outputs   1e-5, before the result is divided and rounded
// The absolute numbers grow with the size of the terms that are added up (ReferenceValue::magnitude), and
// with a common offset of the row, whose mean is rounded in compute_type: by 2e-7 of the offset in f32 (2e-3
// at mean 1e4 and deviation 1), 4e-16 in f64.
double tolerance(const NormSpec& spec, const ReferenceValue& expected) noexcept;

// A result as it is compared, and how far it may be off.
struct Expected {
  double value = 0, tolerance = 0;
};
// Of an exact value that the kernel may be off by tolerance() and `more`. A result of 8 bits is divided by
// `scale`, and may then be off by half a step, too.
Expected expected_result(const NormSpec& spec, const ReferenceValue& exact, double scale,
                         double more = 0) noexcept;
// What a row's results are divided by: what the launch was given, or has written; 1 without quantization.
double scale_of(const Problem& problem, std::int64_t row) noexcept;

// The scale of a row, from the exact values of all its results.
class RowScale {
 public:
  explicit RowScale(const NormSpec& spec) : spec_(spec) {}
  void add(const ReferenceValue& exact, double more = 0) noexcept;
  Expected expected() const noexcept;

 private:
  const NormSpec& spec_;
  double largest_ = 0, error_ = 0;
};

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
  // Each output: y by expected_result(), sum to one unit in the last place, mean and rstd within 1e-5 (f64:
  // 1e-12) of max(1, |value|), row_scale by RowScale.
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
