// SPDX-License-Identifier: Apache-2.0
// libnormjit, CUDA's driver and PyTorch's streams, as they were found when Python connected them.
//
// The tests define NORMJIT_TORCH_ON_CPU: tensors are on the CPU, and a libnormjit that computes there has no
// streams.
#pragma once

#include <dlfcn.h>
#include <normjit/c_api.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

namespace normjit_torch {

// Becomes Python's RuntimeError.
[[noreturn]] inline void fail(const std::string& text) { throw std::runtime_error(text); }

struct Normjit {
  decltype(&normjit_norm) norm;
  decltype(&normjit_workspace_bytes) workspace_bytes;
  decltype(&normjit_block_scale_shape) block_scale_shape;
  decltype(&normjit_status_message) status_message;
  decltype(&normjit_free) free;
  normjit_service* service;                 // the one without batch invariance
  normjit_service* (*invariant_service)();  // the other, which it makes when it is first called
};
inline Normjit normjit{};

// Of PyTorch and of the driver; null where there is none.
struct Cuda {
  AOTITorchError (*current_stream)(std::int32_t device, void** stream);
  int (*is_capturing)(void* stream, int* status);
  int (*retain)(void** context, int device);
  int (*release)(int device);
  int (*set_current)(void* context);
  int (*allocate)(std::uintptr_t* memory, std::size_t bytes);
  int (*fill)(std::uintptr_t memory, unsigned char value, std::size_t bytes, void* stream);
  int (*exchange_capture_mode)(int* mode);
};
inline Cuda cuda{};

// What PyTorch said of this thread's last call of it that failed. Null before PyTorch 2.13, which writes that
// to stderr alone.
inline const char* (*reason_of_pytorch)() = nullptr;

// What a call of PyTorch's says is only whether it failed; `what` was tried.
inline void require(AOTITorchError error, const char* what) {
  if (error == AOTI_TORCH_SUCCESS) return;
  fail(std::string("normjit: ") + what + " failed" +
       (reason_of_pytorch ? std::string(": ") + reason_of_pytorch()
                          : "; PyTorch has written the reason to stderr"));
}

template <class Function>
void find(Function*& function, const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_LAZY);  // stays open
  function = handle ? reinterpret_cast<Function*>(dlsym(handle, name)) : nullptr;
}

inline void connect(void* const* functions, void* service, normjit_service* (*invariant_service)()) {
  normjit.norm = reinterpret_cast<decltype(normjit.norm)>(functions[0]);
  normjit.workspace_bytes = reinterpret_cast<decltype(normjit.workspace_bytes)>(functions[1]);
  normjit.block_scale_shape = reinterpret_cast<decltype(normjit.block_scale_shape)>(functions[2]);
  normjit.status_message = reinterpret_cast<decltype(normjit.status_message)>(functions[3]);
  normjit.free = reinterpret_cast<decltype(normjit.free)>(functions[4]);
  normjit.service = static_cast<normjit_service*>(service);
  normjit.invariant_service = invariant_service;
  find(reason_of_pytorch, "libtorch_cpu.so", "torch_exception_get_what_without_backtrace");
  find(cuda.current_stream, "libtorch_cuda.so", "aoti_torch_get_current_cuda_stream");
  find(cuda.is_capturing, "libcuda.so.1", "cuStreamIsCapturing");
  find(cuda.retain, "libcuda.so.1", "cuDevicePrimaryCtxRetain");
  find(cuda.release, "libcuda.so.1", "cuDevicePrimaryCtxRelease_v2");
  find(cuda.set_current, "libcuda.so.1", "cuCtxSetCurrent");
  find(cuda.allocate, "libcuda.so.1", "cuMemAlloc_v2");
  find(cuda.fill, "libcuda.so.1", "cuMemsetD8Async");
  find(cuda.exchange_capture_mode, "libcuda.so.1", "cuThreadExchangeStreamCaptureMode");
}

// A call of libnormjit failed.
struct Refused : std::runtime_error {
  Refused(normjit_status status, const std::string& text) : std::runtime_error(text), status(status) {}
  const normjit_status status;
};

// Throws the sentence that came with a status.
[[noreturn]] inline void fail(normjit_status status, char* error) {
  std::string text = error ? error : normjit.status_message(status);
  normjit.free(error);
  if (status == NORMJIT_NOT_READY)
    text +=
        " Call the layer once with tensors like these before the capture begins, as the warm-up of "
        "torch.cuda.graph does.";
  throw Refused(status, text);
}

// A thread that has made no CUDA call has no context, and PyTorch sees no need to give it one where it has
// memory at hand. The primary context is there, since tensors are.
inline bool make_context_current(int device) {
  void* context = nullptr;
  if (!cuda.retain || !cuda.release || !cuda.set_current || cuda.retain(&context, device) != 0) return false;
  const bool done = cuda.set_current(context) == 0;
  cuda.release(device);
  return done;
}

// Calls libnormjit: call(&error) returns its status. Throws where it fails.
template <class Call>
void ask(int device, const Call& call) {
  char* error = nullptr;
  normjit_status status = call(&error);
  if (status == NORMJIT_NO_CONTEXT && make_context_current(device)) {
    normjit.free(error);
    error = nullptr;
    status = call(&error);
  }
  if (status != NORMJIT_OK) fail(status, error);
}

#ifdef NORMJIT_TORCH_ON_CPU

struct OnDevice {
  explicit OnDevice(int) {}
};
inline void* current_stream(int) { return nullptr; }
inline void* lasting_zeros(std::size_t bytes, void*) { return std::calloc(bytes, 1); }
inline void zero(void* memory, std::size_t bytes, void*) { std::memset(memory, 0, bytes); }

#else

// Makes a device the current one for as long as it lives.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    int current = -1;
    require(aoti_torch_get_current_device_index(&current), "asking for the current device");
    if (current != device) guard_.emplace(device);
  }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

inline void* current_stream(int device) {
  if (!cuda.current_stream) fail("normjit: this PyTorch has no CUDA");
  void* stream = nullptr;
  require(cuda.current_stream(device, &stream), "asking for the current stream");
  return stream;
}

// Memory of the current device for the rest of the process, zeroed on a stream that is not being captured.
// Not out of PyTorch's pools, which may be those of a graph at this moment, where nothing may stay.
inline void* lasting_zeros(std::size_t bytes, void* stream) {
  int mode = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED: other threads' captures do not mind
  std::uintptr_t memory = 0;
  if (!cuda.allocate || !cuda.fill || !cuda.exchange_capture_mode || cuda.exchange_capture_mode(&mode) != 0)
    fail("normjit: no driver");
  const bool done = cuda.allocate(&memory, bytes) == 0 && cuda.fill(memory, 0, bytes, stream) == 0;
  cuda.exchange_capture_mode(&mode);
  if (!done) fail("CUDA out of memory. normjit got none for a workspace.");
  return reinterpret_cast<void*>(memory);
}

inline void zero(void* memory, std::size_t bytes, void* stream) {
  if (!cuda.fill || cuda.fill(reinterpret_cast<std::uintptr_t>(memory), 0, bytes, stream) != 0)
    fail("normjit: zeroing a workspace failed");
}

#endif

// Whether launches that have this stream may run at once: replays of a graph that captures it, and those on
// the stream that is another one in each thread.
inline bool runs_with_others(void* stream) {
  constexpr std::uintptr_t kPerThread = 2;  // CU_STREAM_PER_THREAD
  int status = 0;
  return reinterpret_cast<std::uintptr_t>(stream) == kPerThread ||
         (cuda.is_capturing && cuda.is_capturing(stream, &status) == 0 && status != 0);
}

}  // namespace normjit_torch
