// SPDX-License-Identifier: Apache-2.0
// Conformance kernels for what the lanes of a warp tell each other.
#include <functional>

#include "tests/support/conformance_kernels.h"

namespace normjit::testing {
namespace {

constexpr int kThreadsPerRow = 32;

constexpr const char* kShuffles = R"(
namespace normjit {

constexpr int kThreadsPerRow = 32;

// Returns y behind what it wrote.
template <class T>
NJ_DEVICE Output* exchange(const Input* x, Output* y) {
  const int lane = threadIdx.x;
  const T own = hw::load<hw::Cache::keep, T>(x + lane * 8);
  const auto put = [&](T value) {
    hw::store(y + lane * sizeof(T), value);
    y += kThreadsPerRow * sizeof(T);
  };
  for (int from = 0; from < kThreadsPerRow; from += 5) put(hw::shuffle(own, from));
  put(hw::shuffle(own, (7 * lane + 3) % kThreadsPerRow));
  for (int mask = 0; mask < kThreadsPerRow; mask = 2 * mask + 1) put(hw::shuffle_xor(own, mask));
  put(hw::shuffle_xor(own, 16));

  // Two halves of the warp, in different places.
  if (lane < 16) {
    put(hw::shuffle(own, (lane + 3) % 16, 0x0000ffffu));
    put(hw::shuffle_xor(own, 9, 0x0000ffffu));
  } else {
    put(hw::shuffle(own, 16 + (lane + 5) % 16, 0xffff0000u));
    put(hw::shuffle_xor(own, 6, 0xffff0000u));
  }
  // Even and odd lanes, in the same place.
  const unsigned members = lane % 2 == 0 ? 0x55555555u : 0xaaaaaaaau;
  put(hw::shuffle(own, (lane + 6) % kThreadsPerRow, members));
  put(hw::shuffle_xor(own, 10, members));
  return y;
}

NJ_KERNEL(shuffles, kThreadsPerRow) {
  Output* y = exchange<int>(on.x, on.y);
  y = exchange<unsigned>(on.x, y);
  y = exchange<float>(on.x, y);
  y = exchange<long long>(on.x, y);
  y = exchange<unsigned long long>(on.x, y);
  exchange<double>(on.x, y);
}

}  // namespace normjit
)";

// The lane that each lane reads, for each value that the kernel puts.
std::vector<std::function<int(int)>> shuffle_sources() {
  std::vector<std::function<int(int)>> sources;
  for (int from = 0; from < kThreadsPerRow; from += 5) sources.push_back([from](int) { return from; });
  sources.push_back([](int lane) { return (7 * lane + 3) % kThreadsPerRow; });
  for (const int mask : {0, 1, 3, 7, 15, 31, 16}) sources.push_back([mask](int lane) { return lane ^ mask; });
  sources.push_back([](int lane) { return lane < 16 ? (lane + 3) % 16 : 16 + (lane + 5) % 16; });
  sources.push_back([](int lane) { return lane < 16 ? lane ^ 9 : lane ^ 6; });
  sources.push_back([](int lane) { return (lane + 6) % kThreadsPerRow; });
  sources.push_back([](int lane) { return lane ^ 10; });
  return sources;
}

Bytes expected_shuffles(const ConformanceKernel& kernel) {
  Bytes y;
  for (const int bytes : {4, 4, 4, 8, 8, 8})
    for (const auto& source : shuffle_sources())
      for (int lane = 0; lane < kThreadsPerRow; ++lane) {
        const auto from = kernel.x.begin() + 8 * source(lane);
        y.insert(y.end(), from, from + bytes);
      }
  return y;
}

}  // namespace

std::vector<ConformanceKernel> lanes_kernels() {
  return {{.name = "shuffles",
           .kernel = "shuffles",
           .input = "unsigned char",
           .output = "unsigned char",
           .text = kShuffles,
           .shape = {.threads = kThreadsPerRow},
           .x = random_bytes(8 * kThreadsPerRow, 3),
           .y_bytes = shuffle_sources().size() * kThreadsPerRow * (3 * 4 + 3 * 8),
           .expected = expected_shuffles}};
}

}  // namespace normjit::testing
