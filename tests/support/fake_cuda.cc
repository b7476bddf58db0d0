// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_cuda.h"

#include <algorithm>
#include <cstring>

namespace normjit::testing {
namespace {

FakeCuda* g_cuda = nullptr;

std::string mode_name(CUstreamCaptureMode mode) {
  return mode == CU_STREAM_CAPTURE_MODE_RELAXED ? "relaxed" : "global";
}

template <class Handle>
Handle handle(std::uintptr_t number) {
  return reinterpret_cast<Handle>(number);
}

template <class Handle>
std::string number(Handle handle) {
  return std::to_string(reinterpret_cast<std::uintptr_t>(handle));
}

}  // namespace

// One function per driver call, of its name and signature.
struct FakeCalls {
  static CUresult cuGetErrorName(CUresult result, const char** name) {
    if (result == CUDA_ERROR_ILLEGAL_ADDRESS) return *name = "CUDA_ERROR_ILLEGAL_ADDRESS", CUDA_SUCCESS;
    if (result == CUDA_ERROR_NO_BINARY_FOR_GPU) return *name = "CUDA_ERROR_NO_BINARY_FOR_GPU", CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_VALUE;
  }
  static CUresult cuGetErrorString(CUresult, const char** text) {
    return *text = "what it means", CUDA_SUCCESS;
  }

  static CUresult cuInit(unsigned) { return Call("cuInit").result; }
  static CUresult cuDriverGetVersion(int* version) {
    const Call call("cuDriverGetVersion");
    *version = g_cuda->version;
    return call.result;
  }
  static CUresult cuDeviceGetCount(int* count) {
    const Call call("cuDeviceGetCount");
    *count = static_cast<int>(g_cuda->gpus.size());
    return call.result;
  }
  static CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    const Call call("cuDeviceGet", std::to_string(ordinal));
    *device = g_cuda->gpus.at(ordinal).handle;
    return call.result;
  }
  static CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
    const Call call("cuDeviceGetName", std::to_string(device));
    const FakeCuda::Gpu* gpu = g_cuda->gpu(device);
    if (gpu == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    std::strncpy(name, gpu->name.c_str(), bytes - 1);
    return call.result;
  }
  static CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    const Call call("cuDeviceGetAttribute", std::to_string(device));
    const FakeCuda::Gpu* gpu = g_cuda->gpu(device);
    if (gpu == nullptr || gpu->attributes.count(attribute) == 0) return CUDA_ERROR_INVALID_VALUE;
    *value = gpu->attributes.at(attribute);
    return call.result;
  }
  static CUresult cuCtxGetDevice(CUdevice* device) {
    const Call call("cuCtxGetDevice");
    if (!g_cuda->current) return CUDA_ERROR_INVALID_CONTEXT;
    *device = *g_cuda->current;
    return call.result;
  }
  static CUresult cuCtxGetExecAffinity(CUexecAffinityParam* affinity, CUexecAffinityType type) {
    const Call call("cuCtxGetExecAffinity");
    if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_INVALID_VALUE;
    if (!g_cuda->sm_share) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    affinity->param.smCount.val = static_cast<unsigned>(*g_cuda->sm_share);
    return call.result;
  }
  static CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    const Call call("cuThreadExchangeStreamCaptureMode", mode_name(*mode));
    std::swap(*mode, g_cuda->capture_mode_);
    return call.result;
  }
  static CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    const Call call("cuStreamIsCapturing", number(stream));
    *status = g_cuda->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return call.result;
  }
  static CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, std::size_t bytes,
                                  CUstream stream) {
    const Call call("cuMemsetD8Async", std::to_string(memory) + " " + std::to_string(value) + " " +
                                           std::to_string(bytes) + " " + number(stream));
    return call.result;
  }
  static CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**,
                                    unsigned options, CUlibraryOption*, void**, unsigned library_options) {
    const Call call("cuLibraryLoadData", "options=" + std::to_string(options + library_options) + " " +
                                             mode_name(g_cuda->capture_mode_));
    g_cuda->last_code_ = static_cast<const char*>(code);
    if (call.result != CUDA_SUCCESS) return call.result;
    ++g_cuda->live_libraries_;
    *library = handle<CUlibrary>(++g_cuda->libraries_);
    return CUDA_SUCCESS;
  }
  static CUresult cuLibraryUnload(CUlibrary library) {
    const Call call("cuLibraryUnload", number(library) + " " + mode_name(g_cuda->capture_mode_));
    --g_cuda->live_libraries_;
    return call.result;
  }
  static CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
    const Call call("cuLibraryGetKernel", number(library) + " " + name);
    if (g_cuda->kernel != name) return CUDA_ERROR_NOT_FOUND;
    *kernel = handle<CUkernel>(reinterpret_cast<std::uintptr_t>(library) + 1000);
    return call.result;
  }
  static CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                       CUdevice device) {
    const char* name = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES       ? "shared"
                       : attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED ? "any_cluster"
                                                                                          : nullptr;
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return Call("cuKernelSetAttribute", number(kernel) + " " + name + "=" + std::to_string(value) +
                                            " device=" + std::to_string(device))
        .result;
  }
  static CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    const Call call("cuKernelGetFunction", number(kernel));
    *function = handle<CUfunction>(reinterpret_cast<std::uintptr_t>(kernel) + 1000);
    return call.result;
  }
  static CUresult cuFuncLoad(CUfunction function) { return Call("cuFuncLoad", number(function)).result; }
  static CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads,
                                                              std::size_t shared) {
    const Call call("cuOccupancyMaxActiveBlocksPerMultiprocessor",
                    number(function) + " threads=" + std::to_string(threads) +
                        " shared=" + std::to_string(shared) + " " + mode_name(g_cuda->capture_mode_));
    *blocks = g_cuda->blocks_per_sm;
    return call.result;
  }
  static CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function,
                                               const CUlaunchConfig* config) {
    std::string cluster = " no cluster";
    for (unsigned i = 0; i < config->numAttrs; ++i)
      if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        cluster = " cluster=" + std::to_string(config->attrs[i].value.clusterDim.x);
    const Call call("cuOccupancyMaxActiveClusters",
                    number(function) + " threads=" + std::to_string(config->blockDimX) +
                        " shared=" + std::to_string(config->sharedMemBytes) + cluster);
    *clusters = g_cuda->clusters;
    return call.result;
  }
  static CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments,
                                   void** extra) {
    const Call call("cuLaunchKernelEx");
    g_cuda->launches_.push_back(
        {*config, function, arguments, extra, {config->attrs, config->attrs + config->numAttrs}});
    return call.result;
  }
  static CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values,
                                         unsigned long long address) {
    const Call call("cuPointerGetAttributes");
    const auto found = g_cuda->memory.find(address);
    if (call.result != CUDA_SUCCESS || found == g_cuda->memory.end()) return call.result;
    const FakeCuda::Memory& memory = found->second;
    for (unsigned i = 0; i < count; ++i) {
      switch (attributes[i]) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
          *static_cast<unsigned*>(values[i]) = memory.type;
          break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
          *static_cast<bool*>(values[i]) = memory.managed;  // one byte only: the driver's word for a flag
          break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
          *static_cast<int*>(values[i]) = memory.ordinal;
          break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
          *static_cast<CUdeviceptr*>(values[i]) = memory.device_address;
          break;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
          *static_cast<CUdeviceptr*>(values[i]) = memory.start;
          break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
          *static_cast<std::size_t*>(values[i]) = memory.bytes;
          break;
        default:
          return CUDA_ERROR_INVALID_VALUE;
      }
    }
    return CUDA_SUCCESS;
  }
  static CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* piece, void* address) {
    const Call call("cuMemRetainAllocationHandle");
    const auto found = g_cuda->memory.find(reinterpret_cast<std::uintptr_t>(address));
    if (found == g_cuda->memory.end() || !found->second.mapped_in_pieces) return CUDA_ERROR_INVALID_VALUE;
    ++g_cuda->live_pieces_;
    *piece = 7;
    return call.result;
  }
  static CUresult cuMemRelease(CUmemGenericAllocationHandle) {
    const Call call("cuMemRelease");
    --g_cuda->live_pieces_;
    return call.result;
  }

  // Of the calls above, those up to this version.
  static CUresult cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags,
                                   CUdriverProcAddressQueryResult*) {
    if (version > g_cuda->version || flags != CU_GET_PROC_ADDRESS_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
    if (g_cuda->missing.count(name) != 0) return CUDA_ERROR_NOT_FOUND;
#define NORMJIT_FAKE(call, since, ...)                     \
  if (std::strcmp(name, #call) == 0 && version >= since) { \
    *function = reinterpret_cast<void*>(&FakeCalls::call); \
    return CUDA_SUCCESS;                                   \
  }
    NORMJIT_DRIVER_CALLS(NORMJIT_FAKE)
#undef NORMJIT_FAKE
    return CUDA_ERROR_NOT_FOUND;
  }

 private:
  // A call under way: logged, with the machine to itself.
  struct Call {
    explicit Call(const char* name, const std::string& details = "")
        : lock(g_cuda->mutex_), result(g_cuda->enter(name, details)) {}
    std::lock_guard<std::mutex> lock;
    CUresult result;
  };
};

FakeCuda::FakeCuda() {
  const auto attributes = [](int major, int factor) {
    return std::map<CUdevice_attribute, int>{
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, factor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1 * factor},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2 * factor},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 3 * factor},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 4 * factor},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 5 * factor},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 6 * factor},
        {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 7 * factor},
    };
  };
  gpus = {{100, "GPU A", attributes(9, 1)}, {101, "GPU B", attributes(8, 6)}};
  g_cuda = this;
}

FakeCuda::~FakeCuda() { g_cuda = nullptr; }

FindSymbol FakeCuda::symbols() {
  return [this](const char* name) -> void* {
    if (missing.count(name) != 0) return nullptr;
    if (std::strcmp(name, "cuDriverGetVersion") == 0) {
      return reinterpret_cast<void*>(&FakeCalls::cuDriverGetVersion);
    }
    if (std::strcmp(name, "cuGetProcAddress_v2") == 0) {
      return reinterpret_cast<void*>(&FakeCalls::cuGetProcAddress);
    }
    return nullptr;
  };
}

CUresult FakeCuda::enter(const char* name, const std::string& details) {
  calls_.push_back(details.empty() ? name : name + (" " + details));
  const auto found = failing.find(name);
  return found != failing.end() ? found->second : CUDA_SUCCESS;
}

const FakeCuda::Gpu* FakeCuda::gpu(CUdevice handle) const {
  const auto found =
      std::find_if(gpus.begin(), gpus.end(), [handle](const Gpu& gpu) { return gpu.handle == handle; });
  return found != gpus.end() ? &*found : nullptr;
}

std::vector<std::string> FakeCuda::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

int FakeCuda::count(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::count_if(calls_.begin(), calls_.end(), [&name](const std::string& call) {
    return call.substr(0, call.find(' ')) == name;
  }));
}

void FakeCuda::forget_calls() {
  const std::lock_guard lock(mutex_);
  calls_.clear();
}

std::vector<FakeCuda::Launch> FakeCuda::launches() const {
  const std::lock_guard lock(mutex_);
  return launches_;
}

std::string FakeCuda::last_code() const {
  const std::lock_guard lock(mutex_);
  return last_code_;
}

int FakeCuda::live_libraries() const {
  const std::lock_guard lock(mutex_);
  return live_libraries_;
}

int FakeCuda::live_pieces() const {
  const std::lock_guard lock(mutex_);
  return live_pieces_;
}

CUstreamCaptureMode FakeCuda::capture_mode() const {
  const std::lock_guard lock(mutex_);
  return capture_mode_;
}

}  // namespace normjit::testing
