// SPDX-License-Identifier: Apache-2.0
// The kernels of normjit::layer_norm and normjit::layer_norm_with_statistics on PyTorch's stable ABI: from
// tensors to one call of libnormjit on the current stream. ../_operator.py has the schemas, and builds and
// connects this.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <limits>
#include <string>

#include "connection.h"
#include "tensor.h"
#include "workspace.h"

namespace normjit_torch {
namespace {

struct Type {
  std::int32_t code;  // of normjit; 0: it has none
  const char* name;   // of PyTorch
};
Type type_of(std::int32_t dtype) {
  if (dtype == aoti_torch_dtype_float32()) return {NORMJIT_F32, "Float"};
  if (dtype == aoti_torch_dtype_float16()) return {NORMJIT_F16, "Half"};
  if (dtype == aoti_torch_dtype_bfloat16()) return {NORMJIT_BF16, "BFloat16"};
  if (dtype == aoti_torch_dtype_float64()) return {NORMJIT_F64, "Double"};
  return {0, "another type"};
}

constexpr std::int32_t kAsX = -1;

// As in the schema.
struct Arguments {
  Tensor x;
  std::int64_t dims;
  Tensor weight, bias;  // empty: none
  double epsilon;
  std::int64_t activation;
  double scale;
  std::int32_t dtype;
};

Arguments take(const StableIValue* stack) {
  return {Tensor(from_stable<AtenTensorHandle>(stack[0])),
          from_stable<std::int64_t>(stack[1]),
          Tensor(take_optional<AtenTensorHandle>(stack[2], nullptr)),
          Tensor(take_optional<AtenTensorHandle>(stack[3], nullptr)),
          from_stable<double>(stack[4]),
          from_stable<std::int64_t>(stack[5]),
          from_stable<double>(stack[6]),
          take_optional<std::int32_t>(stack[7], kAsX)};
}

// The rows of x, in a copy where they do not lie in memory as normjit takes them.
struct Rows {
  std::int64_t count = 1, columns = 1, stride = 0;
  Tensor copy;
};
Rows rows_of(const Tensor& x, const Facts& f, std::int64_t outer) {
  Rows rows;
  for (std::int64_t i = 0; i < f.dims; ++i) (i < outer ? rows.count : rows.columns) *= f.sizes[i];
  rows.stride = rows.columns;
  if (rows.count == 0 || rows.columns == 0) return rows;
  const auto columns = join(f, outer, f.dims), across = join(f, 0, outer);
  if (!columns || !across || (columns->size > 1 && columns->stride != 1)) {
    rows.copy = contiguous(x);
  } else if (rows.count > 1) {
    rows.stride = across->stride;
  }
  return rows;
}

// Weight or bias as normjit takes it. Throws, in PyTorch's manner, where it does not fit x.
void* parameter(const char* name, Tensor& given, const Facts& x, std::int64_t dims, std::int32_t dtype) {
  const Facts f = facts_of(given);
  const std::int64_t* wanted = x.sizes + x.dims - dims;
  if (f.dims != dims || !std::equal(wanted, wanted + dims, f.sizes))
    fail(std::string("Expected ") + name + " to be of same shape as normalized_shape, but got " + name +
         " of shape " + text_of(f.sizes, f.dims) + " and normalized_shape = " + text_of(wanted, dims));
  if (f.device_type != x.device_type || f.device != x.device)
    fail(std::string("Expected all tensors to be on the same device, but ") + name +
         " is not on the device of the input");
  if (f.dtype != dtype)
    fail(std::string("expected scalar type ") + type_of(dtype).name + " but found " + type_of(f.dtype).name +
         " (" + name + ")");
  const auto joined = join(f, 0, f.dims);
  if (!joined || (joined->size > 1 && joined->stride != 1)) given = contiguous(given);
  return given.data();
}

// A spec's dtypes and the tensors' for them. Without dtype all are x's, as in PyTorch's own kernel on CUDA.
struct Dtypes {
  std::int32_t x, y, weight, statistics;
};
Dtypes dtypes_of(const Arguments& a, std::int32_t x) {
  Dtypes d{x, a.dtype == kAsX ? x : a.dtype, x, aoti_torch_dtype_float32()};
  if (a.dtype != kAsX && a.weight) d.weight = facts_of(a.weight).dtype;
  if (type_of(d.x).code == 0) fail("normjit::layer_norm: not implemented for this dtype of the input");
  if (type_of(d.y).code == 0) fail("normjit::layer_norm: dtype must be a floating-point type");
  const std::int32_t f64 = aoti_torch_dtype_float64();
  if (d.x == f64 || d.y == f64 || d.weight == f64) d.statistics = f64;
  return d;
}

struct Outputs {
  Tensor y, mean, rstd;
};

// Memory for what the kernel writes; in the statistics ones stand in the place of the normalized dimensions.
Outputs make_outputs(const Facts& x, std::int64_t dims, const Dtypes& dtypes, bool statistics) {
  Outputs out{make(x, x.dims, x.sizes, dtypes.y), Tensor(), Tensor()};
  if (statistics) {
    std::vector<std::int64_t> sizes(x.sizes, x.sizes + x.dims);
    std::fill(sizes.end() - dims, sizes.end(), 1);
    out.mean = make(x, x.dims, sizes.data(), dtypes.statistics);
    out.rstd = make(x, x.dims, sizes.data(), dtypes.statistics);
  }
  return out;
}

void launch(const normjit_spec& spec, normjit_tensors& tensors, const Facts& x) {
  void* const stream = current_stream(x.device);
  Tensor own;
  if (const std::int64_t bytes = workspace_bytes(spec, x.device); bytes != 0) {
    // A graph zeroes it before each replay of this node, and its pool keeps the memory.
    if (runs_with_others(stream)) own = zeros(bytes, x);
    tensors.workspace = own ? own.data() : workspace_of(x.device, stream, bytes);
  }
  ask(x.device, [&](char** error) {
    return normjit.layer_norm(normjit.service, &spec, &tensors, stream, nullptr, error);
  });
}

Outputs layer_norm(Arguments a, bool statistics) {
  const Facts x = facts_of(a.x);
  if (a.dims < 1 || a.dims > x.dims)
    fail("normjit::layer_norm: cannot normalize over the last " + std::to_string(a.dims) +
         " dimensions of an input of size" + text_of(x.sizes, x.dims));
  if (a.bias && !a.weight) fail("normjit::layer_norm: a bias needs a weight");
  const Dtypes dtypes = dtypes_of(a, x.dtype);

  const OnDevice here(x.device);
  normjit_tensors tensors = NORMJIT_TENSORS_INIT;
  if (a.weight) tensors.weight.pointer = parameter("weight", a.weight, x, a.dims, dtypes.weight);
  if (a.bias) tensors.bias.pointer = parameter("bias", a.bias, x, a.dims, dtypes.weight);
  Outputs out = make_outputs(x, a.dims, dtypes, statistics);
  const Rows rows = rows_of(a.x, x, x.dims - a.dims);
  if (rows.count == 0 || rows.columns == 0) return out;
  tensors.x.pointer = (rows.copy ? rows.copy : a.x).data();
  tensors.x.outer = rows.stride;
  tensors.y.pointer = out.y.data();
  if (statistics) tensors.mean = out.mean.data(), tensors.rstd = out.rstd.data();
  tensors.rows = rows.count;

  normjit_spec spec = NORMJIT_SPEC_INIT;
  spec.columns = rows.columns;
  spec.epsilon = a.epsilon;
  spec.scale = a.scale;
  spec.input = type_of(dtypes.x).code;
  spec.output = type_of(dtypes.y).code;
  spec.weight = type_of(dtypes.weight).code;
  spec.affine = a.bias ? NORMJIT_WEIGHT_BIAS : a.weight ? NORMJIT_WEIGHT : NORMJIT_NO_AFFINE;
  spec.activation = static_cast<std::int32_t>(a.activation);
  spec.statistics = statistics;
  launch(spec, tensors, x);
  return out;
}

// Whether libnormjit takes this epsilon; PyTorch computes with any.
bool takes_epsilon(const StableIValue* stack) {
  const double epsilon = from_stable<double>(stack[4]);
  return epsilon >= 0 && epsilon <= std::numeric_limits<float>::max();
}

// The same arguments and results, by PyTorch's own operators.
void by_pytorch(StableIValue* stack) {
  require(aoti_torch_call_dispatcher("normjit::layer_norm_by_pytorch", "", stack),
          "computing by PyTorch (which has written the reason to stderr)");
}

void boxed_layer_norm(StableIValue* stack, std::uint64_t, std::uint64_t) {
  if (!takes_epsilon(stack)) {
    by_pytorch(stack);
    for (int i : {1, 2}) const Tensor unused(from_stable<AtenTensorHandle>(stack[i]));
    return;
  }
  Outputs out = layer_norm(take(stack), false);
  stack[0] = to_stable(out.y.release());
}

void boxed_layer_norm_with_statistics(StableIValue* stack, std::uint64_t, std::uint64_t) {
  if (!takes_epsilon(stack)) return by_pytorch(stack);
  Outputs out = layer_norm(take(stack), true);
  stack[0] = to_stable(out.y.release());
  stack[1] = to_stable(out.mean.release());
  stack[2] = to_stable(out.rstd.release());
}

}  // namespace
}  // namespace normjit_torch

// Before the first call of an operator. The service lives as long as the process.
extern "C" __attribute__((visibility("default"))) void normjit_torch_connect(void* const* functions,
                                                                             void* service) {
  normjit_torch::connect(functions, service);
}

#ifdef NORMJIT_TORCH_ON_CPU
STABLE_TORCH_LIBRARY_IMPL(normjit, CPU, m) {
#else
STABLE_TORCH_LIBRARY_IMPL(normjit, CUDA, m) {
#endif
  m.impl("layer_norm", &normjit_torch::boxed_layer_norm);
  m.impl("layer_norm_with_statistics", &normjit_torch::boxed_layer_norm_with_statistics);
}
