// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy files, as far as the tool needs them: little-endian f16, f32, f64, int8, and uint16 and uint8
// (which hold bit patterns of bf16, and of floats of 8 bits or two of 4), C order, format versions 1.0
// and 2.0. https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/result.h"
#include "normjit/spec.h"
#include "verify/problem.h"
#include "verify/text_file.h"

namespace normjit::oracle {

// The header of a file: a Python dictionary of three keys.
struct NpyHeader {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
};

// Reads "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }" with keys in any order. BadArgument
// with the reason; also for Fortran order, other types, and shapes of more than 64 dimensions or 2^60
// elements.
Result<NpyHeader> parse_npy_header(std::string_view text);

std::string npy_header_text(DType dtype, const std::vector<std::int64_t>& shape);

// "<f2", "<u2" (bf16), "<f4", "<f8", "|u1" (e4m3, e5m2, e2m1 and e8m0), "|i1"
std::string_view npy_type(DType dtype) noexcept;
std::string shape_text(const std::vector<std::int64_t>& shape);  // "(2, 3)", "(2,)", "()"

// A .npy file that is open at its first element.
class NpyFile {
 public:
  // BadArgument, with the file's name and the reason, for anything but a whole regular file of a known kind.
  // Never waits, as opening a FIFO would.
  static Result<NpyFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  DType dtype() const { return dtype_; }  // e4m3 for e5m2, e2m1 and e8m0, too
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t elements() const;

  // The number of rows if the trailing dimensions make rows of so many columns: (2, 3, 4) is 2 rows of 12, 6
  // of 4 or 1 of 24. BadArgument otherwise.
  Result<std::int64_t> rows_of(std::int64_t columns) const;

  // Reads all elements into the rows of the matrix, which must have as many. BadArgument if the dtype
  // differs.
  Result<void> read(Matrix& to);
  // Reads all elements into the memory of the matrix, gaps between rows included, which must be as long.
  Result<void> read_buffer(Matrix& to);

 private:
  Error error(const std::string& reason) const;
  Result<void> expect(DType dtype) const;
  Result<std::string> read_header();
  Result<void> check_size();

  std::string path_;
  File file_;
  DType dtype_ = DType::f32;
  std::vector<std::int64_t> shape_;
};

// Writes the rows of a matrix, without the gaps between them, under this shape, as write_file does. CacheIo.
Result<void> write_npy(const std::string& path, const Matrix& matrix, const std::vector<std::int64_t>& shape);
// Writes the memory of a matrix, gaps included.
Result<void> write_npy_buffer(const std::string& path, const Matrix& matrix,
                              const std::vector<std::int64_t>& shape);

}  // namespace normjit::oracle
