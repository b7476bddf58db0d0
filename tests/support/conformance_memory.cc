// SPDX-License-Identifier: Apache-2.0
// Conformance kernels for global memory, as one thread uses it.
#include "tests/support/conformance_kernels.h"

namespace normjit::testing {
namespace {

constexpr int kThreads = 64, kBlocks = 2;

// Each size of an access and each way through the caches, side by side.
constexpr const char* kPieces = R"(
namespace normjit {

constexpr int kThreads = 64;

// Copies one piece a thread, and returns where the next copy begins.
template <hw::Cache kCache, int kBytes>
NJ_DEVICE int copy(const Input* x, Output* y, int at) {
  const int own = at + (blockIdx.x * kThreads + threadIdx.x) * kBytes;
  hw::store_piece<kBytes>(y + own, hw::load_piece<kCache, kBytes>(x + own));
  return at + gridDim.x * kThreads * kBytes;
}
template <hw::Cache kCache>
NJ_DEVICE int copy_sizes(const Input* x, Output* y, int at) {
  at = copy<kCache, 16>(x, y, at);
  at = copy<kCache, 8>(x, y, at);
  at = copy<kCache, 4>(x, y, at);
  return copy<kCache, 2>(x, y, at);
}

NJ_KERNEL(pieces, kThreads) {
  int at = copy_sizes<hw::Cache::evict_first>(on.x, on.y, 0);
  at = copy_sizes<hw::Cache::no_l1>(on.x, on.y, at);
  at = copy_sizes<hw::Cache::evict_last>(on.x, on.y, at);
  copy_sizes<hw::Cache::keep>(on.x, on.y, at);
}

}  // namespace normjit
)";
constexpr std::size_t kPiecesBytes = std::size_t{kBlocks * kThreads} * 4 * (16 + 8 + 4 + 2);

// Values of one and of several accesses.
constexpr const char* kValues = R"(
namespace normjit {

constexpr int kThreads = 64;

template <int kCount>
struct Words {
  unsigned at[kCount];
};

template <hw::Cache kCache, class T>
NJ_DEVICE int copy(const Input* x, Output* y, int at) {
  constexpr int kBytes = sizeof(T);
  const int own = at + (blockIdx.x * kThreads + threadIdx.x) * kBytes;
  const T value = hw::load<kCache, T>(x + own);
  hw::store(y + own, value);
  return at + gridDim.x * kThreads * kBytes;
}
// Single bytes are written alone, and never read so.
NJ_DEVICE int store_bytes(const Input* x, Output* y, int at) {
  const int own = at + (blockIdx.x * kThreads + threadIdx.x) * 2;
  const auto both = hw::load<hw::Cache::keep, unsigned short>(x + own);
  hw::store(y + own, static_cast<unsigned char>(both));
  hw::store(y + own + 1, static_cast<unsigned char>(both >> 8));
  return at + gridDim.x * kThreads * 2;
}
template <hw::Cache kCache>
NJ_DEVICE int copy_types(const Input* x, Output* y, int at) {
  at = copy<kCache, Words<12>>(x, y, at);
  at = copy<kCache, Words<8>>(x, y, at);
  at = copy<kCache, Words<4>>(x, y, at);
  at = copy<kCache, double>(x, y, at);
  at = copy<kCache, float>(x, y, at);
  at = copy<kCache, unsigned short>(x, y, at);
  return store_bytes(x, y, at);
}

// Every other thread wants what it asks for; the others have it already, and ask elsewhere.
template <class T>
NJ_DEVICE int copy_wanted(const Input* x, Output* y, int at) {
  constexpr int kBytes = sizeof(T);
  const int own = at + (blockIdx.x * kThreads + threadIdx.x) * kBytes;
  const bool wants = threadIdx.x % 2 == 0;
  T value = {};
  if (!wants) value = hw::load<hw::Cache::keep, T>(x + own);
  hw::load_if(wants, wants ? x + own : x, value);
  hw::store(y + own, value);
  return at + gridDim.x * kThreads * kBytes;
}

NJ_KERNEL(values, kThreads) {
  int at = copy_types<hw::Cache::evict_first>(on.x, on.y, 0);
  at = copy_types<hw::Cache::no_l1>(on.x, on.y, at);
  at = copy_types<hw::Cache::evict_last>(on.x, on.y, at);
  at = copy_types<hw::Cache::keep>(on.x, on.y, at);
  at = copy_wanted<Words<4>>(on.x, on.y, at);
  at = copy_wanted<double>(on.x, on.y, at);
  copy_wanted<float>(on.x, on.y, at);
}

}  // namespace normjit
)";
constexpr std::size_t kValuesBytes =
    std::size_t{kBlocks * kThreads} * (4 * (48 + 32 + 16 + 8 + 4 + 2 + 2) + 16 + 8 + 4);

// Through shared memory, each size of an access.
constexpr const char* kStaged = R"(
namespace normjit {

constexpr int kThreads = 64;

template <int kCount>
struct Words {
  unsigned at[kCount];
};

template <class T>
NJ_DEVICE int copy(const Input* x, Output* y, unsigned char* staged, int at) {
  constexpr int kBytes = sizeof(T);
  const int own = threadIdx.x, other = (own + 41) % kThreads, first = at + blockIdx.x * kThreads * kBytes;
  hw::store_shared(staged + other * kBytes, hw::load<hw::Cache::evict_first, T>(x + first + own * kBytes));
  hw::block_barrier();
  hw::store(y + first + own * kBytes, hw::load_shared<T>(staged + own * kBytes));
  hw::block_barrier();
  return at + gridDim.x * kThreads * kBytes;
}

NJ_KERNEL(staged, kThreads) {
  NJ_DYNAMIC_SHARED(unsigned char, memory);
  int at = copy<Words<4>>(on.x, on.y, memory, 0);
  at = copy<double>(on.x, on.y, memory, at);
  at = copy<Words<2>>(on.x, on.y, memory, at);
  at = copy<float>(on.x, on.y, memory, at);
  copy<unsigned short>(on.x, on.y, memory, at);
}

}  // namespace normjit
)";
constexpr std::size_t kStagedBytes = std::size_t{kBlocks * kThreads} * (16 + 8 + 8 + 4 + 2);

Bytes expected_staged(const ConformanceKernel& kernel) {
  Bytes y;
  for (const int bytes : {16, 8, 8, 4, 2})
    for (int block = 0; block < kBlocks; ++block) {
      const std::size_t first = y.size();
      for (int own = 0; own < kThreads; ++own)
        for (int i = 0; i < bytes; ++i)
          y.push_back(kernel.x[first + (own + kThreads - 41) % kThreads * bytes + i]);
    }
  return y;
}

constexpr const char* kForgotten = R"(
namespace normjit {

constexpr int kThreads = 64;

struct Half {
  unsigned short bits;
};
template <class T>
struct Four {
  T at[4];
};

template <class T>
NJ_DEVICE int copy(const Input* x, Output* y, int at) {
  constexpr int kBytes = sizeof(T);
  const int own = at + (blockIdx.x * kThreads + threadIdx.x) * kBytes;
  T value = hw::load<hw::Cache::keep, T>(x + own);
  hw::opaque(value);
  hw::store(y + own, value);
  return at + gridDim.x * kThreads * kBytes;
}

NJ_KERNEL(forgotten, kThreads) {
  int at = copy<Four<double>>(on.x, on.y, 0);
  at = copy<Four<float>>(on.x, on.y, at);
  at = copy<Four<Half>>(on.x, on.y, at);
  at = copy<double>(on.x, on.y, at);
  at = copy<float>(on.x, on.y, at);
  copy<Half>(on.x, on.y, at);
}

}  // namespace normjit
)";
constexpr std::size_t kForgottenBytes = std::size_t{kBlocks * kThreads} * (32 + 16 + 8 + 8 + 4 + 2);

ConformanceKernel copying(const char* name, const char* text, std::size_t bytes) {
  return {.name = name,
          .kernel = name,
          .input = "unsigned char",
          .output = "unsigned char",
          .text = text,
          .shape = {.threads = kThreads},
          .blocks = kBlocks,
          .x = random_bytes(bytes, 1),
          .y_bytes = bytes,
          .expected = [](const ConformanceKernel& kernel) { return kernel.x; }};
}

}  // namespace

std::vector<ConformanceKernel> memory_kernels() {
  std::vector<ConformanceKernel> kernels = {
      copying("pieces", kPieces, kPiecesBytes), copying("values", kValues, kValuesBytes),
      copying("forgotten", kForgotten, kForgottenBytes), copying("staged", kStaged, kStagedBytes)};
  kernels.back().expected = expected_staged;
  kernels.back().shape.dynamic_shared_bytes = 16 * kThreads;
  return kernels;
}

}  // namespace normjit::testing
