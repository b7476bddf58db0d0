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

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include <array>
#include <initializer_list>
#include <limits>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Optional = std::optional<Tensor>;

constexpr std::int64_t kNoActivation = 1;                 // NORMJIT_NO_ACTIVATION
constexpr std::int64_t kNoGate = 1, kNoGateFunction = 1;  // NORMJIT_NO_GATE, NORMJIT_NO_GATE_FUNCTION

#ifdef NORMJIT_TORCH_ON_CPU
constexpr auto kDevice = c10::DispatchKey::CPU;
#else
constexpr auto kDevice = c10::DispatchKey::CUDA;
#endif

// Whether an operator meets nothing but autograd and `more` on its way to the device: no wrapper, transform
// or trace.
bool reaches_device(std::initializer_list<const Tensor*> parts, c10::DispatchKeySet more = {}) {
  const auto tls = c10::impl::tls_local_dispatch_key_set();
  c10::DispatchKeySet keys = tls.included_;
  for (const Tensor* part : parts)
    if (part && part->defined()) keys = keys | part->key_set();
  keys = keys - tls.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView - more -
         c10::DispatchKeySet(c10::DispatchKey::BackendSelect);  // which is in every thread's set
  return keys.highestPriorityTypeId() == kDevice;
}

Tensor without_gradient(const Tensor& x, std::int64_t dims, const Optional& weight, const Optional& bias,
                        double eps) {
  using Schema = Tensor(const Tensor&, std::int64_t, const Optional&, const Optional&, double, std::int64_t,
                        double, std::optional<at::ScalarType>);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("normjit::layer_norm", "").typed<Schema>();
  return op.call(x, dims, weight, bias, eps, kNoActivation, 1.0, std::nullopt);
}

auto gradients_by(const char* name) {
  using Schema = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>(
      const Tensor&, std::int64_t, const Optional&, const Optional&, const Tensor&, const Optional&,
      const Optional&, const Optional&, const Optional&, double, std::int64_t, double, std::int64_t,
      std::int64_t, bool, bool, bool, bool, bool, bool, bool);
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Schema>();
}

// Which gradients are asked for.
struct Asked {
  bool of_x, of_weight, of_bias;
};

// dx, dweight and dbias. By PyTorch where they have gradients of their own, or are of several y at once.
// ../_gradients.py has the same.
std::array<Tensor, 3> gradients(const Tensor& x, std::int64_t dims, const Tensor& weight, const Tensor& dy,
                                double eps, const Asked& asked) {
  static const auto kernel = gradients_by("normjit::norm_backward");
  static const auto by_pytorch = gradients_by("normjit::norm_backward_by_pytorch");
  const bool plain =
      !at::GradMode::is_enabled() && reaches_device({&x, &weight, &dy}, c10::autocast_dispatch_keyset);
  const Optional factors = weight.defined() ? Optional(weight) : Optional();
  const auto by = [&](const auto& operator_) {
    auto found = operator_.call(x, dims, factors, /*bias=*/std::nullopt, dy, /*dsum=*/std::nullopt,
                                /*gate=*/std::nullopt, /*mod_scale=*/std::nullopt, /*mod_shift=*/std::nullopt,
                                eps, kNoActivation, /*scale=*/1.0, kNoGate, kNoGateFunction,
                                /*plain_modulation=*/false, /*layer=*/true, /*weight_offset=*/false,
                                asked.of_x, asked.of_weight, asked.of_bias, /*batch_invariant=*/false);
    return std::array{std::get<0>(found), std::get<1>(found), std::get<2>(found)};
  };
  if (!plain) return by(by_pytorch);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return by(kernel);
}

Tensor in(const Tensor& tensor, at::ScalarType dtype) {
  return tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
}

struct LayerNorm : torch::autograd::Function<LayerNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, std::int64_t dims, const Optional& weight,
                        const Optional& bias, double eps) {
    ctx->save_for_backward({x, weight.value_or(Tensor())});
    ctx->saved_data["dims"] = dims;
    ctx->saved_data["eps"] = eps;
    if (bias) ctx->saved_data["bias"] = bias->scalar_type();
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return without_gradient(x, dims, weight, bias, eps);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const auto bias = ctx->saved_data.find("bias");
    // Only tensors that were given count. A bias comes with a weight.
    const bool of_x = ctx->needs_input_grad(0), of_weight = weight.defined() && ctx->needs_input_grad(1);
    const bool of_bias = bias != ctx->saved_data.end() && ctx->needs_input_grad(2);
    // Under autocast the types of weight and bias may differ.
    Tensor factors = weight;
    if (of_bias) factors = in(weight, c10::promoteTypes(weight.scalar_type(), bias->second.toScalarType()));
    auto [dx, dweight, dbias] = gradients(x, ctx->saved_data["dims"].toInt(), factors, grads[0],
                                          ctx->saved_data["eps"].toDouble(), {of_x, of_weight, of_bias});
    return {of_x ? dx : Tensor(), Tensor(), of_weight ? in(dweight, weight.scalar_type()) : Tensor(),
            of_bias ? in(dbias, bias->second.toScalarType()) : Tensor(), Tensor()};
  }
};

Tensor layer_norm(const Tensor& x, std::int64_t dims, const Optional& weight, const Optional& bias,
                  double eps) {
  if (!torch::autograd::compute_requires_grad(x, weight, bias))
    return without_gradient(x, dims, weight, bias, eps);
  return LayerNorm::apply(x, dims, weight, bias, eps);
}

#if __has_include(<Python.h>)

// Whether a call meets nothing but autograd, and no mode.
bool is_plain(const Tensor& x, const Tensor* weight, const Tensor* bias) {
  if (!reaches_device({&x, weight, bias}) || at::impl::torch_function_mode_enabled()) return false;
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
