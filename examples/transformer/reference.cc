// SPDX-License-Identifier: Apache-2.0
#include "reference.h"

#include <cmath>

namespace {

using Values = std::vector<double>;

double gelu(double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }

// [rows, inputs] times [inputs, outputs].
Values product(const Values& from, int inputs, const HostTensor& weight, int outputs) {
  const std::size_t rows = from.size() / inputs;
  Values to(rows * outputs);
  for (std::size_t row = 0; row < rows; ++row)
    for (int i = 0; i < inputs; ++i)
      for (int o = 0; o < outputs; ++o)
        to[row * outputs + o] += from[row * inputs + i] * weight[static_cast<std::size_t>(i) * outputs + o];
  return to;
}

Values layer_norm(const Values& x, const HostTensor& weight, const HostTensor& bias) {
  const std::size_t columns = weight.size();
  Values y(x.size());
  for (std::size_t row = 0; row < x.size(); row += columns) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < columns; ++i) mean += x[row + i] / columns;
    for (std::size_t i = 0; i < columns; ++i) variance += (x[row + i] - mean) * (x[row + i] - mean) / columns;
    for (std::size_t i = 0; i < columns; ++i)
      y[row + i] = (x[row + i] - mean) / std::sqrt(variance + 1e-5) * weight[i] + bias[i];
  }
  return y;
}

Values attention(const Shape& shape, const Values& qkv) {
  const int tokens = shape.tokens() / shape.batch, width = shape.width, head = width / shape.heads;
  Values to(static_cast<std::size_t>(shape.tokens()) * width);
  const auto row = [&](int sample, int token) { return static_cast<std::size_t>(sample) * tokens + token; };
  for (int sample = 0; sample < shape.batch; ++sample)
    for (int first = 0; first < width; first += head)
      for (int i = 0; i < tokens; ++i) {
        const double* const q = &qkv[row(sample, i) * 3 * width + first];
        Values weights(tokens);
        double sum = 0;
        for (int j = 0; j < tokens; ++j) {
          const double* const k = &qkv[row(sample, j) * 3 * width + width + first];
          double score = 0;
          for (int d = 0; d < head; ++d) score += q[d] * k[d];
          sum += weights[j] = std::exp(score / std::sqrt(static_cast<double>(head)));
        }
        for (int j = 0; j < tokens; ++j)
          for (int d = 0; d < head; ++d)
            to[row(sample, i) * width + first + d] +=
                weights[j] / sum * qkv[row(sample, j) * 3 * width + 2 * width + first + d];
      }
  return to;
}

void add(Values& to, const Values& more) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += more[i];
}

// ConvTranspose3d of [batch, z, y, x, inputs] with kernel 2 and stride 2: every voxel becomes a cube of
// eight.
Values upsampled(const Values& from, int batch, int side, int inputs, const HostTensor& up) {
  Values to(static_cast<std::size_t>(batch) * 8 * side * side * side * kChannels);
  const auto at = [&](int side_of, int sample, int z, int y, int x) {
    return ((static_cast<std::size_t>(sample) * side_of + z) * side_of + y) * side_of + x;
  };
  for (int sample = 0; sample < batch; ++sample)
    for (int z = 0; z < 2 * side; ++z)
      for (int y = 0; y < 2 * side; ++y)
        for (int x = 0; x < 2 * side; ++x) {
          const int octant = 4 * (z % 2) + 2 * (y % 2) + x % 2;
          const double* const voxel = &from[at(side, sample, z / 2, y / 2, x / 2) * inputs];
          double* const made = &to[at(2 * side, sample, z, y, x) * kChannels];
          for (int i = 0; i < inputs; ++i)
            for (int c = 0; c < kChannels; ++c)
              made[c] += voxel[i] * up[(static_cast<std::size_t>(i) * 8 + octant) * kChannels + c];
        }
  return to;
}

}  // namespace

std::vector<double> reference_encoder(const Shape& shape, const Weights<HostTensor>& weights,
                                      const HostTensor& tokens) {
  Values x(tokens.begin(), tokens.end());
  for (const auto& layer : weights.layers) {
    const Values qkv =
        product(layer_norm(x, layer.norm1_weight, layer.norm1_bias), shape.width, layer.qkv, 3 * shape.width);
    add(x, product(attention(shape, qkv), shape.width, layer.out, shape.width));
    Values mlp = product(layer_norm(x, layer.norm2_weight, layer.norm2_bias), shape.width, layer.mlp_in,
                         4 * shape.width);
    for (double& value : mlp) value = gelu(value);
    add(x, product(mlp, 4 * shape.width, layer.mlp_out, shape.width));
  }
  return x;
}

std::vector<double> reference_decoder(const Shape& shape, const Weights<HostTensor>& weights,
                                      const std::vector<double>& tokens) {
  Values voxels = tokens;
  for (int step = 0; step < shape.steps; ++step) {
    const auto& of = weights.steps[step];
    voxels = upsampled(voxels, shape.batch, shape.side << step, step == 0 ? shape.width : kChannels, of.up);
    voxels = layer_norm(voxels, of.norm_weight, of.norm_bias);
    for (double& value : voxels) value = kScale * gelu(value);
  }
  return voxels;
}
