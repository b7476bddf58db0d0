// SPDX-License-Identifier: Apache-2.0
// y with a gradient, without what the class of ../_rules.py costs per call in Python: for plain calls,
// without activation, scale or dtype. As the operator normjit::layer_norm_differentiable, and, where Python's
// headers are installed, as a function of Python, which spares PyTorch the way from one to the other.
// PyTorch's stable ABI has no autograd, so this is a library of its own, for one version of PyTorch, and
// compiled when a gradient is first asked for; ../_operator.py has the schema, and does that.
#if __has_include(<Python.h>)
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/Exceptions.h>
#endif

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/library.h>

#include <limits>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Optional = std::optional<Tensor>;

constexpr std::int64_t kNoActivation = 1;  // NORMJIT_NO_ACTIVATION

template <class Result>
auto operator_named(const char* name) {
  using Schema = Result(const Tensor&, std::int64_t, const Optional&, const Optional&, double, std::int64_t,
                        double, std::optional<at::ScalarType>);
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Schema>();
}

std::tuple<Tensor, Tensor, Tensor> with_statistics(const Tensor& x, std::int64_t dims, const Optional& weight,
                                                   const Optional& bias, double eps) {
  static const auto op =
      operator_named<std::tuple<Tensor, Tensor, Tensor>>("normjit::layer_norm_with_statistics");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op.call(x, dims, weight, bias, eps, kNoActivation, 1.0, std::nullopt);
}

Tensor without_gradient(const Tensor& x, std::int64_t dims, const Optional& weight, const Optional& bias,
                        double eps) {
  static const auto op = operator_named<Tensor>("normjit::layer_norm");
  return op.call(x, dims, weight, bias, eps, kNoActivation, 1.0, std::nullopt);
}

Tensor in(const Tensor& tensor, at::ScalarType dtype) {
  return !tensor.defined() || tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
}

// For autocast, where x, weight and y may have types of their own.
struct LayerNorm : torch::autograd::Function<LayerNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, std::int64_t dims, const Optional& weight,
                        const Optional& bias, double eps) {
    auto [y, mean, rstd] = with_statistics(x, dims, weight, bias, eps);
    ctx->save_for_backward({x, weight.value_or(Tensor()), bias.value_or(Tensor()), mean, rstd});
    ctx->saved_data["dims"] = dims;
    return y;
  }

  // Made of differentiable operators, so a gradient of this is PyTorch's own.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &bias = saved[2];
    const auto dims = static_cast<std::size_t>(ctx->saved_data["dims"].toInt());
    // Only tensors that were given count. A bias comes with a weight.
    const bool of_weight = weight.defined() && ctx->needs_input_grad(1);
    const bool of_bias = bias.defined() && ctx->needs_input_grad(2);
    // All in the widest type among them. A gradient has the type of y: f32 under autocast.
    at::ScalarType dtype = c10::promoteTypes(grads[0].scalar_type(), x.scalar_type());
    if (weight.defined()) dtype = c10::promoteTypes(dtype, weight.scalar_type());
    const auto found = at::native_layer_norm_backward_symint(
        in(grads[0], dtype), in(x, dtype), x.sym_sizes().slice(x.dim() - dims), saved[3], saved[4],
        in(weight, dtype), in(bias, dtype), {ctx->needs_input_grad(0), of_weight, of_bias});
    return {in(std::get<0>(found), x.scalar_type()), Tensor(),
            of_weight ? in(std::get<1>(found), weight.scalar_type()) : Tensor(),
            of_bias ? in(std::get<2>(found), bias.scalar_type()) : Tensor(), Tensor()};
  }
};

// How PyTorch holds a node of the graph: a std::shared_ptr, or an intrusive pointer in newer versions.
template <class Node, class Pointer = decltype(std::declval<Node>().getptr())>
auto make_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
    return std::shared_ptr<Node>(new Node(), [](auto* node) { deleteNode(node); });
  else
    return c10::make_intrusive<Node>();
}

// With the node that F.layer_norm has, which is quicker than any of our own: all tensors are of one type.
Tensor with_pytorchs_node(const Tensor& x, std::int64_t dims, const Optional& weight, const Optional& bias,
                          double eps) {
  using torch::autograd::SavedVariable;
  auto [y, mean, rstd] = with_statistics(x, dims, weight, bias, eps);
  const auto node = make_node<torch::autograd::generated::NativeLayerNormBackward0>();
  node->set_next_edges(torch::autograd::collect_next_edges(x, weight, bias));
  const auto shape = x.sym_sizes().slice(x.dim() - dims);
  node->normalized_shape.assign(shape.begin(), shape.end());
  node->input_ = SavedVariable(x, false);
  node->weight_ = SavedVariable(weight, false);
  node->bias_ = SavedVariable(bias, false);
  node->result1_ = SavedVariable(mean, false);
  node->result2_ = SavedVariable(rstd, false);
  torch::autograd::set_history(y, node);
  return y;
}

Tensor layer_norm(const Tensor& x, std::int64_t dims, const Optional& weight, const Optional& bias,
                  double eps) {
  if (!torch::autograd::compute_requires_grad(x, weight, bias))
    return without_gradient(x, dims, weight, bias, eps);
  if (at::autocast::is_autocast_enabled(x.device().type()))
    return LayerNorm::apply(x, dims, weight, bias, eps);
  return with_pytorchs_node(x, dims, weight, bias, eps);
}

#if __has_include(<Python.h>)

#ifdef NORMJIT_TORCH_ON_CPU
constexpr auto kDevice = c10::DispatchKey::CPU;
#else
constexpr auto kDevice = c10::DispatchKey::CUDA;
#endif

// Whether a call meets nothing but autograd on its way to the device: no wrapper, transform, mode or trace.
bool is_plain(const Tensor& x, const Tensor* weight, const Tensor* bias) {
  const auto tls = c10::impl::tls_local_dispatch_key_set();
  c10::DispatchKeySet keys = x.key_set() | tls.included_;
  for (const Tensor* part : {weight, bias})
    if (part) keys = keys | part->key_set();
  keys = keys - tls.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView -
         c10::DispatchKeySet(c10::DispatchKey::BackendSelect);  // which is in every thread's set
  if (keys.highestPriorityTypeId() != kDevice || at::impl::torch_function_mode_enabled()) return false;
  for (const Tensor* part : {&x, weight, bias})
    if (part && part->_fw_grad(/*level=*/0).defined()) return false;
  return true;
}

bool is_end_of(at::IntArrayRef sizes, PyObject* shape) {
  const auto dims = static_cast<std::size_t>(PyTuple_GET_SIZE(shape));
  if (dims < 1 || dims > sizes.size()) return false;
  for (std::size_t i = 0; i < dims; ++i) {
    PyObject* const item = PyTuple_GET_ITEM(shape, i);
    const long long size = PyLong_CheckExact(item) ? PyLong_AsLongLong(item) : -1;
    if (size != sizes[sizes.size() - dims + i]) {
      PyErr_Clear();  // of an item that is no long long
      return false;
    }
  }
  return true;
}

// Lets other threads run Python for as long as it lives.
class WithoutPython {
 public:
  WithoutPython() : state_(PyEval_SaveThread()) {}
  ~WithoutPython() { PyEval_RestoreThread(state_); }
  WithoutPython(const WithoutPython&) = delete;

 private:
  PyThreadState* state_;
};

// layer_norm of (x, normalized_shape, weight, bias, eps); None for a call that is not plain, of which nothing
// was done.
PyObject* python_layer_norm(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 5 || !THPVariable_CheckExact(arguments[0]) || !PyTuple_Check(arguments[1]) ||
      !PyFloat_Check(arguments[4]))
    Py_RETURN_NONE;
  const Tensor* parts[] = {nullptr, nullptr};
  for (int i : {0, 1}) {
    if (arguments[2 + i] == Py_None) continue;
    if (!THPVariable_CheckExact(arguments[2 + i])) Py_RETURN_NONE;
    parts[i] = &THPVariable_Unpack(arguments[2 + i]);
  }
  const Tensor& x = THPVariable_Unpack(arguments[0]);
  const double eps = PyFloat_AS_DOUBLE(arguments[4]);
  if (!(eps >= 0 && eps <= std::numeric_limits<float>::max()) || (parts[1] && !parts[0]) ||
      !is_plain(x, parts[0], parts[1]) || !is_end_of(x.sizes(), arguments[1]))
    Py_RETURN_NONE;
  const auto given = [](const Tensor* part) { return part ? Optional(*part) : Optional(); };
  Tensor y;
  {
    const WithoutPython released;
    y = layer_norm(x, PyTuple_GET_SIZE(arguments[1]), given(parts[0]), given(parts[1]), eps);
  }
  return THPVariable_Wrap(std::move(y));
  END_HANDLE_TH_ERRORS
}

PyMethodDef method = {"layer_norm",
                      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&python_layer_norm)),
                      METH_FASTCALL, nullptr};

#endif

}  // namespace

TORCH_LIBRARY_IMPL(normjit, CompositeImplicitAutograd, m) {
  m.impl("layer_norm_differentiable", &layer_norm);
}

#if __has_include(<Python.h>)
// python_layer_norm, as an object of Python.
extern "C" __attribute__((visibility("default"))) PyObject* normjit_torch_function() {
  return PyCFunction_New(&method, nullptr);
}
#endif
