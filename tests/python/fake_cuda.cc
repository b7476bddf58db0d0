// SPDX-License-Identifier: Apache-2.0
// A libcuda for tests of libnormjit_onnxruntime.so on a machine without a GPU: memory is the host's, and the
// tests read what was asked of it. Only what that library calls is here.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" {
#pragma GCC visibility push(default)
// Set and read by the tests.
std::atomic<std::int32_t> fake_current_device{-1};  // -1: no context
std::atomic<std::int32_t> fake_capturing{0}, fake_out_of_memory{0};
std::atomic<std::int64_t> fake_allocations{0}, fake_fills{0}, fake_retained{0}, fake_pushed{0};
std::atomic<std::int32_t> fake_capture_mode{0};

int cuCtxGetDevice(int* device) {
  *device = fake_current_device;
  return fake_current_device < 0 ? 201 : 0;  // CUDA_ERROR_INVALID_CONTEXT
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  ++fake_retained;
  *context = reinterpret_cast<void*>(static_cast<std::intptr_t>(device + 1));
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) {
  --fake_retained;
  return 0;
}
static thread_local int before = -1;
int cuCtxPushCurrent_v2(void* context) {
  ++fake_pushed;
  before = fake_current_device;
  fake_current_device = static_cast<int>(reinterpret_cast<std::intptr_t>(context)) - 1;
  return 0;
}
int cuCtxPopCurrent_v2(void**) {
  --fake_pushed;
  fake_current_device = before;
  return 0;
}
int cuMemAlloc_v2(std::uintptr_t* memory, std::size_t bytes) {
  if (fake_out_of_memory || fake_capture_mode != 2) return 2;  // CUDA_ERROR_OUT_OF_MEMORY
  ++fake_allocations;
  void* const made = std::malloc(bytes);
  std::memset(made, 0xAB, bytes);
  *memory = reinterpret_cast<std::uintptr_t>(made);
  return 0;
}
int cuMemFree_v2(std::uintptr_t memory) {
  std::free(reinterpret_cast<void*>(memory));
  return 0;
}
int cuMemsetD8Async(std::uintptr_t memory, unsigned char value, std::size_t bytes, void*) {
  ++fake_fills;
  std::memset(reinterpret_cast<void*>(memory), value, bytes);
  return 0;
}
int cuStreamIsCapturing(void*, int* status) {
  *status = fake_capturing;
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  *mode = fake_capture_mode.exchange(*mode);
  return 0;
}
#pragma GCC visibility pop
}
