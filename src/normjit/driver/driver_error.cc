// SPDX-License-Identifier: Apache-2.0
#include "normjit/driver/driver_error.h"

#include <algorithm>
#include <iterator>

#include "normjit/driver/driver.h"

namespace normjit {
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
