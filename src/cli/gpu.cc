// SPDX-License-Identifier: Apache-2.0
#include "cli/gpu.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "normjit/base/dynamic_library.h"
#include "normjit/driver/driver_table.h"

namespace normjit::cli {
namespace {

// Looks up calls one by one and remembers the first that is missing.
class Finder {
 public:
  explicit Finder(const DynamicLibrary& library)
      : get_(reinterpret_cast<Get>(library.symbol("cuGetProcAddress_v2"))) {}

  template <class Function>
  void find(Function& to, const char* name) {
    void* address = nullptr;
    if (get_ == nullptr ||
        get_(name, &address, kOldestDriver, CU_GET_PROC_ADDRESS_DEFAULT, nullptr) != CUDA_SUCCESS ||
        address == nullptr) {
      if (missing_.empty()) missing_ = name;
    }
    to = reinterpret_cast<Function>(address);
  }

  const std::string& missing() const { return missing_; }

 private:
  using Get = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

  Get get_;
  std::string missing_;
};

}  // namespace

Result<GpuCalls> open_gpu_calls() {
  const Result<DriverTable> library = open_driver();
  if (!library) return library.error();
  GpuCalls calls;
  calls.library = *library;
  Finder finder(DynamicLibrary::open("libcuda.so.1"));
  finder.find(calls.primary_context_retain, "cuDevicePrimaryCtxRetain");
  finder.find(calls.primary_context_release, "cuDevicePrimaryCtxRelease");
  finder.find(calls.context_set_current, "cuCtxSetCurrent");
  finder.find(calls.memory_info, "cuMemGetInfo");
  finder.find(calls.memory_allocate, "cuMemAlloc");
  finder.find(calls.memory_free, "cuMemFree");
  finder.find(calls.copy_to_device, "cuMemcpyHtoD");
  finder.find(calls.copy_to_host, "cuMemcpyDtoH");
  finder.find(calls.copy_on_device, "cuMemcpyDtoD");
  finder.find(calls.set_bytes, "cuMemsetD8");
  finder.find(calls.stream_create, "cuStreamCreate");
  finder.find(calls.stream_destroy, "cuStreamDestroy");
  finder.find(calls.stream_synchronize, "cuStreamSynchronize");
  finder.find(calls.stream_begin_capture, "cuStreamBeginCapture");
  finder.find(calls.stream_end_capture, "cuStreamEndCapture");
  finder.find(calls.event_create, "cuEventCreate");
  finder.find(calls.event_destroy, "cuEventDestroy");
  finder.find(calls.event_record, "cuEventRecord");
  finder.find(calls.event_synchronize, "cuEventSynchronize");
  finder.find(calls.event_elapsed_milliseconds, "cuEventElapsedTime");
  finder.find(calls.graph_instantiate, "cuGraphInstantiateWithFlags");
  finder.find(calls.graph_destroy, "cuGraphDestroy");
  finder.find(calls.graph_exec_destroy, "cuGraphExecDestroy");
  finder.find(calls.graph_launch, "cuGraphLaunch");
  if (finder.missing().empty()) return calls;
  return Error{Code::DriverTooOld, "the NVIDIA driver has no " + finder.missing() +
                                       "; normjit needs R525 (CUDA 12.0) or newer. Update the driver."};
}

Gpu::Gpu(int ordinal) : calls_(open_gpu_calls().value()), ordinal_(ordinal) {
  check(calls_.library.cuInit(0), "cuInit");
  check(calls_.library.cuDeviceGet(&device_, ordinal),
        ("cuDeviceGet of device " + std::to_string(ordinal)).c_str());
  CUcontext context = nullptr;
  check(calls_.primary_context_retain(&context, device_), "cuDevicePrimaryCtxRetain");
  const CUresult current = calls_.context_set_current(context);
  if (current != CUDA_SUCCESS) calls_.primary_context_release(device_);
  check(current, "cuCtxSetCurrent");
}

Gpu::~Gpu() {
  calls_.context_set_current(nullptr);
  calls_.primary_context_release(device_);
}

std::string Gpu::name() const {
  char name[256] = {};
  check(calls_.library.cuDeviceGetName(name, sizeof name - 1, device_), "cuDeviceGetName");
  return name;
}

std::size_t Gpu::free_memory() const {
  std::size_t free = 0, total = 0;
  check(calls_.memory_info(&free, &total), "cuMemGetInfo");
  return free;
}

void Gpu::check(CUresult result, const char* what) const {
  if (result != CUDA_SUCCESS) throw Exception(driver_error(calls_.library, result, what));
}

DeviceBuffer::DeviceBuffer(const Gpu& gpu, std::size_t bytes) : gpu_(gpu), bytes_(bytes) {
  if (bytes == 0) return;
  gpu_.check(gpu_.calls().memory_allocate(&address_, bytes),
             ("cuMemAlloc of " + std::to_string(bytes) + " bytes").c_str());
}

DeviceBuffer::~DeviceBuffer() {
  if (address_ != 0) gpu_.calls().memory_free(address_);
}

void DeviceBuffer::upload(const void* from, std::size_t bytes, std::size_t at) {
  if (bytes > 0) gpu_.check(gpu_.calls().copy_to_device(address_ + at, from, bytes), "cuMemcpyHtoD");
}

void DeviceBuffer::download(void* to, std::size_t bytes) const {
  if (bytes > 0) gpu_.check(gpu_.calls().copy_to_host(to, address_, bytes), "cuMemcpyDtoH");
}

void DeviceBuffer::fill(unsigned char byte) {
  if (bytes_ > 0) gpu_.check(gpu_.calls().set_bytes(address_, byte, bytes_), "cuMemsetD8");
}

void DeviceBuffer::repeat(std::size_t period, std::size_t at, std::size_t bytes) {
  const CUdeviceptr begin = address_ + at;
  for (std::size_t done = period; done < bytes;) {  // doubling keeps the number of copies small
    const std::size_t more = std::min(done, bytes - done);
    gpu_.check(gpu_.calls().copy_on_device(begin + done, begin, more), "cuMemcpyDtoD");
    done += more;
  }
}

GpuStream::GpuStream(const Gpu& gpu) : gpu_(gpu) {
  gpu_.check(gpu_.calls().stream_create(&stream_, CU_STREAM_DEFAULT), "cuStreamCreate");
}

GpuStream::~GpuStream() { gpu_.calls().stream_destroy(stream_); }

void GpuStream::synchronize() const { gpu_.check(gpu_.calls().stream_synchronize(stream_), "the launch"); }

GpuGraph::GpuGraph(const Gpu& gpu, const GpuStream& stream, const std::function<void()>& enqueue)
    : gpu_(gpu), stream_(stream) {
  const GpuCalls& calls = gpu_.calls();
  gpu_.check(calls.stream_begin_capture(stream.handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
             "cuStreamBeginCapture");
  CUgraph captured = nullptr;
  try {
    enqueue();
  } catch (...) {
    calls.stream_end_capture(stream.handle(), &captured);
    if (captured != nullptr) calls.graph_destroy(captured);
    throw;
  }
  gpu_.check(calls.stream_end_capture(stream.handle(), &captured), "cuStreamEndCapture");
  const CUresult instantiated = calls.graph_instantiate(&graph_, captured, 0);
  calls.graph_destroy(captured);
  gpu_.check(instantiated, "cuGraphInstantiate");
  gpu_.check(calls.event_create(&begin_, CU_EVENT_DEFAULT), "cuEventCreate");
  gpu_.check(calls.event_create(&end_, CU_EVENT_DEFAULT), "cuEventCreate");
}

GpuGraph::~GpuGraph() {
  gpu_.calls().event_destroy(begin_);
  gpu_.calls().event_destroy(end_);
  gpu_.calls().graph_exec_destroy(graph_);
}

double GpuGraph::replay_microseconds() const {
  const GpuCalls& calls = gpu_.calls();
  gpu_.check(calls.event_record(begin_, stream_.handle()), "cuEventRecord");
  gpu_.check(calls.graph_launch(graph_, stream_.handle()), "cuGraphLaunch");
  gpu_.check(calls.event_record(end_, stream_.handle()), "cuEventRecord");
  gpu_.check(calls.event_synchronize(end_), "the graph replay");
  float milliseconds = 0;
  gpu_.check(calls.event_elapsed_milliseconds(&milliseconds, begin_, end_), "cuEventElapsedTime");
  return 1000.0 * milliseconds;
}

}  // namespace normjit::cli
