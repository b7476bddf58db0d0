// SPDX-License-Identifier: Apache-2.0
// Enough of the CUDA driver for the examples, opened at run time so that they build without CUDA. Your
// program has this already: cudaMalloc and cudaMemcpy, or the tensors and the stream of your framework.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

// One GPU and memory on it, all freed at the end.
class Device {
 public:
  // Makes the GPU's primary context current on this thread, as cudaSetDevice does.
  explicit Device(int ordinal = 0) : ordinal_(ordinal) {
    if (library_ == nullptr || call<unsigned>("cuInit", 0) != 0) return;
    void* context = nullptr;
    if (call<void**, int>("cuDevicePrimaryCtxRetain", &context, ordinal) != 0) return;
    present_ = call<void*>("cuCtxSetCurrent", context) == 0;
  }
  ~Device() {
    for (const Address memory : allocated_) call<Address>("cuMemFree_v2", memory);
    if (present_) call<int>("cuDevicePrimaryCtxRelease_v2", ordinal_);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  bool present() const { return present_; }

  float* upload(const std::vector<float>& values) {
    Address memory = 0;
    must(call<Address*, std::size_t>("cuMemAlloc_v2", &memory, values.size() * sizeof(float)));
    allocated_.push_back(memory);
    must(call<Address, const void*, std::size_t>("cuMemcpyHtoD_v2", memory, values.data(),
                                                 values.size() * sizeof(float)));
    return reinterpret_cast<float*>(memory);
  }
  // Waits for what was launched on the default stream.
  std::vector<float> download(const float* from, std::size_t count) {
    std::vector<float> values(count);
    must(call<void*, Address, std::size_t>("cuMemcpyDtoH_v2", values.data(), reinterpret_cast<Address>(from),
                                           count * sizeof(float)));
    return values;
  }

 private:
  using Address = unsigned long long;

  template <class... Arguments>
  int call(const char* name, Arguments... arguments) {
    return reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name))(arguments...);
  }
  static void must(int result) {
    if (result == 0) return;
    std::fprintf(stderr, "CUDA error %d\n", result);
    std::exit(1);
  }

  void* library_ = dlopen("libcuda.so.1", RTLD_NOW);
  int ordinal_;
  bool present_ = false;
  std::vector<Address> allocated_;
};
