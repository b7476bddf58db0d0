// SPDX-License-Identifier: Apache-2.0
// Writing rows that may begin anywhere. A thread has vectors of x that are aligned in memory, and as a rule
// those of y are aligned at the same columns. The parameters of a vector are not. So they lie in shared
// memory, in planes: plane i has those of column i, and of every kVector-th from there. Wherever a row
// begins, neighbouring lanes read neighbouring places of a plane, without bank conflicts.
namespace normjit {

static_assert(!kUnaligned || !(kAddsToResult || kRowParameters > 0),
              "operands of a row are cut at the same columns");

// The parameters of a column that lie there.
enum : int { kPlaced = kUnaligned ? kParameters : 0 };
enum : int { kPlaces = kPlaced > 0 ? kPlaced : 1 };  // of an array of them
static_assert(kPlaced <= 2, "the parameters of a column are read in one access");
struct ColumnParameters {
  Weight at[kPlaces];
};

// Those of the columns that a block has, twice where rows have their own: of a row and of the one before.
enum : int { kRowSpan = kSpan < kCovered ? kSpan : kColumns };
enum : int { kPlane = plan_math::ceil_div(kRowSpan, kVector) };
struct Planes {
  ColumnParameters* base;

  NJ_METHOD Planes of_turn(unsigned turn) const {
    return {base + (kAffineRows ? turn % 2 * (kVector * kPlane) : 0)};
  }
  NJ_METHOD ColumnParameters* place(int column) const {
    return base + column % kVector * kPlane + column / kVector;
  }
  NJ_METHOD ElementParameters parameters(const ColumnParameters* place) const {
    ElementParameters one = {};
    if constexpr (kPlaced > 0) {
      const auto column = hw::load_shared<ColumnParameters>(place);
#pragma unroll
      for (int p = 0; p < kPlaced; ++p) one.at[p] = widen(column.at, p);
    }
    return one;
  }

  // Fills them with the parameters of `count` columns. All threads of the block call this, and meet before
  // they read.
  NJ_METHOD void fill(const Columns& columns, int count, int lane) const {
    bool in_vectors = true;
#pragma unroll
    for (int p = 0; p < kPlaced; ++p) in_vectors = in_vectors && cut_of(columns.at[p], count).past == 0;
    const int vectors = in_vectors ? count / kVector : 0;
#pragma unroll 2
    for (int v = lane; v < vectors; v += kThreads) {
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
    for (int c = vectors * kVector + lane; c < count; c += kThreads) {
      ColumnParameters one;
#pragma unroll
      for (int p = 0; p < kPlaced; ++p) one.at[p] = hw::load<hw::Cache::keep, Weight>(columns.at[p] + c);
      hw::store_shared(place(c), one);
    }
  }
};

// As write(). (A template, so that schedules whose accesses it does not fit leave it out.)
template <class Any>
NJ_DEVICE void write_unaligned(const Any& fragment, const RowStatistics& s, const Sink& sink, int lane,
                               const Cut& cut, const Planes& planes) {
  const ColumnParameters* first[kVector];
  first[0] = planes.place(cut.head) + lane;
#pragma unroll
  for (int i = 1; i < kVector; ++i)
    first[i] = first[i - 1] + (cut.head + i == kVector ? 1 - (kVector - 1) * kPlane : kPlane);
  Output* const y = at(sink.y + cut.head, 0, lane);
  const bool in_vectors = cut_of(sink.y, cut.count).head == cut.head;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, cut)) {
      Narrowed<Output> results;
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        results.set(i, quantized(result_of(widen(fragment.part[k], i), s,
                                           planes.parameters(first[i] + k * kThreadsPerRow)),
                                 sink.by));
      hw::opaque(results.all);
      if (in_vectors) {
        store(at(y, k, 0), results.all);
      } else {
#pragma unroll
        for (int i = 0; i < kVector; ++i) hw::store(at(y, k, 0) + i, results.all.at[i]);
      }
    }
  if (has_edge(lane, cut)) {
    const int column = cut.edge(edge_of(lane, cut));
    hw::store(sink.y + column,
              finish(widen(fragment.edge), s, planes.parameters(planes.place(column)), sink.by));
  }
}

}  // namespace normjit
