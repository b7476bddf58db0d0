// SPDX-License-Identifier: Apache-2.0
// What is known of some columns of a row, and what normalizes the row: a monoid over the elements. of() makes
// one from elements, merge...() one from several, finalize() the row's RowStatistics. Schedules know no more.
namespace normjit {

enum : bool { kCentred = Norm::chosen == Norm::layer };

// Of gradients, whether the launch has them: as they were written, without mean_lo.
enum : bool { kGivenStatistics = kBackward && kHasStatistics };

// y = (x - mean) * rstd - mean_lo * rstd, or x * rstd where the norm has no mean.
struct RowStatistics {
  Acc mean, mean_lo, rstd;
};
NJ_DEVICE Acc normalized(Acc x, const RowStatistics& s) {
  if constexpr (!kCentred) return x * s.rstd;
  if constexpr (kGivenStatistics) return (x - s.mean) * s.rstd;
  return (x - s.mean) * s.rstd + -s.mean_lo * s.rstd;
}

// ---- Sums over elements ----

// One sum for each place in a vector: kVector short chains of additions instead of a long one. -0 is what
// nothing has to be added to.
template <class T>
struct Chains {
  T at[kVector];

  NJ_METHOD explicit Chains(T none) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) at[i] = none;
  }
  NJ_METHOD T all() {
#pragma unroll
    for (int half = kVector / 2; half > 0; half /= 2)
#pragma unroll
      for (int i = 0; i < half; ++i) at[i] = at[i] + at[i + half];
    return at[0];
  }
};

template <class Elements>
NJ_DEVICE Acc sum(const Elements& elements) {
  Chains<Acc> total(-Acc(0));
  elements.each([&](Acc value, int i) { total.at[i] += value; });
  return total.all();
}

// Sum of the squares of the distances from `mean`.
template <class Elements>
NJ_DEVICE Acc centred_squares(const Elements& elements, Acc mean) {
  Chains<Acc> total(-Acc(0));
  elements.each([&](Acc value, int i) {
    const Acc distance = value - mean;
    total.at[i] += distance * distance;
  });
  return total.all();
}

// And the sum of the distances: a is that, b the squares.
template <class Elements>
NJ_DEVICE Pair centred_sums(const Elements& elements, Acc mean) {
  Chains<Pair> total({-Acc(0), -Acc(0)});
  elements.each([&](Acc value, int i) {
    const Acc distance = value - mean;
    total.at[i] = total.at[i] + Pair{distance, distance * distance};
  });
  return total.all();
}

// a / count. A division would take its slow path along, and a branch: 22 branches in 6232 bf16 columns. The
// reciprocal does not wait for `a`, and one step of correction leaves the last bit in doubt at most.
NJ_DEVICE float reciprocal(float count) { return hw::rcp_approx(count); }
NJ_DEVICE double reciprocal(double count) { return 1 / count; }
NJ_DEVICE Acc divided(Acc a, Acc count) {
  const Acc once = reciprocal(count), about = a * once;
  return hw::fma(hw::fma(-about, count, a), once, about);
}

// ---- Parts that the lanes of a warp take ----

// How kParts parts are dealt to the lanes of a warp.
template <int kParts>
struct Merging {
  enum : int { kWidth = kParts < kWarp && (kParts & (kParts - 1)) == 0 ? kParts : kWarp };
  enum : int { kEach = (kParts + kWarp - 1) / kWarp };  // that a lane takes
};

// ---- Layer normalization ----

// Two sums in double of parts that are merged one after the other: there may be a million of them, and they
// may differ as much as they like.
struct WideSums {
  double distances, squares;
};
NJ_DEVICE WideSums operator+(WideSums a, WideSums b) {
  return {a.distances + b.distances, a.squares + b.squares};
}
NJ_DEVICE WideSums add_from(WideSums sums, int lane_mask) {
  return {add_from(sums.distances, lane_mask), add_from(sums.squares, lane_mask)};
}

NJ_DEVICE Acc median(Acc a, Acc b, Acc c) {
  const Acc low = a < b ? a : b, high = a < b ? b : a;
  return high < c ? high : low < c ? c : low;
}

// Whether the sum of the columns is so good that it tells by itself how the mean was rounded; then the second
// pass need not add the distances, one of its three instructions an element. Of 16 bits it is: where the mean
// is large beside the deviation, the values are multiples of about 2^-11 (bf16: 2^-8) of it, and an f32 adds
// 2^13 (2^16) of them without rounding. Where they are not, the deviation is a part of the mean that is
// large beside what the sum lost, which is 2^-24 of it for each addition of a lane.
enum : bool { kSumsExactly = sizeof(Held) == 2 };

// mean + mean_lo is the mean, m2 the sum of squared distances from it.
//
// Two passes over data on chip: a first mean, then sums of the distances from it. The second pass also tells
// by how much the first mean was rounded, so the mean is known to about twice the precision of Acc, and the
// variance does not suffer from a large offset. E[x^2] - E[x]^2 would.
struct Moments {
  Acc mean, mean_lo, m2;

  // Of `own` columns: the elements of kWidth neighbouring lanes together.
  template <int kWidth, class Elements>
  static NJ_METHOD Moments of(const Elements& elements, Acc own) {
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

  // Of two parts, of na and nb columns, by Chan's formula; both may be none.
  static NJ_METHOD Moments merge(const Moments& a, Acc na, const Moments& b, Acc nb) {
    if (nb == 0) return a;
    if (na == 0) return b;
    const Acc distance = (b.mean - a.mean) + (b.mean_lo - a.mean_lo), share = divided(nb, na + nb);
    return {a.mean, a.mean_lo + distance * share, a.m2 + b.m2 + distance * distance * na * share};
  }

  // Of two parts of `own` columns each: the mean between them, and what its rounding lacks. Relative to one
  // of them, a part with an outlier would leave a large mean_lo, and its rounding in all that follow.
  static NJ_METHOD Moments merge_equal(const Moments& a, const Moments& b, Acc own) {
    const Acc mean = a.mean / 2 + b.mean / 2, lacks = (a.mean - mean) + (b.mean - mean);
    const Acc distance = (b.mean - a.mean) + (b.mean_lo - a.mean_lo);
    return {mean, ((a.mean_lo + b.mean_lo) + lacks) / 2, (a.m2 + b.m2) + distance * distance * (own / 2)};
  }

  // Of `count` columns from kParts parts of them: part(i), of own(i) columns, some perhaps none. Relative to
  // a mean that is typical of them, so that the distances are small: one of the parts at the ends may be
  // short, and then far off by one outlier. Distances from it and their squares are added at the same time:
  // the exchanges that follow each other are seven, not fifteen. A warp calls this; all lanes get the same.
  template <int kParts, class Part, class Own>
  static NJ_METHOD Moments merge_all(const Part& part, const Own& own, Acc count) {
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

  // About where the elements are.
  NJ_METHOD double centre() const { return mean; }
  // Of many parts, in double: what each part of `own` columns adds to the sums, relative to a mean near
  // theirs; and what they all make, of `count` columns.
  NJ_METHOD WideSums widened(double own, double base) const {
    const double distance = (mean - base) + mean_lo;
    return {own * distance, m2 + own * distance * distance};
  }
  static NJ_METHOD Moments from(const WideSums& sums, double base, double count) {
    const double mean_lo = sums.distances / count;
    const Acc mean = static_cast<Acc>(base + mean_lo);
    return {mean, static_cast<Acc>((base - mean) + mean_lo),
            hw::max_nan(static_cast<Acc>(sums.squares - sums.distances * mean_lo), Acc(0))};
  }

  // That of the lane whose number differs by these bits.
  NJ_METHOD Moments exchanged(int lane_mask) const {
    return {hw::shuffle_xor(mean, lane_mask), hw::shuffle_xor(mean_lo, lane_mask),
            hw::shuffle_xor(m2, lane_mask)};
  }

  // `share` is 1 / columns.
  NJ_METHOD RowStatistics finalize(Acc share, Acc epsilon) const {
    return {mean, mean_lo, hw::rsqrt(m2 * share + epsilon)};
  }
  // The row's, around the mean of this part of it, the distances from which are known.
  NJ_METHOD RowStatistics around(const RowStatistics& row) const {
    return {mean, (row.mean - mean) + row.mean_lo, row.rstd};
  }
};

// ---- RMS normalization ----

struct SumOfSquares {
  Acc squares;

  template <int kWidth, class Elements>
  static NJ_METHOD SumOfSquares of(const Elements& elements, Acc) {
    Chains<Acc> total(-Acc(0));
    elements.each([&](Acc value, int i) { total.at[i] += value * value; });
    return {lanes_sum<kWidth>(total.all())};
  }
  static NJ_METHOD SumOfSquares merge(const SumOfSquares& a, Acc, const SumOfSquares& b, Acc) {
    return {a.squares + b.squares};
  }
  static NJ_METHOD SumOfSquares merge_equal(const SumOfSquares& a, const SumOfSquares& b, Acc) {
    return {a.squares + b.squares};
  }
  template <int kParts, class Part, class Own>
  static NJ_METHOD SumOfSquares merge_all(const Part& part, const Own&, Acc) {
    constexpr int kWidth = Merging<kParts>::kWidth;
    Acc squares = 0;
#pragma unroll
    for (int j = 0; j < Merging<kParts>::kEach; ++j) {
      const int i = j * kWarp + static_cast<int>(threadIdx.x % kWidth);
      if (kParts % kWidth == 0 || i < kParts) squares += part(i).squares;
    }
    return {lanes_sum<kWidth>(squares)};
  }
  NJ_METHOD double centre() const { return 0; }
  NJ_METHOD WideSums widened(double, double) const { return {0, squares}; }
  static NJ_METHOD SumOfSquares from(const WideSums& sums, double, double) {
    return {static_cast<Acc>(sums.squares)};
  }
  NJ_METHOD SumOfSquares exchanged(int lane_mask) const { return {hw::shuffle_xor(squares, lane_mask)}; }
  NJ_METHOD RowStatistics finalize(Acc share, Acc epsilon) const {
    return {0, 0, hw::rsqrt(squares * share + epsilon)};
  }
  NJ_METHOD RowStatistics around(const RowStatistics& row) const { return row; }
};

using Statistics = Choice<kCentred, Moments, SumOfSquares>;

// ---- Of either ----

NJ_DEVICE RowStatistics finalize(const Statistics& s) { return s.finalize(Acc(1) / kColumns, kEpsilon<Acc>); }

// Of kWidth neighbouring lanes, which have `own` columns each. Five exchanges follow each other in a warp,
// not the ten of a sum and then a sum of distances: 1 x 4096 f16 1.98 us, and 2.06 us so; but with more
// instructions. All lanes get the same.
template <int kWidth>
NJ_DEVICE Statistics merge_lanes(Statistics s, Acc own) {
#pragma unroll
  for (int mask = 1; mask < kWidth; mask *= 2) s = Statistics::merge_equal(s, s.exchanged(mask), own * mask);
  return s;
}

// Of parts, a power of two of them, that have `own` columns each: part(i). A warp calls this, and all its
// lanes get the same.
template <int kParts, class Part>
NJ_DEVICE Statistics merge_equal_parts(const Part& part, Acc own) {
  constexpr int kWidth = kParts < kWarp ? kParts : kWarp, kEach = kParts / kWidth;
  static_assert(kWidth * kEach == kParts && (kParts & (kParts - 1)) == 0);
  Statistics mine[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) mine[j] = part(j * kWarp + static_cast<int>(threadIdx.x % kWidth));
#pragma unroll
  for (int step = 1; step < kEach; step *= 2)
#pragma unroll
    for (int j = 0; j + step < kEach; j += 2 * step)
      mine[j] = Statistics::merge_equal(mine[j], mine[j + step], own * step);
  return merge_lanes<kWidth>(mine[0], own * kEach);
}

}  // namespace normjit
