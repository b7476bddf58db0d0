// SPDX-License-Identifier: Apache-2.0
#include "verify/problem.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <numeric>
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

// The elements from the first of row 0 to the last of the last row.
__int128 reach(std::int64_t rows, std::int64_t columns, const RowLayout& layout) {
  const __int128 groups = std::max<std::int64_t>(rows / layout.n, 1);
  return (groups - 1) * layout.outer + static_cast<__int128>(layout.n - 1) * layout.inner + columns;
}

// Whether rows share elements: groups must lie one behind the other, or be interleaved row by row.
bool overlap(std::int64_t rows, std::int64_t columns, const RowLayout& layout) {
  const auto& [n, outer, inner, buffer] = layout;
  const std::int64_t groups = rows / n;
  if (rows <= 1) return false;
  if (n == 1) return outer < columns;
  if (groups == 1) return inner < columns;
  return !(inner >= columns && outer / n >= inner) && !(outer >= columns && inner / groups >= outer);
}

Error bad_rows(const OperandRow& row, std::initializer_list<std::string_view> why) {
  std::string text = concat({"the rows of ", row.name, ": "});
  for (const std::string_view part : why) text += part;
  return {Code::BadStride, text};
}

// The layout of a matrix with a distance for kContiguous; BadStride if rows cannot lie so.
Result<RowLayout> layout_of(const OperandRow& row, const NormSpec& spec, std::int64_t rows,
                            std::int64_t columns, const RowLayout& given) {
  RowLayout layout = given;
  if (layout.outer == kContiguous) layout = {1, columns, 0, layout.buffer};
  const auto& [n, outer, inner, buffer] = layout;
  const DType dtype = row.dtype(spec);
  if (spec.channels_first && (n > 1 || inner != 0))
    return bad_rows(row, {"with channels first only the distance of samples can be given: n 1 and inner 0"});
  if (n < 1 || rows % n != 0)
    return bad_rows(row, {"there are ", shortest(rows), ", which are no groups of n = ", shortest(n)});
  if (n == 1 && outer < (row.output ? columns : 0))
    return Error{
        Code::BadStride,
        concat({"--", row.name, "-row-stride is ", shortest(outer), "; it must be ",
                row.output ? concat({"at least ", spec.channels_first ? "a sample, " : "the columns, ",
                                     shortest(columns), ", or rows overlap"})
                           : std::string("0 or more")})};
  if (outer < 0 || inner < 0)
    return bad_rows(
        row, {"outer is ", shortest(outer), " and inner ", shortest(inner), "; they must be 0 or more"});
  const __int128 last = reach(rows, columns, layout);
  if (last * size_of(dtype) > std::numeric_limits<std::int64_t>::max())
    return Error{Code::BadStride,
                 concat({row.name, " would exceed 2^63 bytes; take fewer rows or a smaller row stride"})};
  const bool sums = may_share_sums(row) && n > 1 && inner == 0 && outer >= columns;
  if (row.output && !sums && overlap(rows, columns, layout))
    return bad_rows(row, {"rows of an output must not overlap, and with n ", shortest(n), ", outer ",
                          shortest(outer), " and inner ", shortest(inner), " they do"});
  if (buffer != 0 && rows > 0 && last > buffer)
    return bad_rows(row, {"they reach to element ", shortest(static_cast<std::int64_t>(last)),
                          " of a buffer of ", shortest(buffer)});
  return layout;
}

// Whether an output may be its input itself.
bool may_be_in_place(const OperandRow& row, const NormSpec& spec) {
  const OperandRow& input = row_of(row.in_place);
  return row.in_place != row.operand && row.present(spec) && input.present(spec) &&
         size_of(row.dtype(spec)) == size_of(input.dtype(spec)) &&
         !(row.operand == Operand::sum && spec.residual == Residual::after);
}

}  // namespace

Matrix::Matrix(DType dtype, std::int64_t rows, std::int64_t columns, const RowLayout& layout)
    : dtype_(dtype), rows_(rows), columns_(columns), layout_(layout) {
  if (layout_.outer == kContiguous) layout_ = {1, columns, 0, layout.buffer};
  const bool any = rows > 0 && columns > 0;
  elements_ = layout.buffer > 0 ? layout.buffer
              : any             ? static_cast<std::int64_t>(reach(rows, columns, layout_))
                                : 0;
  data_.reset(new std::byte[bytes()]);
}

bool Matrix::rows_overlap() const { return overlap(rows_, columns_, layout_); }

std::int64_t Matrix::row_behind(std::int64_t i) const {
  const std::int64_t n = layout_.n;
  if (shares_rows()) return (i / n + 1) * n;
  if (n == 1 || layout_.inner <= layout_.outer || n == rows_) return i + 1;
  if (i + n < rows_) return i + n;  // groups are interleaved
  return i == rows_ - 1 ? rows_ : i % n + 1;
}

void Matrix::poison() {
  parallel_for(static_cast<std::int64_t>(bytes()), kPiece, [this](std::int64_t begin, std::int64_t end) {
    std::memset(data() + begin, 0xff, static_cast<std::size_t>(end - begin));
  });
}

InputRows rows_at(const void* address, const RowLayout& layout) {
  return {address, layout.n, layout.outer, layout.inner};
}

const std::byte* Problem::row(Operand operand, std::int64_t r) const {
  const Matrix& matrix = (*this)[operand];
  if (plane == 0) return matrix.row(r);
  return matrix.row(r / plane) + r % plane * size_of(matrix.dtype());
}

Tensors tensors_of(Problem& problem) {
  Tensors tensors{.rows = problem.rows};
  tensors.plane = problem.plane;
  for (const OperandRow& row : kOperands) {
    Matrix& matrix = problem[row.operand];
    set(tensors, row, rows_at(matrix.data(), matrix.layout()));
  }
  for (std::size_t i = 0; i < kOperandCount; ++i)
    if (has(problem.in_place, i))
      set_pointer(tensors, row_of(kOperands[i].in_place), pointer_of(tensors, kOperands[i]));
  return tensors;
}

RowInputs inputs_of(const Problem& problem, std::int64_t row) {
  RowInputs inputs{};
  inputs.step = problem.step();
  for (const OperandRow& each : kOperands)
    if (!each.output && each.present(problem.spec))
      inputs[each.operand] = is_matrix(each, problem.spec) ? problem.row(each.operand, row)
                             : each.extent == Extent::rows ? problem[each.operand].row(row)
                                                           : problem[each.operand].data();
  return inputs;
}

RowLayouts::RowLayouts(std::initializer_list<std::pair<Operand, RowLayout>> given) {
  for (const auto& [operand, layout] : given) (*this)[operand] = layout;
}

Result<Problem> make_problem(const NormSpec& spec, std::int64_t rows, const RowLayouts& layouts,
                             OperandSet in_place, std::int64_t plane) {
  if (rows < 0) return Error{Code::BadRows, concat({"--rows is ", shortest(rows), "; it must be 0 or more"})};
  if (spec.channels_first && plane < 1)
    return Error{Code::BadPlane, concat({"--plane is ", shortest(plane), "; ", to_text(spec),
                                         " needs the positions of a sample, height * width"})};
  if (plane > std::numeric_limits<std::int64_t>::max() / spec.columns)
    return Error{Code::BadPlane, concat({"--plane is ", shortest(plane), ", more than any GPU can hold"})};
  if (spec.channels_first && rows % plane != 0)
    return Error{Code::BadPlane,
                 concat({"--rows is ", shortest(rows), ", no multiple of --plane ", shortest(plane)})};
  if (!spec.channels_first && plane != 0)
    return Error{Code::BadPlane,
                 concat({"--plane is for specs with channels first (/cf), and this is ", to_text(spec)})};
  try {
    Problem problem{.spec = spec, .rows = rows, .operands = {}, .in_place = in_place, .plane = plane};
    const std::int64_t samples = rows / problem.step();
    for (std::size_t i = 0; i < kOperandCount; ++i) {
      const OperandRow& row = kOperands[i];
      if (has(in_place, i) && !may_be_in_place(row, spec))
        return Error{
            Code::Overlap,
            concat({row.name, " cannot be ", row_of(row.in_place).name, " itself in ", to_text(spec),
                    ": that takes an input with elements of the same size that nothing reads later"})};
      if (!row.present(spec)) continue;
      const DType dtype = row.dtype(spec);
      Matrix& matrix = problem[row.operand];
      if (is_single(row, spec)) matrix = Matrix(dtype, 1, is_scalar(row) ? 1 : spec.columns);
      if (row.extent == Extent::rows) matrix = Matrix(dtype, rows, 1);
      if (row.extent == Extent::blocks) {
        const std::vector<std::int64_t> shape = block_scale_shape(spec, rows).value();
        matrix =
            Matrix(dtype, shape[0],
                   std::accumulate(shape.begin() + 1, shape.end(), std::int64_t{1}, std::multiplies<>()));
      }
      if (!is_matrix(row, spec)) continue;
      const std::int64_t columns = row_elements(row, spec) * problem.step();
      const auto layout =
          layout_of(row, spec, samples, columns, layouts[has(in_place, i) ? row.in_place : row.operand]);
      if (!layout) return layout.error();
      matrix = Matrix(dtype, samples, columns, *layout);
    }
    return problem;
  } catch (const std::bad_alloc&) {
    return Error{Code::OutOfMemory, concat({"not enough host memory for ", shortest(rows), " rows of ",
                                            shortest(spec.columns), " columns; take fewer rows"})};
  }
}

Distribution distribution_of(Operand input, const NormSpec& spec) noexcept {
  const std::uint64_t stream = 4 + static_cast<std::uint64_t>(input);
  switch (input) {
    case Operand::tensor_scale: {
      const double scale = 4 / largest_quantized(spec.output), mean = spec.inverse_scale ? 1 / scale : scale;
      return {.stream = stream, .mean = mean, .deviation = mean / 16};
    }
    case Operand::upper_bound:  // near the largest of a row
      return {.stream = stream, .mean = 3, .deviation = 0.5};
    case Operand::global_scale: {  // about 100 is stored of a block whose largest is 3
      const double mean = 100.0 / 3 * largest_quantized(spec.output);
      return {.stream = stream, .mean = mean, .deviation = mean / 16};
    }
    case Operand::x:
      return {.stream = 1, .mean = 0.25, .deviation = 1, .trend = 4};
    case Operand::weight:
      return {.stream = 2, .mean = 1, .deviation = 0.25};
    case Operand::bias:
      return {.stream = 3, .mean = 0, .deviation = 0.25};
    case Operand::mod_scale:
    case Operand::mod_scale_table:
      return {.stream = stream, .mean = 0, .deviation = 0.25};
    default:
      return {.stream = stream, .mean = 0, .deviation = 1, .trend = 4};
  }
}

void fill_random(Matrix& matrix, std::uint64_t seed, const Distribution& given) {
  if (matrix.empty()) return;
  Distribution distribution = given;
  std::int64_t rows = matrix.rows(), columns = matrix.columns();
  if (matrix.rows_overlap()) {  // filled as the one long row that they are in memory
    rows = 1;
    columns = matrix.elements();
    distribution.trend = 0;
  }
  if (matrix.elements() > rows * columns) matrix.poison();

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
                   fill(row, matrix.offset(row), begin, std::min(columns, begin + kPiece));
                 }
               });
}

void reset_outputs(Problem& problem) {
  for (std::size_t i = 0; i < kOperandCount; ++i) {
    const OperandRow& row = kOperands[i];
    Matrix& matrix = problem.operands.of[i];
    if (has(problem.in_place, i))
      std::copy_n(problem[row.in_place].data(), matrix.bytes(), matrix.data());
    else if (row.output)
      matrix.poison();
  }
}

void fill_inputs(Problem& problem, std::uint64_t seed, OperandSet from_elsewhere) {
  for (std::size_t i = 0; i < kOperandCount; ++i)
    if (!kOperands[i].output && !has(from_elsewhere, i))
      fill_random(problem.operands.of[i], seed, distribution_of(kOperands[i].operand, problem.spec));
}

void fill_statistics(Problem& problem, OperandSet from_elsewhere) {
  NormSpec measured = problem.spec;
  measured.statistics = false;
  const auto fills = [&](Operand operand) {
    return row_of(operand).present(problem.spec) && !has(from_elsewhere, static_cast<std::size_t>(operand));
  };
  const bool mean = fills(Operand::saved_mean), rstd = fills(Operand::saved_rstd);
  if (!mean && !rstd) return;
  const DType dtype = compute_type(problem.spec);
  parallel_for(problem.rows, std::max<std::int64_t>(1, kPiece / problem.spec.columns),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t row = first; row < last; ++row) {
                   const RowStatistics of_row = row_statistics(measured, inputs_of(problem, row));
                   if (mean) store(dtype, problem[Operand::saved_mean].data(), row, 1, &of_row.mean);
                   if (rstd) store(dtype, problem[Operand::saved_rstd].data(), row, 1, &of_row.rstd);
                 }
               });
}

void fill(Problem& problem, std::uint64_t seed) {
  fill_inputs(problem, seed);
  fill_statistics(problem);
  reset_outputs(problem);
}

}  // namespace normjit::oracle
