// SPDX-License-Identifier: Apache-2.0
// The driver's functions that normjit calls, found at run time: normjit is never linked to libcuda.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <string>

#include "normjit/result.h"

static_assert(CUDA_VERSION >= 12000, "normjit needs the headers of CUDA 12.0 or newer");

namespace normjit {

// The oldest driver that normjit works with: CUDA 12.0 (R525).
inline constexpr int kOldestDriver = 12000;

// One line per call: its name, the CUDA version of its signature, and its parameters. They are spelled out
// because cuda.h redirects names to its own newest versions. A call newer than kOldestDriver is null if the
// driver lacks it.
#define NORMJIT_DRIVER_CALLS(CALL)                                                                           \
  CALL(cuGetErrorName, 12000, CUresult, const char**)                                                        \
  CALL(cuGetErrorString, 12000, CUresult, const char**)                                                      \
  CALL(cuInit, 12000, unsigned)                                                                              \
  CALL(cuDriverGetVersion, 12000, int*)                                                                      \
  CALL(cuDeviceGetCount, 12000, int*)                                                                        \
  CALL(cuDeviceGet, 12000, CUdevice*, int)                                                                   \
  CALL(cuDeviceGetName, 12000, char*, int, CUdevice)                                                         \
  CALL(cuDeviceGetAttribute, 12000, int*, CUdevice_attribute, CUdevice)                                      \
  CALL(cuCtxGetDevice, 12000, CUdevice*)                                                                     \
  CALL(cuCtxGetExecAffinity, 12000, CUexecAffinityParam*, CUexecAffinityType)                                \
  CALL(cuThreadExchangeStreamCaptureMode, 12000, CUstreamCaptureMode*)                                       \
  CALL(cuStreamIsCapturing, 12000, CUstream, CUstreamCaptureStatus*)                                         \
  CALL(cuLibraryLoadData, 12000, CUlibrary*, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, \
       void**, unsigned)                                                                                     \
  CALL(cuLibraryUnload, 12000, CUlibrary)                                                                    \
  CALL(cuLibraryGetKernel, 12000, CUkernel*, CUlibrary, const char*)                                         \
  CALL(cuKernelSetAttribute, 12000, CUfunction_attribute, int, CUkernel, CUdevice)                           \
  CALL(cuKernelGetFunction, 12000, CUfunction*, CUkernel)                                                    \
  CALL(cuFuncLoad, 12040, CUfunction)                                                                        \
  CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, 12000, int*, CUfunction, int, std::size_t)               \
  CALL(cuOccupancyMaxActiveClusters, 12000, int*, CUfunction, const CUlaunchConfig*)                         \
  CALL(cuLaunchKernelEx, 12000, const CUlaunchConfig*, CUfunction, void**, void**)                           \
  CALL(cuMemsetD8Async, 12000, CUdeviceptr, unsigned char, std::size_t, CUstream)                            \
  CALL(cuPointerGetAttributes, 12000, unsigned, CUpointer_attribute*, void**, unsigned long long)            \
  CALL(cuMemRetainAllocationHandle, 12000, CUmemGenericAllocationHandle*, void*)                             \
  CALL(cuMemRelease, 12000, CUmemGenericAllocationHandle)

// The calls under their own names: driver.cuInit(0). Plain pointers into a library that is never closed, so a
// copy is valid for the life of the process.
struct DriverTable {
#define NORMJIT_POINTER(name, version, ...) CUresult (*name)(__VA_ARGS__) = nullptr;
  NORMJIT_DRIVER_CALLS(NORMJIT_POINTER)
#undef NORMJIT_POINTER
};

// The address of an exported function of libcuda, or null: dlsym, or a fake of it.
using FindSymbol = std::function<void*(const char* name)>;

// The table of the libcuda behind `find`. Reads only the version and the functions. NoDriver if the library
// does not report its version; DriverTooOld, with the version or the missing call.
Result<DriverTable> read_driver(const FindSymbol& find);

// The table of this machine's libcuda.so.1. NoDriver if there is none; the errors of read_driver.
Result<DriverTable> open_driver();

// --- From a CUresult to an Error ---

// "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"; "CUresult 12345" for a number that
// the driver does not know.
std::string describe(const DriverTable& driver, CUresult result);

// The error of a call that failed, with code_of its result. `what` begins the message: "cuCtxGetDevice",
// "cuLibraryLoadData of kernel k on device 0".
Error driver_error(const DriverTable& driver, CUresult result, const std::string& what);

// Whether the fault is in the code itself, not in the process or the device.
bool refuses_code(CUresult result) noexcept;

}  // namespace normjit
