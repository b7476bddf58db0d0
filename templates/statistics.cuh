// Mean and variance in two passes over data on chip: a first mean, then sums of the distances from it. The
// second pass also tells by how much the first mean was rounded, so the mean is known to about twice the
// precision of Acc, and the variance does not suffer from a large offset. E[x^2] - E[x]^2 would.
//
// The lanes of a warp do this by shuffles alone; warps, and chunks of a row, are merged by Chan's formula.
namespace normjit {

// Of some columns: mean + rest is the mean, m2 the sum of squared distances from it.
struct Moments {
  Acc mean, mean_lo, m2;
};

// a / count. A division would take its slow path along, and a branch: 22 branches in 6232 bf16 columns. The
// reciprocal does not wait for `a`, and one step of correction leaves the last bit in doubt at most.
NJ_DEVICE float reciprocal(float count) { return hw::rcp_approx(count); }
NJ_DEVICE double reciprocal(double count) { return 1 / count; }
NJ_DEVICE Acc divided(Acc a, Acc count) {
  const Acc once = reciprocal(count), about = a * once;
  return hw::fma(hw::fma(-about, count, a), once, about);
}

// Whether the sum of the columns is so good that it tells by itself how the mean was rounded; then the second
// pass need not add the distances, one of its three instructions an element. Of 16 bits it is: where the mean
// is large beside the deviation, the values are multiples of about 2^-11 (bf16: 2^-8) of it, and an f32 adds
// 2^13 (2^16) of them without rounding. Where they are not, the deviation is a part of the mean that is
// large beside what the sum lost, which is 2^-24 of it for each addition of a lane.
enum : bool { kSumsExactly = sizeof(Input) == 2 };

// Of `own` columns: the elements of kWidth neighbouring lanes together.
template <int kWidth, class Elements>
NJ_DEVICE Moments moments_of(const Elements& elements, Acc own) {
  const Acc total = lanes_sum<kWidth>(sum(elements)), mean = divided(total, own);
  Pair centred;
  if constexpr (kSumsExactly) {
    centred = {hw::fma(-own, mean, total), lanes_sum<kWidth>(centred_squares(elements, mean))};
  } else {
    centred = lanes_sum<kWidth>(centred_sums(elements, mean));
  }
  const Acc mean_lo = divided(centred.a, own);
  return {mean, mean_lo, hw::max_nan(centred.b - centred.a * mean_lo, Acc(0))};
}
// Of two parts together, of na and nb columns, by Chan's formula; both may be none.
NJ_DEVICE Moments join(const Moments& a, Acc na, const Moments& b, Acc nb) {
  if (nb == 0) return a;
  if (na == 0) return b;
  const Acc distance = (b.mean - a.mean) + (b.mean_lo - a.mean_lo), share = divided(nb, na + nb);
  return {a.mean, a.mean_lo + distance * share, a.m2 + b.m2 + distance * distance * na * share};
}

// Of two parts together, of `own` columns each: the mean between them, and what its rounding lacks. Relative
// to one of them, a part with an outlier would leave a large rest, and its rounding in all that follow.
NJ_DEVICE Moments pair(const Moments& a, const Moments& b, Acc own) {
  const Acc mean = a.mean / 2 + b.mean / 2, lacks = (a.mean - mean) + (b.mean - mean);
  const Acc distance = (b.mean - a.mean) + (b.mean_lo - a.mean_lo);
  return {mean, ((a.mean_lo + b.mean_lo) + lacks) / 2, (a.m2 + b.m2) + distance * distance * (own / 2)};
}
// Of kWidth neighbouring lanes, which have `own` columns each. Five exchanges follow each other in a warp,
// not the ten of a sum and then a sum of distances: 1 x 4096 f16 1.98 us, and 2.06 us so; but with more
// instructions. All lanes get the same.
template <int kWidth>
NJ_DEVICE Moments lanes_pairs(Moments m, Acc own) {
#pragma unroll
  for (int mask = 1; mask < kWidth; mask *= 2) {
    const Moments other = {hw::shuffle_xor(m.mean, mask), hw::shuffle_xor(m.mean_lo, mask),
                           hw::shuffle_xor(m.m2, mask)};
    m = pair(m, other, own * mask);
  }
  return m;
}

// How many of the columns of a row or chunk warp `warp` of the block holds.
NJ_DEVICE int columns_of_warp(int warp, const Cut& cut) {
  if constexpr (kWhole) return kSpan / kWarps;
  int own = warp == 0 ? cut.edges() : 0;  // which are fewer than its lanes
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const int left = cut.body - column(k, warp * kWarp);
    own += left < 0 ? 0 : left < kWarp * kVector ? left : kWarp * kVector;
  }
  return own;
}

// The warp's own part of what the block holds. All lanes of the warp get the same.
NJ_DEVICE Moments warp_moments(Fragment& slice, int lane, const Cut& cut) {
  const int own = columns_of_warp(lane / kWarp, cut);
  return moments_of<kWarp>(FragmentElements{slice, lane, cut}, own > 0 ? own : 1);
}
// The same by pairs, where all lanes have as many columns.
NJ_DEVICE Moments warp_moments_by_pairs(Fragment& slice, int lane, const Cut& cut) {
  constexpr Acc kOwn = kPerThread * kVector;
  return lanes_pairs<kWarp>(moments_of<1>(FragmentElements{slice, lane, cut}, kOwn), kOwn);
}
NJ_DEVICE void store_warp_moments(Fragment& slice, int lane, const Cut& cut, Moments* parts) {
  const Moments part = warp_moments(slice, lane, cut);
  if (lane % kWarp == 0) parts[lane / kWarp] = part;
}

// The moments of `count` columns from those of kParts parts of them: part(i), which are of own(i) columns,
// some perhaps none. Relative to a mean that is typical of them, so that the distances are small: one of the
// parts at the ends may be short, and then far off by one outlier. Distances from it and their squares are
// added at the same time: the exchanges that follow each other are seven, not fifteen. A warp calls this, and
// all its lanes get the same.
template <int kParts>
struct Merging {
  enum : int { kWidth = kParts < kWarp && (kParts & (kParts - 1)) == 0 ? kParts : kWarp };
  enum : int { kEach = (kParts + kWarp - 1) / kWarp };  // that a lane takes
};
NJ_DEVICE Acc median(Acc a, Acc b, Acc c) {
  const Acc low = a < b ? a : b, high = a < b ? b : a;
  return high < c ? high : low < c ? c : low;
}
template <int kParts, class Part, class Own>
NJ_DEVICE Moments merge(const Part& part, const Own& own, Acc count) {
  constexpr int kWidth = Merging<kParts>::kWidth, kEach = Merging<kParts>::kEach;
  constexpr int kLast = (kParts < kWidth ? kParts : kWidth) - 1;
  Moments mine[kEach];
  Acc columns[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = j * kWarp + static_cast<int>(threadIdx.x % kWidth);
    const bool there = kParts % kWidth == 0 || i < kParts;
    mine[j] = there ? part(i) : Moments{0, 0, 0};
    columns[j] = there ? Acc(own(i)) : Acc(0);
  }
  // The first part has columns, if any has. A part without has none to be typical of.
  const int group = static_cast<int>(threadIdx.x % kWarp) / kWidth * kWidth;
  const Acc first = hw::shuffle(mine[0].mean, group), mean = columns[0] > 0 ? mine[0].mean : first;
  const Acc base =
      median(first, hw::shuffle(mean, group + (kLast + 1) / 2), hw::shuffle(mean, group + kLast));
  Pair sums = {0, 0};
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const Acc distance = columns[j] > 0 ? (mine[j].mean - base) + mine[j].mean_lo : Acc(0);
    sums = sums + Pair{columns[j] * distance, mine[j].m2 + columns[j] * distance * distance};
  }
  sums = lanes_sum<kWidth>(sums);
  const Acc mean_lo = divided(sums.a, count);
  return {base, mean_lo, hw::max_nan(sums.b - sums.a * mean_lo, Acc(0))};
}

// The same where the parts, a power of two, have `own` columns each.
template <int kParts, class Part>
NJ_DEVICE Moments merge_pairs(const Part& part, Acc own) {
  constexpr int kWidth = kParts < kWarp ? kParts : kWarp, kEach = kParts / kWidth;
  static_assert(kWidth * kEach == kParts && (kParts & (kParts - 1)) == 0);
  Moments mine[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) mine[j] = part(j * kWarp + static_cast<int>(threadIdx.x % kWidth));
#pragma unroll
  for (int step = 1; step < kEach; step *= 2)
#pragma unroll
    for (int j = 0; j + step < kEach; j += 2 * step) mine[j] = pair(mine[j], mine[j + step], own * step);
  return lanes_pairs<kWidth>(mine[0], own * kEach);
}

// Of what the block holds, which may be nothing, from all warps' parts: part(i) is that of warp i.
template <class Part>
NJ_DEVICE Moments merge_warps(const Part& part, const Cut& cut) {
  return merge<kWarps>(
      part, [&](int i) { return columns_of_warp(i, cut); }, cut.count > 0 ? cut.count : 1);
}

// What normalizes a row: y = (x - mean) * rstd - mean_lo * rstd.
struct RowStatistics {
  Acc mean, mean_lo, rstd;

  // The same with another mean near it, and the rest that belongs to that.
  NJ_METHOD RowStatistics around(Acc near) const { return {near, (mean - near) + mean_lo, rstd}; }
};

// `share` is 1 / columns.
NJ_DEVICE RowStatistics row_statistics(const Moments& m, Acc share, Acc epsilon) {
  return {m.mean, m.mean_lo, hw::rsqrt(m.m2 * share + epsilon)};
}
NJ_DEVICE RowStatistics row_statistics(const Moments& m) {
  return row_statistics(m, Acc(1) / kColumns, kEpsilon<Acc>);
}

NJ_DEVICE void store(const RowStatistics& s, Acc* mean_out, Acc* rstd_out, long long row) {
  if constexpr (kHasStatistics) {
    mean_out[row] = s.mean + s.mean_lo;
    rstd_out[row] = s.rstd;
  }
}

}  // namespace normjit
