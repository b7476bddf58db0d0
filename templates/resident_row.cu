// Ordinary rows, up to 64 KiB: a block holds one row in registers.
//
// Why it is fast: x is read once and y written once; the row is never staged. All loads of a row are issued
// before the first is used, and several blocks on a multiprocessor overlap one's loads with another's stores.
namespace normjit {

static_assert(kSpan >= kColumns, "the block covers the row");
static_assert(kLanes == kThreads, "all threads share the row");

NJ_KERNEL(resident_row, kThreads) {
  NJ_SHARED(Moments, parts, 2 * kWarps);
  const int lane = threadIdx.x;
  int half = 0;  // of parts: each is written again only behind the other's barrier
  for (long long row = blockIdx.x; row < rows; row += gridDim.x, half ^= kWarps) {
    Slice slice;
    AffineSlice affine;
    load<hw::Keep::once>(slice, x + row * x_stride, lane, kColumns);
    load_early(affine, weight, bias, lane, kColumns);
    store_warp_moments(slice, lane, kColumns, parts + half);
    hw::block_barrier();
    const RowStatistics statistics = row_statistics(merge_warps(parts + half, lane, kColumns));

    apply(slice, statistics, affine, weight, bias, y + row * y_stride, lane, kColumns);
    if (lane == 0) store(statistics, mean_out, rstd_out, row);
  }
}

}  // namespace normjit
