// SPDX-License-Identifier: Apache-2.0
#include "verify/npy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "verify/npy_header.h"

namespace normjit::oracle {

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
    return error("has shape " + shape_text(shape_) +
                 "; the spec needs trailing dimensions with a product of " + std::to_string(columns));
  }
  std::int64_t rows = 1;
  for (std::size_t i = 0; i < kept; ++i) rows *= shape_[i];
  return rows;
}

Result<void> NpyFile::read(Matrix& to) {
  if (dtype_ != to.dtype()) {
    return error("holds " + std::string(name(dtype_)) + " (" + std::string(npy_type(dtype_)) +
                 "), but the spec needs " + std::string(name(to.dtype())) + " (" +
                 std::string(npy_type(to.dtype())) + ")");
  }
  if (elements() != to.rows() * to.columns()) {
    return error("has shape " + shape_text(shape_) + ", but " + std::to_string(to.rows()) + " x " +
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

Result<void> write_npy(const std::string& path, const Matrix& matrix,
                       const std::vector<std::int64_t>& shape) {
  // Padded so that the data begins at a multiple of 64 bytes, as NumPy does it.
  std::string header = npy_header_text(matrix.dtype(), shape);
  header.resize((header.size() + 10 + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  header += '\n';
  std::string start(kMagic, kMagicBytes);
  start += {'\x01', '\x00', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  start += header;

  return write_file(path, [&](std::FILE* file) {
    bool good = std::fwrite(start.data(), 1, start.size(), file) == start.size();
    for (std::int64_t row = 0; good && row < matrix.rows(); ++row)
      good = std::fwrite(matrix.row(row), 1, matrix.row_bytes(), file) == matrix.row_bytes();
    return good;
  });
}

}  // namespace normjit::oracle
