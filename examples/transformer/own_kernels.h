// SPDX-License-Identifier: Apache-2.0
// The small kernels that the model has besides cuBLAS and normjit, compiled by NVRTC when it is loaded.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>

#include "cublas.h"

// Where a step of the decoder put its voxels: `side` tokens along each axis, each split in two so many times.
struct Nesting {
  int side, steps;
};

class OwnKernels {
 public:
  // For values of this dtype on GPUs of this architecture ("sm_90"), by the libnvrtc at `nvrtc`.
  OwnKernels(Dtype dtype, const std::string& arch, const std::string& nvrtc);
  ~OwnKernels();
  OwnKernels(const OwnKernels&) = delete;
  OwnKernels& operator=(const OwnKernels&) = delete;

  // Softmax of every row, in place.
  void softmax(CUstream stream, void* x, std::int64_t rows, int columns) const;
  // scale * gelu(x), in place; the count is a multiple of 8.
  void gelu(CUstream stream, void* x, std::int64_t count, float scale) const;
  // The layer normalization that everybody has once written: a warp a row. What normjit is compared with.
  void layer_norm(CUstream stream, const void* x, const void* weight, const void* bias, void* y,
                  std::int64_t rows, int columns) const;
  // From the order in which the decoder makes its voxels to [batch, z, y, x, 64].
  void to_volume(CUstream stream, const void* from, void* to, int batch, Nesting nesting) const;

 private:
  void launch(const char* name, CUstream stream, std::int64_t blocks, void** arguments) const;

  const int values_per_pack_;  // that a thread takes at once
  CUmodule module_ = nullptr;
};
