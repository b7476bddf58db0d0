// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 for programs that open one: the driver that only counts, with one GPU, whose context is
// current. The stream 0x40 is being captured, others are not.
#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "tests/support/counting_cuda.h"

namespace {

normjit::DriverTable table() {
  normjit::DriverTable table = *normjit::testing::counting_cuda();
  // Newer than any compiler, whose kernels it therefore takes.
  table.cuDriverGetVersion = [](int* version) { return *version = 99000, CUDA_SUCCESS; };
  table.cuStreamIsCapturing = [](CUstream stream, CUstreamCaptureStatus* status) {
    const bool capturing = reinterpret_cast<std::uintptr_t>(stream) == 0x40;
    return *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE,
           CUDA_SUCCESS;
  };
  table.cuDeviceGetName = [](char* name, int size, CUdevice) {
    return std::snprintf(name, static_cast<std::size_t>(size), "stand-in"), CUDA_SUCCESS;
  };
  return table;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuDriverGetVersion(int* version) { return table().cuDriverGetVersion(version); }

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** address, int, cuuint64_t,
                                     CUdriverProcAddressQueryResult*) {
  static const normjit::DriverTable functions = table();
#define NORMJIT_NAMED(name, version, ...) {#name, reinterpret_cast<void*>(functions.name)},
  static const std::map<std::string, void*> by_name = {NORMJIT_DRIVER_CALLS(NORMJIT_NAMED)};
#undef NORMJIT_NAMED
  const auto found = by_name.find(symbol);
  *address = found == by_name.end() ? nullptr : found->second;
  return *address == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

// The launches of the calling thread.
std::uint64_t stand_in_launches() { return normjit::testing::launches_of_this_thread(); }
}
