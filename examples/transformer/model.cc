// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <algorithm>
#include <bit>
#include <cmath>

std::size_t size_of(Dtype dtype) { return dtype == Dtype::f32 ? 4 : 2; }

std::vector<std::uint8_t> to_device_bytes(Dtype dtype, const HostTensor& values) {
  std::vector<std::uint8_t> bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t all = std::bit_cast<std::uint32_t>(values[i]);
    const std::uint16_t rounded = static_cast<std::uint16_t>((all + 0x7fff + (all >> 16 & 1)) >> 16);
    if (dtype == Dtype::f32)
      std::copy_n(reinterpret_cast<const std::uint8_t*>(&all), 4, &bytes[4 * i]);
    else
      std::copy_n(reinterpret_cast<const std::uint8_t*>(&rounded), 2, &bytes[2 * i]);
  }
  return bytes;
}

HostTensor from_device_bytes(Dtype dtype, const std::vector<std::uint8_t>& bytes) {
  const std::size_t size = size_of(dtype);
  HostTensor values(bytes.size() / size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t all = 0;  // bf16 is the upper half of f32
    std::copy_n(&bytes[size * i], size, reinterpret_cast<std::uint8_t*>(&all) + 4 - size);
    values[i] = std::bit_cast<float>(all);
  }
  return values;
}

namespace {

Weights<Buffer> upload(Dtype dtype, const Weights<HostTensor>& weights) {
  const auto one = [dtype](const HostTensor& values) {
    const std::vector<std::uint8_t> bytes = to_device_bytes(dtype, values);
    Buffer buffer(bytes.size());
    buffer.upload(bytes.data(), bytes.size());
    return buffer;
  };
  Weights<Buffer> all;
  for (const auto& of : weights.layers)
    all.layers.push_back({one(of.norm1_weight), one(of.norm1_bias), one(of.qkv), one(of.out),
                          one(of.norm2_weight), one(of.norm2_bias), one(of.mlp_in), one(of.mlp_out)});
  for (const auto& of : weights.steps)
    all.steps.push_back({one(of.up), one(of.norm_weight), one(of.norm_bias)});
  return all;
}

// The kernel for a LayerNorm of this model, or the end of the program with the reason.
normjit::Kernel prepare(normjit::Service& service, normjit::NormSpec spec, Dtype dtype, std::int64_t rows) {
  spec.affine = normjit::Affine::weight_bias;
  spec.input = spec.output = spec.weight = dtype == Dtype::f32 ? normjit::DType::f32 : normjit::DType::bf16;
  const auto kernel = service.prepare(spec, {.rows_hint = rows});
  if (!kernel) fail("normjit", kernel.error().message.c_str());
  return *kernel;
}

}  // namespace

Model::Model(normjit::Service& service, Dtype dtype, const Shape& shape, const Weights<HostTensor>& weights)
    : shape_(shape),
      dtype_(dtype),
      weights_(upload(dtype, weights)),
      own_(dtype, service.device().value().arch.name(), service.environment().compiler_path),
      token_norm_(prepare(service, {.columns = shape.width}, dtype, shape.tokens())) {
  const normjit::NormSpec split{.columns = kChannels};
  const normjit::NormSpec fused{
      .columns = kChannels, .activation = normjit::Activation::gelu, .scale = kScale};
  for (int step = 1; step <= shape.steps; ++step)
    voxel_norms_.push_back({prepare(service, fused, dtype, shape.voxels(step)),
                            prepare(service, split, dtype, shape.voxels(step))});
}

std::size_t Model::workspace_bytes() const {
  std::size_t most = token_norm_.workspace_bytes();
  for (const StepKernels& step : voxel_norms_)
    most = std::max({most, step.fused.workspace_bytes(), step.split.workspace_bytes()});
  return most;
}

Lane::Lane(const Model& model)
    : model_(model),
      cublas_(stream_),
      tokens_(size_of(model.dtype_) * model.shape_.tokens() * model.shape_.width),
      normed_(tokens_.bytes()),
      qkv_(3 * tokens_.bytes()),
      scores_(size_of(model.dtype_) * model.shape_.heads * model.shape_.tokens() * model.shape_.tokens() /
              model.shape_.batch),
      mlp_(4 * tokens_.bytes()),
      voxels_{Buffer(size_of(model.dtype_) * model.shape_.voxels(model.shape_.steps) * kChannels),
              Buffer(size_of(model.dtype_) * model.shape_.voxels(model.shape_.steps) * kChannels)},
      volume_(voxels_[0].bytes()),
      workspace_(model.workspace_bytes()) {}

// A launch takes no lock, allocates nothing and never waits; in a capture it becomes one kernel node.
void Lane::normalize(const normjit::Kernel& kernel, const void* x, void* y, const Buffer& weight,
                     const Buffer& bias, std::int64_t rows) {
  const normjit::Status status = kernel.launch({.x = x,
                                                .y = y,
                                                .weight = weight.data(),
                                                .bias = bias.data(),
                                                .rows = rows,
                                                .workspace = workspace_.data()},
                                               stream_);
  if (!status) fail("normjit", status.message());
}

// softmax(Q K^T / sqrt(d)) V, for all heads of one sample at once.
void Lane::attend(const Buffer& qkv, const Buffer& to) {
  const Shape& shape = model_.shape_;
  const int tokens = shape.tokens() / shape.batch, width = shape.width, head = width / shape.heads;
  const long long square = static_cast<long long>(tokens) * tokens;
  const auto at = [this](const Buffer& buffer, long long element) -> void* {
    return static_cast<char*>(buffer.data()) + element * static_cast<long long>(size_of(model_.dtype_));
  };
  for (int sample = 0; sample < shape.batch; ++sample) {
    const long long first = 3LL * sample * tokens * width;
    const Matrix q{at(qkv, first), 3 * width, head}, k{at(qkv, first + width), 3 * width, head, true},
        v{at(qkv, first + 2 * width), 3 * width, head};
    const Matrix scores{at(scores_, sample * shape.heads * square), tokens, square};
    cublas_.multiply(model_.dtype_, q, k, scores, tokens, tokens, head,
                     1 / std::sqrt(static_cast<float>(head)), 0, shape.heads);
    model_.own_.softmax(stream_, scores.data, static_cast<std::int64_t>(shape.heads) * tokens, tokens);
    const Matrix attended{at(to, static_cast<long long>(sample) * tokens * width), width, head};
    cublas_.multiply(model_.dtype_, scores, v, attended, tokens, head, tokens, 1, 0, shape.heads);
  }
}

void Lane::enqueue_encoder(Norms norms) {
  const int rows = model_.shape_.tokens(), width = model_.shape_.width;
  const auto normed = [&](const Buffer& weight, const Buffer& bias) {
    if (norms == Norms::plain)
      model_.own_.layer_norm(stream_, tokens_.data(), weight.data(), bias.data(), normed_.data(), rows,
                             width);
    else
      normalize(model_.token_norm_, tokens_.data(), normed_.data(), weight, bias, rows);
  };
  // to = from W, or to += from W, which is how the residual comes about.
  const auto linear = [&](const Buffer& from, int inputs, const Buffer& weight, const Buffer& to, int outputs,
                          bool adds) {
    cublas_.multiply(model_.dtype_, {from.data(), inputs}, {weight.data(), outputs}, {to.data(), outputs},
                     rows, outputs, inputs, 1, adds ? 1 : 0);
  };
  for (const auto& layer : model_.weights_.layers) {
    normed(layer.norm1_weight, layer.norm1_bias);
    linear(normed_, width, layer.qkv, qkv_, 3 * width, false);
    attend(qkv_, normed_);
    linear(normed_, width, layer.out, tokens_, width, true);

    normed(layer.norm2_weight, layer.norm2_bias);
    linear(normed_, width, layer.mlp_in, mlp_, 4 * width, false);
    model_.own_.gelu(stream_, mlp_.data(), 4LL * rows * width, 1);
    linear(mlp_, 4 * width, layer.mlp_out, tokens_, width, true);
  }
}

// With a kernel as large as its stride, a transposed convolution makes 8 voxels of each by one product.
void Lane::enqueue_decoder(Norms norms) {
  const Shape& shape = model_.shape_;
  const void* from = tokens_.data();
  for (int step = 0; step < shape.steps; ++step) {
    const auto& weights = model_.weights_.steps[step];
    void* const to = voxels_[step % 2].data();
    const int inputs = step == 0 ? shape.width : kChannels, outputs = 8 * kChannels;
    cublas_.multiply(model_.dtype_, {const_cast<void*>(from), inputs}, {weights.up.data(), outputs},
                     {to, outputs}, shape.voxels(step), outputs, inputs);

    const std::int64_t rows = shape.voxels(step + 1);
    const Model::StepKernels& kernels = model_.voxel_norms_[step];
    if (norms == Norms::plain)
      model_.own_.layer_norm(stream_, to, weights.norm_weight.data(), weights.norm_bias.data(), to, rows,
                             kChannels);
    else  // in place
      normalize(norms == Norms::normjit_fused ? kernels.fused : kernels.split, to, to, weights.norm_weight,
                weights.norm_bias, rows);
    if (norms != Norms::normjit_fused) model_.own_.gelu(stream_, to, rows * kChannels, kScale);
    from = to;
  }
  model_.own_.to_volume(stream_, from, volume_.data(), shape.batch, {shape.side, shape.steps});
}
