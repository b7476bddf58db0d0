// Ordinary and long rows: a block holds a row in registers, or kSlices blocks hold a slice of it each.
//
// Why it is fast: x is read once and y written once; the row is never staged. All loads of a row are issued
// before the first is used, and several blocks on a multiprocessor overlap one's loads with another's stores.
// Blocks that share a row meet once: each warp's moments go to all of them, and behind one barrier each
// merges them for itself. Where there are no clusters, teams of blocks stay for many rows and meet through
// memory.
namespace normjit {

static_assert(static_cast<long long>(kSpan) * kSlices >= kCovered, "the blocks cover the row");
static_assert(kLanes == kThreads, "all threads share the row");

constexpr int kParts = kExchange == Exchange::cluster ? kSlices * kWarps : kWarps;

NJ_KERNEL(resident_row, kThreads) {
  NJ_SHARED(Moments, parts, 2 * kParts);
  NJ_SHARED(Moments, whole, 1);
  const int lane = threadIdx.x, warp = lane / kWarp;
  const int slice = static_cast<int>(blockIdx.x) % kSlices, count = columns_of_slice(slice);
  const long long begin = static_cast<long long>(slice) * kSpan, teams = gridDim.x / kSlices;
  if constexpr (kExchange == Exchange::cluster) hw::cluster_enter();

  AffineSlice affine;
  if constexpr (!kShifted) load_early(affine, weight + begin, bias + begin, lane, {0, 0, count, count});
  hw::wait_for_previous_launch();
  hw::allow_next_launch();
  unsigned tag = 0;  // of the posts of the row before; what warp 0 knows
  if constexpr (kExchange == Exchange::grid)
    if (warp == 0) tag = first_tag(workspace);

  int half = 0;  // of parts: each is written again only behind the other's barrier
  for (long long row = blockIdx.x / kSlices; row < rows; row += teams, half ^= kParts) {
    const Input* const from = x + row * x_stride + begin;
    const Cut cut = cut_of(from, count);
    Slice part;
    load<hw::Keep::once>(part, from, lane, cut);
    const Moments own = warp_moments(part, lane, cut);
    Moments moments;
    if constexpr (kExchange == Exchange::cluster) {
      if (row < teams) hw::cluster_entered();
      if (lane % kWarp < kSlices) hw::remote(parts, lane % kWarp)[half + slice * kWarps + warp] = own;
      hw::cluster_barrier();
      moments = merge<kParts>(
          [&](int i) { return parts[half + i]; },
          [&](int i) { return columns_of_warp(i % kWarps, cut_of(from, columns_of_slice(i / kWarps))); },
          kColumns);
    } else {
      if (lane % kWarp == 0) parts[half + warp] = own;
      hw::block_barrier();
      moments = merge_warps(parts + half, cut);
      if constexpr (kExchange == Exchange::grid) {
        if (warp == 0) {
          // Two places: who posts for a row has collected the row before, for which everybody had posted who
          // had collected the one before that.
          ++tag;
          if (lane == 0) post_part<2>(workspace, tag, moments, slice);
          moments = collect_row<2>(workspace, tag, [](int i) { return columns_of_slice(i); });
          if (lane == 0) whole[0] = moments;
        }
        hw::block_barrier();
        moments = whole[0];
      }
    }
    const RowStatistics statistics = row_statistics(moments);

    Output* const to = y + row * y_stride + begin;
    if constexpr (kShifted) {
      NJ_DYNAMIC_SHARED(unsigned char, stage);
      apply_shifted(part, cut, statistics, weight + begin, bias + begin, to, true, lane, stage);
    } else {
      // The distances from the warp's own mean are known since the second pass.
      apply(part, statistics.around(own.mean), affine, weight + begin, bias + begin, to, lane, cut);
    }
    if (lane == 0 && slice == 0) store(statistics, mean_out, rstd_out, row);
  }
  if constexpr (kExchange == Exchange::grid)
    if (lane == 0) leave(workspace, tag, blockIdx.x / kSlices, rows);
}

}  // namespace normjit
