// SPDX-License-Identifier: Apache-2.0
// One GPU as the tool uses it: its primary context, memory, streams and graphs, each freed with its owner.
//
// These are for the tool's own thread. Whatever fails throws normjit::Exception with the driver's reason;
// everything must be gone before its Gpu.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "cli/gpu_calls.h"
#include "normjit/service.h"

namespace normjit::cli {

// Retains a device's primary context and makes it current on the calling thread; releases it at the end.
class Gpu {
 public:
  explicit Gpu(int ordinal);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  int ordinal() const { return ordinal_; }
  std::string name() const;
  std::size_t free_memory() const;

  const GpuCalls& calls() const { return calls_; }
  void check(CUresult result, const char* what) const;  // throws unless it is success

 private:
  GpuCalls calls_;
  int ordinal_;
  CUdevice device_ = 0;
};

// Device memory. An empty buffer has no memory and a null pointer.
class DeviceBuffer {
 public:
  DeviceBuffer(const Gpu& gpu, std::size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const { return reinterpret_cast<void*>(address_); }
  std::size_t bytes() const { return bytes_; }

  void upload(const void* from, std::size_t bytes, std::size_t at = 0);
  void download(void* to, std::size_t bytes) const;
  void fill(unsigned char byte);
  // Repeats the `period` bytes at `at` until they fill `bytes` bytes from there.
  void repeat(std::size_t period, std::size_t at, std::size_t bytes);

 private:
  const Gpu& gpu_;
  std::size_t bytes_;
  CUdeviceptr address_ = 0;
};

// Ordered after, and before, the synchronous copies of DeviceBuffer.
class GpuStream {
 public:
  explicit GpuStream(const Gpu& gpu);
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

  Stream handle() const { return stream_; }
  void synchronize() const;

 private:
  const Gpu& gpu_;
  CUstream stream_ = nullptr;
};

// What `enqueue` puts on the stream, captured once, replayed at will.
class GpuGraph {
 public:
  GpuGraph(const Gpu& gpu, const GpuStream& stream, const std::function<void()>& enqueue);
  ~GpuGraph();
  GpuGraph(const GpuGraph&) = delete;
  GpuGraph& operator=(const GpuGraph&) = delete;

  // Replays it and returns the GPU's time for it.
  double replay_microseconds() const;

 private:
  const Gpu& gpu_;
  const GpuStream& stream_;
  CUgraphExec graph_ = nullptr;
  CUevent begin_ = nullptr, end_ = nullptr;
};

}  // namespace normjit::cli
