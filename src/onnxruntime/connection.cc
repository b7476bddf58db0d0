// SPDX-License-Identifier: Apache-2.0
#include "onnxruntime/connection.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace normjit::onnxruntime {
namespace {

template <class Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

std::vector<std::string> candidates() {
  const char* const named = std::getenv("NORMJIT_LIBRARY");
  if (named != nullptr && *named != 0) return {named};
  const std::string name = "libnormjit.so." + std::to_string(NORMJIT_ABI_VERSION);
  std::vector<std::string> all = {name};
  if (Dl_info here; dladdr(reinterpret_cast<void*>(&candidates), &here) != 0 && here.dli_fname != nullptr) {
    const std::string path = here.dli_fname;
    if (const std::size_t slash = path.rfind('/'); slash != path.npos)
      all.insert(all.begin(), path.substr(0, slash + 1) + name);
  }
  return all;
}

// Why this file cannot be taken; empty if it can.
std::string open(const std::string& path, Library& to, decltype(&::normjit_service_create)& create) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return dlerror();
  decltype(&::normjit_abi_version) version = nullptr;
  const bool found =
      find(handle, "normjit_abi_version", version) && find(handle, "normjit_service_create", create) &&
      find(handle, "normjit_norm", to.norm) && find(handle, "normjit_prepare", to.prepare) &&
      find(handle, "normjit_kernel_release", to.kernel_release) &&
      find(handle, "normjit_spec_parse", to.spec_parse) &&
      find(handle, "normjit_workspace_bytes", to.workspace_bytes) &&
      find(handle, "normjit_block_scale_shape", to.block_scale_shape) &&
      find(handle, "normjit_status_message", to.status_message) && find(handle, "normjit_free", to.free);
  if (!found) return path + " is no libnormjit of this version or a newer one";
  if (version() != NORMJIT_ABI_VERSION)
    return path + ": its ABI version is " + std::to_string(version()) + ", not " +
           std::to_string(NORMJIT_ABI_VERSION);
  return {};
}

Library connect() {
  Library made{};
  std::string tried;
  for (const std::string& path : candidates()) {
    decltype(&::normjit_service_create) create = nullptr;
    const std::string why = open(path, made, create);
    if (!why.empty()) {
      tried += "\n  " + why;
      continue;
    }
    made.ask([&](char** error) { return create(nullptr, &made.service, error); });
    return made;
  }
  throw Failure(kFail,
                "libnormjit was not found. Put libnormjit.so." + std::to_string(NORMJIT_ABI_VERSION) +
                    " beside libnormjit_onnxruntime.so, or name it in NORMJIT_LIBRARY. Tried:" + tried);
}

// The functions of the driver that are called here.
struct Cuda {
  int (*current_device)(int* device);
  int (*retain)(void** context, int device);
  int (*release)(int device);
  int (*push)(void* context);
  int (*pop)(void** context);
  int (*allocate)(std::uintptr_t* memory, std::size_t bytes);
  int (*free)(std::uintptr_t memory);
  int (*fill)(std::uintptr_t memory, unsigned char value, std::size_t bytes, void* stream);
  int (*is_capturing)(void* stream, int* status);
  int (*exchange_capture_mode)(int* mode);
};

Cuda open_driver() {
  Cuda made{};
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const bool found =
      driver != nullptr && find(driver, "cuCtxGetDevice", made.current_device) &&
      find(driver, "cuDevicePrimaryCtxRetain", made.retain) &&
      find(driver, "cuDevicePrimaryCtxRelease_v2", made.release) &&
      find(driver, "cuCtxPushCurrent_v2", made.push) && find(driver, "cuCtxPopCurrent_v2", made.pop) &&
      find(driver, "cuMemAlloc_v2", made.allocate) && find(driver, "cuMemFree_v2", made.free) &&
      find(driver, "cuMemsetD8Async", made.fill) && find(driver, "cuStreamIsCapturing", made.is_capturing) &&
      find(driver, "cuThreadExchangeStreamCaptureMode", made.exchange_capture_mode);
  if (!found) throw Failure(kFail, "the NVIDIA driver (libcuda.so.1) was not found");
  return made;
}

// make() once for the process, or again after it has thrown. Threads may both make it; one of them wins.
template <class T, T make()>
const T& only() {
  static std::atomic<const T*> known{nullptr};
  if (const T* const there = known.load(std::memory_order_acquire)) return *there;
  auto made = std::make_unique<const T>(make());
  const T* expected = nullptr;
  if (known.compare_exchange_strong(expected, made.get(), std::memory_order_acq_rel)) return *made.release();
  return *expected;
}

const Cuda& cuda() { return only<Cuda, open_driver>(); }

[[noreturn]] void refuse(const std::string& what, int result) {
  throw Failure(kFail, what + " gave CUDA error " + std::to_string(result));
}

}  // namespace

void Library::fail(normjit_status status, char* error) const {
  std::string text = error != nullptr ? error : status_message(status);
  free(error);
  if (status == NORMJIT_NOT_READY)
    text += " Run the session once with inputs of these shapes before a CUDA graph is captured.";
  throw Failure(kFail, text);
}

const Library& library() { return only<Library, connect>(); }

OnDevice::OnDevice(int device) {
  int current = -1;
  if (cuda().current_device(&current) == 0 && current == device) return;
  void* context = nullptr;
  if (const int result = cuda().retain(&context, device); result != 0)
    refuse("taking the context of the GPU", result);
  if (const int result = cuda().push(context); result != 0) {
    cuda().release(device);
    refuse("making the context of the GPU current", result);
  }
  pushed_ = device;
}

OnDevice::~OnDevice() {
  if (pushed_ < 0) return;
  void* context = nullptr;
  cuda().pop(&context);
  cuda().release(pushed_);
}

void* workspace_of(int device, void* stream, std::size_t bytes) {
  struct Held {
    int device;
    void* stream;
    std::size_t bytes;
    void* memory;
    Held* next;
  };
  static std::atomic<Held*> first{nullptr};               // only grows, so it needs no lock
  constexpr std::size_t kLeast = std::size_t{256} << 10;  // so that one serves every plan of today
  for (const Held* held = first.load(std::memory_order_acquire); held != nullptr; held = held->next)
    if (held->device == device && held->stream == stream && held->bytes >= bytes) return held->memory;

  int capturing = 0;
  if (cuda().is_capturing(stream, &capturing) == 0 && capturing != 0)
    throw Failure(kFail,
                  "the stream that is being captured has no workspace yet. Run the session once before the "
                  "CUDA graph is captured.");
  bytes = std::max(bytes, kLeast);
  auto made = std::make_unique<Held>(Held{device, stream, bytes, nullptr, nullptr});
  constexpr int kRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED: captures of other threads do not mind
  int mode = kRelaxed;
  std::uintptr_t memory = 0;
  cuda().exchange_capture_mode(&mode);
  int result = cuda().allocate(&memory, bytes);
  if (result == 0) {
    result = cuda().fill(memory, 0, bytes, stream);
    if (result != 0) cuda().free(memory);
  }
  cuda().exchange_capture_mode(&mode);
  if (result != 0) refuse("a workspace of " + std::to_string(bytes) + " bytes", result);
  made->memory = reinterpret_cast<void*>(memory);
  made->next = first.load(std::memory_order_acquire);
  while (!first.compare_exchange_weak(made->next, made.get(), std::memory_order_acq_rel)) {
  }
  return made.release()->memory;
}

void zero(void* memory, std::size_t bytes, void* stream) {
  if (const int result = cuda().fill(reinterpret_cast<std::uintptr_t>(memory), 0, bytes, stream); result != 0)
    refuse("zeroing a result", result);
}

}  // namespace normjit::onnxruntime
