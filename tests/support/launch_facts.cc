// SPDX-License-Identifier: Apache-2.0
#include "tests/support/launch_facts.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "normjit/base/text.h"

namespace normjit::testing {
namespace {

constexpr int kWarp = 32;
constexpr int kPartitions = 4;          // of a multiprocessor, each with its own warps and registers
constexpr int kRegisterUnit = 256;      // registers are handed out to warps, in these
constexpr int kMostStatic = 48 * 1024;  // shared memory without the opt-in, which only dynamic memory has
constexpr int kPortableCluster = 8;     // blocks, wherever there are clusters
constexpr int kLargeCluster = 16;       // where they exist
constexpr int kUnlimited = std::numeric_limits<int>::max();

constexpr int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }
int warps_of(int threads) { return round_up(threads, kWarp) / kWarp; }

int blocks_by_registers(int registers, int threads, const DeviceProfile& device) {
  const int warp_registers = round_up(registers * kWarp, kRegisterUnit);
  if (warp_registers == 0 || threads < 1) return kUnlimited;
  const int warps = device.registers_per_sm / kPartitions / warp_registers * kPartitions;
  return warps / warps_of(threads);
}

// What a block of this device takes of shared memory: the system has its part from sm_80 on, and the whole is
// rounded up.
int shared_of(const CubinFacts& facts, const LaunchShape& shape, const DeviceProfile& device) {
  const bool recent = device.arch.number >= 80;
  return round_up(facts.shared_bytes + shape.dynamic_shared_bytes + (recent ? 1024 : 0), recent ? 128 : 256);
}

bool has_large_clusters(const DeviceProfile& device) {
  return device.arch.number == 90 || device.arch.number == 100 || device.arch.number == 103;
}
int multiprocessors_of_gpc(const DeviceProfile& device) { return has_large_clusters(device) ? 16 : 8; }

// Blocks on so many neighbouring multiprocessors, in whole clusters.
std::int64_t in_clusters(std::int64_t multiprocessors, int fit, int cluster) {
  return multiprocessors * fit / cluster * cluster;
}

// Grids for few, odd and as many rows as one likes.
std::vector<std::int64_t> grids(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) {
  std::vector<std::int64_t> grids;
  for (const std::int64_t rows :
       {std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::int64_t{device.sm_count - 1},
        std::int64_t{device.sm_count}, std::int64_t{1000003}, std::int64_t{1} << 40})
    grids.push_back(grid_blocks(plan, spec, device, rows));
  return grids;
}

class Troubles {
 public:
  void add(std::initializer_list<std::string_view> what) { lines_.push_back(concat(what)); }
  void add_unless(bool fine, std::initializer_list<std::string_view> what) {
    if (!fine) add(what);
  }
  std::vector<std::string> lines() && { return std::move(lines_); }

 private:
  std::vector<std::string> lines_;
};

void check_code(const CubinFacts& facts, const Plan& plan, const DeviceProfile& device,
                const LaunchShape& shape, Troubles& troubles) {
  // Plans are chosen by how fast they are: a few spilled words cost less than a block less on a
  // multiprocessor. A row in local memory is ruinous.
  constexpr int kFewBytes = 64;
  troubles.add_unless(facts.local_bytes <= kFewBytes,
                      {shortest(facts.local_bytes), " bytes of local memory a thread"});
  troubles.add_unless(facts.max_threads == plan.threads,
                      {"compiled for blocks of ", shortest(facts.max_threads), " threads; the plan has ",
                       shortest(plan.threads)});
  troubles.add_unless(shape.threads == plan.threads, {"launched with blocks of ", shortest(shape.threads),
                                                      " threads; the plan has ", shortest(plan.threads)});
  troubles.add_unless(blocks_by_registers(facts.register_limit, plan.threads, device) >= plan.blocks_per_sm,
                      {"compiled with up to ", shortest(facts.register_limit),
                       " registers a thread: the launch bounds lost the ", shortest(plan.blocks_per_sm),
                       " blocks a multiprocessor of the plan"});
}

void check_residency(const CubinFacts& facts, const Plan& plan, const DeviceProfile& device,
                     const LaunchShape& shape, Troubles& troubles) {
  troubles.add_unless(facts.shared_bytes <= kMostStatic,
                      {shortest(facts.shared_bytes), " bytes of static shared memory; 49152 are allowed"});
  const int shared = facts.shared_bytes + shape.dynamic_shared_bytes;
  troubles.add_unless(shared <= device.shared_per_block,
                      {shortest(shared), " bytes of shared memory a block; ",
                       shortest(device.shared_per_block), " are allowed"});
  const Residency fit = residency_of(facts, shape, device);
  const struct {
    int blocks;
    const char* what;
    int each;
  } limits[] = {{fit.by_registers, "registers a thread", facts.registers},
                {fit.by_shared_memory, "bytes of shared memory", shared},
                {fit.by_threads, "threads", shape.threads},
                {fit.by_slots, "slots", 1}};
  for (const auto& limit : limits)
    troubles.add_unless(limit.blocks >= plan.blocks_per_sm,
                        {shortest(limit.blocks), " blocks of ", shortest(limit.each), " ", limit.what,
                         " fit on a multiprocessor; the plan has ", shortest(plan.blocks_per_sm)});
}

void check_cluster(const CubinFacts& facts, const DeviceProfile& device, const LaunchShape& shape,
                   const std::vector<std::int64_t>& grids, Troubles& troubles) {
  const int blocks = shape.cluster_blocks;
  const int compiled = facts.cluster_blocks;
  troubles.add_unless(compiled == 0 || compiled == blocks, {"compiled for clusters of ", shortest(compiled),
                                                            " blocks, launched with ", shortest(blocks)});
  if (blocks == 1) return;
  if (blocks < 1) return troubles.add({"clusters of ", shortest(blocks), " blocks"});
  if (device.arch.number < 90)
    return troubles.add({device.arch.name(), " has no clusters; sm_90 and newer have"});
  const int most = has_large_clusters(device) ? kLargeCluster : kPortableCluster;
  troubles.add_unless(blocks <= most,
                      {"clusters of ", shortest(blocks), " blocks; ", shortest(most), " are allowed"});
  troubles.add_unless(
      facts.max_cluster_blocks == 0 || blocks <= facts.max_cluster_blocks,
      {"clusters of ", shortest(blocks), " blocks; compiled for up to ", shortest(facts.max_cluster_blocks)});
  for (const std::int64_t grid : grids)
    if (grid % blocks != 0) {
      troubles.add({"clusters of ", shortest(blocks), " blocks do not divide a grid of ", shortest(grid)});
      break;
    }
  const int fit = residency_of(facts, shape, device).blocks();
  troubles.add_unless(
      in_clusters(multiprocessors_of_gpc(device), fit, blocks) > 0,
      {"not one cluster of ", shortest(blocks), " blocks fits into a GPC of ",
       shortest(multiprocessors_of_gpc(device)), " multiprocessors with ", shortest(fit), " blocks each"});
}

}  // namespace

int Residency::blocks() const { return std::min({by_registers, by_shared_memory, by_threads, by_slots}); }

Residency residency_of(const CubinFacts& facts, const LaunchShape& shape, const DeviceProfile& device) {
  const int shared = shared_of(facts, shape, device);
  return {.by_registers = blocks_by_registers(facts.registers, shape.threads, device),
          .by_shared_memory = shared == 0 ? kUnlimited : device.shared_per_sm / shared,
          .by_threads = device.threads_per_sm / kWarp / std::max(1, warps_of(shape.threads)),
          .by_slots = device.blocks_per_sm};
}

std::int64_t resident_blocks(const Residency& residency, const LaunchShape& shape,
                             const DeviceProfile& device) {
  const int fit = residency.blocks(), cluster = std::max(1, shape.cluster_blocks);
  if (cluster == 1) return std::int64_t{fit} * device.sm_count;
  const int gpc = multiprocessors_of_gpc(device);
  return device.sm_count / gpc * in_clusters(gpc, fit, cluster) +
         in_clusters(device.sm_count % gpc, fit, cluster);
}

std::vector<std::string> launch_trouble(const CubinFacts& facts, const Plan& plan, const NormSpec& spec,
                                        const DeviceProfile& device, const LaunchShape& shape) {
  Troubles troubles;
  check_code(facts, plan, device, shape, troubles);
  check_residency(facts, plan, device, shape, troubles);
  const std::vector<std::int64_t> all = grids(plan, spec, device);
  check_cluster(facts, device, shape, all, troubles);
  const std::int64_t resident = resident_blocks(residency_of(facts, shape, device), shape, device);
  const std::int64_t largest = *std::ranges::max_element(all);
  troubles.add_unless(!shape.cooperative || largest <= resident,
                      {"a cooperative grid of ", shortest(largest), " blocks, of which ", shortest(resident),
                       " are resident at once"});
  return std::move(troubles).lines();
}

}  // namespace normjit::testing
