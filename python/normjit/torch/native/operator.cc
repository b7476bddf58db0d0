// SPDX-License-Identifier: Apache-2.0
// The kernels of normjit::_launch, for every spec, of normjit::layer_norm and of normjit::norm_backward, on
// PyTorch's stable ABI: from tensors to one call of libnormjit on the current stream. ../_operator.py has the
// schemas, and builds and connects this.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "launch.h"

namespace normjit_torch {
namespace {

// ---- Every spec

enum Extent : std::int32_t {
  kMatrix,   // a row for each of x
  kColumns,  // one row
  kRows,     // a number for each row of x
  kOne,      // a number
  kBlocks,   // a number for each block of a row of x
  kPairs,    // a row for each of x, of pairs of columns
};

// As in ../_operator.py.
struct Operand {
  std::uint32_t offset;  // of its pointer in normjit_tensors
  std::int32_t extent;
  std::int32_t dtype;   // of normjit, or kFourScales; 0: the spec does not have it
  std::int32_t output;  // 1: the kernel writes it
};
constexpr std::size_t kMostOperands = 32;

struct Problem {
  normjit_service* service;
  normjit_spec spec;
  std::array<Operand, kMostOperands> operands;  // x, inputs, outputs
};

// By their numbers. They stay until the process ends.
std::array<std::atomic<const Problem*>, 1 << 16> problems;
std::atomic<std::size_t> problem_count{0};

const Problem& problem_of(std::int64_t number) {
  const auto place = static_cast<std::size_t>(number);
  const Problem* problem = place < problems.size() ? problems[place].load() : nullptr;
  if (!problem) fail("normjit::_launch: no spec has this number");
  return *problem;
}

// ../_problem.py says in words what does not fit.
void require_fit(bool fits) {
  if (!fits) fail("normjit::norm: the operands do not fit the spec");
}

// Dimensions of x: those in front of a row's columns, and all up to their end. Behind it are the positions of
// channels first.
struct RowDims {
  std::int64_t outer, end;
};
RowDims row_dims(const Facts& x, const normjit_spec& spec) {
  if (spec.channels_first) {
    require_fit(x.dims > 2 && x.sizes[1] == spec.columns);
    return {1, 2};
  }
  std::int64_t count = 1;
  for (std::int64_t i = x.dims - 1; i >= 0; --i)
    if ((count *= x.sizes[i]) == spec.columns) return {i, x.dims};
  require_fit(false);
  return {};
}

// The tensors of one launch, as libnormjit takes them. The dimensions of x from `outer` on are a row, or with
// channels first a sample.
class Call {
 public:
  Call(const Facts& x, RowDims row, const normjit_spec& spec)
      : x_(x), spec_(spec), outer_(row.outer), end_(row.end), here_(x.device) {
    const std::int64_t positions = elements(x, end_, x.dims);
    tensors_.rows = elements(x, 0, outer_) * positions;
    if (end_ != x.dims) tensors_.plane = positions;
  }

  // Takes an operand, or makes it where it is an output that is not given.
  void take(const Operand& operand, Tensor& tensor) {
    if (tensor || !operand.output) require_fit(static_cast<bool>(tensor) == (operand.dtype != 0));
    if (operand.dtype == 0) return;
    if (!tensor) {
      tensor = make_output(operand.offset, operand.extent, dtype_of(operand.dtype));
      return;
    }
    const Facts f = facts_of(tensor);
    require_fit(code_of(f.dtype) == operand.dtype && f.device_type == x_.device_type &&
                f.device == x_.device);
    const std::int64_t columns = elements(x_, outer_, end_);
    if (operand.extent == kMatrix || operand.extent == kPairs) {
      const Sizes wanted = sizes_of(operand.extent);
      require_fit(operand.output ? has_shape(f, wanted.sizes, wanted.dims) : expands_to(f, x_));
      const bool in_place = take_rows(operand.offset, tensor, f, operand.output ? f : x_);
      require_fit(in_place || !operand.output);
    } else if (operand.extent == kColumns) {
      require_fit(has_shape(f, x_.sizes + outer_, end_ - outer_) || has_shape(f, &columns, 1));
      take_columns(operand.offset, tensor);
    } else if (operand.extent == kOne) {
      require_fit(elements(f, 0, f.dims) == 1);
      put(operand.offset, tensor.data());
    } else {
      const Sizes wanted = sizes_of(operand.extent);
      require_fit(has_shape(f, wanted.sizes, wanted.dims) && is_contiguous(tensor));
      put(operand.offset, tensor.data());
    }
  }

  // Takes a tensor that expands to another, which has the rows of x, as a copy where its rows cannot be read
  // in place; whether they can.
  bool take_rows(std::size_t offset, const Tensor& tensor, const Facts& f, const Facts& whole) {
    auto rows = rows_of(f, whole, outer_);
    if (rows) {
      rows->pointer = tensor.data();
      put(offset, *rows);
    } else {
      put(offset, kept(copy_of(tensor, f, whole.dims, whole.sizes)));
    }
    return rows.has_value();
  }

  // Takes the scale or shift of a modulation, of which so many neighbouring rows share each row, as a copy
  // where those cannot be read in place.
  void take_modulation(std::size_t offset, const Tensor& tensor, std::int64_t shared) {
    const Facts f = facts_of(tensor);
    auto rows = rows_of(f, f, std::max<std::int64_t>(f.dims - (end_ - outer_), 0));
    // Rows that have a gradient each must lie apart, and those that share one are one level of strides.
    const bool in_place = rows && (shared == 1 ? rows->n == 1 || rows->inner != 0 : rows->n == 1);
    if (!in_place) rows = normjit_input_rows{nullptr, 1, columns(), 0};
    if (shared != 1) rows = normjit_input_rows{nullptr, shared, rows->outer, 0};
    rows->pointer = in_place ? tensor.data() : kept(copy_of(tensor, f, f.dims, f.sizes));
    put(offset, *rows);
  }

  // Makes its gradient.
  Tensor make_gradient(std::size_t offset, const Tensor& modulation, std::int64_t shared) {
    const Facts f = facts_of(modulation);
    Tensor made = make(x_, f.dims, f.sizes, f.dtype);
    put(offset, normjit_output_rows{made.data(), shared, columns(), shared == 1 ? columns() : 0});
    return made;
  }

  // Takes a tensor of one row.
  void take_columns(std::size_t offset, const Tensor& tensor) {
    if (is_contiguous(tensor)) return put(offset, tensor.data());
    const Facts f = facts_of(tensor);
    put(offset, kept(copy_of(tensor, f, f.dims, f.sizes)));
  }

  Tensor make_output(std::size_t offset, std::int32_t extent, std::int32_t dtype) {
    const Sizes wanted = sizes_of(extent);
    Tensor made = make(x_, wanted.dims, wanted.sizes, dtype);
    put(offset, made.data());
    return made;
  }

  // Whether there is anything to launch.
  bool has_elements() const { return elements(x_, 0, x_.dims) != 0; }
  void launch(normjit_service* service) { normjit_torch::launch(service, spec_, tensors_, x_); }

 private:
  void* kept(Tensor&& copy) {
    copies_.push_back(std::move(copy));
    return copies_.back().data();
  }

  struct Sizes {
    std::int64_t dims;
    const std::int64_t* sizes;
  };
  // Of an output.
  Sizes sizes_of(std::int32_t extent) {
    if (extent == kMatrix) return {x_.dims, x_.sizes};
    if (extent == kColumns) return {end_ - outer_, x_.sizes + outer_};
    if (extent == kOne) return {0, nullptr};
    std::vector<std::int64_t>& sizes = sizes_[static_cast<std::size_t>(extent)];
    if (sizes.empty())
      sizes = extent == kRows    ? number_sizes()
              : extent == kPairs ? sizes_with(spec_.columns / 2)
                                 : block_sizes();
    return {static_cast<std::int64_t>(sizes.size()), sizes.data()};
  }

  // Ones stand in the place of the normalized dimensions.
  std::vector<std::int64_t> number_sizes() const {
    std::vector<std::int64_t> sizes(x_.sizes, x_.sizes + x_.dims);
    std::fill(sizes.begin() + outer_, sizes.begin() + end_, 1);
    return sizes;
  }

  // A number stands in the place of the normalized dimensions.
  std::vector<std::int64_t> sizes_with(std::int64_t last) const {
    std::vector<std::int64_t> sizes(x_.sizes, x_.sizes + outer_);
    sizes.push_back(last);
    return sizes;
  }

  // With packed columns they are of words of four scales; by rows x has the other dimensions.
  std::vector<std::int64_t> block_sizes() const {
    std::int64_t shape[3];
    std::size_t rank = 0;
    normjit.block_scale_shape(&spec_, tensors_.rows, shape, &rank, nullptr);  // of a valid spec
    if (spec_.scale_layout == NORMJIT_SCALE_LAYOUT_ROWS) return sizes_with(shape[1]);
    return {shape, shape + (spec_.scale_layout == NORMJIT_SCALE_LAYOUT_PACKED_COLUMNS ? 2 : rank)};
  }

  std::int64_t columns() const { return elements(x_, outer_, end_); }

  template <class Member>  // a pointer, or rows that begin with one
  void put(std::size_t offset, const Member& member) {
    std::memcpy(reinterpret_cast<char*>(&tensors_) + offset, &member, sizeof member);
  }

  const Facts& x_;
  const normjit_spec& spec_;
  const std::int64_t outer_, end_;
  const OnDevice here_;
  std::vector<Tensor> copies_;
  std::array<std::vector<std::int64_t>, kPairs + 1> sizes_;  // by extents
  normjit_tensors tensors_ = NORMJIT_TENSORS_INIT;
};

// Launches a problem on the operands of its table, and makes the outputs that are not given.
void run(const Problem& problem, Tensor* tensors, std::size_t count) {
  const Facts x = facts_of(tensors[0]);
  Call call(x, row_dims(x, problem.spec), problem.spec);
  for (std::size_t i = 0; i < count; ++i) call.take(problem.operands[i], tensors[i]);
  if (call.has_elements()) return call.launch(problem.service);
  for (std::size_t i = 0; i < count; ++i)  // of nothing, a number of all rows is 0
    if (const Operand& operand = problem.operands[i];
        operand.output && operand.dtype != 0 && operand.extent == kOne)
      require(aoti_torch_zero_(tensors[i].get()), "zeroing a result");
}

// Arguments: the number of a problem, and its operands, outputs last; results: the outputs that were made.
void boxed_launch(StableIValue* stack, std::uint64_t arguments, std::uint64_t results) {
  const std::size_t count = arguments - 1;
  std::array<Tensor, kMostOperands> tensors;
  std::array<bool, kMostOperands> given;
  for (std::size_t i = 0; i < count; ++i) {
    const StableIValue value = stack[1 + i];
    tensors[i] = Tensor(i == 0 ? from_stable<AtenTensorHandle>(value)
                               : take_optional<AtenTensorHandle>(value, nullptr));
    given[i] = static_cast<bool>(tensors[i]);
  }
  run(problem_of(from_stable<std::int64_t>(stack[0])), tensors.data(), count);
  for (std::size_t i = 0; i < results; ++i) {
    const std::size_t at = count - results + i;
    stack[i] = tensors[at] && !given[at] ? to_optional(tensors[at].release()) : to_optional();
  }
}

// ---- LayerNorm, with the checks and errors of PyTorch's

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

// Throws, in PyTorch's manner, where weight or bias does not fit x.
void check_parameter(const char* name, const Tensor& given, const Facts& x, std::int64_t dims,
                     std::int32_t dtype) {
  if (!given) return;
  const Facts f = facts_of(given);
  const std::int64_t* wanted = x.sizes + x.dims - dims;
  if (!has_shape(f, wanted, dims))
    fail(std::string("Expected ") + name + " to be of same shape as normalized_shape, but got " + name +
         " of shape " + text_of(f.sizes, f.dims) + " and normalized_shape = " + text_of(wanted, dims));
  if (f.device_type != x.device_type || f.device != x.device)
    fail(std::string("Expected all tensors to be on the same device, but ") + name +
         " is not on the device of the input");
  if (f.dtype != dtype)
    fail(std::string("expected scalar type ") + type_of(dtype).name + " but found " + type_of(f.dtype).name +
         " (" + name + ")");
}

// A spec's dtypes and the tensors' for them. Without dtype all are x's, as in PyTorch's own kernel on CUDA.
struct Dtypes {
  std::int32_t x, y, weight;
};
Dtypes dtypes_of(const Arguments& a, std::int32_t x) {
  Dtypes d{x, a.dtype == kAsX ? x : a.dtype, x};
  if (a.dtype != kAsX && a.weight) d.weight = facts_of(a.weight).dtype;
  if (type_of(d.x).code == 0) fail("normjit::layer_norm: not implemented for this dtype of the input");
  if (type_of(d.y).code == 0) fail("normjit::layer_norm: dtype must be a floating-point type");
  return d;
}

Tensor layer_norm(const Arguments& a) {
  const Facts x = facts_of(a.x);
  if (a.dims < 1 || a.dims > x.dims)
    fail("normjit::layer_norm: cannot normalize over the last " + std::to_string(a.dims) +
         " dimensions of an input of size" + text_of(x.sizes, x.dims));
  if (a.bias && !a.weight) fail("normjit::layer_norm: a bias needs a weight");
  const Dtypes dtypes = dtypes_of(a, x.dtype);
  check_parameter("weight", a.weight, x, a.dims, dtypes.weight);
  check_parameter("bias", a.bias, x, a.dims, dtypes.weight);

  const std::int64_t outer = x.dims - a.dims;
  normjit_spec spec = NORMJIT_SPEC_INIT;
  spec.columns = elements(x, outer, x.dims);
  spec.epsilon = a.epsilon;
  spec.scale = a.scale;
  spec.input = type_of(dtypes.x).code;
  spec.output = type_of(dtypes.y).code;
  spec.weight = type_of(dtypes.weight).code;
  spec.affine = a.bias ? NORMJIT_WEIGHT_BIAS : a.weight ? NORMJIT_WEIGHT : NORMJIT_NO_AFFINE;
  spec.activation = static_cast<std::int32_t>(a.activation);

  Call call(x, {outer, x.dims}, spec);
  if (a.weight) call.take_columns(offsetof(normjit_tensors, weight), a.weight);
  if (a.bias) call.take_columns(offsetof(normjit_tensors, bias), a.bias);
  call.take_rows(offsetof(normjit_tensors, x), a.x, x, x);
  Tensor y = call.make_output(offsetof(normjit_tensors, y), kMatrix, dtypes.y);
  if (call.has_elements()) call.launch(normjit.service);
  return y;
}

// Whether libnormjit takes this epsilon; PyTorch computes with any.
bool takes_epsilon(double epsilon) { return epsilon >= 0 && epsilon <= std::numeric_limits<float>::max(); }

// The arguments and results of an operator, by PyTorch's own operators.
void by_pytorch(const char* name, StableIValue* stack) {
  require(aoti_torch_call_dispatcher(name, "", stack), "computing by PyTorch");
}

void boxed_layer_norm(StableIValue* stack, std::uint64_t, std::uint64_t) {
  if (!takes_epsilon(from_stable<double>(stack[4])))
    return by_pytorch("normjit::layer_norm_by_pytorch", stack);
  stack[0] = to_stable(layer_norm(take(stack)).release());
}

// ---- Gradients

// As in the schema.
struct GradientArguments {
  Tensor x;
  std::int64_t dims;
  Tensor weight, bias, dy, dsum, gate, mod_scale, mod_shift;  // all but dy empty: none
  double epsilon;
  std::int64_t activation;
  double scale;
  std::int64_t gate_place, gate_function;
  bool plain_modulation, layer, weight_offset, of_x, of_weight, of_bias, batch_invariant;
};
constexpr std::size_t kGradientArguments = 21, kGradientEpsilon = 9, kGradients = 6;

GradientArguments take_gradient_arguments(const StableIValue* stack) {
  return {Tensor(from_stable<AtenTensorHandle>(stack[0])),
          from_stable<std::int64_t>(stack[1]),
          Tensor(take_optional<AtenTensorHandle>(stack[2], nullptr)),
          Tensor(take_optional<AtenTensorHandle>(stack[3], nullptr)),
          Tensor(from_stable<AtenTensorHandle>(stack[4])),
          Tensor(take_optional<AtenTensorHandle>(stack[5], nullptr)),
          Tensor(take_optional<AtenTensorHandle>(stack[6], nullptr)),
          Tensor(take_optional<AtenTensorHandle>(stack[7], nullptr)),
          Tensor(take_optional<AtenTensorHandle>(stack[8], nullptr)),
          from_stable<double>(stack[kGradientEpsilon]),
          from_stable<std::int64_t>(stack[10]),
          from_stable<double>(stack[11]),
          from_stable<std::int64_t>(stack[12]),
          from_stable<std::int64_t>(stack[13]),
          from_stable<bool>(stack[14]),
          from_stable<bool>(stack[15]),
          from_stable<bool>(stack[16]),
          from_stable<bool>(stack[17]),
          from_stable<bool>(stack[18]),
          from_stable<bool>(stack[19]),
          from_stable<bool>(stack[20])};
}

// Back to where an operator takes them.
std::array<StableIValue, kGradientArguments> stack_of(GradientArguments a) {
  const auto optional = [](Tensor& part) { return part ? to_optional(part.release()) : to_optional(); };
  return {to_stable(a.x.release()), to_stable(a.dims),          optional(a.weight),
          optional(a.bias),         to_stable(a.dy.release()),  optional(a.dsum),
          optional(a.gate),         optional(a.mod_scale),      optional(a.mod_shift),
          to_stable(a.epsilon),     to_stable(a.activation),    to_stable(a.scale),
          to_stable(a.gate_place),  to_stable(a.gate_function), to_stable(a.plain_modulation),
          to_stable(a.layer),       to_stable(a.weight_offset), to_stable(a.of_x),
          to_stable(a.of_weight),   to_stable(a.of_bias),       to_stable(a.batch_invariant)};
}

// Whether gradients depend on the bias.
bool reads_bias(const GradientArguments& a) {
  return a.activation != NORMJIT_NO_ACTIVATION ||
         ((a.gate_place == NORMJIT_GATE_AFTER || a.mod_scale) && a.of_x);
}

// ../_check.py asks the same.
void check_gradients(const GradientArguments& a) {
  const Facts x = facts_of(a.x);
  if (a.dims < 1 || a.dims > x.dims)
    fail("normjit::norm_backward: dims must be 1 to " + std::to_string(x.dims));
  if (!a.bias && a.of_bias && reads_bias(a))
    fail(
        "normjit::norm_backward: bias must be given, since with an activation, a modulation or a gate behind "
        "it gradients depend on it");
  if (a.gate_place < NORMJIT_NO_GATE || a.gate_place > NORMJIT_GATE_AFTER ||
      static_cast<bool>(a.gate) != (a.gate_place != NORMJIT_NO_GATE))
    fail("normjit::norm_backward: gate_place must be that of a gate, and 1 without one");
  const std::int64_t* const row = x.sizes + x.dims - a.dims;
  const std::int64_t columns = elements(x, x.dims - a.dims, x.dims);
  const auto as_row = [&](const Facts& f) { return has_shape(f, row, a.dims) || has_shape(f, &columns, 1); };
  const auto as_x = [&](const Facts& f) { return has_shape(f, x.sizes, x.dims); };
  const auto to_x = [&](const Facts& f) { return expands_to(f, x); };
  const auto check = [&](const char* name, const Tensor& part, const auto& fits, bool may_be = true) {
    if (!part) return;
    const Facts f = facts_of(part);
    if (!may_be || !fits(f) || type_of(f.dtype).code == 0 || f.device_type != x.device_type ||
        f.device != x.device)
      fail(std::string("normjit::norm_backward: ") + name + " does not fit");
  };
  const auto same_type = [](const Tensor& one, const Tensor& other) {
    return one && (!other || facts_of(one).dtype == facts_of(other).dtype);
  };
  check("x", a.x, as_x);
  check("dy", a.dy, as_x);
  check("dsum", a.dsum, as_x);
  check("gate", a.gate, as_x);
  check("mod_scale", a.mod_scale, to_x, !a.gate);
  check("mod_shift", a.mod_shift, to_x, same_type(a.mod_scale, a.mod_shift));
  check("weight", a.weight, as_row);
  check("bias", a.bias, as_row, same_type(a.weight, a.bias));
}

// Which gradients are written; 0: none.
std::int32_t need_of(const GradientArguments& a) {
  constexpr std::int32_t kNeeds[] = {0,
                                     NORMJIT_NEED_DX,
                                     NORMJIT_NEED_DWEIGHT,
                                     NORMJIT_NEED_DX_DWEIGHT,
                                     NORMJIT_NEED_DBIAS,
                                     NORMJIT_NEED_DX_DBIAS,
                                     NORMJIT_NEED_DWEIGHT_DBIAS,
                                     NORMJIT_NEED_ALL};
  const bool of_weight = a.weight && a.of_weight, of_bias = a.weight && a.of_bias;
  return kNeeds[a.of_x + 2 * of_weight + 4 * of_bias];
}

// The spec of operands that passed the check, but for its columns.
normjit_spec spec_of(const GradientArguments& a) {
  normjit_spec spec = NORMJIT_SPEC_INIT;
  spec.backward = 1;
  spec.norm = a.layer ? NORMJIT_LAYER : NORMJIT_RMS;
  spec.epsilon = a.epsilon;
  spec.activation = static_cast<std::int32_t>(a.activation);
  spec.scale = a.scale;
  spec.input = type_of(facts_of(a.x).dtype).code;
  spec.output = type_of(facts_of(a.dy).dtype).code;
  if (a.dsum && a.of_x) {
    spec.dsum = 1;
    spec.residual_type = type_of(facts_of(a.dsum).dtype).code;
  }
  if (a.gate) {
    spec.gate = static_cast<std::int32_t>(a.gate_place);
    spec.gate_function = static_cast<std::int32_t>(a.gate_function);
    spec.modulation_type = type_of(facts_of(a.gate).dtype).code;
  }
  if (a.mod_scale) {
    spec.modulation = a.mod_shift ? NORMJIT_MOD_SCALE_SHIFT : NORMJIT_MOD_SCALE;
    spec.plain_modulation = a.plain_modulation;
    spec.modulation_type = type_of(facts_of(a.mod_scale).dtype).code;
  }
  spec.need = need_of(a);
  if (a.weight) {
    spec.affine = a.of_bias || (a.bias && reads_bias(a)) ? NORMJIT_WEIGHT_BIAS : NORMJIT_WEIGHT;
    spec.weight_offset = a.weight_offset;
    spec.weight = spec.gradient_type = type_of(facts_of(a.weight).dtype).code;
  }
  return spec;
}

// As in the schema.
enum Gradient { kDx, kDweight, kDbias, kDgate, kDscale, kDshift };
using Gradients = std::array<Tensor, kGradients>;

// Launches the kernel; whether there is one.
bool launch_gradients(Call& call, normjit_service* service) {
  try {
    call.launch(service);
    return true;
  } catch (const Refused& why) {
    if (why.status != NORMJIT_NO_COMPILER && why.status != NORMJIT_NOT_CACHED &&
        why.status != NORMJIT_NOT_READY)
      throw;
    return false;
  }
}

// How many rows share a row of the modulation, 1 without one. None where those of scale and shift differ.
std::optional<std::int64_t> rows_that_share(const GradientArguments& a, const Facts& x, std::int64_t outer) {
  if (!a.mod_scale) return 1;
  const auto scale = rows_that_share(facts_of(a.mod_scale), x, outer);
  if (a.mod_shift && scale != rows_that_share(facts_of(a.mod_shift), x, outer)) return {};
  return scale;
}

// None where there is no kernel.
std::optional<Gradients> gradients(const GradientArguments& a) {
  check_gradients(a);
  const Facts x = facts_of(a.x);
  const std::int64_t outer = x.dims - a.dims;
  normjit_spec spec = spec_of(a);
  spec.columns = elements(x, outer, x.dims);

  Call call(x, {outer, x.dims}, spec);
  const bool launches = call.has_elements() && spec.need != 0;
  normjit_service* const service = a.batch_invariant ? normjit.invariant_service() : normjit.service;
  const std::optional<std::int64_t> shared = launches ? rows_that_share(a, x, outer) : 1;
  if (!shared) return {};
  call.take_rows(offsetof(normjit_tensors, x), a.x, x, x);
  call.take_rows(offsetof(normjit_tensors, dy), a.dy, facts_of(a.dy), x);
  if (spec.dsum != 0) call.take_rows(offsetof(normjit_tensors, dsum), a.dsum, facts_of(a.dsum), x);
  if (a.gate) call.take_rows(offsetof(normjit_tensors, gate), a.gate, facts_of(a.gate), x);
  Gradients made;
  if (a.of_x) made[kDx] = call.make_output(offsetof(normjit_tensors, dx), kMatrix, x.dtype);
  if (a.of_x && a.gate)
    made[kDgate] = call.make_output(offsetof(normjit_tensors, dgate), kMatrix, facts_of(a.gate).dtype);
  if (launches && a.mod_scale)
    call.take_modulation(offsetof(normjit_tensors, mod_scale), a.mod_scale, *shared);
  if (launches && a.mod_shift && a.activation != NORMJIT_NO_ACTIVATION)
    call.take_modulation(offsetof(normjit_tensors, mod_shift), a.mod_shift, *shared);
  if (a.of_x && a.mod_scale)
    made[kDscale] = call.make_gradient(offsetof(normjit_tensors, dmod_scale), a.mod_scale, *shared);
  if (a.of_x && a.mod_shift)
    made[kDshift] = call.make_gradient(offsetof(normjit_tensors, dmod_shift), a.mod_shift, *shared);
  if (a.weight) {
    call.take_columns(offsetof(normjit_tensors, weight), a.weight);
    const std::int32_t dtype = facts_of(a.weight).dtype;
    if (a.of_weight) made[kDweight] = call.make_output(offsetof(normjit_tensors, dweight), kColumns, dtype);
    if (a.of_bias) made[kDbias] = call.make_output(offsetof(normjit_tensors, dbias), kColumns, dtype);
    if (a.bias && reads_bias(a)) call.take_columns(offsetof(normjit_tensors, bias), a.bias);
  }
  if (launches) {
    if (!launch_gradients(call, service)) return {};
  } else {
    for (const Gradient sum : {kDweight, kDbias, kDscale, kDshift})
      if (made[sum]) require(aoti_torch_zero_(made[sum].get()), "zeroing a gradient");
  }
  for (Tensor& part : made) {
    constexpr std::int64_t kNone = 0;
    if (!part) part = make(x, 1, &kNone, x.dtype);
  }
  return made;
}

// By PyTorch where the norm has a kernel and its gradients have none.
void boxed_norm_backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  constexpr const char* kOtherwise = "normjit::norm_backward_by_pytorch";
  if (!takes_epsilon(from_stable<double>(stack[kGradientEpsilon]))) return by_pytorch(kOtherwise, stack);
  GradientArguments arguments = take_gradient_arguments(stack);
  std::optional<Gradients> made = gradients(arguments);
  if (!made) {
    auto again = stack_of(std::move(arguments));
    by_pytorch(kOtherwise, again.data());
    std::copy_n(again.begin(), kGradients, stack);
    return;
  }
  std::transform(made->begin(), made->end(), stack, [](Tensor& part) { return to_stable(part.release()); });
}

}  // namespace
}  // namespace normjit_torch

// Before the first call of an operator. The services live as long as the process.
extern "C" __attribute__((visibility("default"))) void normjit_torch_connect(
    void* const* functions, void* service, normjit_service* (*invariant_service)()) {
  normjit_torch::connect(functions, service, invariant_service);
}

// The number of a new problem; -1: there are too many, or one is too large.
extern "C" __attribute__((visibility("default"))) std::int64_t normjit_torch_add(
    normjit_service* service, const normjit_spec* spec, const normjit_torch::Operand* operands,
    std::size_t count) {
  using namespace normjit_torch;
  const std::size_t number = problem_count++;
  if (number >= problems.size() || count > kMostOperands || spec->struct_size > sizeof *spec) return -1;
  auto* const problem = new Problem{service, {}, {}};
  std::memcpy(&problem->spec, spec, spec->struct_size);  // the members that Python knows
  std::copy_n(operands, count, problem->operands.begin());
  problems[number] = problem;
  return static_cast<std::int64_t>(number);
}

#ifdef NORMJIT_TORCH_STANDALONE
#include "standalone.h"
#endif

#ifdef NORMJIT_TORCH_ON_CPU
STABLE_TORCH_LIBRARY_IMPL(normjit, CPU, m) {
#else
STABLE_TORCH_LIBRARY_IMPL(normjit, CUDA, m) {
#endif
  m.impl("_launch", &normjit_torch::boxed_launch);
  m.impl("layer_norm", &normjit_torch::boxed_layer_norm);
#ifdef NORMJIT_TORCH_STANDALONE
  m.impl("norm", &normjit_torch::boxed_norm);
#endif
  m.impl("layer_norm_with_gradients", &normjit_torch::boxed_layer_norm);
  m.impl("norm_backward", &normjit_torch::boxed_norm_backward);
}
