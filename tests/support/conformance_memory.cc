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
template <hw::Keep kKeep, int kBytes>
NJ_DEVICE int copy(const Input* x, Output* y, int at) {
  const int own = at + (blockIdx.x * kThreads + threadIdx.x) * kBytes;
  hw::store_piece<kBytes>(y + own, hw::load_piece<kKeep, kBytes>(x + own));
  return at + gridDim.x * kThreads * kBytes;
}
template <hw::Keep kKeep>
NJ_DEVICE int copy_sizes(const Input* x, Output* y, int at) {
  at = copy<kKeep, 16>(x, y, at);
  at = copy<kKeep, 8>(x, y, at);
  at = copy<kKeep, 4>(x, y, at);
  return copy<kKeep, 2>(x, y, at);
}

NJ_KERNEL(pieces, kThreads) {
  const int at = copy_sizes<hw::Keep::once>(x, y, 0);
  copy_sizes<hw::Keep::always>(x, y, copy_sizes<hw::Keep::l2>(x, y, at));
}

}  // namespace normjit
)";
constexpr std::size_t kPiecesBytes = std::size_t{kBlocks * kThreads} * 3 * (16 + 8 + 4 + 2);

// Values of one and of several accesses.
constexpr const char* kValues = R"(
namespace normjit {

constexpr int kThreads = 64;

template <int kCount>
struct Words {
  unsigned at[kCount];
};

template <hw::Keep kKeep, class T>
NJ_DEVICE int copy(const Input* x, Output* y, int at) {
  constexpr int kBytes = sizeof(T);
  const int own = at + (blockIdx.x * kThreads + threadIdx.x) * kBytes;
  const T value = hw::load<kKeep, T>(x + own);
  hw::store(y + own, value);
  return at + gridDim.x * kThreads * kBytes;
}
template <hw::Keep kKeep>
NJ_DEVICE int copy_types(const Input* x, Output* y, int at) {
  at = copy<kKeep, Words<12>>(x, y, at);
  at = copy<kKeep, Words<8>>(x, y, at);
  at = copy<kKeep, Words<4>>(x, y, at);
  at = copy<kKeep, double>(x, y, at);
  at = copy<kKeep, float>(x, y, at);
  return copy<kKeep, unsigned short>(x, y, at);
}

NJ_KERNEL(values, kThreads) {
  const int at = copy_types<hw::Keep::once>(x, y, 0);
  copy_types<hw::Keep::always>(x, y, copy_types<hw::Keep::l2>(x, y, at));
}

}  // namespace normjit
)";
constexpr std::size_t kValuesBytes = std::size_t{kBlocks * kThreads} * 3 * (48 + 32 + 16 + 8 + 4 + 2);

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
  T value = hw::load<hw::Keep::always, T>(x + own);
  hw::forget(value);
  hw::store(y + own, value);
  return at + gridDim.x * kThreads * kBytes;
}

NJ_KERNEL(forgotten, kThreads) {
  int at = copy<Four<double>>(x, y, 0);
  at = copy<Four<float>>(x, y, at);
  at = copy<Four<Half>>(x, y, at);
  at = copy<double>(x, y, at);
  at = copy<float>(x, y, at);
  copy<Half>(x, y, at);
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
  return {copying("pieces", kPieces, kPiecesBytes), copying("values", kValues, kValuesBytes),
          copying("forgotten", kForgotten, kForgottenBytes)};
}

}  // namespace normjit::testing
