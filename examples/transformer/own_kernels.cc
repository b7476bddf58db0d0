// SPDX-License-Identifier: Apache-2.0
#include "own_kernels.h"

#include <vector>

namespace {

constexpr int kThreads = 256, kRowsPerBlock = kThreads / 32;

constexpr const char* kText = R"(
#ifdef BF16
using Value = unsigned short;
__device__ float load(Value v) { return __uint_as_float(static_cast<unsigned>(v) << 16); }
__device__ Value store(float v) {
  const unsigned bits = __float_as_uint(v);
  return static_cast<Value>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
#else
using Value = float;
__device__ float load(Value v) { return v; }
__device__ Value store(float v) { return v; }
#endif
constexpr int kPacked = 16 / sizeof(Value);
struct alignas(16) Pack { Value at[kPacked]; };

__device__ float sum_of_warp(float v) {
  for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(~0u, v, distance);
  return v;
}
__device__ float largest_of_warp(float v) {
  for (int distance = 16; distance > 0; distance /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, distance));
  return v;
}
__device__ long long row_of_warp() { return blockIdx.x * (blockDim.x / 32ll) + threadIdx.x / 32; }

extern "C" __global__ void softmax(Value* x, long long rows, int columns) {
  const long long row = row_of_warp();
  if (row >= rows) return;
  Value* const values = x + row * columns;
  const int lane = threadIdx.x % 32;
  float largest = -3e38f, sum = 0;
  for (int i = lane; i < columns; i += 32) largest = fmaxf(largest, load(values[i]));
  largest = largest_of_warp(largest);
  for (int i = lane; i < columns; i += 32) sum += expf(load(values[i]) - largest);
  sum = sum_of_warp(sum);
  for (int i = lane; i < columns; i += 32) values[i] = store(expf(load(values[i]) - largest) / sum);
}

extern "C" __global__ void gelu(Pack* x, long long packs, float scale) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i >= packs) return;
  Pack pack = x[i];
  for (Value& value : pack.at) {
    const float v = load(value);
    value = store(scale * v * 0.5f * (1.0f + erff(v * 0.70710678f)));
  }
  x[i] = pack;
}

extern "C" __global__ void layer_norm(const Value* x, const Value* weight, const Value* bias, Value* y, long long rows,
                                      int columns) {
  const long long row = row_of_warp();
  if (row >= rows) return;
  const Value* const from = x + row * columns;
  const int lane = threadIdx.x % 32;
  float sum = 0, squares = 0;
  for (int i = lane; i < columns; i += 32) sum += load(from[i]);
  const float mean = sum_of_warp(sum) / columns;
  for (int i = lane; i < columns; i += 32) {
    const float distance = load(from[i]) - mean;
    squares += distance * distance;
  }
  const float rstd = rsqrtf(sum_of_warp(squares) / columns + 1e-5f);
  for (int i = lane; i < columns; i += 32)
    y[row * columns + i] = store((load(from[i]) - mean) * rstd * load(weight[i]) + load(bias[i]));
}

// A voxel's number there is batch, token, and an octant for each step; here it is batch, z, y, x.
extern "C" __global__ void to_volume(const Pack* from, Pack* to, long long packs, int side, int steps) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i >= packs) return;
  constexpr int kPacksPerVoxel = 64 / kPacked;
  const long long voxel = i / kPacksPerVoxel, tokens = static_cast<long long>(side) * side * side;
  const long long nested = voxel >> 3 * steps;
  long long z = nested % tokens / side / side, y = nested % tokens / side % side, x = nested % side;
  for (int step = steps - 1; step >= 0; --step) {
    const long long octant = voxel >> 3 * step & 7;
    z = 2 * z + (octant >> 2), y = 2 * y + (octant >> 1 & 1), x = 2 * x + (octant & 1);
  }
  const long long length = static_cast<long long>(side) << steps;
  const long long at = ((nested / tokens * length + z) * length + y) * length + x;
  to[at * kPacksPerVoxel + i % kPacksPerVoxel] = from[i];
}
)";

// A libnvrtc, which whoever has looked for it has opened already.
class Nvrtc {
 public:
  explicit Nvrtc(const std::string& path) : library_(dlopen(path.c_str(), RTLD_NOW)) {
    if (library_ == nullptr) fail("NVRTC", dlerror());
  }
  template <class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    return reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name))(arguments...);
  }

 private:
  void* library_;
};

// The cubin of kText.
std::vector<char> compile(Dtype dtype, const std::string& arch, const Nvrtc& nvrtc) {
  void* program = nullptr;
  const char* const* const no_headers = nullptr;
  nvrtc.call("nvrtcCreateProgram", &program, kText, "own_kernels.cu", 0, no_headers, no_headers);
  const std::string architecture = "--gpu-architecture=" + arch;
  const char* options[] = {architecture.c_str(), "--std=c++17", dtype == Dtype::bf16 ? "-DBF16" : "-DF32"};
  const bool compiled = nvrtc.call("nvrtcCompileProgram", program, 3, &options[0]) == 0;
  std::size_t bytes = 0;
  nvrtc.call(compiled ? "nvrtcGetCUBINSize" : "nvrtcGetProgramLogSize", program, &bytes);
  std::vector<char> text(bytes + 1);
  nvrtc.call(compiled ? "nvrtcGetCUBIN" : "nvrtcGetProgramLog", program, text.data());
  nvrtc.call("nvrtcDestroyProgram", &program);
  if (!compiled) fail("own_kernels.cu", text.data());
  return text;
}

}  // namespace

OwnKernels::OwnKernels(Dtype dtype, const std::string& arch, const std::string& nvrtc)
    : values_per_pack_(dtype == Dtype::bf16 ? 8 : 4) {
  const std::vector<char> cubin = compile(dtype, arch, Nvrtc(nvrtc));
  must(CUDA(cuModuleLoadData)(&module_, cubin.data()), "cuModuleLoadData");
}

OwnKernels::~OwnKernels() { CUDA(cuModuleUnload)(module_); }

void OwnKernels::launch(const char* name, CUstream stream, std::int64_t blocks, void** arguments) const {
  CUfunction function = nullptr;
  must(CUDA(cuModuleGetFunction)(&function, module_, name), name);
  must(CUDA(cuLaunchKernel)(function, static_cast<unsigned>(blocks), 1, 1, kThreads, 1, 1, 0, stream,
                            arguments, nullptr),
       name);
}

void OwnKernels::softmax(CUstream stream, void* x, std::int64_t rows, int columns) const {
  void* arguments[] = {&x, &rows, &columns};
  launch("softmax", stream, (rows + kRowsPerBlock - 1) / kRowsPerBlock, arguments);
}

void OwnKernels::gelu(CUstream stream, void* x, std::int64_t count, float scale) const {
  std::int64_t packs = count / values_per_pack_;
  void* arguments[] = {&x, &packs, &scale};
  launch("gelu", stream, (packs + kThreads - 1) / kThreads, arguments);
}

void OwnKernels::layer_norm(CUstream stream, const void* x, const void* weight, const void* bias, void* y,
                            std::int64_t rows, int columns) const {
  void* arguments[] = {&x, &weight, &bias, &y, &rows, &columns};
  launch("layer_norm", stream, (rows + kRowsPerBlock - 1) / kRowsPerBlock, arguments);
}

void OwnKernels::to_volume(CUstream stream, const void* from, void* to, int batch, Nesting nesting) const {
  const std::int64_t length = std::int64_t{nesting.side} << nesting.steps;
  std::int64_t packs = batch * length * length * length * 64 / values_per_pack_;
  void* arguments[] = {&from, &to, &packs, &nesting.side, &nesting.steps};
  launch("to_volume", stream, (packs + kThreads - 1) / kThreads, arguments);
}
