// SPDX-License-Identifier: Apache-2.0
// CUDA contexts of the calling thread, for GPU tests.
#pragma once

#include <cuda.h>

#include <vector>

#include "tests/support/cuda_calls.h"
#include "tests/support/gpu.h"

namespace normjit::testing {

inline int device_count() {
  int count = 0;
  return CUDA(cuInit)(0) == CUDA_SUCCESS && CUDA(cuDeviceGetCount)(&count) == CUDA_SUCCESS ? count : 0;
}

inline CUcontext current_context() {
  CUcontext context = nullptr;
  must(CUDA(cuCtxGetCurrent)(&context), "cuCtxGetCurrent");
  return context;
}

// Every context on the calling thread's stack, the current one first.
inline std::vector<CUcontext> context_stack() {
  std::vector<CUcontext> stack;
  while (current_context() != nullptr) {
    CUcontext top = nullptr;
    must(CUDA(cuCtxPopCurrent)(&top), "cuCtxPopCurrent");
    stack.push_back(top);
  }
  for (auto context = stack.rbegin(); context != stack.rend(); ++context)
    must(CUDA(cuCtxPushCurrent)(*context), "cuCtxPushCurrent");
  return stack;
}

// Retains a device's primary context; makes nothing current.
class PrimaryContext {
 public:
  explicit PrimaryContext(int device) : device_(device) {
    must(CUDA(cuDevicePrimaryCtxRetain)(&context_, device), "cuDevicePrimaryCtxRetain");
  }
  ~PrimaryContext() { CUDA(cuDevicePrimaryCtxRelease)(device_); }
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;
  CUcontext get() const { return context_; }

 private:
  const CUdevice device_;  // the ordinal, which is what cuDeviceGet answers for it
  CUcontext context_ = nullptr;
};

// A context of its own on a device, which is current as long as it lives, on top of what was current before.
class OwnContext {
 public:
  explicit OwnContext(int device) {
    using Create = CUresult(CUcontext*, unsigned, CUdevice);  // of every version, whatever cuda.h declares
    must(cuda_function<Create>("cuCtxCreate_v2")(&context_, 0, device), "cuCtxCreate");
  }
  ~OwnContext() { CUDA(cuCtxDestroy)(context_); }
  OwnContext(const OwnContext&) = delete;
  OwnContext& operator=(const OwnContext&) = delete;
  CUcontext get() const { return context_; }

 private:
  CUcontext context_ = nullptr;
};

// A context that is current as long as this lives, on top of what was current before; null is none.
class WithContext {
 public:
  explicit WithContext(CUcontext context) : was_(current_context()) {
    must(CUDA(cuCtxSetCurrent)(context), "cuCtxSetCurrent");
  }
  ~WithContext() { CUDA(cuCtxSetCurrent)(was_); }
  WithContext(const WithContext&) = delete;
  WithContext& operator=(const WithContext&) = delete;

 private:
  const CUcontext was_;
};

}  // namespace normjit::testing
