// SPDX-License-Identifier: Apache-2.0
// One numeric problem in host memory: what `normjit run` gets, has executed, checks and writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "normjit/result.h"
#include "normjit/spec.h"
#include "normjit/spec/operands.h"
#include "normjit/tensors.h"
#include "verify/reference.h"

namespace normjit::oracle {

// Where the rows of a matrix begin, as RowsAt says it, and the memory around them.
struct RowLayout {
  std::int64_t n = 1, outer = kContiguous, inner = 0;
  std::int64_t buffer = 0;  // elements of the memory; 0: as far as the rows reach

  RowLayout(std::int64_t row_stride = kContiguous) : outer(row_stride) {}
  RowLayout(std::int64_t n, std::int64_t outer, std::int64_t inner, std::int64_t buffer = 0)
      : n(n), outer(outer), inner(inner), buffer(buffer) {}
};

// A row-major matrix in host memory, laid out exactly as the launch sees it, gaps between rows included. Its
// bytes are not initialised. Movable.
class Matrix {
 public:
  Matrix() = default;
  // Of a number of rows that n divides. A row stride below the number of columns makes rows overlap; 0 makes
  // all rows one. A buffer must hold the rows.
  Matrix(DType dtype, std::int64_t rows, std::int64_t columns, const RowLayout& layout = {});

  DType dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  const RowLayout& layout() const { return layout_; }        // outer is never kContiguous
  std::int64_t row_stride() const { return layout_.outer; }  // where n is 1
  // Elements from the start of the memory to row i.
  std::int64_t offset(std::int64_t i) const {
    return i / layout_.n * layout_.outer + i % layout_.n * layout_.inner;
  }
  bool rows_overlap() const;
  // Whether the rows of a group are one. Of an output it is the sum over the group.
  bool shares_rows() const { return layout_.n > 1 && layout_.inner == 0; }
  // The row that follows row i in memory; rows() behind the last one. Of rows that do not overlap, but for
  // those of groups that share one.
  std::int64_t row_behind(std::int64_t i) const;
  // Of the memory: from the first of the first row to the last of the last row, or of the whole buffer.
  std::int64_t elements() const { return elements_; }
  std::size_t bytes() const { return static_cast<std::size_t>(elements_) * size_of(dtype_); }
  bool empty() const { return elements_ == 0; }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  std::byte* row(std::int64_t i) { return data() + offset(i) * size_of(dtype_); }
  const std::byte* row(std::int64_t i) const { return data() + offset(i) * size_of(dtype_); }
  std::size_t row_bytes() const { return static_cast<std::size_t>(columns_) * size_of(dtype_); }

  // Sets every byte to 0xff, which is NaN in every dtype but s8 and e2m1.
  void poison();

 private:
  DType dtype_ = DType::f32;
  std::int64_t rows_ = 0, columns_ = 0, elements_ = 0;
  RowLayout layout_ = 0;
  std::unique_ptr<std::byte[]> data_;
};

// Inputs, and outputs once it has been executed. What the spec does not have is empty.
struct Problem {
  NormSpec spec;
  std::int64_t rows = 0;
  // What all rows share is one row, those of Extent::rows are one column. block_scale has the rows of the
  // first dimension of block_scale_shape().
  PerOperand<Matrix> operands;
  // Outputs that the launch writes over their input (OperandRow::in_place). Both have a matrix here, so that
  // the input is still there to check the output; the launch sees that of the output alone.
  OperandSet in_place = 0;
  // With channels first, the positions of a sample. A row of a matrix is then a sample of columns * plane
  // elements, in which row r of the norm has every plane-th element. Else 0.
  std::int64_t plane = 0;

  // Row r of the norm in a matrix: column c of it is step() * c elements behind.
  const std::byte* row(Operand operand, std::int64_t r) const;
  std::byte* row(Operand operand, std::int64_t r) {
    return const_cast<std::byte*>(std::as_const(*this).row(operand, r));
  }
  std::int64_t step() const { return plane == 0 ? 1 : plane; }

  Matrix& operator[](Operand operand) { return operands[operand]; }
  const Matrix& operator[](Operand operand) const { return operands[operand]; }
};

// The rows of a matrix whose memory begins at this address.
InputRows rows_at(const void* address, const RowLayout& layout);
// The tensors of a launch in the problem's own memory; without a workspace.
Tensors tensors_of(Problem& problem);
// What the reference takes of a row of the problem.
RowInputs inputs_of(const Problem& problem, std::int64_t row);

// Layouts of matrices; contiguous rows where none is given.
struct RowLayouts : PerOperand<RowLayout> {
  RowLayouts(std::initializer_list<std::pair<Operand, RowLayout>> given = {});
};

// Allocates all of it, without touching it. Outputs in place have the layout of their input. Errors:
// OutOfMemory, with the bytes asked for, BadRows, BadStride, BadPlane, and Overlap for an output that may not
// be in place.
Result<Problem> make_problem(const NormSpec& spec, std::int64_t rows, const RowLayouts& layouts = {},
                             OperandSet in_place = 0, std::int64_t plane = 0);

// How the random numbers of an input are distributed, and their stream of the seed. With a trend, a quarter
// of the rows has a slope of so many deviations from its first to its last element, and in another quarter
// the last eighth of the row lies so many deviations higher: parts of a row then differ in mean, as a wrong
// merge of their statistics needs to be seen.
struct Distribution {
  std::uint64_t stream;
  double mean, deviation;
  double trend = 0;
};
Distribution distribution_of(Operand input, const NormSpec& spec) noexcept;

// Fills a matrix with bell-shaped random numbers of this distribution; overlapping rows have no trend. The
// numbers depend on nothing but seed, stream and position, on every machine and for any number of threads.
// What lies between rows is poisoned.
void fill_random(Matrix& matrix, std::uint64_t seed, const Distribution& distribution);

// Makes the outputs what a launch shall find: poisoned, or in place a copy of their input.
void reset_outputs(Problem& problem);

// Random inputs but those that come from elsewhere, each from its own stream of the seed; tensor_scale so
// that results reach the range of the output type, and some exceed it; upper_bound so that some rows reach
// it; global_scale so that the scales of blocks are within e4m3.
void fill_inputs(Problem& problem, std::uint64_t seed, OperandSet from_elsewhere = 0);
// The statistics that a backward spec is given, but those that come from elsewhere: of the other inputs as
// they are now.
void fill_statistics(Problem& problem, OperandSet from_elsewhere = 0);
// All inputs, and what outputs hold before.
void fill(Problem& problem, std::uint64_t seed);

}  // namespace normjit::oracle
