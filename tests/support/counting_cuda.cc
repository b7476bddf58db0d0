// SPDX-License-Identifier: Apache-2.0
#include "tests/support/counting_cuda.h"

#include <atomic>

namespace normjit::testing {
namespace {

constinit thread_local std::uint64_t t_launches = 0;
constinit std::atomic<int> g_live_libraries = 0;

int attribute(CUdevice_attribute which) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return 0;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 132;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return 2048;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      return 65536;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return 227 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return 228 << 10;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return 60 << 20;
    default:
      return 0;
  }
}

// Calls that have nothing to say.
template <class... Parameters>
CUresult succeed(Parameters...) {
  return CUDA_SUCCESS;
}

DriverTable table() {
  DriverTable table;
#define NORMJIT_SUCCEED(name, version, ...) table.name = &succeed<__VA_ARGS__>;
  NORMJIT_DRIVER_CALLS(NORMJIT_SUCCEED)
#undef NORMJIT_SUCCEED
  table.cuDriverGetVersion = [](int* version) { return *version = kOldestDriver, CUDA_SUCCESS; };
  table.cuDeviceGetCount = [](int* count) { return *count = 1, CUDA_SUCCESS; };
  table.cuDeviceGetAttribute = [](int* value, CUdevice_attribute which, CUdevice) {
    return *value = attribute(which), CUDA_SUCCESS;
  };
  table.cuCtxGetDevice = [](CUdevice* device) { return *device = 0, CUDA_SUCCESS; };
  table.cuLibraryLoadData = [](CUlibrary*, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*,
                               void**, unsigned) { return ++g_live_libraries, CUDA_SUCCESS; };
  table.cuLibraryUnload = [](CUlibrary) { return --g_live_libraries, CUDA_SUCCESS; };
  table.cuLibraryGetKernel = [](CUkernel* kernel, CUlibrary, const char*) {
    return *kernel = reinterpret_cast<CUkernel>(std::uintptr_t{1}), CUDA_SUCCESS;
  };
  table.cuOccupancyMaxActiveBlocksPerMultiprocessor = [](int* blocks, CUfunction, int, std::size_t) {
    return *blocks = 32, CUDA_SUCCESS;
  };
  table.cuOccupancyMaxActiveClusters = [](int* clusters, CUfunction, const CUlaunchConfig*) {
    return *clusters = 132, CUDA_SUCCESS;
  };
  table.cuPointerGetAttributes = [](unsigned count, CUpointer_attribute* which, void** values,
                                    unsigned long long) {
    for (unsigned i = 0; i < count; ++i) {
      if (which[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *static_cast<unsigned*>(values[i]) = CU_MEMORYTYPE_DEVICE;
      if (which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *static_cast<int*>(values[i]) = 0;
    }
    return CUDA_SUCCESS;
  };
  table.cuLaunchKernelEx = [](const CUlaunchConfig*, CUfunction, void**, void**) {
    ++t_launches;
    return CUDA_SUCCESS;
  };
  return table;
}

}  // namespace

Result<DriverTable> counting_cuda() { return table(); }

std::uint64_t launches_of_this_thread() noexcept { return t_launches; }

int live_libraries() noexcept { return g_live_libraries; }

}  // namespace normjit::testing
