// SPDX-License-Identifier: Apache-2.0
// The gradients of a norm: of dx an element, with what it needs of its row; of weight and bias what a thread
// adds up over rows. With n = (s - mean) * rstd, a = n * weight + bias, m = a * factor + shift,
// d = dy * scale * activation'(m), da = d * factor and g = da * weight
//   ds = rstd * (g - mean of g - n * mean of g * n) + dsum,  dweight = sum of da * n,  dbias = sum of da
// and the mean of g counts only where the norm has a mean. s is x, and dx is ds, but for a gate before the
// norm:
//   s = x * f(gate),  dx = ds * f(gate),  dgate = ds * x * f'(gate)
// A gate behind the norm multiplies dy, and dgate = dy * scale * a * f'(gate).
// factor is the scale of a modulation, or 1 more. dmod_scale = d * a and dmod_shift = d, of each row, or
// their sums over the rows that share scale and shift. Of these rows it is enough to add d and d * n: the
// sums of d * a, da and da * n follow from them.
//
// What is not needed is neither computed nor written: without dx no sums of g.
//
// The statistics are computed again, from x on chip, and all sums of a row are known after one exchange: the
// products with g are taken with the distances from the mean of the warp's own columns, and moved to the
// row's mean with what is exchanged. They keep their precision under a large offset, as the variance does.
// Behind an activation g needs n (kWeighs). Then the statistics are exchanged first, and the sums of g and
// of its products with n afterwards, which need not be moved. Where the statistics are given
// (kGivenStatistics), these two sums are all that is exchanged of a row, with or without an activation.
namespace normjit {

static_assert(kBackward && !kChannelsFirst && !kUnaligned);

// Sums over rows: of dweight, then of dbias. Where rows may share scale and shift, also of dmod_scale and
// dmod_shift over these rows.
enum : bool { kWritesDmod = kModulates && kWritesDx, kMaySumGroups = kWritesDmod && kGroupedRows };
enum : int { kSums = kWritesDweight + kWritesDbias, kGroupSums = kMaySumGroups ? 1 + kShifts : 0 };
// What a thread adds up for them: da * n, then da. Of rows that share scale and shift d in place of da.
enum : bool {
  kAddsProducts = kWritesDweight || kMaySumGroups,
  kAddsGradients = kWritesDbias || (kMaySumGroups && (kShifts || kHasBias))
};
enum : int { kHeldSums = kAddsProducts + kAddsGradients, kSumPlaces = kHeldSums > 0 ? kHeldSums : 1 };
enum : int { kElements = kPerThread * kVector };  // of a row, that a thread holds
enum : bool { kActivates = Activation::chosen != Activation::none };
enum : bool { kWeighs = kActivates && kWritesDx && !kGivenStatistics, kMeasuresG = kWritesDx && !kWeighs };
enum : bool { kExchanges = kMeasuresG || !kGivenStatistics };  // something of a row, before it is written
enum : bool { kHasGate = GateAt::chosen != GateAt::none };

// What is normalized, of an element; and the gradient that arrives at the affine, in front of scale and
// activation.
NJ_DEVICE Acc normalizes(const Vec<Input>& x, const Vec<Mod>& gate, int i) {
  if constexpr (!kGatesX) return widen(x, i);
  return widen(x, i) * through<GateFunction::chosen>(widen(gate, i));
}
NJ_DEVICE Acc arrives(const Vec<Output>& dy, const Vec<Mod>& gate, int i) {
  if constexpr (!kGatesResult) return widen(dy, i);
  return widen(dy, i) * through<GateFunction::chosen>(widen(gate, i));
}

// The part of a row that a thread holds in registers, as it was loaded. Other parts may read a vector as it
// is asked for: they have the same functions.
struct GradientPart {
  RowStatistics given;  // of the row, where they are
  Vec<Input> x[kPerThread];
  Vec<Output> dy[kPerThread];
  Vec<Residual> dsum[kAddsDsum ? kPerThread : 1];
  Vec<Mod> gate[kHasGate ? kPerThread : 1];

  NJ_METHOD Vec<Input>& x_of(int k) { return x[k]; }
  NJ_METHOD Vec<Output>& dy_of(int k) { return dy[k]; }
  NJ_METHOD Vec<Residual>& dsum_of(int k) { return dsum[k]; }
  NJ_METHOD Vec<Mod>& gate_of(int k) { return gate[kHasGate ? k : 0]; }
};
// The statistics of a row, where they are given. (A template, since Operands has only what the spec has.)
template <class Any>
NJ_DEVICE RowStatistics given_statistics(const Any& on, long long row) {
  RowStatistics given = {};
  if constexpr (kGivenStatistics && kCentred) given.mean = on.saved_mean[row];
  if constexpr (kGivenStatistics) given.rstd = on.saved_rstd[row];
  return given;
}
// `begin` is the first column of what the threads hold, lane 0's first.
template <hw::Cache kCache, class Any>
NJ_DEVICE void load(GradientPart& part, const Any& on, long long row, long long begin, int lane,
                    const Cut& cut) {
  part.given = given_statistics(on, row);
  const Input* const x = first_of(on.x + begin_of(on.x_rows, row) + begin, lane);
  const Output* const dy = first_of(on.dy + begin_of(on.dy_rows, row) + begin, lane);
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, cut)) part.x[k] = load<kCache>(at(x, k, 0));
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, cut)) part.dy[k] = load<kCache>(at(dy, k, 0));
  if constexpr (kHasGate) {
    const Mod* const gate = first_of(on.gate + begin_of(on.gate_rows, row) + begin, lane);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut)) part.gate[k] = load<kCache>(at(gate, k, 0));
  }
}

// The same of dsum, where the spec has it, which is needed last.
template <class Any>
NJ_DEVICE void load_dsum(GradientPart& part, const Any& on, long long row, long long begin, int lane,
                         const Cut& cut) {
  if constexpr (kAddsDsum) {
    const Residual* const dsum = first_of(on.dsum + begin_of(on.dsum_rows, row) + begin, lane);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut)) part.dsum[k] = load<hw::Cache::evict_first>(at(dsum, k, 0));
  }
}

// The weights and biases of those columns, and the modulation of a row of them, as they were loaded, where
// they are needed.
enum : bool {
  kNeedsArgument = kActivates || kWritesDmod || (kGatesResult && kWritesDx),
  kNeedsWeight = kHasWeight && (kActivates || kWritesDx),
  kNeedsBias = kHasBias && kNeedsArgument,
  kNeedsShift = kShifts && kActivates
};
struct GradientWeights {
  Vec<Weight> at[kNeedsWeight ? kPerThread : 1];
  Vec<Weight> bias[kNeedsBias ? kPerThread : 1];
  Vec<Mod> scale[kModulates ? kPerThread : 1], shift[kNeedsShift ? kPerThread : 1];
  Vec<Weight> scale_table[kHasScaleTable ? kPerThread : 1];
  Vec<Weight> shift_table[kNeedsShift && kHasShiftTable ? kPerThread : 1];

  // Of element i of vector k, what n or da is multiplied by.
  NJ_METHOD Acc times(Acc value, int k, int i) const {
    if constexpr (!kNeedsWeight) return value;
    const Acc weight = widen(at[kNeedsWeight ? k : 0], i);
    return value * (kWeightOffset ? weight + Acc(1) : weight);
  }
  // What the affine makes of n.
  NJ_METHOD Acc affine(Acc n, int k, int i) const {
    const Acc weighted = times(n, k, i);
    if constexpr (!kNeedsBias) return weighted;
    return weighted + widen(bias[kNeedsBias ? k : 0], i);
  }
  // What a modulation multiplies by, that or its gradient.
  NJ_METHOD Acc modulates(Acc value, int k, int i) const {
    if constexpr (!kModulates) return value;
    Acc factor = widen(scale[kModulates ? k : 0], i);
    if constexpr (kHasScaleTable) factor += widen(scale_table[kHasScaleTable ? k : 0], i);
    return value * (kPlainModulation ? factor : factor + Acc(1));
  }
  // What it makes of that: the argument of the activation.
  NJ_METHOD Acc argument(Acc n, int k, int i) const {
    Acc modulated = modulates(affine(n, k, i), k, i);
    if constexpr (kNeedsShift) modulated += widen(shift[kNeedsShift ? k : 0], i);
    if constexpr (kNeedsShift && kHasShiftTable)
      modulated += widen(shift_table[kNeedsShift && kHasShiftTable ? k : 0], i);
    return modulated;
  }
  // Its gradient, d, from what arrives.
  NJ_METHOD Acc behind(Acc dy, Acc n, int k, int i) const {
    if constexpr (kScale<Acc> != Acc(1)) dy *= kScale<Acc>;
    if constexpr (!kActivates) return dy;
    return gradient_through<Activation::chosen>(dy, argument(n, k, i));
  }
};
template <class Any>
NJ_DEVICE void load(GradientWeights& weights, const Any& on, long long begin, int lane, const Cut& cut) {
  if constexpr (kNeedsWeight) {
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut)) weights.at[k] = load<hw::Cache::keep>(at(on.weight + begin, k, lane));
  }
  if constexpr (kNeedsBias) {
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut)) weights.bias[k] = load<hw::Cache::keep>(at(on.bias + begin, k, lane));
  }
}

// The modulation of a row.
template <class Any>
NJ_DEVICE void load_modulation(GradientWeights& weights, const Any& on, long long row, long long begin,
                               int lane, const Cut& cut) {
  if constexpr (kModulates) {
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut)) {
        weights.scale[k] =
            load<hw::Cache::keep>(at(on.mod_scale + begin_of(on.mod_scale_rows, row) + begin, k, lane));
        if constexpr (kHasScaleTable)
          weights.scale_table[k] = load<hw::Cache::keep>(at(on.mod_scale_table + begin, k, lane));
        if constexpr (kNeedsShift)
          weights.shift[k] =
              load<hw::Cache::keep>(at(on.mod_shift + begin_of(on.mod_shift_rows, row) + begin, k, lane));
        if constexpr (kNeedsShift && kHasShiftTable)
          weights.shift_table[k] = load<hw::Cache::keep>(at(on.mod_shift_table + begin, k, lane));
      }
  }
}

// ---- Sums over a row ----

// Of some columns, with their distances from a mean of about theirs: of the squares of the distances, of g,
// of the products of g with the distances, and of the distances. Without a mean the distances are x, and two
// of these are not needed. Behind an activation the products are those of g with n (gd); so they are where
// the statistics are given, and only the two sums with g are needed.
struct GradientSums {
  Acc squares, g, gd, distances;
};
NJ_DEVICE GradientSums operator+(const GradientSums& a, const GradientSums& b) {
  return {a.squares + b.squares, a.g + b.g, a.gd + b.gd, a.distances + b.distances};
}
NJ_DEVICE GradientSums add_from(const GradientSums& sums, int lane_mask) {
  return {kGivenStatistics ? Acc(0) : add_from(sums.squares, lane_mask),
          kCentred ? add_from(sums.g, lane_mask) : Acc(0), add_from(sums.gd, lane_mask),
          kCentred && !kGivenStatistics ? add_from(sums.distances, lane_mask) : Acc(0)};
}
// Over the lanes of a warp. Every eighth lane from 0 on gets one of the four sums, in their order: half of
// the exchanges that it takes to give all of them to all lanes.
NJ_DEVICE Acc scattered_sum(const GradientSums& sums) {
  const bool upper = threadIdx.x % 32 >= 16, odd = threadIdx.x % 16 >= 8;
  Acc own = upper ? sums.gd : sums.squares;
  own += hw::shuffle_xor(upper ? sums.squares : sums.gd, 16);
  if constexpr (kCentred) {
    Acc other = upper ? sums.distances : sums.g;
    other += hw::shuffle_xor(upper ? sums.g : sums.distances, 16);
    const Acc given = odd ? own : other;
    own = (odd ? other : own) + hw::shuffle_xor(given, 8);
  } else {
    own = add_from(own, 8);
  }
  return add_from(add_from(add_from(own, 4), 2), 1);
}

struct RowSums {
  GradientSums sums;
  Acc mean;
};

// The elements that are normalized.
template <class Part>
struct XElements {
  Part& part;
  int lane;
  Cut cut;

  template <class Take>
  NJ_METHOD void each(const Take& take) const {
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut)) {
        auto&& x = part.x_of(k);
        auto&& gate = part.gate_of(k);
#pragma unroll
        for (int i = 0; i < kVector; ++i) take(normalizes(x, gate, i), i);
        hw::opaque(x);
        if constexpr (kGatesX) hw::opaque(gate);
      }
  }
};

// The mean of `own` columns, the elements of kWidth neighbouring lanes together, and the sum of their
// distances from it, as far as it is known by then (kSumsExactly).
struct FirstPass {
  Acc mean, distances;
};
template <int kWidth, class Part>
NJ_DEVICE FirstPass mean_of(Part& part, int lane, const Cut& cut, Acc own) {
  if constexpr (!kCentred) return {0, 0};
  const Acc total = lanes_sum<kWidth>(sum(XElements<Part>{part, lane, cut}));
  const Acc mean = divided(total, own);
  return {mean, hw::fma(-own, mean, total)};
}
// What a lane has of the sums; behind an activation without those of g.
template <class Part>
NJ_DEVICE GradientSums sums_of(Part& part, const GradientWeights& weights, Acc mean, int lane,
                               const Cut& cut) {
  GradientSums sums[2] = {};  // two chains of additions each: several sums are under way at once
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, cut)) {
      auto&& x = part.x_of(k);
      auto&& dy = part.dy_of(k);
      auto&& gate = part.gate_of(k);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const Acc s = normalizes(x, gate, i), distance = kCentred ? s - mean : s;
        Acc g = 0;
        if constexpr (kMeasuresG)
          g = weights.times(weights.modulates(weights.behind(arrives(dy, gate, i), 0, k, i), k, i), k, i);
        GradientSums& to = sums[i % 2];
        to.squares += distance * distance;
        if constexpr (kMeasuresG) to.gd += g * distance;
        if constexpr (kCentred && kMeasuresG) to.g += g;
        if constexpr (kCentred && !kSumsExactly) to.distances += distance;
      }
      hw::opaque(x);
      hw::opaque(dy);
      if constexpr (kHasGate) hw::opaque(gate);
    }
  return sums[0] + sums[1];
}
// These sums of a warp, as they lie in shared memory: one access moves both.
struct alignas(2 * sizeof(Acc)) Weighed {
  Pair of;
};
// What a lane has of the sums of g and of g * n, for which n must be known. Each element of d is given away:
// keep(element, d).
template <class Part, class Keep>
NJ_DEVICE Pair weigh(Part& part, const GradientWeights& weights, const RowStatistics& statistics, int lane,
                     const Cut& cut, const Keep& keep) {
  Pair sums[2] = {};
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, cut)) {
      auto&& x = part.x_of(k);
      auto&& dy = part.dy_of(k);
      auto&& gate = part.gate_of(k);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const Acc n = normalized(normalizes(x, gate, i), statistics);
        const Acc d = weights.behind(arrives(dy, gate, i), n, k, i), da = weights.modulates(d, k, i);
        const Acc g = weights.times(da, k, i);
        keep(k * kVector + i, d);
        if constexpr (kCentred) sums[i % 2].a += g;
        sums[i % 2].b += g * n;
      }
      hw::opaque(x);
      hw::opaque(dy);
      if constexpr (kHasGate) hw::opaque(gate);
    }
  return sums[0] + sums[1];
}

// The same, as sums that are exchanged alone, where the statistics are given.
template <class Part, class Keep>
NJ_DEVICE GradientSums weigh_given(Part& part, const GradientWeights& weights, int lane, const Cut& cut,
                                   const Keep& keep) {
  if constexpr (!kMeasuresG) return {};
  const Pair weighed = weigh(part, weights, part.given, lane, cut, keep);
  return {0, weighed.a, weighed.b, 0};
}
struct KeepNothing {
  NJ_METHOD void operator()(int, Acc) const {}
};

// Of the columns of kWidth neighbouring lanes, of which there are `own`. All lanes get the same. `keep` as
// above, where the statistics are given.
template <int kWidth, class Part, class Keep = KeepNothing>
NJ_DEVICE RowSums measure(Part& part, const GradientWeights& weights, int lane, const Cut& cut, Acc own,
                          const Keep& keep = {}) {
  if constexpr (kGivenStatistics) return {lanes_sum<kWidth>(weigh_given(part, weights, lane, cut, keep)), 0};
  const FirstPass first = mean_of<kWidth>(part, lane, cut, own);
  RowSums row = {lanes_sum<kWidth>(sums_of(part, weights, first.mean, lane, cut)), first.mean};
  if constexpr (kSumsExactly) row.sums.distances = first.distances;
  return row;
}
// Those of a warp, which writes them to `to`: from what each lane has of the sums.
NJ_DEVICE void store_warp(const GradientSums& sums, const FirstPass& first, int lane, RowSums& to) {
  const Acc sum = scattered_sum(sums);
  if (lane % 8 == 0) {
    const int number = lane % kWarp / 8;
    reinterpret_cast<Acc*>(&to.sums)[number] = kSumsExactly && number == 3 ? first.distances : sum;
  }
  if (lane % kWarp == 0) to.mean = first.mean;
}
template <class Part>
NJ_DEVICE FirstPass mean_of_warp(Part& part, int lane, const Cut& cut) {
  const int own = columns_of_warp(lane / kWarp, cut);
  return mean_of<kWarp>(part, lane, cut, own > 0 ? own : 1);
}
// Measures the columns of a warp. Returns their mean. `keep` as above.
template <class Part, class Keep = KeepNothing>
NJ_DEVICE Acc measure_warp(Part& part, const GradientWeights& weights, int lane, const Cut& cut, RowSums& to,
                           const Keep& keep = {}) {
  if constexpr (kGivenStatistics) {
    store_warp(weigh_given(part, weights, lane, cut, keep), FirstPass{}, lane, to);
    return 0;
  }
  const FirstPass first = mean_of_warp(part, lane, cut);
  store_warp(sums_of(part, weights, first.mean, lane, cut), first, lane, to);
  return first.mean;
}

// What dx of a row is made of: its statistics, and rstd times the means of g and of g * n.
struct RowGradient {
  RowStatistics statistics;
  Acc g, gn;

  // The row's, around the mean of this part of it, the distances from which are known.
  NJ_METHOD RowGradient around(Acc mean) const {
    if constexpr (kGivenStatistics) return *this;
    const RowStatistics& s = statistics;
    return {RowStatistics{mean, (s.mean - mean) + s.mean_lo, s.rstd}, g, gn};
  }
  NJ_METHOD Acc dx(Acc g_of_element, Acc n) const {
    return hw::fma(-n, gn,
                   kCentred ? hw::fma(g_of_element, statistics.rstd, -g) : g_of_element * statistics.rstd);
  }
};
// From the sums of all columns: the statistics, unless they are given, and the rest.
NJ_DEVICE RowStatistics statistics_of(const RowSums& row, const RowStatistics& given) {
  constexpr Acc kShare = Acc(1) / kColumns;
  if constexpr (kGivenStatistics) return given;
  const GradientSums& sums = row.sums;
  if constexpr (!kCentred) return SumOfSquares{sums.squares}.finalize(kShare, kEpsilon<Acc>);
  const Acc mean_lo = divided(sums.distances, kColumns);
  return Moments{row.mean, mean_lo, hw::max_nan(sums.squares - sums.distances * mean_lo, Acc(0))}.finalize(
      kShare, kEpsilon<Acc>);
}
NJ_DEVICE RowGradient gradient_of(const RowStatistics& s, const GradientSums& sums) {
  constexpr Acc kShare = Acc(1) / kColumns;
  if constexpr (!kWritesDx) return {s, 0, 0};
  if constexpr (kWeighs || kGivenStatistics)
    return {s, s.rstd * (sums.g * kShare), s.rstd * (sums.gd * kShare)};
  Acc gd = sums.gd;
  if constexpr (kCentred) gd -= sums.g * s.mean_lo;
  return {s, s.rstd * (sums.g * kShare), s.rstd * (s.rstd * (gd * kShare))};
}
NJ_DEVICE RowGradient gradient_of(const RowSums& row, const RowStatistics& given) {
  return gradient_of(statistics_of(row, given), row.sums);
}
// From the statistics, and the sums of weigh().
NJ_DEVICE RowGradient gradient_of(const RowStatistics& s, const Pair& weighed) {
  return gradient_of(s, GradientSums{0, weighed.a, weighed.b, 0});
}

// The sums of so many columns, with the distances from another mean, which is so far below theirs.
template <class T>
NJ_DEVICE T moved(const T& sums, decltype(T::g) own, decltype(T::g) apart) {
  // Of an infinite row, 0 times its sums would be NaN.
  if constexpr (!kCentred || kGivenStatistics) return sums;
  return {sums.squares + apart * (2 * sums.distances + own * apart), sums.g,
          kWeighs ? sums.gd : sums.gd + sums.g * apart, sums.distances + own * apart};
}

// Of all columns from kParts parts of them: part(i), of own(i) columns, some perhaps none. As
// Moments::merge_all(): relative to a mean that is typical of the parts. A warp calls this; all lanes get the
// same.
template <int kParts, class Part, class Own>
NJ_DEVICE RowSums merge_all(const Part& part, const Own& own) {
  constexpr int kWidth = Merging<kParts>::kWidth, kEach = Merging<kParts>::kEach;
  constexpr int kLast = (kParts < kWidth ? kParts : kWidth) - 1;
  RowSums mine[kEach];
  Acc columns[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = j * kWarp + static_cast<int>(threadIdx.x % kWidth);
    const bool there = kParts % kWidth == 0 || i < kParts;
    mine[j] = there ? part(i) : RowSums{};
    columns[j] = there ? Acc(own(i)) : Acc(0);
  }
  Acc base = 0;
  if constexpr (kCentred && !kGivenStatistics) {
    const int group = static_cast<int>(threadIdx.x % kWarp) / kWidth * kWidth;
    const Acc first = hw::shuffle(mine[0].mean, group), mean = columns[0] > 0 ? mine[0].mean : first;
    base = median(first, hw::shuffle(mean, group + (kLast + 1) / 2), hw::shuffle(mean, group + kLast));
  }
  GradientSums all = {};
#pragma unroll
  for (int j = 0; j < kEach; ++j)
    all = all + moved(mine[j].sums, columns[j], columns[j] > 0 ? mine[j].mean - base : Acc(0));
  return {lanes_sum<kWidth>(all), base};
}

// ---- Sums over rows ----

// What a thread has added up of its columns over the rows so far.
struct ColumnSums {
  Acc of[kSumPlaces][kElements];

  NJ_METHOD void add(int e, Acc da, Acc n) {
    if constexpr (kAddsProducts) of[0][e] += da * n;
    if constexpr (kAddsGradients) of[kAddsProducts][e] += da;
  }
};

// Of the sums that a thread holds, the one for sum s.
NJ_DEVICE int held_sum(int s) { return kWritesDweight && s == 0 ? 0 : kAddsProducts; }

// Where the gradient of sum s is written.
template <class Any>
NJ_DEVICE Gradient* gradient_at(const Any& on, int s) {
  if constexpr (kWritesDbias)
    if (s >= kWritesDweight) return on.dbias;
  if constexpr (kWritesDweight) return on.dweight;
  return nullptr;
}

// d as the schedule kept it.
struct KeptGradients {
  const Acc (&of)[kElements];

  NJ_METHOD Acc behind(Acc, Acc, int k, int i) const { return of[k * kVector + i]; }
};

// Writes dx, dgate and the gradients of the modulation of the part of a row, and adds to the sums over rows.
// With `sums_groups` the latter gradients are sums, too, of which d and d * n are added.
template <class Part, class Gradients, class Any>
NJ_DEVICE void write(Part& part, const GradientWeights& weights, const Gradients& gradients,
                     const RowGradient& row, const Any& on, long long number, long long begin, int lane,
                     const Cut& cut, ColumnSums& sums, bool sums_groups = false) {
  Input* to = nullptr;
  Mod *gate_to = nullptr, *scale_to = nullptr, *shift_to = nullptr;
  if constexpr (kWritesDx) to = first_of(on.dx + begin_of(on.dx_rows, number) + begin, lane);
  if constexpr (kWritesDx && kHasGate)
    gate_to = first_of(on.dgate + begin_of(on.dgate_rows, number) + begin, lane);
  if constexpr (kWritesDmod)
    scale_to = first_of(on.dmod_scale + begin_of(on.dmod_scale_rows, number) + begin, lane);
  if constexpr (kWritesDmod && kShifts)
    shift_to = first_of(on.dmod_shift + begin_of(on.dmod_shift_rows, number) + begin, lane);
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, cut)) {
      const Vec<Input> x = part.x_of(k);
      const Vec<Output> dy_of_vector = part.dy_of(k);
      Vec<Residual> dsum;
      if constexpr (kAddsDsum) dsum = part.dsum_of(k);
      Vec<Mod> gate, dgate, dscale, dshift;
      if constexpr (kHasGate) gate = part.gate_of(k);
      Vec<Input> dx;
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        Acc s = widen(x, i), dy = widen(dy_of_vector, i);
        Gated of_gate = {1, 0};
        if constexpr (kHasGate) of_gate = gated<GateFunction::chosen>(widen(gate, i));
        if constexpr (kGatesX) s *= of_gate.factor;
        const Acc n = normalized(s, row.statistics);
        const Acc d = gradients.behind(kGatesResult ? dy * of_gate.factor : dy, n, k, i);
        const Acc da = weights.modulates(d, k, i);
        if constexpr (kWritesDx) {
          Acc v = row.dx(weights.times(da, k, i), n);
          if constexpr (kAddsDsum) v += widen(dsum, i);
          if constexpr (kGatesX) {
            dgate.at[i] = narrow<Mod>(v * widen(x, i) * of_gate.slope);
            v *= of_gate.factor;
          }
          if constexpr (kGatesResult)
            dgate.at[i] =
                narrow<Mod>(weights.behind(dy, n, k, i) * weights.argument(n, k, i) * of_gate.slope);
          if constexpr (kWritesDmod) dscale.at[i] = narrow<Mod>(d * weights.affine(n, k, i));
          if constexpr (kWritesDmod && kShifts) dshift.at[i] = narrow<Mod>(d);
          dx.at[i] = narrow<Input>(v);
        }
        sums.add(k * kVector + i, kMaySumGroups && sums_groups ? d : da, n);
      }
      if constexpr (kWritesDx) store(at(to, k, 0), dx);
      if constexpr (kWritesDx && kHasGate) store(at(gate_to, k, 0), dgate);
      if (kMaySumGroups && sums_groups) continue;
      if constexpr (kWritesDmod) store(at(scale_to, k, 0), dscale);
      if constexpr (kWritesDmod && kShifts) store(at(shift_to, k, 0), dshift);
    }
}
template <class Part, class Any>
NJ_DEVICE void write(Part& part, const GradientWeights& weights, const RowGradient& row, const Any& on,
                     long long number, long long begin, int lane, const Cut& cut, ColumnSums& sums,
                     bool sums_groups = false) {
  write(part, weights, weights, row, on, number, begin, lane, cut, sums, sums_groups);
}

// ---- Rows that share scale and shift ----

// Of a column, the sums of d * n and of d over such rows, the first of which is `row`. What follows for sum s
// over all rows is given away: add(s, value).
struct GroupSums {
  Acc products, gradients;

  template <class Any, class Add>
  NJ_METHOD void each_sum(const Any& on, long long row, int column, const Add& add) const {
    if constexpr (kSums > 0) {
      Acc factor = widen(on.mod_scale[begin_of(on.mod_scale_rows, row) + column]);
      if constexpr (kHasScaleTable) factor += widen(on.mod_scale_table[column]);
      if constexpr (!kPlainModulation) factor += Acc(1);
#pragma unroll
      for (int s = 0; s < kSums; ++s) add(s, factor * (kWritesDweight && s == 0 ? products : gradients));
    }
  }
  // The gradient of the scale; that of the shift is `gradients`.
  template <class Any>
  NJ_METHOD Acc of_scale(const Any& on, int column) const {
    Acc scale = products;
    if constexpr (kHasWeight)
      scale *= kWeightOffset ? widen(on.weight[column]) + Acc(1) : widen(on.weight[column]);
    if constexpr (kHasBias) scale += widen(on.bias[column]) * gradients;
    return scale;
  }
};
template <class Any>
NJ_DEVICE void write_dmod(const Any& on, long long row, int column, Acc scale, Acc shift) {
  on.dmod_scale[begin_of(on.dmod_scale_rows, row) + column] = narrow<Mod>(scale);
  if constexpr (kShifts) on.dmod_shift[begin_of(on.dmod_shift_rows, row) + column] = narrow<Mod>(shift);
}

// ---- The workspace ----

// Behind what all kernels share, `parts` rows of sums for dweight, and as many for dbias and each further
// sum: where one begins.
NJ_DEVICE long long row_of_sums(int s, long long parts, long long part) {
  return (s * parts + part) * kColumns;
}

// Adds what a thread has of some columns to a row of sums, or begins it.
NJ_DEVICE void add_to(Acc* to, const Acc (&sums)[kElements], bool begins, int lane, const Cut& cut) {
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, cut)) {
      Vec<Acc> all = {};
      if (!begins) all = load<hw::Cache::no_l1>(to + column(k, lane));
#pragma unroll
      for (int i = 0; i < kVector; ++i) all.at[i] += sums[k * kVector + i];
      store(to + column(k, lane), all);
    }
}

// All blocks meet: each arrives at the meeting of a number, from 1 on, and waits until all have. What they
// wrote before is visible then. A block may arrive at the next meeting before it waits for one, so that two
// are under way; each has a counter, which the meeting two before it has left full. All blocks are resident.
// The whole block calls these.
NJ_DEVICE unsigned long long* counter_of(Header& header, unsigned long long number) {
  return number % 2 == 1 ? &header.finished_blocks : &header.largest;
}
NJ_DEVICE void arrive_at_meeting(Header& header, unsigned long long number) {
  hw::block_barrier();
  if (threadIdx.x == 0) hw::arrive(counter_of(header, number));
}
NJ_DEVICE void wait_for_meeting(Header& header, unsigned long long number) {
  if (threadIdx.x == 0) hw::wait_until(counter_of(header, number), (number + 1) / 2 * gridDim.x);
  hw::block_barrier();
}
// One thread of each block leaves behind the last meeting, and the last one to leave makes the workspace
// ready for the next launch. In between the block works: the answer to its leave takes a while.
NJ_DEVICE unsigned long long begin_to_leave(Header& header) { return hw::arrive(&header.next_ticket); }
NJ_DEVICE void end_leave(Header& header, unsigned long long left_before) {
  if (left_before + 1 < gridDim.x) return;
  header.next_ticket = header.finished_blocks = 0;
  header.largest = 0;
}

// Sums of some columns, as a thread adds them: of up to 16 bytes, as the columns are a multiple of.
enum : int {
  kMostWide = 16 / sizeof(Acc),
  kWide = kColumns % kMostWide == 0            ? kMostWide
          : kMostWide > 2 && kColumns % 2 == 0 ? 2
                                               : 1
};
struct alignas(kWide * sizeof(Acc)) WideSum {
  Acc at[kWide];

  NJ_METHOD void add(const WideSum& other) {
#pragma unroll
    for (int i = 0; i < kWide; ++i) at[i] += other.at[i];
  }
};

// Parts that a thread asks for at once, since each takes as long as L2 does to answer. One after the other,
// 132 parts of 768 columns took 3.5 us.
enum : int { kAsked = 16 };

// Adds all parts, always in the same order, and writes the gradients of weight and bias. Blocks share the
// columns: this is block `first` of `blocks`. Of a group of columns some lanes add some of the parts each.
// The whole block calls this; `across` has room for kThreads WideSums.
template <class Any>
NJ_DEVICE void add_parts(const Any& on, const Acc* all, long long parts, int first, int blocks,
                         WideSum* across) {
  constexpr int kVectors = kColumns / kWide;
  constexpr int kLanes = Exchange::chosen == Exchange::none
                             ? plan_math::lanes_of_all_sums(kVectors, kThreads)  // the last block has all
                             : plan_math::lanes_of_sums(kSums * 1LL * kVectors, kThreads);
  // Of shares in a warp the lanes add up first, so that this many are left.
  constexpr int kLeft = kThreads / plan_math::larger(kLanes, kWarp);
  constexpr int kShares = kThreads / kLanes, kGroups = plan_math::ceil_div(kVectors, kLanes);
  const int share = static_cast<int>(threadIdx.x) / kLanes, of_group = threadIdx.x % kLanes;
#pragma unroll 1
  for (long long unit = first; unit < static_cast<long long>(kSums) * kGroups; unit += blocks) {
    const int s = static_cast<int>(unit / kGroups),
              vector = static_cast<int>(unit % kGroups) * kLanes + of_group;
    WideSum total = {};
#pragma unroll 1
    for (long long part = share; part < parts; part += kAsked * kShares) {
      WideSum asked[kAsked] = {};
#pragma unroll
      for (int i = 0; i < kAsked; ++i)
        hw::load_if(vector < kVectors && part + i * kShares < parts,
                    all + row_of_sums(s, parts, part + i * kShares) + vector * kWide, asked[i]);
#pragma unroll
      for (int i = 0; i < kAsked; ++i) total.add(asked[i]);
    }
#pragma unroll
    for (int mask = kLanes; mask < kWarp; mask *= 2)
#pragma unroll
      for (int i = 0; i < kWide; ++i) total.at[i] = add_from(total.at[i], mask);
    if (kLanes >= kWarp)
      across[threadIdx.x] = total;
    else if (threadIdx.x % kWarp < kLanes)
      across[threadIdx.x / kWarp * kLanes + of_group] = total;
    hw::block_barrier();
    if (share == 0 && vector < kVectors) {
#pragma unroll 8
      for (int i = 1; i < kLeft; ++i) total.add(across[i * kLanes + of_group]);
#pragma unroll
      for (int i = 0; i < kWide; ++i)
        hw::store(gradient_at(on, s) + vector * kWide + i, narrow<Gradient>(total.at[i]));
    }
    hw::block_barrier();
  }
}

// All blocks, which have written all parts, meet and add them: the last meeting of a launch. The whole block
// calls this; `across` as above. further(i, blocks) adds what else there is, as block i of so many.
struct NothingFurther {
  NJ_METHOD void operator()(int, int) const {}
};
template <class Any, class Further = NothingFurther>
NJ_DEVICE void meet_and_add(const Any& on, Header& header, unsigned long long number, const Acc* all,
                            long long parts, WideSum* across, const Further& further = {}) {
  arrive_at_meeting(header, number);
  wait_for_meeting(header, number);
  const unsigned long long left_before = threadIdx.x == 0 ? begin_to_leave(header) : 0;
  if constexpr (kSums > 0) add_parts(on, all, parts, blockIdx.x, gridDim.x, across);
  further(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  if (threadIdx.x == 0) end_leave(header, left_before);
}

// The end of a launch whose blocks have written all parts: all of them meet and add, or the last one adds.
// The whole block calls this; `across` and `further` as above.
template <class Any, class Further = NothingFurther>
NJ_DEVICE void finish_sums(const Any& on, Meeting& meeting, long long parts, WideSum* across, bool* is_last,
                           const Further& further = {}) {
  const Acc* const all = reinterpret_cast<const Acc*>(&meeting + 1);
  if constexpr (Exchange::chosen != Exchange::none) {
    meet_and_add(on, meeting.header, 1, all, parts, across, further);
  } else {
    hw::block_barrier();
    if (threadIdx.x == 0) is_last[0] = leaves_last(meeting.header);
    hw::block_barrier();
    if (is_last[0]) {
      if constexpr (kSums > 0) add_parts(on, all, parts, 0, 1, across);
      further(0, 1);
      if (threadIdx.x == 0) meeting.header.finished_blocks = 0;
    }
  }
}

}  // namespace normjit
