// SPDX-License-Identifier: Apache-2.0
// Conformance kernels for the blocks of a cluster, and for launches that overlap.
#include "tests/support/conformance_kernels.h"

namespace normjit::testing {
namespace {

constexpr int kThreads = 32, kBlocks = 32;

// Each warp sends to all blocks of the cluster, in one piece and in two, in two places that take turns.
constexpr const char* kSent = R"(
namespace normjit {

constexpr int kThreads = 64, kRounds = 5;

struct alignas(16) Small {
  unsigned at[4];
};
struct alignas(16) Large {
  unsigned at[8];
};

NJ_KERNEL(sent, kThreads) {
  NJ_SHARED(Small, small, 2 * 16 * 2);
  NJ_SHARED(Large, large, 2 * 16 * 2);
  NJ_SHARED(hw::MemoryBarrier, arrived, 2);
  const int own = threadIdx.x, warp = own / 32, size = static_cast<int>(on.rows), rank = blockIdx.x % size;
  if (own == 0) {
    hw::barrier_init(arrived, 1);
    hw::barrier_init(arrived + 1, 1);
    hw::barriers_ready();
  }
  hw::cluster_enter();
  unsigned value = on.x[blockIdx.x * 2 + warp];
  hw::cluster_entered();

  for (int round = 0; round < kRounds; ++round) {
    const int half = round % 2, from = (half * 16 + rank) * 2 + warp;
    if (own == 0) hw::barrier_arrive_expect(arrived + half, 2 * size * (sizeof(Small) + sizeof(Large)));
    hw::warp_barrier();  // all lanes have read what others now may send to
    if (own % 32 < size) {
      const unsigned v = value + own % 32;
      hw::send(Small{{v, v + 1, v + 2, v + 3}}, small + from, arrived + half, own % 32);
      hw::send(Large{{~v, v, v, v, v, v, v, ~v + 1}}, large + from, arrived + half, own % 32);
    }
    hw::barrier_wait(arrived + half, round / 2 % 2);
    unsigned sum = 0;
    for (int i = 0; i < 2 * size; ++i) {
      const int at = half * 32 + i;
      for (int word = 0; word < 4; ++word) sum = 3 * sum + small[at].at[word];
      for (int word = 0; word < 8; ++word) sum = 3 * sum + large[at].at[word];
    }
    value = sum + warp;
  }
  on.y[blockIdx.x * kThreads + own] = value;
}

}  // namespace normjit
)";

Bytes expected_sent(const ConformanceKernel& kernel) {
  auto values = values_of<std::uint32_t>(kernel.x);  // of each warp
  const int size = kernel.shape.cluster_blocks;
  for (int round = 0; round < 5; ++round) {
    const auto before = values;
    for (int block = 0; block < kBlocks; ++block) {
      const int rank = block % size, first = block - rank;
      std::uint32_t sum = 0;
      for (int i = 0; i < 2 * size; ++i) {
        const std::uint32_t v = before[2 * first + i] + static_cast<std::uint32_t>(rank);
        for (const std::uint32_t word : {v, v + 1, v + 2, v + 3, ~v, v, v, v, v, v, v, ~v + 1})
          sum = 3 * sum + word;
      }
      for (int warp = 0; warp < 2; ++warp) values[2 * block + warp] = sum + static_cast<std::uint32_t>(warp);
    }
  }
  std::vector<std::uint32_t> y;
  for (const std::uint32_t value : values) y.insert(y.end(), kThreads, value);
  return bytes_of(y);
}

ConformanceKernel sent_in_clusters_of(int blocks) {
  return {.name = "sent_by_" + std::to_string(blocks),
          .kernel = "sent",
          .input = "unsigned",
          .output = "unsigned",
          .text = kSent,
          .oldest = {.number = 90},
          .shape = {.threads = 2 * kThreads, .cluster_blocks = blocks},
          .blocks = kBlocks,
          .x = random_bytes(4 * 2 * kBlocks, 9),
          .rows = blocks,
          .y_bytes = 4 * 2 * kThreads * kBlocks,
          .expected = expected_sent};
}

// In a launch that overlaps none, which is what the test makes, both are no more than a promise kept.
constexpr const char* kDependent = R"(
namespace normjit {

constexpr int kThreads = 32;

NJ_KERNEL(dependent, kThreads) {
  const int own = blockIdx.x * kThreads + threadIdx.x;
  hw::wait_for_previous_launch();
  const unsigned value = on.x[own];
  hw::allow_next_launch();
  on.y[own] = value + 1;
}

}  // namespace normjit
)";

Bytes expected_dependent(const ConformanceKernel& kernel) {
  auto values = values_of<std::uint32_t>(kernel.x);
  for (std::uint32_t& value : values) ++value;
  return bytes_of(values);
}

}  // namespace

std::vector<ConformanceKernel> clusters_kernels() {
  return {sent_in_clusters_of(2),
          sent_in_clusters_of(8),
          sent_in_clusters_of(16),
          {.name = "dependent",
           .kernel = "dependent",
           .input = "unsigned",
           .output = "unsigned",
           .text = kDependent,
           .shape = {.threads = kThreads},
           .blocks = kBlocks,
           .x = random_bytes(4 * kThreads * kBlocks, 7),
           .y_bytes = 4 * kThreads * kBlocks,
           .expected = expected_dependent}};
}

}  // namespace normjit::testing
