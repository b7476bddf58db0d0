// The planner: every plan worth a thought, the cheapest first.
#include <algorithm>
#include <bit>
#include <utility>

#include "normjit/plan.h"
#include "normjit/plan/cost.h"
#include "normjit/plan/footprint.h"

namespace normjit {
namespace {

// As many blocks as a multiprocessor has registers and shared memory for. Told to the compiler, this is what
// keeps enough loads in flight: without it, a row of 8192 f32 reached 0.68 of copy speed instead of 0.98.
Plan with_occupancy(Plan plan, const PlanUse& use) {
  const DeviceProfile& device = use.device;
  // Each quarter of a multiprocessor has registers for so many warps. Blocks of two warps share what is odd.
  const int quarter = device.registers_per_sm / 4 / (kWarp * needed_registers(plan, use.spec));
  int blocks = std::min(
      {4 * quarter * kWarp / plan.threads, device.threads_per_sm / plan.threads, device.blocks_per_sm});
  // Few rows do not fill a multiprocessor, and then registers do: 32 x 4096 bf16 2.38 us for one or two
  // blocks of 256 threads, 2.46 us for four.
  if (plan.strategy == Strategy::block_row && use.regime != RowsRegime::many)
    blocks = std::min(blocks, std::max(1, plan_math::kFewThreads / plan.threads));
  if (shared_bytes(plan, use.spec) > 0)
    blocks = static_cast<int>(
        std::min<std::int64_t>(blocks, device.shared_per_sm / all_shared_bytes(plan, use.spec)));
  plan.blocks_per_sm = std::max(1, blocks);
  return plan;
}

class Enumeration {
 public:
  explicit Enumeration(const PlanUse& use) : use_(use) {}

  // In the order in which they come to mind.
  std::vector<Weighed> all() {
    found_.reserve(64);
    const NormSpec& spec = use_.spec;
    const int widest = 16 / std::max(size_of(spec.input), size_of(spec.output));
    const auto divides = static_cast<int>(spec.columns & -spec.columns);
    const int aligned = std::min({static_cast<int>(use_.alignment), widest, divides});
    // Whether wider accesses could be had by shifting, and rows have some of them.
    const bool shifts = aligned < widest && can_realign(widest, spec) && spec.columns >= 2 * widest;
    warp_rows(aligned);
    staged_rows(aligned);
    block_rows(aligned, false);
    if (const int narrower = spec.affine == Affine::none ? widest : 16 / size_of(spec.weight);
        narrower < aligned) {
      warp_rows(narrower);
      block_rows(narrower, false);
    }
    if (shifts) block_rows(widest, true);
    persistent_rows();
    add(split_row(aligned, false));
    if (shifts) add(split_row(widest, true));
    return std::move(found_);
  }

 private:
  void add(const Plan& plan) {
    const Plan full = plan.strategy == Strategy::split_row ? plan : with_occupancy(plan, use_);
    if (full.threads * needed_registers(full, use_.spec) > use_.device.registers_per_sm) return;
    if (full.strategy != Strategy::staged_rows &&
        held_registers(full, use_.spec) > max_held_registers(full.threads, full.vector, use_.spec))
      return;
    if (full.per_thread * full.vector * rows_of_lanes(full) > max_held_elements(full, use_.spec)) return;
    if (!check(full, use_.spec, use_.device)) return;
    found_.push_back(weighed(full, use_));
  }

  void warp_rows(int vector) {
    Plan plan{.strategy = Strategy::warp_rows, .vector = vector};
    for (plan.threads_per_row = 1; plan.threads_per_row <= kWarp; plan.threads_per_row *= 2)
      // Small blocks end and begin independently: 128 threads 0.92, 256 threads 0.78 at 1024 bf16 columns.
      for (plan.threads = 64; plan.threads <= 128; plan.threads *= 2)
        if (const std::int64_t each = use_.spec.columns / vector;
            each <= std::int64_t{32} * plan.threads_per_row) {
          plan.per_thread = static_cast<int>(ceil_div(each, plan.threads_per_row));
          add(plan);
        }
  }

  // Blocks of 32 threads have too few of the places for blocks, 0.62 of copy speed at 24 f16 columns, where
  // 64 threads reach 0.95 and 128 0.94.
  void staged_rows(int vector) {
    Plan plan{.strategy = Strategy::staged_rows, .threads = 64, .vector = vector};
    for (plan.threads_per_row = 1; plan.threads_per_row <= kWarp; plan.threads_per_row *= 2)
      for (plan.group_rows = 1; plan.group_rows <= 4; plan.group_rows *= 2)
        if (const std::int64_t each = use_.spec.columns / vector;
            each <= std::int64_t{64} * plan.threads_per_row) {
          plan.per_thread = static_cast<int>(ceil_div(each, plan.threads_per_row));
          add(plan);
        }
  }

  void block_rows(int vector, bool unaligned) {
    const std::int64_t columns = use_.spec.columns;
    const std::int64_t vectors = std::max<std::int64_t>(1, columns / vector);
    Plan plan{.strategy = Strategy::block_row, .vector = vector, .unaligned = unaligned};
    std::vector<std::pair<int, Exchange>> shares = {{1, Exchange::none}};
    if (use_.device.arch.number >= 90) {
      for (int slices = 2; slices <= kMaxCluster; slices *= 2) shares.emplace_back(slices, Exchange::cluster);
    } else {
      for (int slices = 2; slices <= use_.device.sm_count; slices *= 2)
        shares.emplace_back(slices, Exchange::grid);
    }
    for (const auto& [slices, exchange] : shares)
      for (const int threads : {64, 128, 256, 512, 1024}) {
        const std::int64_t all = slices == 1 ? vectors : ceil_div(columns, vector);
        plan.per_thread =
            static_cast<int>(std::min<std::int64_t>(ceil_div(all, std::int64_t{threads} * slices), 1024));
        plan.threads = plan.threads_per_row = threads;
        plan.blocks_per_row = slices;
        plan.exchange = exchange;
        add(plan);
      }
  }

  // Chunks of 8 KiB: 4 KiB cost 2 %, 16 KiB 1 to 5 %. The ring takes all shared memory.
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
    // In f64 what conversions and activations take in registers is more than there is; so do vectors in
    // chunks that are not full, but not single elements.
    if (in_double &&
        (!same_dtypes(spec) || (spec.activation != Activation::none && spec.activation != Activation::relu)))
      return;
    const bool unaligned = static_cast<int>(use_.alignment) < vector || spec.columns % vector != 0 ||
                           (in_double && spec.columns % columns_per_block(plan) != 0);
    // From sm_120 on the compiler deals no registers, and single elements take more than it then has.
    if (unaligned && use_.device.arch.number >= 120) return;
    plan.unaligned = unaligned;
    const auto add_with_ring = [&] {
      plan.stages = 1;
      plan.stages = use_.device.shared_per_block / shared_bytes(plan, spec);
      while (all_shared_bytes(plan, spec) > use_.device.shared_per_block) --plan.stages;
      add(plan);
    };
    // What is shorter than two chunks has better plans.
    for (plan.blocks_per_row = 1; plan.blocks_per_row <= use_.device.sm_count; plan.blocks_per_row *= 2) {
      plan.exchange = plan.blocks_per_row > 1 ? Exchange::grid : Exchange::none;
      if (spec.columns <= plan.blocks_per_row * columns_per_block(plan)) break;
      add_with_ring();
    }
    // But where it must be unaligned, it is best one chunk: 24,066 x 4973 bf16 0.67, as two chunks 0.42.
    constexpr int kMostVectors = 4;
    plan.blocks_per_row = 1;
    plan.exchange = Exchange::none;
    plan.per_thread = 1;
    while (unaligned && plan.per_thread <= kMostVectors && columns_per_block(plan) < spec.columns)
      ++plan.per_thread;
    if (unaligned && plan.per_thread <= kMostVectors) add_with_ring();
  }

  Plan split_row(int vector, bool unaligned) const {
    const NormSpec& spec = use_.spec;
    // 256 threads with 32 KiB of a row: 230 us for 16 x 4,194,304 f32, 128 threads 242, 512 threads 225 but
    // spilling in other specs.
    constexpr int kThreads = 256;
    const int held = std::min(size_of(spec.input) == 2 ? 16 : 32, max_held_registers(kThreads, vector, spec));
    Plan plan{.strategy = Strategy::split_row,
              .threads = kThreads,
              .threads_per_row = kThreads,
              .vector = vector,
              .unaligned = unaligned};
    plan.per_thread =
        std::max(1, (unaligned ? std::min(held, 16) : held) / registers_per_vector(vector, spec));
    // With few rows a row must be cut finely enough to occupy the device.
    constexpr int kChunksToFill = 256;
    if (use_.regime != RowsRegime::many)
      while (plan.per_thread > 1 && ceil_div(spec.columns, columns_per_block(plan)) < kChunksToFill)
        plan.per_thread /= 2;
    // Weights that leave no room for x in L2 are read once for a group of rows, 230 us instead of 292 for the
    // shape above; smaller ones stay in L2 by themselves, and then rows are applied one by one, while they
    // are there too.
    constexpr int kGroup = 16, kShare = 8;
    if (use_.affine_bytes() > use_.device.l2_bytes / kShare) plan.group_rows = kGroup;
    // Of short rows, fewer blocks at a time finish no more than the workspace has places for.
    plan = with_occupancy(plan, use_);
    while (plan.blocks_per_sm > 1 && !check(plan, spec, use_.device)) --plan.blocks_per_sm;
    return plan;
  }

  const PlanUse use_;
  std::vector<Weighed> found_;
};

// Only the architecture of the device counts, not its size, so that what is prebuilt for sm_90 serves every
// GPU of it.
DeviceProfile named(const DeviceProfile& device) {
  const auto known = DeviceProfile::of(device.arch);
  return known ? *known : device;
}

std::vector<Weighed> weighed_plans(const NormSpec& spec, const DeviceProfile& any, RowsRegime regime,
                                   Alignment alignment) {
  const DeviceProfile device = named(any);
  return Enumeration({spec, device, regime, alignment}).all();
}

bool is_cheaper(const Weighed& a, const Weighed& b) { return a.cost < b.cost; }

const Plan& best_among(const std::vector<Weighed>& plans) {
  return std::min_element(plans.begin(), plans.end(), is_cheaper)->plan;
}

// The best one that shares no row between blocks that must run together: a split_row plan, or of a spec that
// split_row does not compute, another. Null: none.
const Plan* fallback_among(const std::vector<Weighed>& plans) {
  const auto rank = [](const Weighed& one) {
    return std::pair{one.plan.strategy != Strategy::split_row, one.cost};
  };
  const Weighed* best = nullptr;
  for (const Weighed& one : plans)
    if (one.plan.exchange == Exchange::none && (best == nullptr || rank(one) < rank(*best))) best = &one;
  return best != nullptr ? &best->plan : nullptr;
}

}  // namespace

std::vector<Candidate> candidates(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                                  Alignment alignment) {
  std::vector<Weighed> plans = weighed_plans(spec, device, regime, alignment);
  std::stable_sort(plans.begin(), plans.end(), is_cheaper);
  std::vector<Candidate> all;
  for (const Weighed& one : plans) all.push_back({one.plan, one.cost, std::string(one.why)});
  return all;
}

Plan choose(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
            Alignment alignment) noexcept {
  return best_among(weighed_plans(spec, device, regime, alignment));
}

Plan fallback(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
              Alignment alignment) noexcept {
  const std::vector<Weighed> found = weighed_plans(spec, device, regime, alignment);
  const Plan* const best = fallback_among(found);
  return best != nullptr ? *best : Plan{.strategy = Strategy::split_row};
}

std::vector<Plan> plans(const NormSpec& spec, const DeviceProfile& device) {
  std::vector<Plan> all;
  const auto add = [&](const Plan& plan) {
    if (std::find(all.begin(), all.end(), plan) == all.end()) all.push_back(plan);
  };
  for (const RowsRegime regime : kRowsRegimes)
    for (const Alignment alignment : kAlignments) {
      const std::vector<Weighed> found = weighed_plans(spec, device, regime, alignment);
      const Plan& best = best_among(found);
      add(best);
      const Plan* const instead = best.exchange != Exchange::none ? fallback_among(found) : nullptr;
      if (instead != nullptr) add(*instead);
    }
  return all;
}

}  // namespace normjit
