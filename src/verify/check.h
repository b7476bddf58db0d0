// SPDX-License-Identifier: Apache-2.0
// Comparing the outputs of a problem with the reference.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "verify/gradients.h"
#include "verify/problem.h"
#include "verify/reference.h"

namespace normjit::oracle {

// How far an output of this spec may be from the exact value. For unit-scale data that is
//   f32 outputs     1e-5, and half of the smallest number, which is what rounding to f32 may lose
//   16-bit outputs  one unit in the last place of the output dtype or 2e-6, whichever is larger
//   f64 outputs     1e-12
//   8-bit outputs   1e-5, before they are rounded: then they have expected_quantized()
// The absolute numbers grow with the size of the terms that are added up (ReferenceValue::magnitude), and
// with a common offset of the row, whose mean is rounded in compute_type: by 2e-7 of the offset in f32 (2e-3
// at mean 1e4 and deviation 1), 4e-16 in f64.
double tolerance(const NormSpec& spec, const ReferenceValue& expected) noexcept;

// What is stored of a value that is known up to an error, and how far from it `got` may be: as far as what
// the value may become on that side.
struct Expected {
  double value, tolerance;
};
// Of a result in 8 or 4 bits. An error that is not finite bounds nothing.
Expected expected_quantized(const NormSpec& spec, double exact, double error, double scale,
                            double got) noexcept;
// By what the result of a column is divided, or multiplied: tensor_scale; row_scale, or the scale of the
// column's block, as the launch wrote them; of a scale in e4m3, factor_of(). 1 if the spec has no scale.
double written_scale(const Problem& problem, std::int64_t row, std::int64_t column = 0) noexcept;

// The distance of a result from the exact value. NaN equals NaN, and a result is right to be infinite where
// the exact value rounds to that infinity; any other NaN or infinity is infinitely far.
double error_of(DType dtype, double got, double expected) noexcept;

// One compared value. The column of a block_scale is the number of the block.
struct Deviation {
  std::int64_t row = -1, column = -1;
  double got = 0, expected = 0, error = -1, tolerance = 0;
};
using Compared = std::function<void(Operand output, const Deviation& value)>;

// Holds the results of one row against what they are known to be up to an error: y, also, and the scales of
// the row or of its blocks, which may be as far off as the errors move the largest |y|. What is divided by a
// scale is held against the one that the launch wrote. Keeps the problem.
class ResultsOfRow {
 public:
  ResultsOfRow(const Problem& problem, std::int64_t row, Compared compared)
      : problem_(problem), row_(row), compared_(std::move(compared)) {}
  // Columns from `first` on, in whole blocks. An error that is not finite bounds nothing.
  void add(std::int64_t first, std::int64_t count, const double* exact, const double* errors);
  // After all columns: compares row_scale. Adds the largest result to that of all rows, of which amax is.
  void finish(Largest& of_all);

 private:
  void add_piece(std::int64_t first, std::int64_t count, const double* exact, const double* errors);
  void compare(Operand output, std::int64_t column, double got, const Expected& expected);
  void compare_scale(Operand scale, std::int64_t number, double got, const Largest& largest);

  const Problem& problem_;
  const std::int64_t row_;
  const Compared compared_;
  Largest largest_;  // exact results; those that are written where y is of a float type, as amax is of them
};

// Holds outputs that are of no row against what they must be: amax, of the largest result, which the result
// of another row may exceed unless that is of all rows; and the padding of block_scale, whose bytes must be 0
// (of one that is not, `got` is the largest).
void compare_beyond_rows(const Problem& problem, const Largest& largest, bool of_all_rows,
                         const Compared& compared);

// Holds dx, dgate and the gradients of a modulation of one row against the reference, by tolerance(). A
// relative error of the row's rstd that the caller knows of adds to it. Where the exact value is not finite,
// the order of additions decides which NaN or infinity there is, and any is right; so is an infinity where a
// value within the tolerance rounds to it.
void compare_row_gradients(const Problem& problem, std::int64_t row, double rstd_share,
                           const Compared& compared);
// Likewise dweight and dbias, in row 0, which are sums over all rows, and the gradients of a modulation that
// groups of rows share, in the first row of each. `rstd_shares` has one for each row, or
// is empty. There is nothing to compare where there are no rows. Uses all cores; throws std::bad_alloc.
void compare_column_gradients(const Problem& problem, std::span<const double> rstd_shares,
                              const Compared& compared);

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
  // of max(1, |value|), gradients as compare_row_gradients() and compare_column_gradients() do it, the others
  // as ResultsOfRow and compare_beyond_rows().
  PerOperand<Comparison> outputs;
  std::int64_t overwritten = 0;  // bytes between the rows of outputs that the kernel changed

  const Comparison& operator[](Operand output) const { return outputs[output]; }
  bool ok() const {
    return overwritten == 0 && std::all_of(outputs.of.begin(), outputs.of.end(),
                                           [](const auto& each) { return each.wrong == 0; });
  }
};

// Compares `rows` rows spread evenly over the problem, first and last included; all of them when there are no
// more. dweight and dbias, which are of all rows, are always compared with all of them. Uses all cores.
CheckReport check(const Problem& problem, std::int64_t rows);

}  // namespace normjit::oracle
