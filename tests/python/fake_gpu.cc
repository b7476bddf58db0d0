// SPDX-License-Identifier: Apache-2.0
// For tests of libnormjit_onnxruntime.so on a machine without a GPU, in one library: a libcuda whose memory
// is the host's, and a libnormjit that launches a plain norm of f32 there, and else asks the real one. Only
// what the operator calls is here.
#include <dlfcn.h>
#include <normjit/c_api.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

void* g_real = nullptr;  // the real libnormjit

template <class Function>
Function* real(const char* name, Function*) {
  return reinterpret_cast<Function*>(dlsym(g_real, name));
}

}  // namespace

extern "C" {
#pragma GCC visibility push(default)
// Set and read by the tests.
std::atomic<std::int32_t> fake_current_device{-1};  // -1: no context
std::atomic<std::int32_t> fake_capturing{0}, fake_out_of_memory{0};
std::atomic<std::int64_t> fake_allocations{0}, fake_fills{0}, fake_retained{0}, fake_pushed{0};
std::atomic<std::int32_t> fake_capture_mode{0};
std::int32_t fake_next_status = 0;     // of the next launch, instead of it
std::int32_t fake_prepare_status = 0;  // of every prepare, likewise
std::int64_t fake_workspace_bytes = 0;
std::atomic<std::int64_t> fake_launches{0}, fake_prepares{0}, fake_captured_misses{0};
const void* fake_workspace = nullptr;  // of the last launch

int fake_open(const char* path) {
  g_real = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return g_real != nullptr;
}

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

std::uint32_t normjit_abi_version() { return NORMJIT_ABI_VERSION; }
const char* normjit_status_message(normjit_status) { return "The fake says so."; }
void normjit_free(char* text) { std::free(text); }
normjit_status normjit_service_create(const normjit_options*, normjit_service** service, char**) {
  *service = reinterpret_cast<normjit_service*>(&g_real);
  return NORMJIT_OK;
}
normjit_status normjit_spec_parse(const char* text, normjit_spec* spec, char** error) {
  return real("normjit_spec_parse", &normjit_spec_parse)(text, spec, error);
}
normjit_status normjit_block_scale_shape(const normjit_spec* spec, std::int64_t rows, std::int64_t* shape,
                                         std::size_t* rank, char** error) {
  return real("normjit_block_scale_shape", &normjit_block_scale_shape)(spec, rows, shape, rank, error);
}
normjit_status normjit_workspace_bytes(normjit_service*, const normjit_spec*, std::size_t* bytes, char**) {
  *bytes = static_cast<std::size_t>(fake_workspace_bytes);
  return NORMJIT_OK;
}
normjit_status normjit_prepare(normjit_service*, const normjit_spec*, const normjit_prepare_options*,
                               normjit_kernel** kernel, char** error) {
  ++fake_prepares;
  if (fake_prepare_status != 0) {
    *error = strdup("The fake was told to refuse.");
    return fake_prepare_status;
  }
  *kernel = reinterpret_cast<normjit_kernel*>(std::malloc(1));
  return NORMJIT_OK;
}
void normjit_kernel_release(normjit_kernel* kernel) { std::free(kernel); }

// Rows of f32, contiguous, of a norm without or with a weight. The workspace must be there and zero.
normjit_status normjit_norm(normjit_service*, const normjit_spec* spec, const normjit_tensors* tensors, void*,
                            const normjit_launch_options* options, char** error) {
  ++fake_launches;
  fake_captured_misses += options->miss_in_capture;
  fake_workspace = tensors->workspace;
  const char* const workspace = static_cast<const char*>(tensors->workspace);
  const bool wrong = (fake_workspace_bytes != 0) != (workspace != nullptr) ||
                     (workspace != nullptr && std::any_of(workspace, workspace + fake_workspace_bytes,
                                                          [](char byte) { return byte != 0; }));
  if (fake_next_status != 0 || wrong) {
    *error = strdup(wrong ? "The workspace is wrong." : "The fake was told to refuse.");
    const normjit_status status = wrong ? NORMJIT_BAD_ARGUMENT : fake_next_status;
    fake_next_status = 0;
    return status;
  }
  const auto* x = static_cast<const float*>(tensors->x.pointer);
  const auto* weight = static_cast<const float*>(tensors->weight.pointer);
  auto* y = static_cast<float*>(tensors->y.pointer);
  const std::int64_t n = spec->columns;
  for (std::int64_t row = 0; row < tensors->rows; ++row, x += n, y += n) {
    double mean = 0, squares = 0;
    for (std::int64_t i = 0; i < n && spec->norm == NORMJIT_LAYER; ++i) mean += x[i] / static_cast<double>(n);
    for (std::int64_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean) / static_cast<double>(n);
    for (std::int64_t i = 0; i < n; ++i)
      y[i] =
          static_cast<float>((x[i] - mean) / std::sqrt(squares + spec->epsilon) * (weight ? weight[i] : 1));
  }
  return NORMJIT_OK;
}
#pragma GCC visibility pop
}
