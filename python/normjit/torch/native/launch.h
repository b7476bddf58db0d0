// SPDX-License-Identifier: Apache-2.0
// What all kernels of operator.cc share: types, where the rows of a tensor are, and the launch.
#pragma once

#include "connection.h"
#include "tensor.h"
#include "workspace.h"

namespace normjit_torch {

struct Type {
  std::int32_t code;  // of normjit; 0: it has none
  const char* name;   // of PyTorch
};
inline Type type_of(std::int32_t dtype) {
  if (dtype == aoti_torch_dtype_float32()) return {NORMJIT_F32, "Float"};
  if (dtype == aoti_torch_dtype_float16()) return {NORMJIT_F16, "Half"};
  if (dtype == aoti_torch_dtype_bfloat16()) return {NORMJIT_BF16, "BFloat16"};
  if (dtype == aoti_torch_dtype_float64()) return {NORMJIT_F64, "Double"};
  return {0, "another type"};
}
// Of float8_e8m0fnu and float4_e2m1fn_x2; the C interface names them from 2.12 on.
constexpr std::int32_t kTorchE8M0 = 44, kTorchE2M1 = 45;
constexpr std::int32_t kFourScales = -1;  // the code of an int32
// Those that y or scales alone may have, too.
inline std::int32_t code_of(std::int32_t dtype) {
  if (dtype == kTorchE8M0) return NORMJIT_E8M0;
  if (dtype == kTorchE2M1) return NORMJIT_E2M1;
  if (dtype == aoti_torch_dtype_int32()) return kFourScales;
  if (dtype == aoti_torch_dtype_float8_e4m3fn()) return NORMJIT_E4M3;
  if (dtype == aoti_torch_dtype_float8_e5m2()) return NORMJIT_E5M2;
  if (dtype == aoti_torch_dtype_int8()) return NORMJIT_S8;
  return type_of(dtype).code;
}
inline std::int32_t dtype_of(std::int32_t code) {
  switch (code) {
    case NORMJIT_E8M0:
      return kTorchE8M0;
    case NORMJIT_E2M1:
      return kTorchE2M1;
    case kFourScales:
      return aoti_torch_dtype_int32();
    case NORMJIT_E4M3:
      return aoti_torch_dtype_float8_e4m3fn();
    case NORMJIT_E5M2:
      return aoti_torch_dtype_float8_e5m2();
    case NORMJIT_S8:
      return aoti_torch_dtype_int8();
    case NORMJIT_F16:
      return aoti_torch_dtype_float16();
    case NORMJIT_BF16:
      return aoti_torch_dtype_bfloat16();
    case NORMJIT_F64:
      return aoti_torch_dtype_float64();
    default:
      return aoti_torch_dtype_float32();
  }
}

// The elements of dimensions begin .. end - 1.
inline std::int64_t elements(const Facts& f, std::int64_t begin, std::int64_t end) {
  std::int64_t count = 1;
  for (std::int64_t i = begin; i < end; ++i) count *= f.sizes[i];
  return count;
}

inline bool expands_to(const Facts& f, const Facts& x) {
  const std::int64_t missing = x.dims - f.dims;
  for (std::int64_t i = 0; i < f.dims; ++i)
    if (missing < 0 || (f.sizes[i] != 1 && f.sizes[i] != x.sizes[missing + i])) return false;
  return missing >= 0;
}
inline bool has_shape(const Facts& f, const std::int64_t* sizes, std::int64_t dims) {
  return f.dims == dims && std::equal(sizes, sizes + dims, f.sizes);
}

// The stride of a tensor, expanded to x, in a dimension of x.
inline std::int64_t stride_of(const Facts& f, const Facts& x, std::int64_t dim) {
  const std::int64_t own = dim - (x.dims - f.dims);
  return own < 0 || f.sizes[own] == 1 ? 0 : f.strides[own];
}

// Where the rows of a tensor are that expands to x, whose dimensions from `outer` on are a row. None where
// two strides do not lead to all rows, or columns are no neighbours. _problem.py has the same.
inline std::optional<normjit_input_rows> rows_of(const Facts& f, const Facts& x, std::int64_t outer) {
  std::int64_t columns = 1;
  for (std::int64_t i = x.dims - 1; i >= outer; --i) {
    if (x.sizes[i] == 1) continue;
    if (stride_of(f, x, i) != columns) return {};
    columns *= x.sizes[i];
  }
  struct Level {
    std::int64_t size, stride;
  };
  std::array<Level, 2> levels{{{1, columns}, {1, 0}}};  // the last dimensions first
  std::size_t count = 0;
  for (std::int64_t i = outer - 1; i >= 0; --i) {
    if (x.sizes[i] == 1) continue;
    const std::int64_t stride = stride_of(f, x, i);
    if (count > 0 && stride == levels[count - 1].size * levels[count - 1].stride) {
      levels[count - 1].size *= x.sizes[i];
    } else {
      if (count == levels.size()) return {};
      levels[count++] = {x.sizes[i], stride};
    }
  }
  if (count < 2) return normjit_input_rows{nullptr, 1, levels[0].stride, 0};
  return normjit_input_rows{nullptr, levels[0].size, levels[1].stride, levels[0].stride};
}

// How many neighbouring rows share a row of a tensor that expands to x, whose dimensions from `outer` on are
// a row: those of the last of the leading dimensions. None where others do, or columns.
inline std::optional<std::int64_t> rows_that_share(const Facts& f, const Facts& x, std::int64_t outer) {
  const std::int64_t missing = x.dims - f.dims;
  std::int64_t shared = 1;
  for (std::int64_t i = 0; i < x.dims; ++i) {
    const std::int64_t size = i < missing ? 1 : f.sizes[i - missing];
    if (size != x.sizes[i] ? i >= outer : i < outer && size != 1 && shared != 1) return {};
    if (size != x.sizes[i]) shared *= x.sizes[i];
  }
  return shared;
}

inline bool is_contiguous(const Tensor& tensor) {
  bool contiguous = false;
  require(aoti_torch_is_contiguous(tensor.get(), &contiguous), "asking for a layout");
  return contiguous;
}

// On the current stream of x's device, which is the current device.
inline void launch(normjit_service* service, const normjit_spec& spec, normjit_tensors& tensors,
                   const Facts& x) {
  void* const stream = current_stream(x.device);
  Tensor own;
  if (const std::int64_t bytes = workspace_bytes(service, spec, x.device); bytes > 0) {
    // A graph zeroes it before each replay of this node, since its pool lends the memory to others in
    // between.
    if (runs_with_others(stream)) own = workspace_of_launch(bytes, x, stream);
    tensors.workspace = own ? own.data() : workspace_of(x.device, stream, bytes);
  }
  ask(x.device, [&](char** error) { return normjit.norm(service, &spec, &tensors, stream, nullptr, error); });
}

}  // namespace normjit_torch
