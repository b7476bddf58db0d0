// SPDX-License-Identifier: Apache-2.0
// The header of a .npy file: a Python dictionary of three keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/result.h"
#include "normjit/spec.h"

namespace normjit::oracle {

struct NpyHeader {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
};

// Reads "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }" with keys in any order. BadArgument
// with the reason; also for Fortran order, other types, and shapes of more than 2^60 elements.
Result<NpyHeader> parse_npy_header(std::string_view text);

std::string npy_header_text(DType dtype, const std::vector<std::int64_t>& shape);

std::string_view npy_type(DType dtype) noexcept;                 // "<f2", "<u2" (bf16), "<f4", "<f8"
std::string shape_text(const std::vector<std::int64_t>& shape);  // "(2, 3)", "(2,)", "()"

}  // namespace normjit::oracle
