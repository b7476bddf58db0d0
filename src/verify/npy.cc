// SPDX-License-Identifier: Apache-2.0
#include "verify/npy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>

#include "normjit/base/text.h"
#include "verify/foreign_text.h"

namespace normjit::oracle {
namespace {

constexpr DType kDTypes[] = {DType::f16, DType::bf16, DType::f32, DType::f64, DType::e4m3, DType::s8};
constexpr std::int64_t kMostElements = std::int64_t{1} << 60;
constexpr std::size_t kMostDimensions = 64;  // of NumPy 2; more would not fit into the header that is written

// Takes tokens off the front of a text; every function says whether it was there.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : rest_(text) {}

  bool take(std::string_view token) {
    skip_blanks();
    if (rest_.substr(0, token.size()) != token) return false;
    rest_.remove_prefix(token.size());
    return true;
  }

  std::optional<std::string_view> quoted() {
    skip_blanks();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) return std::nullopt;
    const std::size_t end = rest_.find(rest_[0], 1);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return text;
  }

  std::optional<std::int64_t> integer() {
    skip_blanks();
    const std::size_t end = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
    const std::optional<std::int64_t> value = number<std::int64_t>(rest_.substr(0, end));
    if (value) rest_.remove_prefix(end);
    return value;
  }

  bool at_end() {
    skip_blanks();
    return rest_.empty();
  }

 private:
  void skip_blanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n"), rest_.size())); }

  std::string_view rest_;
};

Error bad(const std::string& reason) { return {Code::BadArgument, reason}; }

Result<DType> parse_type(std::string_view text) {
  for (const DType dtype : kDTypes)
    if (npy_type(dtype) == text) return dtype;
  return bad(
      "has elements of type '" + shown(text) +
      "'; '<f2', '<f4', '<f8', '|i1', and bit patterns '<u2' (bf16) and '|u1' (e4m3, e5m2, e2m1, e8m0) can "
      "be read");
}

// "(2, 3)", "(2,)" or "()".
std::optional<std::vector<std::int64_t>> parse_shape(Scanner& scanner) {
  std::vector<std::int64_t> shape;
  if (!scanner.take("(")) return std::nullopt;
  while (!scanner.take(")")) {
    const std::optional<std::int64_t> size = scanner.integer();
    if (!size) return std::nullopt;
    shape.push_back(*size);
    if (scanner.take(",")) continue;
    if (!scanner.take(")")) return std::nullopt;
    break;
  }
  return shape;
}

}  // namespace

Result<NpyHeader> parse_npy_header(std::string_view text) {
  NpyHeader header;
  bool has_type = false, has_order = false, has_shape = false;
  Scanner scanner(text);
  if (!scanner.take("{")) return bad("has a header that is not a dictionary");
  while (!scanner.take("}")) {
    const auto key = scanner.quoted();
    if (!key || !scanner.take(":")) return bad("has a malformed header");
    if (*key == "descr") {
      const auto type = scanner.quoted();
      if (!type) return bad("has structured elements; plain numbers can be read");
      const Result<DType> dtype = parse_type(*type);
      if (!dtype) return dtype.error();
      header.dtype = *dtype;
      has_type = true;
    } else if (*key == "fortran_order") {
      if (scanner.take("True")) return bad("is in Fortran order; save it with numpy.ascontiguousarray");
      if (!scanner.take("False")) return bad("has a malformed fortran_order");
      has_order = true;
    } else if (*key == "shape") {
      auto shape = parse_shape(scanner);
      if (!shape) return bad("has a malformed shape");
      if (shape->size() > kMostDimensions) return bad("has more than the 64 dimensions of NumPy");
      header.shape = std::move(*shape);
      has_shape = true;
    } else {
      return bad("has an unknown header key '" + shown(*key) + "'");
    }
    if (scanner.take(",")) continue;
    if (!scanner.take("}")) return bad("has a malformed header");
    break;
  }
  if (!scanner.at_end()) return bad("has a malformed header");
  if (!has_type || !has_order || !has_shape) return bad("lacks descr, fortran_order or shape in its header");

  std::int64_t elements = 1;  // of the dimensions that are not 0, so that no order of them overflows later
  for (const std::int64_t size : header.shape) {
    if (size == 0) continue;
    if (elements > kMostElements / size)
      return bad("has an impossible shape " + shown(shape_text(header.shape)));
    elements *= size;
  }
  return header;
}

std::string npy_header_text(DType dtype, const std::vector<std::int64_t>& shape) {
  return concat(
      {"{'descr': '", npy_type(dtype), "', 'fortran_order': False, 'shape': ", shape_text(shape), ", }"});
}

std::string_view npy_type(DType dtype) noexcept {
  switch (dtype) {
    case DType::f16:
      return "<f2";
    case DType::bf16:
      return "<u2";
    case DType::f32:
      return "<f4";
    case DType::f64:
      return "<f8";
    case DType::e4m3:
    case DType::e5m2:
    case DType::e2m1:
    case DType::e8m0:
      return "|u1";
    case DType::s8:
      return "|i1";
  }
  return "?";
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

static_assert(std::endian::native == std::endian::little,
              "elements are read and written as they are in memory");

namespace {

constexpr char kMagic[] = "\x93NUMPY";
constexpr std::size_t kMagicBytes = 6;
constexpr std::size_t kLongestHeader = 1 << 20;  // a real one has about a hundred bytes

}  // namespace

Error NpyFile::error(const std::string& reason) const { return {Code::BadArgument, path_ + ": " + reason}; }

Result<NpyFile> NpyFile::open(const std::string& path) {
  NpyFile file;
  file.path_ = path;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  struct stat facts = {};
  if (descriptor >= 0 && fstat(descriptor, &facts) == 0 && !S_ISREG(facts.st_mode)) {
    close(descriptor);
    return file.error("must be a regular file");
  }
  if (descriptor >= 0) file.file_.reset(fdopen(descriptor, "rb"));
  if (!file.file_) return file.error(std::string("cannot be opened: ") + std::strerror(errno));
  const Result<std::string> text = file.read_header();
  if (!text) return text.error();
  Result<NpyHeader> header = parse_npy_header(*text);
  if (!header) return file.error(header.error().message);
  file.dtype_ = header->dtype;
  file.shape_ = std::move(header->shape);
  if (const Result<void> size = file.check_size(); !size) return size.error();
  return file;
}

Result<std::string> NpyFile::read_header() {
  unsigned char start[12];
  if (std::fread(start, 1, 8, file_.get()) != 8 || std::memcmp(start, kMagic, kMagicBytes) != 0) {
    return error("is not a .npy file");
  }
  const int version = start[6];
  if ((version != 1 && version != 2) || start[7] != 0) {
    return error("has format version " + std::to_string(start[6]) + "." + std::to_string(start[7]) +
                 "; 1.0 and 2.0 can be read");
  }
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  if (std::fread(start + 8, 1, length_bytes, file_.get()) != length_bytes)
    return error("ends inside its header");
  std::size_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) length |= static_cast<std::size_t>(start[8 + i]) << 8 * i;
  if (length > kLongestHeader) return error("has an impossible header length");
  std::string text(length, '\0');
  if (std::fread(text.data(), 1, length, file_.get()) != length) return error("ends inside its header");
  return text;
}

// Before anyone allocates memory for a shape that the file cannot hold.
Result<void> NpyFile::check_size() {
  const long begin = std::ftell(file_.get());
  if (begin < 0 || std::fseek(file_.get(), 0, SEEK_END) != 0) return error("must be a regular file");
  const long end = std::ftell(file_.get());
  if (end < 0 || std::fseek(file_.get(), begin, SEEK_SET) != 0) return error("must be a regular file");
  const std::int64_t want = elements() * size_of(dtype_);
  if (end - begin == want) return {};
  return error("holds " + std::to_string(end - begin) + " bytes of data, but its shape needs " +
               std::to_string(want));
}

std::int64_t NpyFile::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape_) product *= size;  // parse_npy_header has excluded overflow
  return product;
}

Result<std::int64_t> NpyFile::rows_of(std::int64_t columns) const {
  std::int64_t trailing = 1;
  std::size_t kept = shape_.size();
  while (trailing != columns && kept > 0) trailing *= shape_[--kept];
  if (trailing != columns) {
    return error("has shape " + shown(shape_text(shape_)) +
                 "; the spec needs trailing dimensions with a product of " + std::to_string(columns));
  }
  std::int64_t rows = 1;
  for (std::size_t i = 0; i < kept; ++i) rows *= shape_[i];
  return rows;
}

Result<void> NpyFile::expect(DType dtype) const {
  if (npy_type(dtype_) == npy_type(dtype)) return {};
  return error("holds " + std::string(name(dtype_)) + " (" + std::string(npy_type(dtype_)) +
               "), but the spec needs " + std::string(name(dtype)) + " (" + std::string(npy_type(dtype)) +
               ")");
}

Result<void> NpyFile::read_buffer(Matrix& to) {
  if (const auto expected = expect(to.dtype()); !expected) return expected;
  if (elements() != to.elements())
    return error("has shape " + shown(shape_text(shape_)) + ", but " + std::to_string(to.elements()) +
                 " elements are needed");
  if (std::fread(to.data(), 1, to.bytes(), file_.get()) != to.bytes())
    return error("cannot be read to its end");
  return {};
}

Result<void> NpyFile::read(Matrix& to) {
  if (const auto expected = expect(to.dtype()); !expected) return expected;
  if (elements() != to.rows() * to.columns()) {
    return error("has shape " + shown(shape_text(shape_)) + ", but " + std::to_string(to.rows()) + " x " +
                 std::to_string(to.columns()) + " elements are needed");
  }
  const bool dense = to.row_stride() == to.columns();
  const std::int64_t rows = dense ? 1 : to.rows();
  const std::size_t bytes = dense ? to.bytes() : to.row_bytes();
  for (std::int64_t row = 0; row < rows; ++row) {
    if (std::fread(to.row(row), 1, bytes, file_.get()) != bytes) return error("cannot be read to its end");
  }
  return {};
}

namespace {

// What stands in front of the data.
std::string start_of(const Matrix& matrix, const std::vector<std::int64_t>& shape) {
  // Padded so that the data begins at a multiple of 64 bytes, as NumPy does it.
  std::string header = npy_header_text(matrix.dtype(), shape);
  header.resize((header.size() + 10 + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  header += '\n';
  std::string start(kMagic, kMagicBytes);
  start += {'\x01', '\x00', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  return start + header;
}

}  // namespace

Result<void> write_npy(const std::string& path, const Matrix& matrix,
                       const std::vector<std::int64_t>& shape) {
  const std::string start = start_of(matrix, shape);
  return write_file(path, [&](std::FILE* file) {
    bool good = std::fwrite(start.data(), 1, start.size(), file) == start.size();
    for (std::int64_t row = 0; good && row < matrix.rows(); ++row)
      good = std::fwrite(matrix.row(row), 1, matrix.row_bytes(), file) == matrix.row_bytes();
    return good;
  });
}

Result<void> write_npy_buffer(const std::string& path, const Matrix& matrix,
                              const std::vector<std::int64_t>& shape) {
  const std::string start = start_of(matrix, shape);
  return write_file(path, [&](std::FILE* file) {
    return std::fwrite(start.data(), 1, start.size(), file) == start.size() &&
           std::fwrite(matrix.data(), 1, matrix.bytes(), file) == matrix.bytes();
  });
}

}  // namespace normjit::oracle
