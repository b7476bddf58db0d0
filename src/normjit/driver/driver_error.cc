#include "normjit/driver/driver_error.h"

#include "normjit/driver/driver.h"

namespace normjit {
namespace {

Code code_of(CUresult result) noexcept {
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
    case CUDA_ERROR_NOT_INITIALIZED:  // the answer to a child whose parent had initialised CUDA
      return Code::ForkedAfterCudaInit;
    default:
      return Code::DriverError;
  }
}

// What to do about it, for the results whose own text does not say.
const char* advice(CUresult result) noexcept {
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

}  // namespace

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
  return {code_of(result), what + " failed with " + describe(driver, result) + "." + advice(result)};
}

// Not supported: what a device without such launches at all answers.
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
