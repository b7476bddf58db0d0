// SPDX-License-Identifier: Apache-2.0
// Gradients of long rows: a block has a row, or the blocks of a cluster have a slice of it each. The next
// rows of its slice are on their way to a ring in shared memory.
//
// Why it is fast: x, dy, dsum and the gate are read once and dx and dgate are written once, by one kernel.
// What is in flight does not depend on registers, which keep the sums over rows alone: so one block of 512
// threads has 16,384 columns, and a cluster of eight has 131,072. Rows are read from the ring as often as
// they are needed. A block measures a row before it writes the one before it, so that nothing waits for an
// exchange: what the warps, or the blocks of the cluster, found out of that row has long arrived. Behind an
// activation, unless the statistics are given, it works on three rows: it measures one, weighs the one before
// it, whose statistics have arrived, and writes the one before that. What is exchanged of a row are its
// statistics together with the sums of g of the one before it.
namespace normjit {

// Rows from the one that is measured to the one that is written.
enum : int { kLag = plan_math::rows_behind(kWeighs) };
static_assert(kArch >= 90, "bulk copies, barriers in shared memory and clusters");
static_assert(kThreadsPerRow == kThreads && kStages >= kLag + 2 && kGroupRows == 1);
static_assert((kBlocksPerRow > 1) == (Exchange::chosen == Exchange::cluster));
static_assert(static_cast<long long>(kSpan) * kBlocksPerRow >= kColumns, "the blocks cover the row");

enum : bool { kInCluster = kBlocksPerRow > 1 };
enum : int {
  kColumnBytes =
      sizeof(Input) + sizeof(Output) + (kAddsDsum ? sizeof(Residual) : 0) + (kHasGate ? sizeof(Mod) : 0)
};
enum : int { kPlaceBytes = kSpan * kColumnBytes };

// A place in the ring, and the phase of its barrier.
struct Turn {
  int place = 0;
  unsigned phase = 0;

  NJ_METHOD void advance() {
    if (++place == kStages) place = 0, phase ^= 1;
  }
  template <int kRows>
  NJ_METHOD int before() const {
    return place < kRows ? place + kStages - kRows : place - kRows;
  }
};

// In a place lie x, dy, dsum and the gate of the slice.
struct Ring {
  unsigned char* places;      // [kStages][kPlaceBytes]
  hw::MemoryBarrier* filled;  // [kStages]

  NJ_METHOD Input* x(int place) const { return reinterpret_cast<Input*>(places + place * kPlaceBytes); }
  NJ_METHOD Output* dy(int place) const { return reinterpret_cast<Output*>(x(place) + kSpan); }
  NJ_METHOD Residual* dsum(int place) const { return reinterpret_cast<Residual*>(dy(place) + kSpan); }
  NJ_METHOD Mod* gate(int place) const {
    return reinterpret_cast<Mod*>(dsum(place) + (kAddsDsum ? kSpan : 0));
  }

  // One thread: lets `count` columns of a row, from column `begin` on, come to a place. (A template, since
  // Operands has only what the spec has.)
  template <class Any>
  NJ_METHOD void fill(int place, const Any& on, long long row, long long begin, int count) const {
    hw::MemoryBarrier* const barrier = filled + place;
    hw::barrier_arrive_expect(barrier, count * kColumnBytes);
    copy(x(place), on.x + begin_of(on.x_rows, row) + begin, count, barrier);
    copy(dy(place), on.dy + begin_of(on.dy_rows, row) + begin, count, barrier);
    if constexpr (kAddsDsum) copy(dsum(place), on.dsum + begin_of(on.dsum_rows, row) + begin, count, barrier);
    if constexpr (kHasGate) copy(gate(place), on.gate + begin_of(on.gate_rows, row) + begin, count, barrier);
  }
  template <class T>
  static NJ_METHOD void copy(T* to, const T* from, int count, hw::MemoryBarrier* barrier) {
    hw::bulk_load(to, from, count * static_cast<int>(sizeof(T)), barrier);
  }
};

// The part of the slice that a thread works on, read from its place as often as it is needed.
struct PlacePart {
  RowStatistics given;  // of the row, where they are
  const Input* x;
  const Output* dy;
  const Residual* dsum;
  const Mod* gate;
  int lane;

  NJ_METHOD Vec<Input> x_of(int k) const { return hw::load_shared<Vec<Input>>(at(x, k, lane)); }
  NJ_METHOD Vec<Output> dy_of(int k) const { return hw::load_shared<Vec<Output>>(at(dy, k, lane)); }
  NJ_METHOD Vec<Residual> dsum_of(int k) const { return hw::load_shared<Vec<Residual>>(at(dsum, k, lane)); }
  NJ_METHOD Vec<Mod> gate_of(int k) const {
    if constexpr (kHasGate) return hw::load_shared<Vec<Mod>>(at(gate, k, lane));
    return {};
  }
};

// Sums as they are sent to the blocks of a cluster: a multiple of 16 bytes.
struct alignas(16) SliceSums {
  RowSums of;
};

// Rows of which parts are kept. A warp that measures the next row may be ahead of one that merges the row
// before this one: three. A block that sends what it found has waited for the row two before, so that another
// block may still merge the one three before: four. (Behind an activation it has waited for the row before:
// two of each are enough.)
enum : int { kPartDepth = 3, kSliceDepth = 4 };

NJ_KERNEL(NJ_ENTRY, kThreads) {
  NJ_DYNAMIC_SHARED(unsigned char, places);
  NJ_SHARED(hw::MemoryBarrier, filled, kStages);
  NJ_SHARED(RowSums, parts, kPartDepth * kWarps);
  NJ_SHARED(SliceSums, slices, kSliceDepth * kBlocksPerRow);
  NJ_SHARED(hw::MemoryBarrier, arrived, kSliceDepth);  // of slices
  NJ_SHARED(WideSum, across, kSums > 0 ? kThreads : 1);
  NJ_SHARED(bool, is_last, 1);
  const Ring ring = {places, filled};
  const int lane = threadIdx.x, warp = lane / kWarp;
  const int slice = static_cast<int>(blockIdx.x) % kBlocksPerRow, count = columns_of_slice(slice);
  const long long begin = static_cast<long long>(slice) * kSpan;
  const long long team = blockIdx.x / kBlocksPerRow, teams = gridDim.x / kBlocksPerRow;
  const Cut cut = {0, 0, count, count};
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) hw::barrier_init(filled + i, 1);
#pragma unroll
    for (int i = 0; i < kSliceDepth; ++i) hw::barrier_init(arrived + i, 1);
    hw::barriers_ready();
  }
  if constexpr (kInCluster) hw::cluster_enter();
  hw::block_barrier();
  hw::wait_for_previous_launch();
  hw::allow_next_launch();

  // The last warp fills the ring; the first one has more to do behind the barrier.
  const bool fills = lane == kThreads - kWarp;
  if (fills)
    for (int i = 0; i < kStages && team + i * teams < on.rows; ++i)
      ring.fill(i, on, team + i * teams, begin, count);

  // What this block found out of its i-th row, and what the blocks of the cluster did.
  const auto merge_parts = [&](unsigned i) {
    const RowSums* const of_row = parts + i % kPartDepth * kWarps;
    return merge_all<kWarps>([&](int w) { return of_row[w]; },
                             [&](int w) { return columns_of_warp(w, cut); });
  };
  const auto merge_slices = [&](unsigned i) {
    const SliceSums* const of_row = slices + i % kSliceDepth * kBlocksPerRow;
    hw::barrier_wait(arrived + i % kSliceDepth, i / kSliceDepth % 2);
    return merge_all<kBlocksPerRow>([&](int s) { return of_row[s].of; },
                                    [&](int s) { return columns_of_slice(s); });
  };
  const auto part_at = [&](int place, const RowStatistics& given = {}) {
    return PlacePart{given, ring.x(place), ring.dy(place), ring.dsum(place), ring.gate(place), lane};
  };

  // Of row i and the one before it, where g needs n: what is exchanged of this warp's columns. Returns what
  // was exchanged before: the statistics of the row before, and the sums of g of the row before that.
  const auto weigh_warp = [&](unsigned i, const Turn& turn, const GradientWeights& weights, bool measures,
                              bool weighs) {
    FirstPass first = {};
    GradientSums own = {};
    RowSums all = {};
    if (measures) {
      hw::barrier_wait(filled + turn.place, turn.phase);
      PlacePart part = part_at(turn.place);
      first = mean_of_warp(part, lane, cut);
      own = sums_of(part, weights, first.mean, lane, cut);
    }
    if (i > 0) all = kInCluster ? merge_slices(i - 1) : merge_parts(i - 1);
    if (i > 0 && weighs) {
      PlacePart part = part_at(turn.before<1>());
      const Pair weighed = weigh(part, weights, statistics_of(all, {}), lane, cut, KeepNothing{});
      own.g = weighed.a, own.gd = weighed.b;
    }
    store_warp(own, first, lane, parts[i % kPartDepth * kWarps + warp]);
    return all;
  };

  ColumnSums sums = {};
  Turn turn, before;       // of the row that is measured, and of the one before it
  RowStatistics measured;  // where g needs n, of the row that is written
  long long row = team;    // that is measured
  // Where they are given: of the row that is measured, and of the one before it.
  RowStatistics given = {}, given_before = {};
  if (row < on.rows) given = given_statistics(on, row);
  for (unsigned i = 0;; ++i, row += teams) {
    const bool measures = row < on.rows, sends = kWeighs ? row - teams < on.rows : measures;
    RowStatistics given_next = {};
    if (row + teams < on.rows) given_next = given_statistics(on, row + teams);
    GradientWeights weights;
    load(weights, on, begin, lane, cut);
    RowSums exchanged;
    if constexpr (kWeighs) {
      exchanged = weigh_warp(i, turn, weights, measures, sends);
    } else if (measures) {
      hw::barrier_wait(filled + turn.place, turn.phase);
      PlacePart part = part_at(turn.place, given);
      if constexpr (kExchanges) measure_warp(part, weights, lane, cut, parts[i % kPartDepth * kWarps + warp]);
    }
    hw::block_barrier();
    // All have written the row before the one that is written now.
    if (fills && i > kLag && row + (kStages - kLag - 1) * teams < on.rows)
      ring.fill(turn.before<kLag + 1>(), on, row + (kStages - kLag - 1) * teams, begin, count);
    if constexpr (kInCluster) {
      if (i == 0) hw::cluster_entered();
      if (kExchanges && sends && warp == 0) {
        if (lane == 0)
          hw::barrier_arrive_expect(arrived + i % kSliceDepth, kBlocksPerRow * sizeof(SliceSums));
        const SliceSums own = {merge_parts(i)};
        if (lane < kBlocksPerRow)
          hw::send(own, slices + i % kSliceDepth * kBlocksPerRow + slice, arrived + i % kSliceDepth, lane);
      }
    }
    if constexpr (kWeighs) {
      if (i > 1) {
        PlacePart part = part_at(turn.before<2>());
        write(part, weights, gradient_of(measured, exchanged.sums), on, row - 2 * teams, begin, lane, cut,
              sums);
      }
      measured = statistics_of(exchanged, {});
    } else if (i > 0) {
      RowSums all = {};
      if constexpr (kExchanges) all = kInCluster ? merge_slices(i - 1) : merge_parts(i - 1);
      PlacePart part = part_at(before.place);
      write(part, weights, gradient_of(all, given_before), on, row - teams, begin, lane, cut, sums);
    }
    if (!sends) break;
    given_before = given;
    given = given_next;
    before = turn;
    turn.advance();
  }

  if constexpr (kSums > 0) {
    Meeting& meeting = meeting_in(on.workspace);
#pragma unroll
    for (int s = 0; s < kSums; ++s)
      add_to(reinterpret_cast<Acc*>(&meeting + 1) + row_of_sums(s, teams, team) + begin, sums.of[s], true,
             lane, cut);
    finish_sums(on, meeting, teams, across, is_last);
  }
}

}  // namespace normjit
