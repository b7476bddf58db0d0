// SPDX-License-Identifier: Apache-2.0
// Unaligned rows out of the ring, in single elements: neighbouring lanes take neighbouring elements of x,
// of the parameters and of y, none of which need be aligned.
namespace normjit {

// What one of kOf lanes has of `count` columns. kKnown: the count, where the compiler knows it, else 0.
template <int kOf, int kKnown>
struct Share {
  int lane, count;

  // Whether the lane has an i-th element, and whether any lane has one.
  NJ_METHOD bool has(int i) const { return (i + 1) * kOf <= kKnown || i * kOf + lane < count; }
  NJ_METHOD bool some(int i) const { return kKnown == 0 || i * kOf < kKnown; }
  // How far it is from the lane's first one. A lane that has none takes the last of all columns, so that no
  // load needs a condition.
  NJ_METHOD int offset(int i) const { return has(i) ? i * kOf : count - 1 - lane; }

  // kCount elements from the `first` one on, widened.
  template <int kCount>
  NJ_METHOD void take(Acc* to, const Input* from, int first, unsigned& loaded) const {
    Input elements[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (some(first + i)) elements[i] = from[lane + offset(first + i)];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      to[i] = some(first + i) ? widen(elements[i]) : Acc(0);
      loaded |= first_word(to[i]);
    }
  }
};

// kCount of them.
template <int kCount, class Own>
struct Scalars {
  const Acc* values;
  Own own;
  int first;

  template <class Take>
  NJ_METHOD void each(const Take& take) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (own.has(first + i)) take(values[i], i % kVector);
  }
};

// The largest part of `count` that is no more than `most`.
NJ_DEVICE constexpr int part_of(int count, int most) {
  int part = count < most ? count : most;
  while (count % part != 0) --part;
  return part;
}

// As measure_chunk() of vectors; as many elements at a time as there are registers for.
template <int kKnown>
NJ_DEVICE void reduce_scalars(const Ring& ring, ChunkState at, int past, int count, int self, unsigned zero,
                              Statistics& all, Acc& seen) {
  constexpr int kEach = kSpan / kReduceThreads;
  constexpr int kTogether = part_of(kEach, (kKnown > 0 ? 128 : 32) / static_cast<int>(sizeof(Acc)));
  using Own = Share<kReduceThreads, kKnown>;
  // Else values derived from them stay in registers over all rows.
  hw::opaque(self);
  hw::opaque(count);
  const Own own{self, count};
  const Input* chunk = ring.wait(at) + past;
  unsigned loaded = 0;
#pragma unroll
  for (int first = 0; first < kEach; first += kTogether)
    if (own.some(first)) {
      Acc values[kTogether];
      own.template take<kTogether>(values, chunk, first, loaded);
      int columns = 0;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) columns += own.has(first + i);
      const Statistics part =
          Statistics::of<1>(Scalars<kTogether, Own>{values, own, first}, Acc(columns > 0 ? columns : 1));
      all = Statistics::merge(all, seen, part, Acc(columns));
      seen += columns;
    }
  ring.leave(at, loaded, zero);
}

// A row of one chunk whose elements fit in the registers of the reduce threads: measured by a warp at once,
// without a merge of the threads' parts.
enum : int { kOfRow = kLast > 0 ? (kLast + kReduceThreads - 1) / kReduceThreads : 1 };  // elements
enum : bool {
  kAtOnce = kUnaligned && kOwn == 1 && kLast > 0 && kOfRow* static_cast<int>(sizeof(Acc)) <= 160
};
NJ_DEVICE Statistics measure_row(const Ring& ring, ChunkState at, int past, int self, int columns,
                                 unsigned zero) {
  using Own = Share<kReduceThreads, kLast>;
  const Own own{self, kLast};
  Acc values[kOfRow];
  unsigned loaded = 0;
  own.template take<kOfRow>(values, ring.wait(at) + past, 0, loaded);
  ring.leave(at, loaded, zero);
  return Statistics::of<kWarp>(Scalars<kOfRow, Own>{values, own, 0}, Acc(columns > 0 ? columns : 1));
}

// As Consumer, for single elements. Parameters are kept widened if they all fit in registers; else those of
// a chunk are loaded while the chunk before is written.
struct ScalarConsumer {
  const Ring& ring;
  const Part& part;
  Columns columns;  // of the slice
  unsigned zero;
  ChunkState at;

  enum : int { kEach = kSpan / kThreadsPerRow };
  enum : bool {
    kKeeps = !kAffineRows && plan_math::keeps_parameters(kOwn * kEach, kParameters, sizeof(Acc), kMostHeld)
  };
  struct Kept {
    ElementParameters at[kParameters > 0 ? kEach : 1];
  };
  Kept kept[kKeeps ? kOwn : 1];

  NJ_METHOD ScalarConsumer(const Ring& ring, const Part& part, const Columns& of_row, unsigned zero)
      : ring(ring), part(part), columns(of_row.from(part.begin(0))), zero(zero) {
    if constexpr (kKeeps)
#pragma unroll
      for (int c = 0; c < kOwn; ++c)
        if (c < part.own) ask(kept[c], c);
  }

  template <int kKnown>
  NJ_METHOD Share<kThreadsPerRow, kKnown> share(int c) const {
    const int count = kKnown > 0 ? kKnown : columns_of_part(part.slice) - c * kSpan;
    return {static_cast<int>(threadIdx.x) - kFirstConsumer, count};
  }

  template <int kKnown>
  NJ_METHOD void ask_for(Kept& to, int c) const {
    const auto own = share<kKnown>(c);
    const int from = c * kSpan + own.lane;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (own.some(i)) {
#pragma unroll
        for (int p = 0; p < kParameters; ++p)
          to.at[i].at[p] = widen(hw::load<hw::Cache::keep, Weight>(columns.at[p] + from + own.offset(i)));
      }
  }
  NJ_METHOD void ask(Kept& to, int c) const {
    if (c + 1 < kOwn)
      ask_for<kSpan>(to, c);
    else
      ask_for<kLast>(to, c);
  }

  template <int kKnown>
  NJ_METHOD void write_chunk(int c, int past, const RowStatistics& statistics, const Sink& sink) {
    const auto own = share<kKnown>(c);
    Acc x[kEach];
    unsigned loaded = 0;
    own.template take<kEach>(x, ring.wait(at) + past, 0, loaded);
    ring.leave(at, loaded, zero);
    at.advance();
    const Kept now = kept[kKeeps ? c : 0];
    if (!kKeeps && c + 1 < part.own) ask(kept[0], c + 1);
    Output* const to = sink.y + c * kSpan + own.lane;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (own.has(i))
        hw::store(to + i * kThreadsPerRow,
                  finish(x[i], statistics, now.at[kParameters > 0 ? i : 0], sink.by));
  }

  NJ_METHOD void take_ahead(const Columns& of_row) {
    if constexpr (kAffineRows) columns = of_row.from(part.begin(0));
    if constexpr (!kKeeps) ask(kept[0], 0);
  }

  // Writes the slice of a row to the sink.
  NJ_METHOD void write_slice(int past, const RowStatistics& statistics, const Sink& sink, Residual*) {
#pragma unroll(kKeeps ? kOwn : 1)
    for (int c = 0; c < kOwn; ++c)
      if (c + 1 < kOwn)  // all chunks but the last are there, and full, and the compiler knows
        write_chunk<kSpan>(c, past, statistics, sink);
      else if (c < part.own)
        write_chunk<kLast>(c, past, statistics, sink);
  }
};

}  // namespace normjit
