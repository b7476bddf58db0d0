// SPDX-License-Identifier: Apache-2.0
#include "verify/npy_header.h"

#include <optional>

#include "normjit/base/text.h"
#include "verify/foreign_text.h"

namespace normjit::oracle {
namespace {

constexpr DType kDTypes[] = {DType::f16, DType::bf16, DType::f32, DType::f64};
constexpr std::int64_t kMostElements = std::int64_t{1} << 60;

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
  return bad("has elements of type '" + shown(text) +
             "'; '<f2', '<f4', '<f8' and '<u2' (bf16 bit patterns) can be read");
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
    if (elements > kMostElements / size) return bad("has an impossible shape " + shape_text(header.shape));
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
  }
  return "?";
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

}  // namespace normjit::oracle
