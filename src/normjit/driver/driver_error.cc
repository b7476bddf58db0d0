#include "normjit/driver/driver_error.h"

#include "normjit/driver/driver.h"

namespace normjit {

Code code_of(int result) noexcept {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return Code::OutOfMemory;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
      return Code::NoDevice;
    case CUDA_ERROR_INVALID_CONTEXT:
      return Code::NoContext;
    case CUDA_ERROR_STUB_LIBRARY:
      return Code::NoDriver;
    case CUDA_ERROR_NOT_INITIALIZED:  // in a child whose parent had initialised CUDA
      return Code::ForkedAfterCudaInit;
    default:
      return Code::DriverError;
  }
}

bool loses_context(int result) noexcept {
  constexpr int kContained = 226, kTensorMemoryLeak = 721;  // missing in the headers of CUDA 12.0
  switch (result) {
    case kContained:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case kTensorMemoryLeak:
    case CUDA_ERROR_EXTERNAL_DEVICE:
      return true;
    default:
      return false;
  }
}

const char* advice_on(int result) noexcept {
  if (loses_context(result))
    return " A kernel of normjit or of other code has failed in this context, and the context is lost: end "
           "the process; compute-sanitizer names the kernel.";
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return " Free memory of the device.";
    case CUDA_ERROR_NO_DEVICE:
      return " The driver sees no GPU: check nvidia-smi, CUDA_VISIBLE_DEVICES and the GPUs of the container.";
    case CUDA_ERROR_INVALID_CONTEXT:
      return " The calling thread has no current CUDA context: make one current (cudaSetDevice, "
             "cuCtxSetCurrent) or name a device in PrepareOptions.";
    case CUDA_ERROR_STUB_LIBRARY:
      return " The libcuda.so.1 found is the toolkit's stub: remove it from the loader's path.";
    case CUDA_ERROR_NOT_INITIALIZED:
      return " The process was forked after CUDA had been initialised: fork before the first CUDA call, or "
             "start workers by exec (spawn).";
    default:
      return "";
  }
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
  return result == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE || result == CUDA_ERROR_INVALID_CLUSTER_SIZE ||
         result == CUDA_ERROR_NOT_SUPPORTED;
}

bool refuses_code(CUresult result) noexcept {
  switch (result) {
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_JIT_COMPILATION_DISABLED:
    case CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC:
    case CUDA_ERROR_INVALID_SOURCE:
    case CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND:
    case CUDA_ERROR_SHARED_OBJECT_INIT_FAILED:
    case CUDA_ERROR_NOT_FOUND:
      return true;
    default:
      return false;
  }
}

}  // namespace normjit
