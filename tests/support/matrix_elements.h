// SPDX-License-Identifier: Apache-2.0
// Single elements of a matrix, in double.
#pragma once

#include <cstdint>

#include "verify/element.h"
#include "verify/problem.h"

namespace normjit::oracle {

inline void set(Matrix& matrix, std::int64_t row, std::int64_t column, double value) {
  store(matrix.dtype(), matrix.row(row), column, 1, &value);
}
inline double get(const Matrix& matrix, std::int64_t row, std::int64_t column) {
  double value;
  load(matrix.dtype(), matrix.row(row), column, 1, &value);
  return value;
}

}  // namespace normjit::oracle
