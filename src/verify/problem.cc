// SPDX-License-Identifier: Apache-2.0
#include "verify/problem.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <string>

#include "normjit/base/run_on_threads.h"
#include "normjit/base/text.h"
#include "verify/element.h"

namespace normjit::oracle {
namespace {

constexpr std::int64_t kPiece = 1 << 16;  // elements or bytes a thread takes at a time

// The finalizer of SplitMix64 over a counter: 64 well-mixed bits for each position.
std::uint64_t mixed_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t position) {
  std::uint64_t z =
      seed * 0xd1342543de82ef95u + stream * 0xaf251af3b0f025b5u + position * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

// The sum of four uniform numbers, shifted and scaled to mean 0 and variance 1. Close enough to normal for
// data, and integer arithmetic with one exact division makes it the same everywhere, which log and cos of
// libm are not.
double bell(std::uint64_t bits) {
  const std::int64_t sum = static_cast<std::int64_t>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                                     (bits >> 32 & 0xffff) + (bits >> 48));
  constexpr double kRootThree = 1.7320508075688772;
  return static_cast<double>(sum - 2 * 0xffff) / 65536 * kRootThree;
}

// What the trend adds to an element, in deviations.
class Trend {
 public:
  Trend(std::uint64_t seed, const Distribution& distribution, std::int64_t row, std::int64_t columns)
      : columns_(columns) {
    if (distribution.trend == 0) return;
    // Of a counter from the far end: no element has its bits.
    const std::uint64_t kind = mixed_bits(seed, distribution.stream, ~static_cast<std::uint64_t>(row)) >> 62;
    slope_ = kind == 1 ? distribution.trend / static_cast<double>(columns) : 0;
    step_ = kind == 2 ? distribution.trend : 0;
  }
  double at(std::int64_t column) const {
    return slope_ * static_cast<double>(column) + (column >= columns_ - columns_ / 8 ? step_ : 0);
  }

 private:
  std::int64_t columns_;
  double slope_ = 0, step_ = 0;
};

// Whether the elements from the first of row 0 to the last of the last row, in bytes, fit in 63 bits.
bool fits(std::int64_t rows, std::int64_t columns, std::int64_t stride, DType dtype) {
  const __int128 bytes =
      (static_cast<__int128>(std::max<std::int64_t>(rows, 1) - 1) * stride + columns) * size_of(dtype);
  return bytes <= std::numeric_limits<std::int64_t>::max();
}

}  // namespace

Matrix::Matrix(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t row_stride)
    : dtype_(dtype),
      rows_(rows),
      columns_(columns),
      row_stride_(row_stride == kContiguous ? columns : row_stride),
      elements_(rows == 0 || columns == 0 ? 0 : (rows - 1) * row_stride_ + columns),
      data_(new std::byte[bytes()]) {}

void Matrix::poison() {
  parallel_for(static_cast<std::int64_t>(bytes()), kPiece, [this](std::int64_t begin, std::int64_t end) {
    std::memset(data() + begin, 0xff, static_cast<std::size_t>(end - begin));
  });
}

Tensors tensors_of(Problem& problem) {
  Tensors tensors{.rows = problem.rows};
  for (const OperandRow& row : kOperands) {
    Matrix& matrix = problem[row.operand];
    set(tensors, row, matrix.data(), matrix.row_stride());
  }
  return tensors;
}

RowInputs inputs_of(const Problem& problem, std::int64_t row) {
  RowInputs inputs{};
  for (const OperandRow& each : kOperands)
    if (!each.output)
      inputs[each.operand] = problem[each.operand].row(each.extent == Extent::matrix ? row : 0);
  return inputs;
}

RowStrides::RowStrides(std::initializer_list<std::pair<Operand, std::int64_t>> given) {
  of.fill(kContiguous);
  for (const auto& [operand, stride] : given) (*this)[operand] = stride;
}

Result<Problem> make_problem(const NormSpec& spec, std::int64_t rows, const RowStrides& strides) {
  if (rows < 0) return Error{Code::BadRows, concat({"--rows is ", shortest(rows), "; it must be 0 or more"})};
  try {
    Problem problem{.spec = spec, .rows = rows, .operands = {}};
    for (const OperandRow& row : kOperands) {
      if (!row.present(spec)) continue;
      const DType dtype = row.dtype(spec);
      Matrix& matrix = problem[row.operand];
      if (row.extent == Extent::columns) matrix = Matrix(dtype, 1, spec.columns);
      if (row.extent == Extent::rows) matrix = Matrix(dtype, rows, 1);
      if (row.extent != Extent::matrix) continue;
      const std::int64_t stride = strides[row.operand] == kContiguous ? spec.columns : strides[row.operand];
      if (stride < (row.output ? spec.columns : 0))
        return Error{
            Code::BadStride,
            concat({"--", row.name, "-row-stride is ", shortest(stride), "; it must be ",
                    row.output ? "at least the columns, " + shortest(spec.columns) + ", or rows overlap"
                               : std::string("0 or more")})};
      if (!fits(rows, spec.columns, stride, dtype))
        return Error{Code::BadStride,
                     concat({row.name, " would exceed 2^63 bytes; take fewer rows or a smaller row stride"})};
      matrix = Matrix(dtype, rows, spec.columns, stride);
    }
    return problem;
  } catch (const std::bad_alloc&) {
    return Error{Code::OutOfMemory, concat({"not enough host memory for ", shortest(rows), " rows of ",
                                            shortest(spec.columns), " columns; take fewer rows"})};
  }
}

Distribution distribution_of(Operand input) noexcept {
  switch (input) {
    case Operand::x:
      return {.stream = 1, .mean = 0.25, .deviation = 1, .trend = 4};
    case Operand::weight:
      return {.stream = 2, .mean = 1, .deviation = 0.25};
    case Operand::bias:
      return {.stream = 3, .mean = 0, .deviation = 0.25};
    default:
      return {.stream = 4 + static_cast<std::uint64_t>(input), .mean = 0, .deviation = 1, .trend = 4};
  }
}

void fill_random(Matrix& matrix, std::uint64_t seed, const Distribution& given) {
  if (matrix.empty()) return;
  Distribution distribution = given;
  std::int64_t rows = matrix.rows(), columns = matrix.columns();
  if (matrix.row_stride() < columns) {  // filled as the one long row that they are in memory
    rows = 1;
    columns = matrix.elements();
    distribution.trend = 0;
  }
  if (matrix.row_stride() > columns) matrix.poison();

  // Elements of one row, which begins at the element `origin`.
  const auto fill = [&](std::int64_t row, std::int64_t origin, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kBatch = 256;
    double values[kBatch];
    const Trend trend(seed, distribution, row, columns);
    for (; begin < end; begin += kBatch) {
      const std::int64_t batch = std::min(kBatch, end - begin);
      for (std::int64_t i = 0; i < batch; ++i) {
        const auto position = static_cast<std::uint64_t>(origin + begin + i);
        values[i] = distribution.mean +
                    distribution.deviation *
                        (bell(mixed_bits(seed, distribution.stream, position)) + trend.at(begin + i));
      }
      store(matrix.dtype(), matrix.data(), origin + begin, batch, values);
    }
  };
  // Short rows are shared out as a whole, and each long one in pieces.
  const std::int64_t pieces = (columns + kPiece - 1) / kPiece;
  parallel_for(rows * pieces, std::max<std::int64_t>(1, kPiece / columns),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) {
                   const std::int64_t row = i / pieces, begin = i % pieces * kPiece;
                   fill(row, row * matrix.row_stride(), begin, std::min(columns, begin + kPiece));
                 }
               });
}

void fill(Problem& problem, std::uint64_t seed, OperandSet from_elsewhere) {
  for (std::size_t i = 0; i < kOperandCount; ++i) {
    Matrix& matrix = problem.operands.of[i];
    if (kOperands[i].output)
      matrix.poison();
    else if (!has(from_elsewhere, i))
      fill_random(matrix, seed, distribution_of(kOperands[i].operand));
  }
}

}  // namespace normjit::oracle
