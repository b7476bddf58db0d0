// Ordinary and long rows: a block holds a row in registers, or kBlocksPerRow blocks hold a slice of it each.
//
// Why it is fast: x is read once and y written once; the row is never staged. All loads of a row are issued
// before the first is used, and several blocks on a multiprocessor overlap one's loads with another's stores.
// Blocks that share a row meet once: each warp sends its moments to all of them, and each merges them for
// itself when they have arrived. Where there are no clusters, teams of blocks stay for many rows and meet
// through memory.
namespace normjit {

static_assert(static_cast<long long>(kSpan) * kBlocksPerRow >= kCovered, "the blocks cover the row");
static_assert(kThreadsPerRow == kThreads, "all threads share the row");

enum : int { kParts = Exchange::chosen == Exchange::cluster ? kBlocksPerRow * kWarps : kWarps };

// Moments as they are sent, in whole 16 bytes.
struct alignas(16) Part {
  Moments moments;
};

// Of the columns of `cut`, or of the whole row of a cluster, whose slice is at `from`.
NJ_DEVICE Moments merge_parts(const Part* parts, const Cut& cut, const Input* from) {
  const auto part = [&](int i) { return parts[i].moments; };
  if constexpr (kWhole) {
    return merge_pairs<kParts>(part, kSpan / kWarps);
  } else if constexpr (Exchange::chosen == Exchange::cluster) {
    return merge<kParts>(
        part, [&](int i) { return columns_of_warp(i % kWarps, cut_of(from, columns_of_slice(i / kWarps))); },
        kColumns);
  } else {
    return merge_warps(part, cut);
  }
}

NJ_KERNEL(NJ_ENTRY, kThreads) {
  NJ_SHARED(Part, parts, 2 * kParts);
  NJ_SHARED(Moments, whole, 1);
  NJ_SHARED(hw::MemoryBarrier, arrived, 2);  // of a cluster's parts
  const int lane = threadIdx.x, warp = lane / kWarp;
  const int slice = static_cast<int>(blockIdx.x) % kBlocksPerRow, count = columns_of_slice(slice);
  const long long begin = static_cast<long long>(slice) * kSpan, teams = gridDim.x / kBlocksPerRow;
  if constexpr (Exchange::chosen == Exchange::cluster) {
    if (lane == 0) {
      hw::barrier_init(arrived, 1);
      hw::barrier_init(arrived + 1, 1);
      hw::barriers_ready();
    }
    hw::cluster_enter();
  }

  unsigned tag = 0;  // of the slots of the row before; what warp 0 knows
  if constexpr (Exchange::chosen == Exchange::grid) {
    hw::wait_for_previous_launch();
    if (warp == 0) tag = first_tag(workspace);
  }

  // Parts are written again only behind the barrier of the row between, so there are two places for them.
  unsigned turn = 0;
  for (long long row = blockIdx.x / kBlocksPerRow; row < rows; row += teams, ++turn) {
    const int place = turn % 2, half = place * kParts;
    if constexpr (Exchange::chosen == Exchange::cluster)
      if (lane == 0) hw::barrier_arrive_expect(arrived + place, kParts * sizeof(Part));
    hw::wait_for_previous_launch();
    const Input* const from = x + row * x_stride + begin;
    const Cut cut = cut_of(from, count);
    Fragment part;
    load<hw::Cache::evict_first>(part, from, lane, cut);
    // Where this stands, the compiler moves no load to behind it: x is asked for first, all of it, and the
    // weights before it is waited for.
    hw::allow_next_launch();
    AffineFragment affine;
    if constexpr (kEarlyAffine) {
      load_early(affine, weight + begin, bias + begin, lane, {0, 0, count, count});
      hw::allow_next_launch();
    }
    Moments own;
    if constexpr (kWhole && kLowOccupancy) {
      own = warp_moments_by_pairs(part, lane, cut);
    } else {
      own = warp_moments(part, lane, cut);
    }
    if constexpr (Exchange::chosen == Exchange::cluster) {
      if (row < teams) hw::cluster_entered();
      hw::warp_barrier();  // all lanes have read the parts in whose place others now may send
      if (lane % kWarp < kBlocksPerRow)
        hw::send(Part{own}, parts + half + slice * kWarps + warp, arrived + place, lane % kWarp);
      hw::barrier_wait(arrived + place, turn / 2 % 2);
    } else {
      if (lane % kWarp == 0) parts[half + warp].moments = own;
      hw::block_barrier();
    }
    Moments moments = merge_parts(parts + half, cut, from);
    if constexpr (Exchange::chosen == Exchange::grid) {
      if (warp == 0) {
        // Two places: who slots for a row has gathered the row before, for which everybody had published who
        // had gathered the one before that.
        ++tag;
        if (lane == 0) publish_part<2>(workspace, tag, moments, slice);
        moments = gather_row<2>(workspace, tag, [](int i) { return columns_of_slice(i); });
        if (lane == 0) whole[0] = moments;
      }
      hw::block_barrier();
      moments = whole[0];
    }
    const RowStatistics statistics = row_statistics(moments);

    Output* const to = y + row * y_stride + begin;
    if constexpr (kUnaligned) {
      NJ_DYNAMIC_SHARED(unsigned char, stage);
      store_unaligned(part, cut, statistics, weight + begin, bias + begin, to, lane, stage);
    } else {
      // The distances from the warp's own mean are known since the second pass.
      apply(part, statistics.around(own.mean), affine, weight + begin, bias + begin, to, lane, cut);
    }
    if (lane == 0 && slice == 0) store(statistics, mean_out, rstd_out, row);
  }
  if constexpr (Exchange::chosen == Exchange::grid)
    if (lane == 0) leave(workspace, tag, blockIdx.x / kBlocksPerRow, rows);
}

}  // namespace normjit
