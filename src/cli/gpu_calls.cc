// SPDX-License-Identifier: Apache-2.0
#include "cli/gpu_calls.h"

#include <string>

#include "normjit/base/dynamic_library.h"

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

}  // namespace normjit::cli
