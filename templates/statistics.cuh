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

// Of the `count` columns of a row or chunk, how many warp `warp` of the block holds.
NJ_DEVICE int columns_of_warp(int warp, int count) {
  constexpr int kMost = kSpan / kWarps;
  if constexpr (kWhole) return kMost;
  const int left = count - warp * kMost;
  return left < 0 ? 0 : left < kMost ? left : kMost;
}

// The warp's own part of `count` columns that the block holds. All lanes of the warp get the same.
NJ_DEVICE Moments warp_moments(Slice& slice, int lane, int count) {
  const int own = columns_of_warp(lane / kWarp, count);
  return moments_of<kWarp>(slice, lane, count, own > 0 ? own : 1);
}
NJ_DEVICE void store_warp_moments(Slice& slice, int lane, int count, Moments* parts) {
  const Moments part = warp_moments(slice, lane, count);
  if (lane % kWarp == 0) parts[lane / kWarp] = part;
}

// The moments of `count` columns from those of kParts parts of them: part(i), which are of own(i) columns.
// Relative to the mean of the first: the distances are small, so little is lost. A warp calls this, and all
// its lanes get the same.
template <int kParts, class Part, class Own>
NJ_DEVICE Moments merge(const Part& part, const Own& own, Acc count) {
  constexpr int kWidth = kParts < kWarp && (kParts & (kParts - 1)) == 0 ? kParts : kWarp;
  constexpr int kEach = (kParts + kWarp - 1) / kWarp;
  Moments mine[kEach];
  Acc columns[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = j * kWarp + static_cast<int>(threadIdx.x % kWidth);
    const bool there = kParts % kWidth == 0 || i < kParts;
    mine[j] = there ? part(i) : Moments{0, 0, 0};
    columns[j] = there ? Acc(own(i)) : Acc(0);
  }
  const Acc base = hw::shuffle(mine[0].mean, 0);
  Acc rest = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) rest += columns[j] * ((mine[j].mean - base) + mine[j].rest);
  rest = lanes_sum<kWidth>(rest) / count;
  Acc m2 = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const Acc off = ((mine[j].mean - base) + mine[j].rest) - rest;
    m2 += mine[j].m2 + columns[j] * off * off;
  }
  return {base, rest, lanes_sum<kWidth>(m2)};
}

// Of `count` columns that the block holds, from all warps' parts.
NJ_DEVICE Moments merge_warps(const Moments* parts, int count) {
  return merge<kWarps>([&](int i) { return parts[i]; }, [&](int i) { return columns_of_warp(i, count); },
                       count);
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
