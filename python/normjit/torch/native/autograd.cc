// SPDX-License-Identifier: Apache-2.0
// normjit::layer_norm_differentiable: y with a gradient, without what the class of ../_rules.py costs per
// call in Python. PyTorch's stable ABI has no autograd, so this is a library of its own, for one version of
// PyTorch, and compiled when a gradient is first asked for; ../_operator.py has the schema, and does that.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Optional = std::optional<Tensor>;

constexpr std::int64_t kNoActivation = 1;  // NORMJIT_NO_ACTIVATION

std::tuple<Tensor, Tensor, Tensor> with_statistics(const Tensor& x, std::int64_t dims, const Optional& weight,
                                                   const Optional& bias, double eps) {
  using Schema =
      std::tuple<Tensor, Tensor, Tensor>(const Tensor&, std::int64_t, const Optional&, const Optional&,
                                         double, std::int64_t, double, std::optional<at::ScalarType>);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("normjit::layer_norm_with_statistics", "")
                             .typed<Schema>();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
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

// With the node that F.layer_norm has, which is quicker than any of our own: all tensors are of one type.
Tensor with_pytorchs_node(const Tensor& x, std::int64_t dims, const Optional& weight, const Optional& bias,
                          double eps) {
  using torch::autograd::SavedVariable;
  auto [y, mean, rstd] = with_statistics(x, dims, weight, bias, eps);
  if (!torch::autograd::compute_requires_grad(x, weight, bias)) return y;
  const std::shared_ptr<torch::autograd::generated::NativeLayerNormBackward0> node(
      new torch::autograd::generated::NativeLayerNormBackward0(), torch::autograd::deleteNode);
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
  if (at::autocast::is_autocast_enabled(x.device().type()))
    return LayerNorm::apply(x, dims, weight, bias, eps);
  return with_pytorchs_node(x, dims, weight, bias, eps);
}

}  // namespace

TORCH_LIBRARY_IMPL(normjit, CompositeImplicitAutograd, m) {
  m.impl("layer_norm_differentiable", &layer_norm);
}
