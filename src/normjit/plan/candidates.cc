// SPDX-License-Identifier: Apache-2.0
// The planner: enumerates the plans of a use, and ranks them by cost.
#include <algorithm>
#include <bit>
#include <utility>

#include "normjit/plan.h"
#include "normjit/plan/cost.h"
#include "normjit/plan/footprint.h"

namespace normjit {
namespace {

// The plan with as many blocks per multiprocessor as registers and shared memory allow. The compiler bounds
// the registers by this number; without it, 8192 f32 columns reached 0.68 of copy speed instead of 0.98,
// since too few loads were in flight.
Plan with_occupancy(Plan plan, const PlanUse& use) {
  const DeviceProfile& device = use.device;
  // Each of the four partitions of a multiprocessor has registers for this many warps.
  const int warps = device.registers_per_sm / 4 / (kWarp * needed_registers(plan, use.spec, device.arch));
  int blocks = std::min(
      {4 * warps * kWarp / plan.threads, device.threads_per_sm / plan.threads, device.blocks_per_sm});
  // With few rows, more registers are worth more than more blocks. Measured: 32 x 4096 bf16, one or two
  // blocks of 256 threads per SM: 2.38 us, four: 2.46 us.
  if (plan.strategy == Strategy::block_row && use.regime != RowsRegime::many)
    blocks = std::min(blocks, std::max(1, plan_math::kFewThreads / plan.threads));
  if (shared_bytes(plan, use.spec) > 0)
    blocks = static_cast<int>(
        std::min<std::int64_t>(blocks, device.shared_per_sm / all_shared_bytes(plan, use.spec)));
  plan.blocks_per_sm = std::max(1, blocks);
  return plan;
}

// The most elements, up to 16 bytes of the narrowest row that is read, that are aligned in every row. Plans
// depend on the alignment of a use by this number alone.
int aligned_elements(const NormSpec& spec, Alignment alignment) {
  const std::int64_t divides =  // with channels first vectors are of rows
      spec.channels_first ? static_cast<int>(Alignment::eight) : spec.columns & -spec.columns;
  return static_cast<int>(
      std::min<std::int64_t>({static_cast<int>(alignment), bulk_elements(spec), divides}));
}

class Enumeration {
 public:
  explicit Enumeration(const PlanUse& use) : use_(use) {}

  // In a fixed order, which decides between equal costs.
  std::vector<Candidate> all() {
    found_.reserve(64);
    const NormSpec& spec = use_.spec;
    const int widest = 16 / widest_element(spec);
    const int aligned = std::min(aligned_elements(spec, use_.alignment), widest);
    if (spec.backward) {
      gradients(aligned);
      return std::move(found_);
    }
    if (spec.channels_first) {
      channels_first(aligned);
      return std::move(found_);
    }
    // Whether wider accesses are possible if rows are realigned.
    const bool realigns = aligned < widest && can_realign(widest, spec) && spec.columns >= 2 * widest;
    warp_rows(aligned);
    staged_rows(aligned);
    block_rows(aligned, false);
    if (const int narrower = spec.affine == Affine::none ? widest : 16 / size_of(spec.weight);
        narrower < aligned) {
      warp_rows(narrower);
      block_rows(narrower, false);
    }
    if (realigns) block_rows(widest, true);
    if (scales_rows(spec) || has_more_results(spec)) {
      found_.push_back(evaluate(generic_plan(), use_));
      return std::move(found_);
    }
    persistent_rows();
    add(split_row(aligned, false));
    if (realigns) add(split_row(widest, true));
    return std::move(found_);
  }

 private:
  // With sums over rows that all blocks add, or the last one.
  void add_gradients(Plan plan) {
    plan = with_occupancy(plan, use_);
    // The warps of a block are dealt to the four partitions of a multiprocessor, which have registers each.
    const int needed = needed_registers(plan, use_.spec, use_.device.arch);
    const std::int64_t warps = ceil_div(plan.threads / kWarp * plan.blocks_per_sm, 4);
    if (needed > kMaxRegisters || 4 * warps * kWarp * needed > use_.device.registers_per_sm) return;
    add_exchanges(plan);
  }
  void add_exchanges(Plan plan) {
    const bool meets = plan.strategy == Strategy::gradient_columns || sums_over_rows(use_.spec) > 0;
    for (const Exchange exchange : {Exchange::grid, Exchange::none}) {
      plan.exchange = exchange;
      if (exchange == Exchange::none || meets) add_legal(plan);
    }
  }
  void add_legal(const Plan& plan) {
    if (check(plan, use_.spec, use_.device)) found_.push_back(evaluate(plan, use_));
  }

  void gradients(int vector) {
    const NormSpec& spec = use_.spec;
    const std::int64_t vectors = spec.columns / vector;
    const int most = kMostGradientElements / vector;  // vectors of a thread
    Plan plan{.strategy = Strategy::gradient_rows, .vector = vector};
    for (plan.threads_per_row = 1; plan.threads_per_row <= kWarp; plan.threads_per_row *= 2) {
      plan.per_thread =
          static_cast<int>(std::min<std::int64_t>(ceil_div(vectors, plan.threads_per_row), most + 1));
      for (plan.threads = 128; plan.threads <= 512; plan.threads *= 2)
        if (plan.per_thread <= most) add_gradients(plan);
    }
    for (plan.per_thread = 1; plan.per_thread <= most; ++plan.per_thread) {
      const std::int64_t threads = ceil_div(ceil_div(vectors, plan.per_thread), kWarp) * kWarp;
      if (threads <= kWarp || threads > 1024) continue;
      plan.threads = plan.threads_per_row = static_cast<int>(threads);
      add_gradients(plan);
    }
    gradient_rings(vector);
    // As many rows of a batch as let two fit in L2 (three behind an activation), and more of longer ones,
    // whose sums over rows are written and read again with each batch. Measured: 4096 x 16,384 bf16, batches
    // of 60 rows: 0.39, of 240: 0.47, of 480: 0.50; 16 x 4,194,304 f32, of one row: 0.17, of 16: 0.28.
    plan.strategy = Strategy::gradient_columns;
    const std::int64_t row_bytes = spec.columns * (size_of(spec.input) + size_of(spec.output));
    const std::int64_t batches = 1 + rows_behind(spec);  // that are under way
    plan.group_rows = static_cast<int>(
        std::clamp<std::int64_t>(use_.device.l2_bytes / batches / row_bytes, 16, kMostBatchRows));
    for (plan.per_thread = 1; plan.per_thread <= std::max(1, 16 / vector); plan.per_thread *= 2)
      for (plan.threads = 256; plan.threads <= 512; plan.threads *= 2) {
        plan.threads_per_row = plan.threads;
        add_gradients(plan);
      }
  }

  // Rows in shared memory: of one block, or of a cluster.
  void gradient_rings(int vector) {
    constexpr int kFewestElements = 8, kMostBlocksPerSm = 2;
    const NormSpec& spec = use_.spec;
    if (use_.device.arch.number < 90 || spec.columns % bulk_elements(spec) != 0 ||
        aligned_elements(spec, use_.alignment) < bulk_elements(spec))
      return;
    Plan plan{.strategy = Strategy::gradient_ring, .vector = vector};
    for (plan.blocks_per_row = 1; plan.blocks_per_row <= kMaxCluster; plan.blocks_per_row *= 2)
      for (plan.per_thread = std::max(1, kFewestElements / vector);
           plan.per_thread <= kMostGradientElements / vector; ++plan.per_thread) {
        const std::int64_t vectors = ceil_div(spec.columns / vector, plan.blocks_per_row);
        const std::int64_t threads = ceil_div(ceil_div(vectors, plan.per_thread), kWarp) * kWarp;
        if (threads < 4 * kWarp || threads > 1024) continue;
        plan.threads = plan.threads_per_row = static_cast<int>(threads);
        for (plan.blocks_per_sm = 1; plan.blocks_per_sm <= kMostBlocksPerSm; ++plan.blocks_per_sm)
          add_ring(plan);
      }
  }
  // With as many rows in the ring as there is room for.
  void add_ring(Plan plan) {
    constexpr int kMostStages = 8;
    const std::int64_t needed = needed_registers(plan, use_.spec, use_.device.arch);
    if (needed > kMaxRegisters || plan.threads * plan.blocks_per_sm * needed > use_.device.registers_per_sm)
      return;
    const std::int64_t room =
        std::min<std::int64_t>(use_.device.shared_per_block, use_.device.shared_per_sm / plan.blocks_per_sm);
    for (plan.stages = kMostStages;
         plan.stages >= fewest_stages(use_.spec) && all_shared_bytes(plan, use_.spec) > room;)
      --plan.stages;
    if (plan.blocks_per_row == 1) return add_exchanges(plan);
    plan.exchange = Exchange::cluster;
    add_legal(plan);
  }

  void add(const Plan& plan) {
    const Plan full = plan.strategy == Strategy::split_row ? plan : with_occupancy(plan, use_);
    if (full.threads * needed_registers(full, use_.spec, use_.device.arch) > use_.device.registers_per_sm)
      return;
    if (full.strategy != Strategy::staged_rows && full.strategy != Strategy::channels_first &&
        registers_of_fusion(full, use_.spec) == 0 &&
        held_registers(full, use_.spec) > max_held_registers(full.threads, full.vector, use_.spec))
      return;
    if (full.strategy != Strategy::channels_first &&
        full.per_thread * full.vector * rows_per_thread(full) > max_held_elements(full, use_.spec))
      return;
    add_legal(full);
  }

  void warp_rows(int vector) {
    Plan plan{.strategy = Strategy::warp_rows, .vector = vector};
    const std::int64_t vectors = use_.spec.columns / vector;
    for (plan.threads_per_row = 1; plan.threads_per_row <= kWarp; plan.threads_per_row *= 2) {
      if (vectors > std::int64_t{32} * plan.threads_per_row) continue;
      plan.per_thread = static_cast<int>(ceil_div(vectors, plan.threads_per_row));
      // Small blocks start and end independently. Measured: 1024 bf16 columns, 128 threads: 0.92, 256: 0.78.
      for (plan.threads = 64; plan.threads <= 128; plan.threads *= 2) add(plan);
    }
  }

  // A multiprocessor has room for too few blocks of 32 threads. Measured: 24 f16 columns, 32 threads: 0.62 of
  // copy speed, 64: 0.95, 128: 0.94.
  void staged_rows(int vector) {
    Plan plan{.strategy = Strategy::staged_rows, .threads = 64, .vector = vector};
    const std::int64_t vectors = use_.spec.columns / vector;
    for (plan.threads_per_row = 1; plan.threads_per_row <= kWarp; plan.threads_per_row *= 2) {
      if (vectors > std::int64_t{64} * plan.threads_per_row) continue;
      plan.per_thread = static_cast<int>(ceil_div(vectors, plan.threads_per_row));
      for (plan.group_rows = 1; plan.group_rows <= 4; plan.group_rows *= 2) add(plan);
    }
  }

  // Whether a block has registers for what its threads hold.
  bool fits(const Plan& plan) const {
    const int needed = needed_registers(plan, use_.spec, use_.device.arch);
    return needed <= 168 && plan.threads * needed <= use_.device.registers_per_sm;
  }

  // Threads side by side move 32 bytes of a channel or more. Channels that registers do not hold pass in
  // pieces.
  void channels_first(int aligned) {
    const NormSpec& spec = use_.spec;
    Plan plan{.strategy = Strategy::channels_first};
    for (plan.vector = 1; plan.vector <= aligned; plan.vector *= 2)
      for (const int across : {8, 16, 32})
        for (plan.threads = 128; plan.threads <= 1024; plan.threads *= 2) {
          plan.threads_per_row = plan.threads / across;
          const std::int64_t all = ceil_div(spec.columns, plan.threads_per_row);
          plan.per_thread = static_cast<int>(std::min<std::int64_t>(all, most_channels(plan.vector, spec)));
          if (plan.per_thread < all || !fits(plan)) {
            plan.per_thread =
                static_cast<int>(std::min<std::int64_t>(all, most_channels_of_piece(plan.vector, spec)));
            while (plan.per_thread > 1 && !fits(plan)) plan.per_thread = (plan.per_thread + 1) / 2;
            plan.per_thread = static_cast<int>(ceil_div(all, ceil_div(all, plan.per_thread)));
          }
          add(plan);
        }
  }

  void block_rows(int vector, bool unaligned) {
    constexpr int kMostVectors = 8;
    const std::int64_t columns = use_.spec.columns;
    const std::int64_t vectors = std::max<std::int64_t>(1, columns / vector);
    Plan plan{.strategy = Strategy::block_row, .vector = vector, .unaligned = unaligned};
    const int largest_cluster = use_.device.arch.number >= 90 ? kMaxCluster : 1;
    // Longer rows have better plans, but these take no scales of rows and no second results.
    const bool alone = scales_rows(use_.spec) || has_more_results(use_.spec);
    const int most = largest_cluster > 1 && !alone ? kMaxCluster : use_.device.sm_count;
    for (plan.blocks_per_row = 1; plan.blocks_per_row <= most; plan.blocks_per_row *= 2)
      for (const int threads : {64, 128, 256, 512, 1024}) {
        const bool shared_row = plan.blocks_per_row > 1;
        const std::int64_t all = shared_row ? ceil_div(columns, vector) : vectors;
        plan.per_thread = static_cast<int>(
            std::min<std::int64_t>(ceil_div(all, std::int64_t{threads} * plan.blocks_per_row), 1024));
        plan.threads = plan.threads_per_row = threads;
        plan.exchange = !shared_row                              ? Exchange::none
                        : plan.blocks_per_row <= largest_cluster ? Exchange::cluster
                                                                 : Exchange::grid;
        add(plan);
      }
    if (unaligned || !is_measured_fusion(use_.spec)) return;
    // Other numbers of threads, so that few of them are idle. Not measured yet without residual and
    // modulation.
    plan.blocks_per_row = 1;
    plan.exchange = Exchange::none;
    for (plan.per_thread = 1; plan.per_thread <= kMostVectors; ++plan.per_thread) {
      const std::int64_t threads = ceil_div(ceil_div(vectors, plan.per_thread), kWarp) * kWarp;
      if (threads < 2 * kWarp || threads > 1024 || std::has_single_bit(static_cast<std::uint64_t>(threads)))
        continue;
      plan.threads = plan.threads_per_row = static_cast<int>(threads);
      // Larger blocks leave too few registers for what is not known to need no more.
      if (threads <= 512 || registers_of_fusion(plan, use_.spec) > 0) add(plan);
    }
  }

  // In chunks of 8 KiB: chunks of 4 KiB cost 2 %, of 16 KiB 1 to 5 %. The ring takes all shared memory.
  void persistent_rows() {
    const NormSpec& spec = use_.spec;
    const int vector = 16 / size_of(spec.input);
    if (use_.device.arch.number < 90 || spec.columns < 2 * vector) return;
    Plan plan{.strategy = Strategy::persistent_row,
              .threads = 512,
              .threads_per_row = 256,
              .vector = vector,
              .per_thread = 2};
    const bool in_double = compute_type(spec) == DType::f64;
    // In f64 there are too few registers for conversions, for functions, and for vectors in chunks that are
    // not full. Single elements need fewer.
    if (in_double && (!same_dtypes(spec) || calls_function(spec))) return;
    plan.unaligned = aligned_elements(spec, use_.alignment) < bulk_elements(spec) ||
                     (in_double && spec.columns % columns_per_block(plan) != 0);
    // From sm_120 on the compiler does not move registers between warps. Single elements, and weight and bias
    // with scale and shift of each row, need more than threads then have.
    const int parameters = static_cast<int>(spec.affine) + row_parameters(spec);
    if (use_.device.arch.number >= 120 && (plan.unaligned || parameters > 3)) return;
    const auto add_with_ring = [&] {
      plan.stages =
          static_cast<int>(use_.device.shared_per_block / (columns_per_block(plan) * size_of(spec.input)));
      while (all_shared_bytes(plan, spec) > use_.device.shared_per_block) --plan.stages;
      add(plan);
    };
    // Rows with only one chunk for each block have better plans.
    for (plan.blocks_per_row = 1; plan.blocks_per_row <= use_.device.sm_count; plan.blocks_per_row *= 2) {
      plan.exchange = plan.blocks_per_row > 1 ? Exchange::grid : Exchange::none;
      if (spec.columns <= plan.blocks_per_row * columns_per_block(plan)) break;
      add_with_ring();
    }
    // But unaligned rows are best as one chunk. Measured: 24,066 x 4973 bf16: 0.67, in two chunks: 0.42.
    constexpr int kMostVectors = 4;
    const std::int64_t vectors = ceil_div(spec.columns, plan.threads_per_row * vector);
    if (!plan.unaligned || vectors > kMostVectors) return;
    plan.per_thread = static_cast<int>(vectors);
    plan.blocks_per_row = 1;
    plan.exchange = Exchange::none;
    add_with_ring();
  }

  Plan split_row(int vector, bool unaligned) const {
    const NormSpec& spec = use_.spec;
    // Measured: 16 x 4,194,304 f32 in chunks of 32 KiB, 256 threads: 230 us, 128: 242 us, 512: 225 us, but
    // they spill for other specs.
    constexpr int kThreads = 256;
    // Besides x, its residual and their sum are in registers.
    const bool adds = adds_rows(spec);
    const int most = adds && !same_dtypes(spec) ? 8 : adds || size_of(spec.input) == 2 ? 16 : 32;
    const int held = std::min(most, max_held_registers(kThreads, vector, spec));
    Plan plan{.strategy = Strategy::split_row,
              .threads = kThreads,
              .threads_per_row = kThreads,
              .vector = vector,
              .unaligned = unaligned};
    plan.per_thread =
        std::max(1, (unaligned ? std::min(held, 16) : held) / registers_per_vector(vector, spec));
    // With few rows it takes many chunks of a row to fill the device.
    constexpr int kChunksToFill = 256;
    if (use_.regime != RowsRegime::many)
      while (plan.per_thread > 1 && ceil_div(spec.columns, columns_per_block(plan)) < kChunksToFill)
        plan.per_thread /= 2;
    // Large weights leave no room for x in L2, and are read once for a group of rows: 230 us instead of 292
    // us for the shape above. Smaller ones stay in L2, and rows are normalized one by one while they are in
    // L2 too.
    constexpr int kGroup = 16, kShare = 8;
    if (use_.affine_bytes() > use_.device.l2_bytes / kShare) plan.group_rows = kGroup;
    // The workspace limits the rows in flight, and so the resident blocks where rows are short.
    plan = with_occupancy(plan, use_);
    while (plan.blocks_per_sm > 1 && !check(plan, spec, use_.device)) --plan.blocks_per_sm;
    return plan;
  }

  const PlanUse use_;
  std::vector<Candidate> found_;
};

bool is_cheaper(const Candidate& a, const Candidate& b) { return a.cost < b.cost; }

// Never empty.
std::vector<Candidate> enumerate(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                                 Alignment alignment) {
  // Only the architecture of the device counts, not its size, so that what is prebuilt for sm_90 serves every
  // sm_90 GPU.
  const Result<DeviceProfile> known = DeviceProfile::of(device.arch);
  return Enumeration({spec, known ? *known : device, regime, alignment}).all();
}

// The first of the cheapest.
const Plan& best_of(const std::vector<Candidate>& all) {
  return std::ranges::min_element(all, is_cheaper)->plan;
}

// The cheapest plan of split_row, whose blocks need not run together; with channels first no blocks do, and
// where each row has a scale those of the generic kernel need not. Of gradients the cheapest one without an
// exchange. There always is one.
const Plan& fallback_among(const std::vector<Candidate>& all) {
  const auto may_be = [](const Plan& plan) {
    return plan.strategy == Strategy::split_row || plan.strategy == Strategy::channels_first ||
           plan.strategy == Strategy::generic || (is_of_gradients(plan) && plan.exchange == Exchange::none);
  };
  const Candidate* best = nullptr;
  for (const Candidate& one : all)
    if (may_be(one.plan) && (best == nullptr || one.cost < best->cost)) best = &one;
  return best->plan;
}

}  // namespace

std::vector<Candidate> candidates(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                                  Alignment alignment) {
  std::vector<Candidate> all = enumerate(spec, device, regime, alignment);
  std::ranges::stable_sort(all, is_cheaper);
  return all;
}

Plan choose(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
            Alignment alignment) noexcept {
  return best_of(enumerate(spec, device, regime, alignment));
}

Plan fallback(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
              Alignment alignment) noexcept {
  return fallback_among(enumerate(spec, device, regime, alignment));
}

std::vector<Plan> plans(const NormSpec& spec, const DeviceProfile& device, const Uses& uses) {
  std::vector<Plan> all;
  const auto add = [&](const Plan& chosen) {
    const Plan plan = in_groups(chosen, spec, uses.grouped_rows);
    if (std::find(all.begin(), all.end(), plan) == all.end()) all.push_back(plan);
  };
  for (const RowsRegime regime : kRowsRegimes) {
    if (uses.batch_invariant && regime != RowsRegime::many) continue;
    int planned = 0;  // the aligned elements that plans were made for last
    for (const Alignment alignment : kAlignments) {
      const int aligned = aligned_elements(spec, alignment);
      if (aligned == planned) continue;
      planned = aligned;
      const std::vector<Candidate> found = enumerate(spec, device, regime, alignment);
      const Plan& best = best_of(found);
      add(best);
      if (best.exchange != Exchange::none) add(fallback_among(found));
    }
  }
  return all;
}

}  // namespace normjit
