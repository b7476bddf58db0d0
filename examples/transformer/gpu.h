// SPDX-License-Identifier: Apache-2.0
// What a runtime has long had: the CUDA driver, memory, streams, graphs and a stopwatch. The driver is opened
// at run time, so that this builds where no CUDA library is. Whatever fails here ends the program with a line
// on stderr.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

inline void* cuda_library() {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  return library;
}

// A function of the driver: CUDA(cuStreamSynchronize)(stream). cuda.h is macros from a name to its newest
// export.
#define EXPORTED(name) #name
#define CUDA(name) (reinterpret_cast<decltype(&::name)>(dlsym(cuda_library(), EXPORTED(name))))

[[noreturn]] inline void fail(const char* what, const char* why) {
  std::fprintf(stderr, "%s: %s\n", what, why);
  std::exit(1);
}

inline void must(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = "unknown error";
  CUDA(cuGetErrorName)(result, &name);
  fail(what, name);
}

// GPU 0, with its primary context current on this thread.
class Gpu {
 public:
  Gpu() {
    CUcontext context = nullptr;
    present_ = cuda_library() != nullptr && CUDA(cuInit)(0) == CUDA_SUCCESS &&
               CUDA(cuDevicePrimaryCtxRetain)(&context, 0) == CUDA_SUCCESS &&
               CUDA(cuCtxSetCurrent)(context) == CUDA_SUCCESS;
  }
  ~Gpu() {
    if (present_) CUDA(cuDevicePrimaryCtxRelease)(0);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  bool present() const { return present_; }

 private:
  bool present_;
};

// Zeroed device memory.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : bytes_(std::max<std::size_t>(bytes, 16)) {
    must(CUDA(cuMemAlloc)(&address_, bytes_), "cuMemAlloc");
    must(CUDA(cuMemsetD8)(address_, 0, bytes_), "cuMemsetD8");
    must(CUDA(cuCtxSynchronize)(), "cuMemsetD8");
  }
  ~Buffer() {
    if (address_ != 0) CUDA(cuMemFree)(address_);
  }
  Buffer(Buffer&& other) noexcept : bytes_(other.bytes_), address_(std::exchange(other.address_, 0)) {}
  Buffer& operator=(Buffer&&) = delete;

  void* data() const { return reinterpret_cast<void*>(address_); }
  std::size_t bytes() const { return bytes_; }
  void upload(const void* from, std::size_t bytes) {
    must(CUDA(cuMemcpyHtoD)(address_, from, bytes), "cuMemcpyHtoD");
  }
  void download(void* to, std::size_t bytes) const {
    must(CUDA(cuMemcpyDtoH)(to, address_, bytes), "cuMemcpyDtoH");
  }

 private:
  std::size_t bytes_;
  CUdeviceptr address_ = 0;
};

class Stream {
 public:
  Stream() { must(CUDA(cuStreamCreate)(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate"); }
  ~Stream() { CUDA(cuStreamDestroy)(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator CUstream() const { return stream_; }
  void synchronize() const { must(CUDA(cuStreamSynchronize)(stream_), "the work of a stream"); }

 private:
  CUstream stream_ = nullptr;
};

// What `enqueue` gives to the stream, captured once, replayed at will.
class Graph {
 public:
  Graph(CUstream stream, const std::function<void()>& enqueue) : stream_(stream) {
    // Thread-local: other threads of the runtime may allocate meanwhile.
    must(CUDA(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    enqueue();
    CUgraph captured = nullptr;
    must(CUDA(cuStreamEndCapture)(stream, &captured), "cuStreamEndCapture");
    must(CUDA(cuGraphInstantiateWithFlags)(&graph_, captured, 0), "cuGraphInstantiate");
    must(CUDA(cuGraphDestroy)(captured), "cuGraphDestroy");
  }
  ~Graph() { CUDA(cuGraphExecDestroy)(graph_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch() const { must(CUDA(cuGraphLaunch)(graph_, stream_), "cuGraphLaunch"); }

 private:
  CUstream stream_;
  CUgraphExec graph_ = nullptr;
};

// The median of the GPU's time for `work` on a stream, in microseconds.
inline double median_microseconds(CUstream stream, const std::function<void()>& work) {
  constexpr int kWarmUp = 3, kMeasured = 31;
  CUevent begin = nullptr, end = nullptr;
  must(CUDA(cuEventCreate)(&begin, CU_EVENT_DEFAULT), "cuEventCreate");
  must(CUDA(cuEventCreate)(&end, CU_EVENT_DEFAULT), "cuEventCreate");
  std::vector<double> times;
  for (int i = 0; i < kWarmUp + kMeasured; ++i) {
    must(CUDA(cuEventRecord)(begin, stream), "cuEventRecord");
    work();
    must(CUDA(cuEventRecord)(end, stream), "cuEventRecord");
    must(CUDA(cuEventSynchronize)(end), "the measured work");
    float milliseconds = 0;
    must(CUDA(cuEventElapsedTime)(&milliseconds, begin, end), "cuEventElapsedTime");
    if (i >= kWarmUp) times.push_back(1000.0 * milliseconds);
  }
  CUDA(cuEventDestroy)(begin);
  CUDA(cuEventDestroy)(end);
  std::nth_element(times.begin(), times.begin() + kMeasured / 2, times.end());
  return times[kMeasured / 2];
}
