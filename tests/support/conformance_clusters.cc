// Conformance kernels for the blocks of a cluster, and for launches that overlap.
#include "tests/support/conformance_kernels.h"

namespace normjit::testing {
namespace {

constexpr int kThreads = 32, kBlocks = 32;

// Reads from all blocks of the cluster, through both kinds of shared memory, then writes into the next one.
constexpr const char* kClusters = R"(
namespace normjit {

constexpr int kThreads = 32;

NJ_KERNEL(clusters, kThreads) {
  NJ_SHARED(unsigned, cell, kThreads);
  NJ_DYNAMIC_SHARED(unsigned, more);
  const int own = threadIdx.x, rank = hw::cluster_rank(), size = hw::cluster_size();
  const unsigned value = x[blockIdx.x * kThreads + own];
  cell[own] = value;
  more[own] = ~value;
  hw::cluster_barrier();

  unsigned sum = 0;
  for (int i = 0; i < size; ++i) {
    sum = 3 * sum + hw::remote(cell, (rank + i) % size)[(own + i) % kThreads];
    sum = 3 * sum + *hw::remote(more + (own + 5) % kThreads, i);
  }
  hw::cluster_barrier();

  hw::remote(cell, (rank + 1) % size)[kThreads - 1 - own] = sum;
  hw::cluster_barrier();
  y += (blockIdx.x * kThreads + own) * 3;
  y[0] = cell[own];
  y[1] = rank;
  y[2] = size;
}

}  // namespace normjit
)";

Bytes expected_clusters(const ConformanceKernel& kernel) {
  const auto x = values_of<std::uint32_t>(kernel.x);
  const int size = kernel.shape.cluster_blocks;
  std::vector<std::uint32_t> y(3 * x.size());
  for (int block = 0; block < kBlocks; ++block)
    for (int own = 0; own < kThreads; ++own) {
      const int rank = block % size, first = block - rank;
      const auto at = [&](int of, int thread) {
        return x[(first + of % size) * kThreads + thread % kThreads];
      };
      std::uint32_t sum = 0;
      for (int i = 0; i < size; ++i) sum = 3 * (3 * sum + at(rank + i, own + i)) + ~at(i, own + 5);
      const int to = (first + (rank + 1) % size) * kThreads + kThreads - 1 - own;
      y[3 * to] = sum;
      const int here = block * kThreads + own;
      y[3 * here + 1] = rank;
      y[3 * here + 2] = size;
    }
  return bytes_of(y);
}

ConformanceKernel in_clusters_of(int blocks) {
  return {.name = "clusters_of_" + std::to_string(blocks),
          .kernel = "clusters",
          .input = "unsigned",
          .output = "unsigned",
          .text = kClusters,
          .oldest = {.number = 90},
          .shape = {.threads = kThreads, .dynamic_shared_bytes = 4 * kThreads, .cluster_blocks = blocks},
          .blocks = kBlocks,
          .x = random_bytes(4 * kThreads * kBlocks, 6),
          .y_bytes = 3 * 4 * kThreads * kBlocks,
          .expected = expected_clusters};
}

// Writes into all blocks of the cluster as soon as they are there, with work of its own before; a second time
// behind a barrier, for which entering must have left no trace.
constexpr const char* kEntered = R"(
namespace normjit {

constexpr int kThreads = 32;

NJ_KERNEL(entered, kThreads) {
  NJ_SHARED(unsigned, cells, 2 * 16 * kThreads);
  hw::cluster_enter();
  const int own = threadIdx.x, rank = hw::cluster_rank(), size = hw::cluster_size();
  unsigned value = x[blockIdx.x * kThreads + own];
  hw::cluster_entered();

  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < size; ++i) hw::remote(cells, i)[(half * 16 + rank) * kThreads + own] = value + i;
    hw::cluster_barrier();
    unsigned sum = 0;
    for (int i = 0; i < size; ++i) sum = 3 * sum + cells[(half * 16 + i) * kThreads + (own + 7) % kThreads];
    value = sum;
  }
  y[blockIdx.x * kThreads + own] = value;
}

}  // namespace normjit
)";

Bytes expected_entered(const ConformanceKernel& kernel) {
  auto values = values_of<std::uint32_t>(kernel.x);
  const int size = kernel.shape.cluster_blocks;
  for (int half = 0; half < 2; ++half) {
    const auto before = values;
    for (int block = 0; block < kBlocks; ++block)
      for (int own = 0; own < kThreads; ++own) {
        const int rank = block % size, first = block - rank;
        std::uint32_t sum = 0;
        for (int i = 0; i < size; ++i)
          sum = 3 * sum + before[(first + i) * kThreads + (own + 7) % kThreads] +
                static_cast<std::uint32_t>(rank);
        values[block * kThreads + own] = sum;
      }
  }
  return bytes_of(values);
}

ConformanceKernel entering_clusters_of(int blocks) {
  return {.name = "entered_by_" + std::to_string(blocks),
          .kernel = "entered",
          .input = "unsigned",
          .output = "unsigned",
          .text = kEntered,
          .oldest = {.number = 90},
          .shape = {.threads = kThreads, .cluster_blocks = blocks},
          .blocks = kBlocks,
          .x = random_bytes(4 * kThreads * kBlocks, 8),
          .y_bytes = 4 * kThreads * kBlocks,
          .expected = expected_entered};
}

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
  const int own = threadIdx.x, warp = own / 32, rank = hw::cluster_rank(), size = hw::cluster_size();
  if (own == 0) {
    hw::barrier_init(arrived, 1);
    hw::barrier_init(arrived + 1, 1);
    hw::barriers_ready();
  }
  hw::cluster_enter();
  unsigned value = x[blockIdx.x * 2 + warp];
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
  y[blockIdx.x * kThreads + own] = value;
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
  const unsigned value = x[own];
  hw::allow_next_launch();
  y[own] = value + 1;
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
  return {in_clusters_of(1),
          in_clusters_of(2),
          in_clusters_of(8),
          in_clusters_of(16),
          entering_clusters_of(1),
          entering_clusters_of(2),
          entering_clusters_of(8),
          entering_clusters_of(16),
          sent_in_clusters_of(2),
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
