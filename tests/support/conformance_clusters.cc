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
