// SPDX-License-Identifier: Apache-2.0
// Unaligned rows out of the ring. A place of the ring has what an aligned piece of memory has, so that the
// threads take whole vectors, wherever a row begins. The few elements at the ends of a slice, which share a
// vector with another slice or row, are single: one of a lane at most, of one warp. Parameters lie in planes
// behind the ring.
namespace normjit {

// What a slice has in its chunk c.
struct CutChunk {
  Cut cut;  // of the slice
  int c, own;

  // Whether vector v of the place is wholly of the slice.
  NJ_METHOD bool has(int v) const {
    const int vector = c * kChunkVectors + v - first_vector(cut);
    return static_cast<unsigned>(vector) < static_cast<unsigned>(cut.body / kVector);
  }
  // Whether all are.
  NJ_METHOD bool is_full() const { return c > 0 && c + 1 < own; }
  // Whether the single element of a lane is in this chunk, and its place there.
  NJ_METHOD bool has_end(int lane) const { return has_end_in(lane, cut, c, own); }
  NJ_METHOD int place_of_end(int lane) const { return cut.past + cut.edge(lane) - c * kSpan; }
};

// What a reduce thread has of a chunk.
template <class Vectors>
struct CutElements {
  Vectors vectors;
  bool has_end;
  Input end;

  template <class Take>
  NJ_METHOD void each(const Take& take) const {
    vectors.each(take);
    if (has_end) take(widen(end), 0);
  }
};

// As measure_chunk() of aligned rows. kFull: as is_full().
template <bool kFull>
NJ_DEVICE void measure_cut_chunk(const Ring& ring, ChunkState at, const CutChunk& chunk, int self,
                                 unsigned zero, Statistics& all, Acc& seen) {
  constexpr int kMeasured = kChunkVectors / kReduceThreads;  // vectors that a reduce thread takes
  const Input* place = ring.wait(at);
  const auto inside = [&](int k) { return kFull || chunk.has(k * kReduceThreads + self); };
  Vec<Input> vectors[kMeasured];
  int own = 0;
  unsigned loaded = 0;
#pragma unroll
  for (int k = 0; k < kMeasured; ++k)
    if (inside(k)) {
      vectors[k] = read_chunk(place + (k * kReduceThreads + self) * kVector);
      loaded |= first_word(vectors[k]);
      own += kVector;
    }
  const bool has_end = !kFull && chunk.has_end(self);
  Input end = Input();
  if (has_end) {
    end = place[chunk.place_of_end(self)];
    loaded |= first_word(widen(end));
    ++own;
  }
  ring.leave(at, loaded, zero);
  const auto elements = elements_of<kMeasured>(vectors, inside);
  const Statistics of_chunk =
      Statistics::of<1>(CutElements<decltype(elements)>{elements, has_end, end}, Acc(own > 0 ? own : 1));
  all = Statistics::merge(all, seen, of_chunk, Acc(own));
  seen += own;
}

// As Consumer, which has the parameters of the slice in shared memory. (A template, since x may be no sum.)
template <class T>
struct CutConsumer {
  const Ring& ring;
  const Part& part;
  unsigned zero;
  ChunkState at;
  unsigned turn = 0;  // the fills of the planes

  NJ_METHOD CutConsumer(const Ring& ring, const Part& part, const Columns& of_row, unsigned zero)
      : ring(ring), part(part), zero(zero) {
    if constexpr (!kAffineRows) place(of_row);
  }
  static NJ_METHOD int lane() { return static_cast<int>(threadIdx.x) - kFirstConsumer; }
  // Those of the row.
  NJ_METHOD Planes planes() const { return ring.planes().of_turn(turn - 1); }

  // Puts the parameters of the slice where all consumers find them.
  NJ_METHOD void place(const Columns& of_row) {
    if constexpr (kPlaced > 0) {
      ring.planes().of_turn(turn).fill(of_row.from(part.begin(0)), columns_of_part(part.slice), lane());
      hw::warp_barrier();
      if (threadIdx.x % kWarp == 0) hw::barrier_arrive(ring.placed);
      hw::barrier_wait(ring.placed, turn % 2);
      ++turn;
    }
  }
  NJ_METHOD void take_ahead(const Columns& of_row) {
    if constexpr (kAffineRows) place(of_row);
  }

  template <bool kFull>
  NJ_METHOD void write_chunk(const CutChunk& chunk, const RowStatistics& statistics, const Sink& sink,
                             const ColumnParameters* const (&first)[kVector], bool aligned) {
    const auto inside = [&](int k) { return kFull || chunk.has(k * kThreadsPerRow + lane()); };
    const Input* from = ring.wait(at);
    Vec<T> x[kPerThread];
    unsigned loaded = 0;
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k)) {
        x[k] = read_chunk(from + (k * kThreadsPerRow + lane()) * kVector);
        loaded |= first_word(x[k]);
      }
    const bool has_end = !kFull && chunk.has_end(lane());
    Input end = Input();
    if (has_end) {
      end = from[chunk.place_of_end(lane())];
      loaded |= first_word(widen(end));
    }
    ring.leave(at, loaded, zero);
    at.advance();
    Output* const to = sink.y - chunk.cut.past + (chunk.c * kChunkVectors + lane()) * kVector;
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k)) {
        PlacedParameters parameters;
#pragma unroll
        for (int i = 0; i < kVector; ++i)
          parameters.at[i] = first[i] + (chunk.c * kChunkVectors + k * kThreadsPerRow);
        store_vector(to + k * kThreadsPerRow * kVector,
                     finish(x[k], statistics, parameters, Vec<Residual>(), sink.by), aligned);
      }
    if (has_end) {
      const int column = chunk.cut.edge(lane());
      hw::store(sink.y + column,
                finish(widen(end), statistics, parameters_at(planes(), sink.columns, column), sink.by));
    }
  }

  // Writes the slice of a row to the sink.
  NJ_METHOD void write_slice(const Cut& cut, const RowStatistics& statistics, const Sink& sink, Residual*) {
    const ColumnParameters* first[kVector];
    planes().first_of(first, cut.head, lane() - first_vector(cut));
    const bool aligned = is_aligned(sink.y, cut);
#pragma unroll 1
    for (int c = 0; c < part.own; ++c) {
      const CutChunk chunk{cut, c, part.own};
      if (chunk.is_full())
        write_chunk<true>(chunk, statistics, sink, first, aligned);
      else
        write_chunk<false>(chunk, statistics, sink, first, aligned);
    }
  }
};

}  // namespace normjit
