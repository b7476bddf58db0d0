// SPDX-License-Identifier: Apache-2.0
// Matrix products by cuBLAS, opened at run time and declared as far as they are needed here.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>

#include "gpu.h"

enum class Dtype { f32, bf16 };

// A row-major matrix in device memory, or as many of them as a product is made of at once.
struct Matrix {
  void* data;
  int row_stride;              // elements
  long long batch_stride = 0;  // elements
  bool transposed = false;     // [columns, rows] in memory; of the right factor only
};

// The library with a handle for one stream.
class Cublas {
 public:
  // Whether there is cuBLAS 12 or 13.
  static bool is_here() { return library() != nullptr; }

  explicit Cublas(CUstream stream) : workspace_(kWorkspaceBytes) {
    must(call<int (*)(void**)>("cublasCreate_v2")(&handle_), "cublasCreate");
    must(call<int (*)(void*, CUstream)>("cublasSetStream_v2")(handle_, stream), "cublasSetStream");
    // A workspace of its own: a handle in a graph must not share one with another stream, nor allocate.
    // Setting a stream takes it away again, so it comes second.
    must(call<int (*)(void*, void*, std::size_t)>("cublasSetWorkspace_v2")(handle_, workspace_.data(),
                                                                           kWorkspaceBytes),
         "cublasSetWorkspace");
  }
  ~Cublas() { call<int (*)(void*)>("cublasDestroy_v2")(handle_); }
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  // C = alpha A B + beta C for `batch` matrices: A is [m, k], B is [k, n], C is [m, n].
  void multiply(Dtype dtype, Matrix a, Matrix b, Matrix c, int m, int n, int k, float alpha = 1,
                float beta = 0, int batch = 1) const {
    constexpr int kNormal = 0, kTransposed = 1, kF32 = 0, kBf16 = 14, kComputeF32 = 68,
                  kDefaultAlgorithm = -1;
    const int type = dtype == Dtype::f32 ? kF32 : kBf16;
    // cuBLAS knows columns first: there these are the transposed matrices, and C^T = B^T A^T.
    must(multiply_(handle_, b.transposed ? kTransposed : kNormal, kNormal, n, m, k, &alpha, b.data, type,
                   b.row_stride, b.batch_stride, a.data, type, a.row_stride, a.batch_stride, &beta, c.data,
                   type, c.row_stride, c.batch_stride, batch, kComputeF32, kDefaultAlgorithm),
         "cublasGemmStridedBatchedEx");
  }

 private:
  using Multiply = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, long long,
                           const void*, int, int, long long, const void*, void*, int, int, long long, int,
                           int, int);
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;  // what NVIDIA names for Hopper

  static void must(int status, const char* what) {
    if (status != 0) fail(what, ("cuBLAS status " + std::to_string(status)).c_str());
  }
  static void* library() {
    static void* const library = open();
    return library;
  }
  static void* open() {
    for (const char* folder : {"", "/usr/local/cuda/lib64/"})
      for (const char* version : {".so.13", ".so.12"}) {
        dlopen((std::string(folder) + "libcublasLt" + version).c_str(),
               RTLD_NOW);  // which the other one needs
        if (void* library = dlopen((std::string(folder) + "libcublas" + version).c_str(), RTLD_NOW))
          return library;
      }
    return nullptr;
  }
  template <class Function>
  static Function call(const char* name) {
    return reinterpret_cast<Function>(dlsym(library(), name));
  }

  Buffer workspace_;
  void* handle_ = nullptr;
  const Multiply multiply_ = call<Multiply>("cublasGemmStridedBatchedEx");
};
