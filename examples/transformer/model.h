// SPDX-License-Identifier: Apache-2.0
// A model as an inference runtime has them: an encoder of pre-LN transformer layers over the tokens of a
// volume, and a decoder that makes voxels of the tokens again, in steps of ConvTranspose3d (kernel 2, stride
// 2), LayerNorm over 64 channels, GELU and a scale. cuBLAS multiplies, normjit normalizes.
#pragma once

#include <normjit/normjit.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cublas.h"
#include "gpu.h"
#include "own_kernels.h"

struct Shape {
  int batch, side;  // side^3 tokens
  int width, heads, layers;
  int steps;  // of the decoder: each makes 8 voxels of one

  int tokens() const { return batch * side * side * side; }
  int voxels(int step) const { return tokens() << 3 * step; }  // after so many steps
};
constexpr int kChannels = 64;
constexpr float kScale = 0.75f;  // behind the GELU of the decoder

// Weights, as vectors on the host or buffers on the device. Matrices are [inputs, outputs].
template <class Tensor>
struct Weights {
  struct Layer {
    Tensor norm1_weight, norm1_bias, qkv, out, norm2_weight, norm2_bias, mlp_in, mlp_out;
  };
  struct Step {
    Tensor up;  // [inputs, 2, 2, 2, 64]
    Tensor norm_weight, norm_bias;
  };
  std::vector<Layer> layers;
  std::vector<Step> steps;
};
using HostTensor = std::vector<float>;

// Who does the normalizations.
enum class Norms {
  normjit_fused,  // normjit, in the decoder with GELU and scale in the same kernel
  normjit_split,  // normjit, then a kernel for GELU and scale
  plain,          // a kernel as everybody has written it once, then one for GELU and scale
};

// What is loaded once, and serves all streams.
class Model {
 public:
  // Prepares every kernel that a request will need. Ends the program where one cannot be had.
  Model(normjit::Service& service, Dtype dtype, const Shape& shape, const Weights<HostTensor>& weights);

  const Shape& shape() const { return shape_; }
  Dtype dtype() const { return dtype_; }
  // For each Lane, which runs one kernel at a time: as much as the neediest kernel wants.
  std::size_t workspace_bytes() const;

 private:
  friend class Lane;
  struct StepKernels {
    normjit::Kernel fused, split;
  };

  const Shape shape_;
  const Dtype dtype_;
  const Weights<Buffer> weights_;
  const OwnKernels own_;
  normjit::Kernel token_norm_;
  std::vector<StepKernels> voxel_norms_;  // one for each step
};

// A stream with all memory that one request needs, so that lanes may run at once.
class Lane {
 public:
  explicit Lane(const Model& model);

  CUstream stream() const { return stream_; }
  Buffer& tokens() { return tokens_; }              // [tokens, width], in and out
  const Buffer& volume() const { return volume_; }  // [batch, z, y, x, 64]

  // What the stream does for a request; can be captured.
  void enqueue_encoder(Norms norms);  // the tokens, in place
  void enqueue_decoder(Norms norms);  // from the tokens to the volume

 private:
  void normalize(const normjit::Kernel& kernel, const void* x, void* y, const Buffer& weight,
                 const Buffer& bias, std::int64_t rows);
  void attend(const Buffer& qkv, const Buffer& to);

  const Model& model_;
  Stream stream_;
  Cublas cublas_;
  Buffer tokens_, normed_, qkv_, scores_, mlp_;
  Buffer voxels_[2];  // of the steps, in turn
  Buffer volume_;
  Buffer workspace_;  // of normjit's kernels: zeroed once, and never again
};

// Values as the device has them, and back.
std::vector<std::uint8_t> to_device_bytes(Dtype dtype, const HostTensor& values);
HostTensor from_device_bytes(Dtype dtype, const std::vector<std::uint8_t>& bytes);
std::size_t size_of(Dtype dtype);
