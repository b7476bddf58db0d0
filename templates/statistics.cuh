// Mean and variance in two passes over data on chip: a first mean, then sums of the distances from it. The
// second pass also tells by how much the first mean was rounded, so the mean is known to about twice the
// precision of Acc, and the variance does not suffer from a large offset. E[x^2] - E[x]^2 would.
//
// The lanes of a warp do this by shuffles alone; warps, and chunks of a row, are merged by Chan's formula.
namespace normjit {

// Of some columns: mean + rest is the mean, m2 the sum of squared distances from it.
struct Moments {
  Acc mean, rest, m2;
};

NJ_DEVICE Acc at_least_zero(Acc value) { return value < 0 ? Acc(0) : value; }  // NaN stays

// Of the slices that kWidth neighbouring lanes hold, `own` columns together; `count` as in slice.cuh.
template <int kWidth>
NJ_DEVICE Moments moments_of(Slice& slice, int lane, int count, Acc own) {
  const Acc mean = lanes_sum<kWidth>(sum(slice, lane, count)) / own;
  const Pair centred = lanes_sum<kWidth>(centred_sums(slice, mean, lane, count));
  const Acc rest = centred.a / own;
  return {mean, rest, at_least_zero(centred.b - centred.a * rest)};
}

// Of the `count` columns of a row or chunk that warp `warp` of the block holds.
NJ_DEVICE int columns_of_warp(int warp, int count) {
  if constexpr (kWhole) return kSpan / kWarps;
  int own = 0;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const int left = count - column(k, warp * kWarp);
    own += left < 0 ? 0 : left < kWarp * kVector ? left : kWarp * kVector;
  }
  return own;
}

// The warp's own part of `count` columns that the block holds, into parts[warp].
NJ_DEVICE void store_warp_moments(Slice& slice, int lane, int count, Moments* parts) {
  const int warp = lane / kWarp;
  const int own = columns_of_warp(warp, count);
  const Moments part = moments_of<kWarp>(slice, lane, count, own > 0 ? own : 1);
  if (lane % kWarp == 0) parts[warp] = part;
}

// All warps' parts together, relative to the mean of the first: the distances are small, so little is lost.
// Every warp that calls this gets the same.
NJ_DEVICE Moments merge_warps(const Moments* parts, int lane, int count) {
  const Acc base = parts[0].mean;
  const Moments part = parts[lane % kWarps];
  const Acc own = columns_of_warp(lane % kWarps, count);
  const Acc distance = (part.mean - base) + part.rest;
  const Acc rest = lanes_sum<kWarps>(own * distance) / count;
  const Acc off = distance - rest;
  return {base, rest, lanes_sum<kWarps>(part.m2 + own * off * off)};
}

// What normalizes a row: y = (x - mean) * rstd - rest * rstd.
struct RowStatistics {
  Acc mean, rest, rstd;
};

NJ_DEVICE RowStatistics row_statistics(const Moments& m) {
  return {m.mean, m.rest, hw::rsqrt(m.m2 * (Acc(1) / kColumns) + kEpsilon)};
}

NJ_DEVICE void store(const RowStatistics& s, Acc* mean_out, Acc* rstd_out, long long row) {
  if constexpr (kHasStatistics) {
    mean_out[row] = s.mean + s.rest;
    rstd_out[row] = s.rstd;
  }
}

}  // namespace normjit
