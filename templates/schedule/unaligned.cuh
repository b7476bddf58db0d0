// SPDX-License-Identifier: Apache-2.0
// The parameters of rows that may begin anywhere. A thread has vectors of x that are aligned in memory, and
// as a rule those of y and of other operands of the row are aligned at the same columns. Those of weight and
// bias are not. So these lie in shared memory, in planes: plane i has those of column i, and of every
// kVector-th from there. Wherever a row begins, neighbouring lanes read neighbouring places of a plane,
// without bank conflicts.
namespace normjit {

// The parameters of a column that lie there.
enum : int { kPlaced = kUnaligned ? kParameters : 0 };
enum : int { kPlaces = kPlaced > 0 ? kPlaced : 1 };  // of an array of them
static_assert(kPlaced <= 2, "the parameters of a column are read in one access");
struct ColumnParameters {
  Weight at[kPlaces];
};

// Those of the columns that a block has, twice where rows have their own: of a row and of the one before.
enum : long long {
  kBlockSpan = plan_math::columns_of_block(kColumns, kSpan, kStages > 0 ? kBlocksPerRow : 0)
};
enum : int { kRowSpan = kBlockSpan < kCovered ? static_cast<int>(kBlockSpan) : kColumns };
enum : int { kPlane = plan_math::ceil_div(kRowSpan, kVector) };
struct PlacedParameters;
struct Planes {
  using OfVector = PlacedParameters;
  ColumnParameters* base;

  NJ_METHOD Planes of_turn(unsigned turn) const {
    return {base + (kAffineRows ? turn % 2 * (kVector * kPlane) : 0)};
  }
  NJ_METHOD ColumnParameters* place(int column) const {
    return base + column % kVector * kPlane + column / kVector;
  }
  static NJ_METHOD ElementParameters parameters(const ColumnParameters* place) {
    ElementParameters one = {};
    if constexpr (kPlaced > 0) {
      const auto column = hw::load_shared<ColumnParameters>(place);
#pragma unroll
      for (int p = 0; p < kPlaced; ++p) one.at[p] = widen(column.at, p);
    }
    return one;
  }

  // Where a lane has the parameters of its first vector, of which vectors begin at column `head`.
  NJ_METHOD void first_of(const ColumnParameters* (&first)[kVector], int head, int lane) const {
    first[0] = place(head) + lane;
#pragma unroll
    for (int i = 1; i < kVector; ++i)
      first[i] = first[i - 1] + (head + i == kVector ? 1 - (kVector - 1) * kPlane : kPlane);
  }

  // Fills them with the parameters of `count` columns. All threads that share a row call this, and meet
  // before they read.
  NJ_METHOD void fill(const Columns& columns, int count, int lane) const {
    bool in_vectors = true;
#pragma unroll
    for (int p = 0; p < kPlaced; ++p) in_vectors = in_vectors && cut_of(columns.at[p], count).past == 0;
    const int vectors = in_vectors ? count / kVector : 0;
#pragma unroll 2
    for (int v = lane; v < vectors; v += kThreadsPerRow) {
      Vec<Weight> loaded[kPlaces];
#pragma unroll
      for (int p = 0; p < kPlaced; ++p) loaded[p] = load<hw::Cache::keep>(columns.at[p] + v * kVector);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        ColumnParameters one;
#pragma unroll
        for (int p = 0; p < kPlaced; ++p) one.at[p] = loaded[p].at[i];
        hw::store_shared(base + i * kPlane + v, one);
      }
    }
    for (int c = vectors * kVector + lane; c < count; c += kThreadsPerRow) {
      ColumnParameters one;
#pragma unroll
      for (int p = 0; p < kPlaced; ++p) one.at[p] = hw::load<hw::Cache::keep, Weight>(columns.at[p] + c);
      hw::store_shared(place(c), one);
    }
  }
};

// The parameters of a vector: those of columns where they lie, those of the row as they were loaded.
struct PlacedParameters {
  const ColumnParameters* at[kVector];
  Vec<Mod> of_row[kRowParameterPlaces];

  // Those of the vector that is so many behind the one whose parameters begin at `first`.
  NJ_METHOD void place(const ColumnParameters* const (&first)[kVector], int vectors) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) at[i] = first[i] + vectors;
  }
};
NJ_DEVICE ElementParameters widen(const PlacedParameters& parameters, int i) {
  ElementParameters one = Planes::parameters(parameters.at[i]);
#pragma unroll
  for (int p = 0; p < kRowParameters; ++p) one.of_row[p] = widen(parameters.of_row[p], i);
  return one;
}

template <bool kAligned, class Each>
NJ_DEVICE void each_placed(const ColumnParameters* const (&first)[kVector], const Columns& columns, int lane,
                           const Cut& cut, const Each& each) {
  PlacedParameters next;
  const auto load_next = [&](int k) {
#pragma unroll
    for (int p = 0; p < kRowParameters; ++p)
      if (inside(k, lane, cut))
        next.of_row[p] = load_vector<hw::Cache::keep, kAligned>(at(columns.of_row[p] + cut.head, k, lane));
  };
  load_next(0);
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    PlacedParameters now = next;
    now.place(first, k * kThreadsPerRow);
    if (k + 1 < kPerThread) load_next(k + 1);
    if (inside(k, lane, cut)) each(k, now);
  }
}
// Calls each(k, parameters) for each vector that a lane has.
template <class Each>
NJ_DEVICE void with_parameters(const Planes& planes, const Columns& columns, int lane, const Cut& cut,
                               const Each& each) {
  const ColumnParameters* first[kVector];
  planes.first_of(first, cut.head, lane);
  bool aligned = true;
#pragma unroll
  for (int p = 0; p < kRowParameters; ++p) aligned = aligned && is_aligned(columns.of_row[p], cut);
  if (aligned) {
    each_placed<true>(first, columns, lane, cut, each);
  } else if constexpr (kRowParameters > 0) {
    each_placed<false>(first, columns, lane, cut, each);
  }
}
// Those of one column.
NJ_DEVICE ElementParameters parameters_at(const Planes& planes, const Columns& columns, int column) {
  ElementParameters one = Planes::parameters(planes.place(column));
#pragma unroll
  for (int p = 0; p < kRowParameters; ++p)
    one.of_row[p] = widen(hw::load<hw::Cache::keep, Mod>(columns.of_row[p] + column));
  return one;
}

// What the rows of a schedule are written with.
NJ_DEVICE const auto& written_with(const EarlyParameters& early, const Planes& planes) {
  if constexpr (kUnaligned) {
    return planes;
  } else {
    return early;
  }
}

}  // namespace normjit
