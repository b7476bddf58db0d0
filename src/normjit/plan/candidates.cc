// SPDX-License-Identifier: Apache-2.0
// The planner: enumerates the plans of a use, and ranks them by cost.
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "normjit/plan.h"
#include "normjit/plan/cost.h"
#include "normjit/plan/footprint.h"

namespace normjit {
namespace {

// Whether the blocks of a plan need not run together: those of split_row, of channels_first and of the
// generic kernel, and of gradients those without an exchange. Every use has such a plan.
bool is_unshared(const Plan& plan) {
  return plan.strategy == Strategy::split_row || plan.strategy == Strategy::channels_first ||
         plan.strategy == Strategy::generic || (is_of_gradients(plan) && plan.exchange == Exchange::none);
}

// The most elements, up to 16 bytes of the narrowest row that is read, that are aligned in every row. Plans
// depend on the alignment of a use by this number alone.
int aligned_elements(const NormSpec& spec, Alignment alignment) {
  const std::int64_t divides =  // with channels first vectors are of rows
      spec.channels_first ? static_cast<int>(Alignment::eight) : spec.columns & -spec.columns;
  return static_cast<int>(
      std::min<std::int64_t>({static_cast<int>(alignment), bulk_elements(spec), divides}));
}

// Whether rows of this alignment can begin between the vectors of a ring.
bool begins_between_vectors(const NormSpec& spec, Alignment alignment) {
  return !spec.backward && !spec.channels_first && aligned_elements(spec, alignment) < bulk_elements(spec);
}
// Whether such rows can be moved in wider accesses.
bool realigns(const NormSpec& spec, Alignment alignment) {
  const int widest = 16 / widest_element(spec);
  return !spec.backward && !spec.channels_first && aligned_elements(spec, alignment) < widest &&
         can_realign(widest, spec) && spec.columns >= 2 * widest;
}

// The search space. It has what can be the fastest for some use; what is legal and what is fast are for
// check() and the model to say.
class Enumeration {
 public:
  explicit Enumeration(const PlanUse& use) : use_(use) {}

  // In a fixed order, which decides between equal costs. Never empty.
  std::vector<Plan> all() {
    found_.reserve(256);
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
    warp_rows(aligned);
    staged_rows(aligned);
    block_rows(aligned, false);
    if (const int narrower = spec.affine == Affine::none ? widest : 16 / size_of(spec.weight);
        narrower < aligned) {
      warp_rows(narrower);
      block_rows(narrower, false);
    }
    // Where a vector of unaligned rows begins depends on the address of the row, and so do the last bits of
    // its sums.
    const bool realigned = realigns(spec, use_.alignment) && !use_.batch_invariant;
    if (realigned) block_rows(widest, true);
    persistent_rows();
    split_rows(aligned, false);
    if (realigned) split_rows(widest, true);
    // Where a tensor begins between vectors and a block of columns is longer than what a warp then holds.
    if (std::ranges::none_of(found_, is_unshared)) found_.push_back(generic_plan());
    return std::move(found_);
  }

 private:
  // With sums over rows that all blocks add, or the last one.
  void add_gradients(const Plan& plan) {
    for_each_number_of_blocks(plan, [&](const Plan& full) { add_exchanges(full); });
  }
  void add_exchanges(Plan plan) {
    const bool meets = plan.strategy == Strategy::gradient_columns ||
                       sums_over_rows(use_.spec) + sums_over_groups(use_.spec) > 0;
    for (const Exchange exchange : {Exchange::grid, Exchange::none}) {
      plan.exchange = exchange;
      if (exchange == Exchange::none || meets) add_legal(plan);
    }
  }
  void add_legal(const Plan& plan) {
    if (is_legal(plan, use_.spec, use_.device)) found_.push_back(plan);
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
    long_rows_of_warps(plan);
    for (plan.per_thread = 1; plan.per_thread <= most; ++plan.per_thread) {
      const std::int64_t threads = ceil_div(ceil_div(vectors, plan.per_thread), kWarp) * kWarp;
      if (threads <= kWarp || threads > 1024) continue;
      plan.threads = plan.threads_per_row = static_cast<int>(threads);
      add_gradients(plan);
    }
    gradient_rings(vector);
    // As many rows of a batch as let two fit in L2 (three where they are weighed), and more of longer ones,
    // whose sums over rows are written and read again with each batch. Measured: 4096 x 16,384 bf16, batches
    // of 60 rows: 0.39, of 240: 0.47, of 480: 0.50; 16 x 4,194,304 f32, of one row: 0.17, of 16: 0.28.
    plan.strategy = Strategy::gradient_columns;
    const int gate = spec.gate != Gate::none ? size_of(spec.modulation_type) : 0;
    const std::int64_t row_bytes = spec.columns * (size_of(spec.input) + size_of(spec.output) + gate);
    const std::int64_t batches = 1 + rows_behind(spec);  // that are under way
    plan.group_rows = static_cast<int>(
        std::clamp<std::int64_t>(use_.device.l2_bytes / batches / row_bytes, 16, kMostBatchRows));
    for (plan.per_thread = 1; plan.per_thread <= std::max(1, 16 / vector); plan.per_thread *= 2)
      for (plan.threads = 256; plan.threads <= 512; plan.threads *= 2) {
        plan.threads_per_row = plan.threads;
        add_gradients(plan);
      }
  }

  // Rows of which each lane of a warp has more elements than a thread of a block may have. Accesses of half
  // the width leave fewer lanes beyond the last column. 32,768 x 1152 bf16: 86 us, and 121 us in blocks.
  void long_rows_of_warps(Plan plan) {
    constexpr int kWidest = 4;
    plan.threads_per_row = kWarp;
    plan.vector = std::min(plan.vector, kWidest);
    const std::int64_t vectors = ceil_div(use_.spec.columns / plan.vector, kWarp);
    plan.per_thread = static_cast<int>(std::min<std::int64_t>(vectors, kMostElementsOfLane));
    if (plan.per_thread * plan.vector <= kMostGradientElements) return;
    for (plan.threads = 128; plan.threads <= 256; plan.threads *= 2) add_gradients(plan);
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
    if (registers_of_a_thread(plan.threads, plan.blocks_per_sm, use_.device) < needed) return;
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
    // Without blocks that wait for each other the number of blocks breaks no other limit.
    const bool waits = plan.exchange == Exchange::grid || plan.strategy == Strategy::split_row;
    for_each_number_of_blocks(plan, [&](const Plan& full) {
      if (!waits || is_legal(full, use_.spec, use_.device)) found_.push_back(full);
    });
  }

  // With fewer registers a thread of this plan is not tried. How many a kernel takes the compiler alone
  // knows. Where plans have been measured, the estimate of aligned rows is wrong by up to kDoubt, and the
  // model knows what becomes of rows of any length; elsewhere the estimate is taken for true.
  int least_registers(const Plan& plan, int needed) const {
    constexpr int kDoubt = 16, kNone = 1000;
    // Threads that hold more of a row were fastest on none of the measured layers, and spill easily.
    constexpr int kMostElements = 96, kMostOfSums = 64, kMostWithBias = 48;
    const NormSpec& spec = use_.spec;
    const auto held = static_cast<int>(held_registers(plan, spec));
    const bool rows = plan.strategy == Strategy::warp_rows || plan.strategy == Strategy::block_row ||
                      plan.strategy == Strategy::split_row;
    const bool in_double = compute_type(spec) == DType::f64;
    const bool more = is_narrow(spec.output) || has_more_results(spec) || row_parameters(spec) > 0 ||
                      in_double || !same_dtypes(spec);
    const int elements = plan.per_thread * plan.vector;
    const int most = spec.in_bias ? kMostWithBias : moves_other_rows(spec) ? kMostOfSums : kMostElements;
    if (rows && elements > most) return kNone;
    // More elements of rows side by side spill. Where each row has a scale or shift of its own, 50 of bf16
    // take 160 bytes, 66 of them 1000, 24 before a function and 8 bits 208, 25 in f64 240. Vectors before a
    // function: 64 elements 8 bytes, 70 of them 100. Beside weights of f64 64 elements take 130 bytes.
    const bool staged = plan.strategy == Strategy::staged_rows, long_code = has_long_code(spec);
    const int most_modulated = long_code && (is_narrow(spec.output) || in_double) ? 20 : 50;
    const bool wide_weights =
        spec.affine != Affine::none && size_of(spec.weight) > 4 && size_of(spec.input) < 8;
    if (staged && wide_weights && elements * plan.group_rows > 48) return kNone;
    if (staged && elements * size_of(compute_type(spec)) > 4 * most) return kNone;
    if (staged && row_parameters(spec) > 0 && elements * plan.group_rows > most_modulated) return kNone;
    if (staged && long_code && plan.vector > 1 && elements > 60) return kNone;
    if (use_.device.arch == kMeasuredArch && !more) {
      // Rows with a tail are sure to spill: 36 registers of a row in 80 160 to 290 bytes, 44 of them 800.
      const bool spills = held > 32 && spec.columns % columns_per_block(plan) != 0;
      const bool doubtful = rows && !plan.unaligned && plan.blocks_per_row == 1 && !spills;
      const bool long_chunks = plan.strategy == Strategy::split_row && has_long_code(spec);
      const int doubt = long_chunks ? 0 : spec.activation == Activation::none ? kDoubt : kDoubt / 2;
      return std::max(needed - (doubtful ? doubt : 0), held + kWorkingRegisters);
    }
    if (rows && registers_of_fusion(plan, spec) == 0 &&
        held > max_held_registers(plan.threads, plan.vector, spec))
      return kNone;
    if (rows && elements > max_held_elements(plan, spec)) return kNone;
    return std::max(needed, held + kWorkingRegisters);
  }

  // More blocks hide each other's waits, but bound the registers of their threads, and where these are too
  // few the kernel spills. Of all numbers of blocks that have the same bound the largest one counts. Fewer
  // blocks gain nothing, but for those with which parameters are loaded early.
  template <class Take>
  void for_each_number_of_blocks(Plan plan, const Take& take) const {
    constexpr int kPlenty = 24;  // registers of a thread
    const DeviceProfile& device = use_.device;
    plan.blocks_per_sm = 1;
    if (!is_legal(plan, use_.spec, device)) return;
    if (plan.strategy == Strategy::persistent_row) return take(plan);
    const int needed = needed_registers(plan, use_.spec, device.arch);
    const int least = least_registers(plan, needed);
    const auto room = static_cast<int>(device.shared_per_sm / all_shared_bytes(plan, use_.spec));
    const int few = std::max(1, plan_math::kFewThreads / plan.threads);
    int bound = 0;
    bool enough = false;
    for (plan.blocks_per_sm = std::min({device.blocks_per_sm, device.threads_per_sm / plan.threads, room});
         plan.blocks_per_sm >= 1; --plan.blocks_per_sm) {
      const int registers = registers_of_a_thread(plan.threads, plan.blocks_per_sm, device);
      if (registers < least) continue;
      if ((registers == bound || enough) && plan.blocks_per_sm != few) continue;
      enough = registers > needed + kPlenty;
      bound = registers;
      take(plan);
    }
  }

  void warp_rows(int vector) {
    Plan plan{.strategy = Strategy::warp_rows, .vector = vector};
    const std::int64_t vectors = use_.spec.columns / vector;
    for (plan.threads_per_row = 1; plan.threads_per_row <= kWarp; plan.threads_per_row *= 2) {
      if (vectors > std::int64_t{32} * plan.threads_per_row) continue;
      plan.per_thread = static_cast<int>(ceil_div(vectors, plan.threads_per_row));
      // Small blocks start and end independently. Measured: 1024 bf16 columns, 128 threads: 0.92, 256: 0.78.
      for (plan.threads = 64; plan.threads <= 256; plan.threads *= 2) add(plan);
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
    // Longer rows have better plans, if their spec allows the ring.
    const bool alone = scales_rows(use_.spec) || has_more_results(use_.spec) || !may_stream();
    const int most = largest_cluster > 1 && !alone ? kMaxCluster : use_.device.sm_count;
    for (plan.blocks_per_row = 1; plan.blocks_per_row <= most; plan.blocks_per_row *= 2)
      for (const int threads : {64, 128, 256, 512, 1024}) {
        const bool shared_row = plan.blocks_per_row > 1;
        const std::int64_t all = shared_row ? ceil_div(columns, vector) : vectors;
        plan.per_thread = static_cast<int>(
            std::min<std::int64_t>(ceil_div(all, std::int64_t{threads} * plan.blocks_per_row), 1024));
        plan.threads = plan.threads_per_row = threads;
        // Half of them would do.
        if (threads > 64 && std::int64_t{threads / 2} * plan.blocks_per_row * vector >= columns) continue;
        plan.exchange = !shared_row                              ? Exchange::none
                        : plan.blocks_per_row <= largest_cluster ? Exchange::cluster
                                                                 : Exchange::grid;
        add(plan);
      }
    if (unaligned) return;
    // Other numbers of threads, so that few of them are idle.
    plan.blocks_per_row = 1;
    plan.exchange = Exchange::none;
    for (plan.per_thread = 1; plan.per_thread <= kMostVectors; ++plan.per_thread) {
      const std::int64_t threads = ceil_div(ceil_div(vectors, plan.per_thread), kWarp) * kWarp;
      if (threads < 2 * kWarp || threads > 1024 || std::has_single_bit(static_cast<std::uint64_t>(threads)))
        continue;
      plan.threads = plan.threads_per_row = static_cast<int>(threads);
      add(plan);
    }
  }

  // In chunks of 8 KiB: chunks of 4 KiB cost 2 %, of 16 KiB 1 to 5 %.
  Plan streamed() const {
    const NormSpec& spec = use_.spec;
    Plan plan{.strategy = Strategy::persistent_row,
              .threads = 512,
              .threads_per_row = 256,
              .vector = 16 / size_of(spec.input),
              .per_thread = 2};
    plan.unaligned = begins_between_vectors(spec, use_.alignment) ||
                     (compute_type(spec) == DType::f64 && spec.columns % columns_per_block(plan) != 0);
    return plan;
  }
  // Whether such plans can be legal, and do not spill.
  bool may_stream() const {
    const NormSpec& spec = use_.spec;
    const Plan plan = streamed();
    if (use_.device.arch.number < 90 || spec.columns < 2 * plan.vector) return false;
    if (spec.in_bias || spec.gate == Gate::before || (plan.unaligned && moves_other_rows(spec))) return false;
    if (use_.batch_invariant && begins_between_vectors(spec, use_.alignment)) return false;
    // In f64 there are too few registers for conversions, for functions, and for parameters in chunks that
    // are not full. Unaligned rows have theirs in shared memory.
    if (compute_type(spec) == DType::f64 && (!same_dtypes(spec) || calls_function(spec))) return false;
    // From sm_120 on the compiler does not move registers between warps. Weight and bias with scale and shift
    // of each row, and three of these beside a function, need more than threads then have. Unaligned rows
    // have no plans there yet.
    const int parameters = static_cast<int>(spec.affine) + row_parameters(spec);
    const int most = calls_function(spec) ? 2 : 3;
    if (use_.device.arch.number >= 120 && (plan.unaligned || parameters > most)) return false;
    return !spills_in_ring(spec, use_.device.arch);
  }

  // The ring takes all shared memory.
  void persistent_rows() {
    if (!may_stream()) return;
    const NormSpec& spec = use_.spec;
    Plan plan = streamed();
    const auto add_with_ring = [&] {
      plan.stages =
          static_cast<int>(use_.device.shared_per_block / (columns_per_block(plan) * size_of(spec.input)));
      while (plan.stages > 1 && all_shared_bytes(plan, spec) > use_.device.shared_per_block) --plan.stages;
      add(plan);
    };
    // Rows with only one chunk for each block have better plans.
    for (plan.blocks_per_row = 1; plan.blocks_per_row <= use_.device.sm_count; plan.blocks_per_row *= 2) {
      plan.exchange = plan.blocks_per_row > 1 ? Exchange::grid : Exchange::none;
      if (spec.columns <= plan.blocks_per_row * columns_per_block(plan)) break;
      add_with_ring();
    }
    // But unaligned rows may be best as one chunk.
    constexpr int kMostVectors = 4;
    const std::int64_t vectors = ceil_div(spec.columns, plan.threads_per_row * plan.vector);
    if (!plan.unaligned || vectors > kMostVectors) return;
    plan.per_thread = static_cast<int>(vectors);
    plan.blocks_per_row = 1;
    plan.exchange = Exchange::none;
    add_with_ring();
  }

  // Chunks of up to so many elements of a thread that few spill on any architecture; and weights read for
  // each row, or once for a group of rows, since large ones leave no room for x in L2.
  void split_rows(int vector, bool unaligned) {
    constexpr int kThreads = 256, kGroup = 16;
    const bool more = moves_other_rows(use_.spec);  // which are held beside x
    const int most_elements = !more ? 32 : same_dtypes(use_.spec) ? 16 : 8;
    Plan plan{.strategy = Strategy::split_row,
              .threads = kThreads,
              .threads_per_row = kThreads,
              .vector = vector,
              .unaligned = unaligned};
    const int most =
        std::max(1, std::min(most_elements / vector, max_held_registers(kThreads, vector, use_.spec) /
                                                         registers_per_vector(vector, use_.spec)));
    for (const int group : {1, kGroup}) {
      plan.group_rows = group;
      if (group > 1 && use_.spec.affine == Affine::none) continue;
      for (plan.per_thread = most;; plan.per_thread /= 2) {
        add(plan);
        if (plan.per_thread == 1 || columns_per_block(plan) < use_.spec.columns / 1024) break;
      }
    }
  }

  const PlanUse use_;
  std::vector<Plan> found_;
};

// All plans of a use, and their costs.
struct Weighed {
  std::vector<Plan> plans;
  std::vector<float> costs;
};

// Only the architecture of the device counts, not its size, so that what is prebuilt for sm_90 serves every
// sm_90 GPU.
DeviceProfile default_device(const DeviceProfile& device) {
  const Result<DeviceProfile> known = DeviceProfile::of(device.arch);
  return known ? *known : device;
}

// Of those plans that `serves` takes.
template <class Serves>
Weighed weigh(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime, Alignment alignment,
              bool batch_invariant, const Serves& serves) {
  const DeviceProfile known = default_device(device);
  const PlanUse use{spec, known, regime, alignment, batch_invariant};
  Weighed all{.plans = Enumeration(use).all(), .costs = {}};
  std::erase_if(all.plans, [&](const Plan& plan) { return !serves(plan); });
  all.costs = costs_of(all.plans, use);
  return all;
}
bool any(const Plan&) { return true; }

// The first of the cheapest.
const Plan& best_of(const Weighed& all) {
  return all.plans[static_cast<std::size_t>(std::ranges::min_element(all.costs) - all.costs.begin())];
}

}  // namespace

std::vector<Candidate> candidates(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                                  Alignment alignment, bool batch_invariant) {
  const Weighed all = weigh(spec, device, regime, alignment, batch_invariant, any);
  const DeviceProfile known = default_device(device);
  const float least = std::ranges::min(all.costs);
  std::vector<Candidate> found;
  for (std::size_t i = 0; i < all.plans.size(); ++i)
    found.push_back(
        {all.plans[i], std::exp2(all.costs[i] - least), why(all.plans[i], {spec, known, regime, alignment})});
  std::ranges::stable_sort(found, {}, &Candidate::cost);
  return found;
}

std::vector<Plan> every_plan(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                             Alignment alignment) {
  const DeviceProfile known = default_device(device);
  return Enumeration({spec, known, regime, alignment}).all();
}

Plan choose(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime, Alignment alignment,
            bool batch_invariant) noexcept {
  return best_of(weigh(spec, device, regime, alignment, batch_invariant, any));
}

Plan fallback(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime, Alignment alignment,
              bool batch_invariant) noexcept {
  return best_of(weigh(spec, device, regime, alignment, batch_invariant, is_unshared));
}

std::vector<Plan> plans(const NormSpec& spec, const DeviceProfile& device, const Uses& uses) {
  std::vector<Plan> all;
  const auto add = [&](const Plan& chosen) {
    const Plan plan = in_groups(chosen, spec, uses.grouped_rows);
    if (std::find(all.begin(), all.end(), plan) == all.end()) all.push_back(plan);
  };
  const DeviceProfile known = default_device(device);
  int planned = 0;  // the aligned elements that plans were made for last
  for (const Alignment alignment : kAlignments) {
    const int aligned = aligned_elements(spec, alignment);
    if (std::exchange(planned, aligned) == aligned) continue;
    std::int64_t typical = 0;  // the rows that the last regime stands for; the next may stand for as many
    for (const RowsRegime regime : kRowsRegimes) {
      if (uses.batch_invariant && regime != RowsRegime::many) continue;
      const std::int64_t rows = PlanUse{spec, known, regime, alignment}.rows();
      const bool same = std::exchange(typical, rows) == rows;
      for (const bool invariant : {false, true}) {
        const bool differs = regime == RowsRegime::many && begins_between_vectors(spec, alignment);
        if (uses.batch_invariant ? !invariant : invariant ? !differs : same) continue;
        const Plan best = choose(spec, device, regime, alignment, invariant);
        add(best);
        if (best.exchange != Exchange::none) add(fallback(spec, device, regime, alignment, invariant));
      }
    }
  }
  return all;
}

}  // namespace normjit
