// SPDX-License-Identifier: Apache-2.0
// Unaligned rows out of the ring. A place of the ring has what an aligned piece of memory has, so that the
// threads take whole vectors, wherever a row begins. The few elements at the ends of a slice, which share a
// vector with another slice or row, are single: one of a lane at most, of one warp. Parameters lie in planes
// behind the ring.
namespace normjit {

// What one of kOf threads takes of a chunk: every kOf-th vector, and one single element at most. kFull: as
// is_full(). (A template, since x may be no sum.)
template <class T, int kOf, bool kFull>
struct CutPart {
  enum : int { kVectors = kChunkVectors / kOf };
  CutChunk chunk;
  int self;
  Vec<T> vectors[kVectors];
  T end;

  NJ_METHOD CutPart(const CutChunk& chunk, int self) : chunk(chunk), self(self) {}
  NJ_METHOD bool has(int k) const { return kFull || chunk.has(k * kOf + self); }
  NJ_METHOD bool has_end() const { return !kFull && chunk.has_end(self); }

  // Takes it out of the ring, whose place is free then.
  NJ_METHOD void take(const Ring& ring, ChunkState at, unsigned zero) {
    const T* place = ring.wait(at);
    unsigned loaded = 0;
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
      if (has(k)) {
        vectors[k] = read_chunk(place + (k * kOf + self) * kVector);
        loaded |= first_word(vectors[k]);
      }
    if (has_end()) {
      end = place[chunk.place_of_end(self)];
      loaded |= first_word(widen(end));
    }
    ring.leave(at, loaded, zero);
  }
  NJ_METHOD int columns() const {
    int columns = has_end() ? 1 : 0;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) columns += has(k) ? kVector : 0;
    return columns;
  }
};
template <class Part>
struct CutElements {
  Part& part;

  template <class Take>
  NJ_METHOD void each(const Take& take) const {
    elements_of<Part::kVectors>(part.vectors, [&](int k) { return part.has(k); }).each(take);
    if (part.has_end()) take(widen(part.end), 0);
  }
};

// As measure_chunk() of aligned rows.
template <bool kFull>
NJ_DEVICE void measure_cut_chunk(const Ring& ring, ChunkState at, const CutChunk& chunk, int self,
                                 unsigned zero, Statistics& all, Acc& seen) {
  using Own = CutPart<Input, kReduceThreads, kFull>;
  Own part(chunk, self);
  part.take(ring, at, zero);
  const int own = part.columns();
  const Statistics of_chunk = Statistics::of<1>(CutElements<Own>{part}, Acc(own > 0 ? own : 1));
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
    CutPart<T, kThreadsPerRow, kFull> taken(chunk, lane());
    taken.take(ring, at, zero);
    at.advance();
    Output* const to = sink.y - chunk.cut.past + (chunk.c * kChunkVectors + lane()) * kVector;
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (taken.has(k)) {
        PlacedParameters parameters;
        parameters.place(first, chunk.c * kChunkVectors + k * kThreadsPerRow);
        store_vector(to + k * kThreadsPerRow * kVector,
                     finish(taken.vectors[k], statistics, parameters, Vec<Residual>(), sink.by), aligned);
      }
    if (taken.has_end()) {
      const int column = chunk.cut.edge(lane());
      hw::store(sink.y + column,
                finish(widen(taken.end), statistics, parameters_at(planes(), sink.columns, column), sink.by));
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
