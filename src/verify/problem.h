// SPDX-License-Identifier: Apache-2.0
// One numeric problem in host memory: what `normjit run` gets, has executed, checks and writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>

#include "normjit/result.h"
#include "normjit/spec.h"
#include "normjit/spec/operands.h"
#include "normjit/tensors.h"
#include "verify/reference.h"

namespace normjit::oracle {

// A row-major matrix in host memory, laid out exactly as the launch sees it, gaps between rows included. Its
// bytes are not initialised. Movable.
class Matrix {
 public:
  Matrix() = default;
  // A row stride below the number of columns makes rows overlap; 0 makes all rows one.
  Matrix(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t row_stride = kContiguous);

  DType dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t row_stride() const { return row_stride_; }
  // From the first of the first row to the last of the last row.
  std::int64_t elements() const { return elements_; }
  std::size_t bytes() const { return static_cast<std::size_t>(elements_) * size_of(dtype_); }
  bool empty() const { return elements_ == 0; }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  std::byte* row(std::int64_t i) { return data() + i * row_stride_ * size_of(dtype_); }
  const std::byte* row(std::int64_t i) const { return data() + i * row_stride_ * size_of(dtype_); }
  std::size_t row_bytes() const { return static_cast<std::size_t>(columns_) * size_of(dtype_); }

  // Sets every byte to 0xff, which is NaN in every dtype.
  void poison();

 private:
  DType dtype_ = DType::f32;
  std::int64_t rows_ = 0, columns_ = 0, row_stride_ = 0, elements_ = 0;
  std::unique_ptr<std::byte[]> data_;
};

// Inputs, and outputs once it has been executed. What the spec does not have is empty.
struct Problem {
  NormSpec spec;
  std::int64_t rows = 0;
  PerOperand<Matrix> operands;  // those of Extent::columns are one row, those of Extent::rows one column

  Matrix& operator[](Operand operand) { return operands[operand]; }
  const Matrix& operator[](Operand operand) const { return operands[operand]; }
};

// The tensors of a launch in the problem's own memory; without a workspace.
Tensors tensors_of(Problem& problem);
// What the reference takes of a row of the problem.
RowInputs inputs_of(const Problem& problem, std::int64_t row);

// Row strides of matrices; kContiguous where none is given.
struct RowStrides : PerOperand<std::int64_t> {
  RowStrides(std::initializer_list<std::pair<Operand, std::int64_t>> given = {});
};

// Allocates all of it, without touching it. Errors: OutOfMemory, with the bytes asked for, BadRows and
// BadStride.
Result<Problem> make_problem(const NormSpec& spec, std::int64_t rows, const RowStrides& strides = {});

// How the random numbers of an input are distributed, and their stream of the seed. With a trend, a quarter
// of the rows has a slope of so many deviations from its first to its last element, and in another quarter
// the last eighth of the row lies so many deviations higher: parts of a row then differ in mean, as a wrong
// merge of their statistics needs to be seen.
struct Distribution {
  std::uint64_t stream;
  double mean, deviation;
  double trend = 0;
};
Distribution distribution_of(Operand input) noexcept;

// Fills a matrix with bell-shaped random numbers of this distribution; overlapping rows have no trend. The
// numbers depend on nothing but seed, stream and position, on every machine and for any number of threads.
// Gaps between rows are poisoned.
void fill_random(Matrix& matrix, std::uint64_t seed, const Distribution& distribution);

// Random inputs but those that come from elsewhere, each from its own stream of the seed. Poisoned outputs.
void fill(Problem& problem, std::uint64_t seed, OperandSet from_elsewhere = 0);

}  // namespace normjit::oracle
