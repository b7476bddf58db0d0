// SPDX-License-Identifier: Apache-2.0
#include "normjit/driver/driver_table.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "normjit/base/dynamic_library.h"
#include "normjit/base/fork.h"
#include "normjit/driver/driver.h"

namespace normjit {
namespace {

using GetVersion = CUresult (*)(int*);
using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

std::string dotted(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Error too_old(const std::string& what) {
  return {Code::DriverTooOld, "The NVIDIA driver " + what + "; normjit needs a driver for CUDA " +
                                  dotted(kOldestDriver) + " or newer (R525). Update the driver."};
}

}  // namespace

Result<DriverTable> read_driver(const FindSymbol& find) {
  // Only these two are found by their exported names; cuGetProcAddress finds the rest.
  const auto get_version = reinterpret_cast<GetVersion>(find("cuDriverGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != CUDA_SUCCESS) {
    return Error{
        Code::NoDriver,
        "The libcuda.so.1 found does not report its version, so it is no working NVIDIA driver (perhaps the "
        "stub of a toolkit). Remove it from the loader's path and install driver R525 or newer."};
  }
  if (version < kOldestDriver) return too_old("is for CUDA " + dotted(version));
  const auto get = reinterpret_cast<GetProcAddress>(find("cuGetProcAddress_v2"));
  if (get == nullptr) return too_old("has no cuGetProcAddress_v2");

  // The version selects the signature, also in newer drivers.
  const auto function = [get](const char* name, int of_version) -> void* {
    void* address = nullptr;
    const CUresult result = get(name, &address, of_version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr);
    return result == CUDA_SUCCESS ? address : nullptr;
  };
  DriverTable table;
#define NORMJIT_FIND(name, of_version, ...)                                         \
  table.name = reinterpret_cast<decltype(table.name)>(function(#name, of_version)); \
  if (table.name == nullptr && of_version <= kOldestDriver) return too_old("has no " #name);
  NORMJIT_DRIVER_CALLS(NORMJIT_FIND)
#undef NORMJIT_FIND
  return table;
}

Result<DriverTable> open_driver() {
  const ForkGate gate;  // for the loader's locks, which a symbol lookup takes too
  std::string why;
  const DynamicLibrary library = DynamicLibrary::open("libcuda.so.1", &why);
  if (!library) {
    return Error{
        Code::NoDriver,
        "libcuda.so.1 cannot be opened (" + why +
            "). It comes with the NVIDIA driver: install driver R525 or newer, or start the container with "
            "its GPUs. Prebuilding kernels works without it."};
  }
  return read_driver([&library](const char* name) { return library.symbol(name); });
}

namespace {

// The results that have a code of their own, with advice as advice_on returns it.
struct Known {
  int result;
  Code code;
  const char* advice;
};
constexpr Known kKnown[] = {
    {CUDA_ERROR_OUT_OF_MEMORY, Code::OutOfMemory, " Free memory of the device."},
    {CUDA_ERROR_NO_DEVICE, Code::NoDevice,
     " The driver sees no GPU: check nvidia-smi, CUDA_VISIBLE_DEVICES and the GPUs of the container."},
    {CUDA_ERROR_INVALID_DEVICE, Code::NoDevice, ""},
    {CUDA_ERROR_INVALID_CONTEXT, Code::NoContext,
     " The calling thread has no current CUDA context: make one current (cudaSetDevice, cuCtxSetCurrent) or "
     "name a device in PrepareOptions."},
    {CUDA_ERROR_STUB_LIBRARY, Code::NoDriver,
     " The libcuda.so.1 found is the toolkit's stub: remove it from the loader's path."},
    {CUDA_ERROR_NOT_INITIALIZED, Code::ForkedAfterCudaInit,
     " The process was forked after CUDA had been initialised: fork before the first CUDA call, or start "
     "workers by exec (spawn)."},
};

const Known* find(int result) noexcept {
  const Known* found = std::ranges::find(kKnown, result, &Known::result);
  return found != std::end(kKnown) ? found : nullptr;
}

bool is_one_of(std::initializer_list<int> results, int result) noexcept {
  return std::ranges::find(results, result) != results.end();
}

}  // namespace

Code code_of(int result) noexcept {
  const Known* known = find(result);
  return known != nullptr ? known->code : Code::DriverError;
}

bool loses_context(int result) noexcept {
  constexpr int kContained = 226, kTensorMemoryLeak = 721;  // missing in the headers of CUDA 12.0
  return is_one_of({kContained, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_ASSERT,
                    CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                    CUDA_ERROR_MISALIGNED_ADDRESS, CUDA_ERROR_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_PC,
                    CUDA_ERROR_LAUNCH_FAILED, kTensorMemoryLeak, CUDA_ERROR_EXTERNAL_DEVICE},
                   result);
}

const char* advice_on(int result) noexcept {
  if (loses_context(result))
    return " A kernel of normjit or of other code has failed in this context, and the context is lost: end "
           "the process; compute-sanitizer names the kernel.";
  const Known* known = find(result);
  return known != nullptr ? known->advice : "";
}

std::string describe(const DriverTable& driver, CUresult result) {
  const char* name = nullptr;
  if (driver.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
    return "CUresult " + std::to_string(static_cast<int>(result));
  }
  const char* text = nullptr;
  if (driver.cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) return name;
  return std::string(name) + ": " + text;
}

Error driver_error(const DriverTable& driver, CUresult result, const std::string& what) {
  return {code_of(result), what + " failed with " + describe(driver, result) + "." + advice_on(result)};
}

// NOT_SUPPORTED: the device has no launches of this kind.
bool refuses_to_run_together(int result) noexcept {
  return is_one_of(
      {CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, CUDA_ERROR_INVALID_CLUSTER_SIZE, CUDA_ERROR_NOT_SUPPORTED},
      result);
}

bool refuses_code(CUresult result) noexcept {
  return is_one_of(
      {CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_INVALID_PTX,
       CUDA_ERROR_JIT_COMPILER_NOT_FOUND, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
       CUDA_ERROR_JIT_COMPILATION_DISABLED, CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, CUDA_ERROR_INVALID_SOURCE,
       CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, CUDA_ERROR_NOT_FOUND},
      result);
}

}  // namespace normjit
