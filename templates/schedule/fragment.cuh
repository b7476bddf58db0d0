// SPDX-License-Identifier: Apache-2.0
// A fragment: the part of a row (or of a chunk of one) that a thread holds in registers.
namespace normjit {

struct Fragment {
  Vec<Held> part[kPerThread];
  Held edge;
};

// Of the columns of `cut`, which begin where `from` does. All loads are issued before the first is used.
template <hw::Cache kCache>
NJ_DEVICE void load(Fragment& fragment, const Source& from, int lane, const Cut& cut) {
  load<kCache>(fragment.part, fragment.edge, from, lane, cut);
}
// A row that was written, or an operand of it: its vectors, and the single element of a lane.
template <hw::Cache kCache, class T>
NJ_DEVICE void load_row(Vec<T>* part, T& edge, const T* row, int lane, const Cut& cut) {
  const T* const first = first_of(row + cut.head, lane);
  if constexpr (!kUnaligned) {
    load_vectors<kCache, true>(part, first, lane, cut);
  } else {
    if (is_aligned(row, cut)) {
      load_vectors<kCache, true>(part, first, lane, cut);
    } else {
      load_vectors<kCache, false>(part, first, lane, cut);
    }
    if (has_edge(lane, cut)) edge = hw::load<kCache, T>(row + column_of_edge(lane, cut));
  }
}
// The same from the sum that was written, where kSumIsExact.
template <hw::Cache kCache, class Any>
NJ_DEVICE void load_sum(Any& fragment, const Source& from, int lane, const Cut& cut) {
  load_row<kCache>(fragment.part, fragment.edge, from.sum, lane, cut);
}

// The part of the residual that is added to the result.
struct AddedFragment {
  Vec<Residual> part[kAddsToResult ? kPerThread : 1];
  Residual edge;
};
NJ_DEVICE void load_added(AddedFragment& added, const Residual* residual, int lane, const Cut& cut) {
  if constexpr (kAddsToResult) load_row<hw::Cache::evict_first>(added.part, added.edge, residual, lane, cut);
}

// Writes the sum, where the spec wants it.
NJ_DEVICE void store_sum(const Fragment& fragment, const Source& from, int lane, const Cut& cut) {
  if constexpr (kWritesSum) {
    Residual* const first = first_of(from.sum + cut.head, lane);
    const bool aligned = is_aligned(from.sum, cut);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut)) store_vector(at(first, k, 0), stored_sum(fragment.part[k]), aligned);
    if (has_edge(lane, cut))
      hw::store(from.sum + column_of_edge(lane, cut), narrow<Residual>(widen(fragment.edge)));
  }
}

// The elements of kCount vectors, those that are inside(k). each(take) calls take with each of them, and its
// place in the vector.
template <int kCount, class T, class Inside>
struct VectorElements {
  Vec<T>* part;
  Inside inside;

  template <class Take>
  NJ_METHOD void each(const Take& take) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      if (inside(k)) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) take(widen(part[k], i), i);
        hw::opaque(part[k]);
      }
  }
};
template <int kCount, class T, class Inside>
NJ_DEVICE VectorElements<kCount, T, Inside> elements_of(Vec<T>* part, const Inside& inside) {
  return {part, inside};
}

// The elements of a fragment.
struct FragmentElements {
  Fragment& fragment;
  int lane;
  Cut cut;

  template <class Take>
  NJ_METHOD void each(const Take& take) const {
    elements_of<kPerThread>(fragment.part, [&](int k) { return inside(k, lane, cut); }).each(take);
    if (has_edge(lane, cut)) take(widen(fragment.edge), 0);
  }
};

// How many of the columns of a row or chunk warp `warp` of the block holds.
NJ_DEVICE int columns_of_warp(int warp, const Cut& cut) {
  if constexpr (kWhole) return kSpan / kWarps;
  const int edges = kUnaligned ? cut.count % kVector : 0, body = kUnaligned ? cut.count - edges : cut.body;
  int own = kUnaligned && warp == warp_of_edges(cut.count) ? edges : 0;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const int left = body - column(k, warp * kWarp);
    own += left < 0 ? 0 : left < kWarp * kVector ? left : kWarp * kVector;
  }
  return own;
}

// The warp's own part of what the block holds. All lanes of the warp get the same.
NJ_DEVICE Statistics measure_warp(Fragment& fragment, int lane, const Cut& cut) {
  const int own = columns_of_warp(lane / kWarp, cut);
  return Statistics::of<kWarp>(FragmentElements{fragment, lane, cut}, own > 0 ? own : 1);
}
// The same lane by lane, where all lanes have as many columns.
NJ_DEVICE Statistics measure_equal_lanes(Fragment& fragment, int lane, const Cut& cut) {
  constexpr Acc kOwn = kPerThread * kVector;
  return merge_lanes<kWarp>(Statistics::of<1>(FragmentElements{fragment, lane, cut}, kOwn), kOwn);
}

// Of what the block holds, which may be nothing, from all warps' parts: part(i) is that of warp i.
template <class Part>
NJ_DEVICE Statistics merge_warps(const Part& part, const Cut& cut) {
  return Statistics::merge_all<kWarps>(
      part, [&](int i) { return columns_of_warp(i, cut); }, cut.count > 0 ? cut.count : 1);
}

// ---- Writing a fragment ----

// Parameters of a fragment, loaded together with it, or as they are used.
static_assert(!kUnaligned || !kScalesBlocks, "a block of results is in whole vectors");
enum : int {
  kMostVectors = plan_math::larger(kParameters, 2),
  kVectorWords = kVector * (sizeof(Held) + kMostVectors * sizeof(Weight) + kRowParameters * sizeof(Mod)) / 4
};
enum : bool {
  kEarlyParameters = plan_math::early_parameters(kPerThread, kVectorWords, kLowOccupancy,
                                                 kRowParameters > 0 && kThreadsPerRow <= kWarp, kUnaligned)
};
struct EarlyParameters {
  using OfVector = Parameters;
  Parameters part[kEarlyParameters ? kPerThread : 1];
};

NJ_DEVICE void load_early(EarlyParameters& early, const Columns& columns, int lane, const Cut& cut) {
  if constexpr (kEarlyParameters) {
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut)) early.part[k] = load_parameters(columns, k, lane);
  }
}

// Calls each(k, parameters) for each vector of a lane, also for those that are beyond the row.
template <class Each>
NJ_DEVICE void each_with_parameters(const EarlyParameters& early, const Columns& columns, int lane,
                                    const Cut& cut, const Each& each) {
  Parameters next;
  if (!kEarlyParameters && inside(0, lane, cut)) next = load_parameters(columns, 0, lane);
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const Parameters parameters = kEarlyParameters ? unconverted(early.part[kEarlyParameters ? k : 0]) : next;
    if (!kEarlyParameters && k + 1 < kPerThread && inside(k + 1, lane, cut))
      next = load_parameters(columns, k + 1, lane);
    each(k, parameters);
  }
}
// Only for those that it has.
template <class Each>
NJ_DEVICE void with_parameters(const EarlyParameters& early, const Columns& columns, int lane, const Cut& cut,
                               const Each& each) {
  each_with_parameters(early, columns, lane, cut, [&](int k, const Parameters& parameters) {
    if (inside(k, lane, cut)) each(k, parameters);
  });
}

// Neighbouring lanes that have a block together.
enum : int { kBlockLanes = kScalesBlocks ? kBlock / kVector : 1 };
// Blocks from one vector of a lane to its next, and whether their scales then are as far apart each time.
enum : int { kApart = kThreadsPerRow * kVector / kBlock };
enum : bool { kStepsAreEqual = kApart % 4 == 0 || ScaleLayout::chosen < ScaleLayout::packed_columns };
static_assert(!kScalesBlocks || (kBlockLanes <= kGroup && kBlock % kVector == 0), "a block stays in a warp");

// The results of a vector, in front of their quantization.
struct VectorResults {
  Acc at[kVector];

  NJ_METHOD Largest largest() const {
    Largest all = {0};
#pragma unroll
    for (int i = 0; i < kVector; ++i) all = all.with(at[i]);
    return all;
  }
  template <class T>
  NJ_METHOD void store_as(T* to, bool aligned = true) const {
    Narrowed<T> narrowed;
#pragma unroll
    for (int i = 0; i < kVector; ++i) narrowed.set(i, at[i]);
    store_vector(to, narrowed.all, aligned);
  }
  NJ_METHOD VectorResults over(const Quantizer& by) const {
    VectorResults all;
#pragma unroll
    for (int i = 0; i < kVector; ++i) all.at[i] = quantized(at[i], by);
    return all;
  }
};
template <class Any>
NJ_DEVICE VectorResults results_of(const Vec<Held>& x, const RowStatistics& s, const Any& parameters,
                                   const Vec<Residual>& residual) {
  VectorResults results;
  each_result(x, s, parameters, residual, [&](int i, Acc v) { results.at[i] = v; });
  return results;
}

// Where a lane writes vectors of a row, if the spec has it.
template <class T>
struct RowOut {
  T* first;
  bool aligned;

  NJ_METHOD void store(int k, const Vec<T>& value) const { store_vector(at(first, k, 0), value, aligned); }
  NJ_METHOD void store(int k, const VectorResults& results) const {
    results.store_as(at(first, k, 0), aligned);
  }
};
template <bool kExists = true, class T>
NJ_DEVICE RowOut<T> row_out(T* row, int lane, const Cut& cut) {
  if constexpr (kExists) return {first_of(row + cut.head, lane), is_aligned(row, cut)};
  return {};
}

// The result of a lane's single element of an unaligned row.
template <class Any>
NJ_DEVICE Acc result_of_edge(const Fragment& fragment, const RowStatistics& s, const Any& parameters,
                             const AddedFragment& added, const Columns& columns, int column) {
  return result_of(widen(fragment.edge), s, parameters_at(parameters, columns, column),
                   kAddsToResult ? widen(added.edge) : Acc());
}

// Writes the results of a row. The largest of them joins `largest`, where the spec wants it.
template <class Any>
NJ_DEVICE void write(const Fragment& fragment, const RowStatistics& s, const Any& parameters,
                     const AddedFragment& added, const Sink& sink, int lane, const Cut& cut,
                     Largest& largest) {
  const auto y = row_out(sink.y, lane, cut);
  const auto also = row_out<kWritesAlso>(sink.also, lane, cut);
  with_parameters(parameters, sink.columns, lane, cut, [&](int k, const typename Any::OfVector& of_vector) {
    const Vec<Residual>& residual = added.part[kAddsToResult ? k : 0];
    if constexpr (!kHasMoreResults) {
      y.store(k, finish(fragment.part[k], s, of_vector, residual, sink.by));
    } else {
      const VectorResults results = results_of(fragment.part[k], s, of_vector, residual);
      if constexpr (kWritesAmax) largest = larger_of(largest, results.largest());
      y.store(k, results.over(sink.by));
      if constexpr (kWritesAlso) also.store(k, results);
    }
  });
  if constexpr (kUnaligned)
    if (has_edge(lane, cut)) {
      const int column = column_of_edge(lane, cut);
      const Acc v = result_of_edge(fragment, s, parameters, added, sink.columns, column);
      if constexpr (kWritesAmax) largest = largest.with(v);
      hw::store(sink.y + column, narrow<Output>(quantized(v, sink.by)));
      if constexpr (kWritesAlso) hw::store(sink.also + column, narrow<AlsoOutput>(v));
    }
}

// The same where blocks have scales, which lanes find together. All lanes of a warp call this, also those
// that work on no row. Two vectors at a time: the shuffles of one do not wait for those of the other.
NJ_DEVICE void write_blocks(const Fragment& fragment, const RowStatistics& s, const EarlyParameters& early,
                            const AddedFragment& added, const Sink& sink, int lane, const Cut& cut,
                            bool works) {
  constexpr int kTogether = kPerThread < 2 ? 1 : 2;
  const auto y = row_out(sink.y, lane, cut);
  const auto also = row_out<kWritesAlso>(sink.also, lane, cut);
  const int block = sink.scales.first + column(0, lane) / kBlock;
  const long long row_place = sink.scales.place_of_row(sink.scales.row);
  const long long place = row_place + sink.scales.place_of_block(block);
  const long long step = sink.scales.place_of_block(kApart);  // of equal steps
  VectorResults held[kTogether] = {};
  each_with_parameters(early, sink.columns, lane, cut, [&](int k, const Parameters& parameters) {
    const int j = k % kTogether;
    if (inside(k, lane, cut))
      held[j] = results_of(fragment.part[k], s, parameters, added.part[kAddsToResult ? k : 0]);
    if (j + 1 < kTogether && k + 1 < kPerThread) return;
    Largest largest[kTogether];
#pragma unroll
    for (int i = 0; i <= j; ++i) largest[i] = held[i].largest();
#pragma unroll
    for (int mask = kBlockLanes / 2; mask > 0; mask /= 2)
#pragma unroll
      for (int i = 0; i <= j; ++i) largest[i] = largest[i].with(hw::shuffle_xor(largest[i].magnitude, mask));
#pragma unroll
    for (int i = 0; i <= j; ++i) {
      const int own = k - j + i;
      if (!works || !inside(own, lane, cut)) continue;
      const Quantizer by = quantizer_of_block(largest[i], kMost<Output>, ScaleFormat::chosen, sink.by);
      y.store(own, held[i].over(by));
      if constexpr (kWritesAlso) also.store(own, held[i]);
      if (lane % kBlockLanes == 0)
        sink.scales.store(kStepsAreEqual ? place + own * step
                                         : row_place + sink.scales.place_of_block(block + own * kApart),
                          by.scale, ScaleFormat::chosen);
    }
  });
}
// The largest result of a lane.
template <class Any>
NJ_DEVICE Largest largest_result(const Fragment& fragment, const RowStatistics& s, const Any& parameters,
                                 const AddedFragment& added, const Columns& columns, int lane,
                                 const Cut& cut) {
  Largest largest = {0};
  with_parameters(parameters, columns, lane, cut, [&](int k, const typename Any::OfVector& of_vector) {
    each_result(fragment.part[k], s, of_vector, added.part[kAddsToResult ? k : 0],
                [&](int, Acc v) { largest = largest.with(v); });
  });
  if constexpr (kUnaligned)
    if (has_edge(lane, cut))
      largest =
          largest.with(result_of_edge(fragment, s, parameters, added, columns, column_of_edge(lane, cut)));
  return largest;
}

// The results of a fragment where each row has a scale: held until it is known.
struct Results {
  VectorResults part[kScalesRows ? kPerThread : 1];
  Acc edge;
};
// Computes them. Returns the largest of the lane.
template <class Any>
NJ_DEVICE Largest compute(Results& results, const Fragment& fragment, const RowStatistics& s,
                          const Any& parameters, const AddedFragment& added, const Sink& sink, int lane,
                          const Cut& cut) {
  Largest largest = {0};
  const auto also = row_out<kWritesAlso>(sink.also, lane, cut);
  with_parameters(parameters, sink.columns, lane, cut, [&](int k, const typename Any::OfVector& of_vector) {
    VectorResults& part = results.part[kScalesRows ? k : 0];
    part = results_of(fragment.part[k], s, of_vector, added.part[kAddsToResult ? k : 0]);
    largest = larger_of(largest, part.largest());
    if constexpr (kWritesAlso) also.store(k, part);
  });
  if constexpr (kUnaligned)
    if (has_edge(lane, cut)) {
      const int column = column_of_edge(lane, cut);
      results.edge = result_of_edge(fragment, s, parameters, added, sink.columns, column);
      largest = largest.with(results.edge);
      if constexpr (kWritesAlso) hw::store(sink.also + column, narrow<AlsoOutput>(results.edge));
    }
  return largest;
}
NJ_DEVICE void write(const Results& results, const Quantizer& by, Output* row, int lane, const Cut& cut) {
  const auto y = row_out(row, lane, cut);
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, cut)) y.store(k, results.part[kScalesRows ? k : 0].over(by));
  if (has_edge(lane, cut))
    hw::store(row + column_of_edge(lane, cut), narrow<Output>(quantized(results.edge, by)));
}

}  // namespace normjit
