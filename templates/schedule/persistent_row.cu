// SPDX-License-Identifier: Apache-2.0
// Long rows, and few of them: kBlocksPerRow blocks, one on each multiprocessor, share a row. Each holds its
// slice of it in shared memory, and goes on with the next row.
// Why it is fast: x is read once. What is in flight does not depend on registers: bulk copies fill a ring
// of chunks, and the next rows arrive while this one is written. A residual leaves the ring as soon as it is
// added, where that is possible. Warp-specialised: 1 producer warp, 4 reduce, 1 publishes the statistics of
// the slice, 1 finalizes those of the row, 8 consumer warps normalize and store. Consumers keep the
// parameters of their columns in registers from row to row, as far as they fit.
// Unaligned rows pass through unaligned_ring.cuh.
namespace normjit {

// How many of the parameters a consumer holds in registers from row to row.
enum : int { kParameterRegisters = kOwn * kPerThread * kVector * static_cast<int>(sizeof(Weight)) / 4 };
enum : int {
  // To write a kept sum of 16-bit elements takes some, so that fewer are held beside others that are not.
  kAllFit = kParameters * kParameterRegisters <= kMostHeld,
  kMostOfSome = kKeepsSum && sizeof(Input) == 2 && kMostHeld > 96 ? 96 : kMostHeld,
  kFitting = kAllFit ? kParameters : kMostOfSome / kParameterRegisters
};
enum : int { kMostParameters = kAffineRows ? 0 : kFitting };  // else they differ from row to row
enum : int { kHeldParameters = kMostParameters < kParameters ? kMostParameters : kParameters };
// The others, and those of each row, are loaded this many chunks ahead.
enum : int { kUnheld = kParameters - kHeldParameters + kRowParameters };
enum : int { kAsked = kUnheld > 0 ? 2 : 1 };
// Where the ring is short, consumers use the remaining registers to take chunks of the next row while they
// wait for its statistics.
enum : int {
  kHeldOrAsked = kHeldParameters * kOwn + (kParameters - kHeldParameters) * kAsked,
  kAskedOfRow = kRowParameters * kAsked * kPerThread * kVector,
  kUsed = 40 + kHeldOrAsked * (kParameterRegisters / kOwn) + kAskedOfRow * static_cast<int>(sizeof(Mod)) / 4
};
// To write a kept sum takes some; and from sm_120 on the compiler does not deal registers: a thread has 128.
enum : int {
  kForTaken = kArch >= 120                      ? 120
              : kKeepsSum && sizeof(Input) == 2 ? kManyRegisters - 16
                                                : kManyRegisters
};
enum : int { kLeft = kForTaken > kUsed ? kForTaken - kUsed : 0 };
// What is taken of a vector of the ring.
struct Taken {
  Vec<Held> sum;
  Vec<Residual> added;
};
enum : int { kTakenWords = (sizeof(Vec<Held>) + (kAddsToResult ? sizeof(Vec<Residual>) : 0)) / 4 };
enum : int { kWanted = kStages >= 3 * kOwn ? 0 : kLeft / (kTakenWords * kPerThread) };
enum : int { kTaken = kWanted < kOwn ? kWanted : kOwn };

// Prefetches `count` weights. Only whole 16 bytes: weights narrower than x may begin and end between them.
NJ_DEVICE void prefetch(const Weight* from, int count) {
  const auto past = static_cast<int>(reinterpret_cast<unsigned long long>(from) % 16);
  const int skipped = (16 - past) % 16, bytes = count * static_cast<int>(sizeof(Weight)) - skipped;
  if (bytes >= 16) hw::prefetch(reinterpret_cast<const unsigned char*>(from) + skipped, bytes / 16 * 16);
}

// Takes a vector of what is normalized, and of the residual that is added behind it. Sets bits of what it
// loads in `loaded`. (A template, since x is no sum.)
template <class T>
NJ_DEVICE Taken take_vector(const T* kept, const Residual* behind, unsigned& loaded) {
  const Vec<T> vector = read_chunk(kept);
  loaded |= first_word(vector);
  if constexpr (kKeepsSum) {
    return {vector, {}};
  } else {
    Vec<Residual> residual = {};
    if constexpr (kHasResidual) {
      residual = read_chunk(behind);
      loaded |= first_word(residual);
    }
    return {sum_of(vector, residual), residual};
  }
}

// One thread: prefetches the parameters that consumers read for every row.
NJ_DEVICE void prefetch_parameters(const Part& part, const Columns& columns) {
  for (int c = 0; c < part.own; ++c)
#pragma unroll
    for (int p = kHeldParameters; p < kParameters; ++p)
      prefetch(columns.at[p] + part.begin(c), part.columns(c));
}

// Merges a reduce thread's part of a chunk of `count` columns into the statistics of the `seen` columns
// before.
template <bool kFull>
NJ_DEVICE void measure_chunk(const Ring& ring, ChunkState at, int count, int self, unsigned zero,
                             Statistics& all, Acc& seen) {
  constexpr int kMeasured =
      kThreadsPerRow * kPerThread / kReduceThreads;  // vectors that a reduce thread takes
  const Input* chunk = ring.wait(at);
  const auto inside = [&](int k) { return kFull || (k * kReduceThreads + self) * kVector < count; };
  Vec<Held> vectors[kMeasured];
  int own = kFull ? kMeasured * kVector : 0;
  unsigned loaded = 0;
#pragma unroll
  for (int k = 0; k < kMeasured; ++k)
    if (inside(k)) {
      const int at_column = (k * kReduceThreads + self) * kVector;
      const Vec<Input> x = read_chunk(chunk + at_column);
      loaded |= first_word(x);
      Vec<Residual> residual = {};
      if constexpr (kHasPrologue) {
        residual = read_chunk(ring.residual(at) + at_column);
        loaded |= first_word(residual);
      }
      vectors[k] = sum_of(x, residual);
      if constexpr (kKeepsSum) hw::store_shared(ring.chunk(at) + at_column, vectors[k]);
      if (!kFull) own += kVector;
    }
  if constexpr (kKeepsSum)
    ring.keep_sum(at);
  else
    ring.leave(at, loaded, zero);
  const Statistics of_chunk =
      Statistics::of<1>(elements_of<kMeasured>(vectors, inside), Acc(own > 0 ? own : 1));
  all = Statistics::merge(all, seen, of_chunk, Acc(own));
  seen += own;
}

// Columns of a slice that reduce warp `warp` has: the vectors of a chunk are dealt to all lanes in turn, and
// warp 0 has the single elements.
NJ_DEVICE int vectors_of_reduce_warp(int warp, int before) {
  const int left = before % kReduceThreads - warp * kWarp;
  return before / kReduceThreads * kWarp + (left < 0 ? 0 : left < kWarp ? left : kWarp);
}
NJ_DEVICE int columns_of_reduce_warp(int warp, const Cut& cut) {
  const int first = first_vector(cut);
  const int vectors =
      vectors_of_reduce_warp(warp, first + cut.body / kVector) - vectors_of_reduce_warp(warp, first);
  return vectors * kVector + (warp == 0 ? cut.edges() : 0);
}

// The statistics of a reduce warp's part of a slice: each thread chunk by chunk, then over the warp.
NJ_DEVICE Statistics measure_slice(const Ring& ring, ChunkState& at, const Cut& cut, const Part& part,
                                   int self, unsigned zero) {
  Statistics all = {};
  Acc seen = 0;  // columns
#pragma unroll 1
  for (int c = 0; c < part.own; ++c, at.advance()) {
    if constexpr (kUnaligned) {
      const CutChunk chunk{cut, c, part.own};
      if (chunk.is_full())
        measure_cut_chunk<true>(ring, at, chunk, self, zero, all, seen);
      else
        measure_cut_chunk<false>(ring, at, chunk, self, zero, all, seen);
    } else if (kFullChunks || c + 1 < kOwn) {  // all but the last chunk are full, and the compiler knows
      measure_chunk<true>(ring, at, kSpan, self, zero, all, seen);
    } else {
      measure_chunk<false>(ring, at, part.columns(c), self, zero, all, seen);
    }
  }
  if constexpr (kFullChunks && !kUnaligned) return merge_lanes<kWarp>(all, seen);
  int columns = columns_of_reduce_warp(self / kWarp, cut);
  hw::opaque(columns);  // else its reciprocal stays in a register over all rows
  return Statistics::merge_all<kWarp>([&](int) { return all; }, [&](int) { return seen; },
                                      columns > 0 ? columns : Acc(1));
}

// Where a slice of a row is cut.
NJ_DEVICE Cut cut_of_slice(const Operands& on, long long row, const Part& part) {
  const int columns = columns_of_part(part.slice);
  if constexpr (!kUnaligned) return {0, 0, columns, columns};
  return cut_of(source_of(on, row, part.begin(0)).x, columns);
}

// Four warps: the statistics of the slice, row after row, each warp's into `partial`.
NJ_DEVICE void measure(const Ring& ring, const Operands& on, const Part& part, long long team,
                       long long teams, Statistics* partial, hw::MemoryBarrier* measured, unsigned zero) {
  const int self = static_cast<int>(threadIdx.x) - 4 * kWarp;
  ChunkState at;
  RowState state;
  for (long long row = team; row < on.rows; row += teams, state.advance()) {
    const Statistics own = measure_slice(ring, at, cut_of_slice(on, row, part), part, self, zero);
    if (self % kWarp == 0) {
      partial[state.index * 4 + self / kWarp] = own;
      hw::barrier_arrive(measured + state.index);
    }
  }
}

// The statistics that the reduce warps have made of a slice.
struct SliceParts {
  const Statistics* warps;  // [kRowDepth][4]
  hw::MemoryBarrier* ready;

  NJ_METHOD Statistics wait(RowState state, const Cut& cut) const {
    hw::barrier_wait(ready + state.index, state.phase);
    return Statistics::merge_all<4>([&](int i) { return warps[state.index * 4 + i]; },
                                    [&](int i) { return columns_of_reduce_warp(i, cut); }, cut.count);
  }
};

// One warp: publishes the statistics of the slice to the team.
NJ_DEVICE void publish_all(const SliceParts& parts, const Operands& on, const Part& part, long long team,
                           long long teams, hw::MemoryBarrier* ready, unsigned tag) {
  RowState state;
  for (long long row = team; row < on.rows; row += teams, state.advance()) {
    const Statistics own = parts.wait(state, cut_of_slice(on, row, part));
    hw::warp_barrier();
    if (threadIdx.x % kWarp == 0) {
      publish_part<kSlotDepth>(on.workspace, ++tag, own, part.slice);
      hw::barrier_arrive(ready + state.index);  // its parts are read
    }
  }
}

// One warp: the statistics of each row, for the consumers.
NJ_DEVICE void finalize_rows(const SliceParts& parts, const Operands& on, const Part& part, long long team,
                             long long teams, RowStatistics* known, hw::MemoryBarrier* ready, unsigned tag) {
  const bool first = threadIdx.x % kWarp == 0;
  RowState state;
  for (long long row = team; row < on.rows; row += teams, state.advance()) {
    Statistics all;
    if constexpr (Exchange::chosen == Exchange::grid) {
      // The team publishes only after this block has measured, so this wait never takes long. It orders the
      // write of `known` behind the read of what it held before.
      hw::barrier_wait(parts.ready + state.index, state.phase);
      all = gather_row<kSlotDepth>(on.workspace, ++tag, [](int i) { return columns_of_part(i); });
    } else {
      all = parts.wait(state, cut_of_slice(on, row, part));
    }
    const RowStatistics statistics = finalize(all);
    hw::warp_barrier();
    if (first) {
      known[state.index] = statistics;
      hw::barrier_arrive(ready + state.index);
      if (part.slice == 0) store(statistics, on, row);
    }
  }
  if constexpr (Exchange::chosen == Exchange::grid)
    if (first) leave(on, tag, team);
}

// Eight warps: normalize and write, with the parameters that each thread keeps.
struct Consumer {
  const Ring& ring;
  const Part& part;
  Columns columns;  // of the slice
  unsigned zero;
  ChunkState at;
  Vec<Weight> held[kHeldParameters > 0 ? kHeldParameters : 1][kHeldParameters > 0 ? kOwn* kPerThread : 1];
  Taken taken[kTaken > 0 ? kTaken : 1][kPerThread];
  Parameters next[kAsked][kPerThread];  // of the chunks that are next, where it is not held

  // Whether there is a chunk c, and whether vector k of it is in the row. Constant for all but the last
  // chunk: loads behind branches would be waited for there.
  NJ_METHOD bool has(int c) const { return c < kOwn - 1 || c < part.own; }
  NJ_METHOD bool has(int c, int k) const {
    return has(c) && (kFullChunks || c < kOwn - 1 || column(k) < part.columns(c));
  }
  // From the slice's begin on.
  static NJ_METHOD long long offset(int c) { return static_cast<long long>(c) * kBlocksPerRow * kSpan; }
  static NJ_METHOD int column(int k) {
    return (k * kThreadsPerRow + static_cast<int>(threadIdx.x) - kFirstConsumer) * kVector;
  }

  NJ_METHOD Consumer(const Ring& ring, const Part& part, const Columns& of_row, unsigned zero)
      : ring(ring), part(part), columns(of_row.from(part.begin(0))), zero(zero) {
#pragma unroll
    for (int c = 0; c < kOwn; ++c)
#pragma unroll
      for (int k = 0; k < kPerThread; ++k)
        if (has(c, k)) {
          const long long from = offset(c) + column(k);
#pragma unroll
          for (int p = 0; p < kHeldParameters; ++p)
            held[p][c * kPerThread + k] = load<hw::Cache::evict_first>(columns.at[p] + from);
        }
  }

  // Asks for the parameters of a chunk that are not held.
  NJ_METHOD void ask(int c, int k) {
    if (c >= kOwn || !has(c, k)) return;
    const long long from = offset(c) + column(k);
    Parameters& to = next[c % kAsked][k];
#pragma unroll
    for (int p = kHeldParameters; p < kParameters; ++p)
      to.at[p] = load<hw::Cache::evict_last>(columns.at[p] + from);
#pragma unroll
    for (int p = 0; p < kRowParameters; ++p)
      to.of_row[p] = load<hw::Cache::evict_last>(columns.of_row[p] + from);
  }

  // Takes a chunk out of the ring, and frees its place.
  NJ_METHOD void take(Taken* to, int c) {
    const Kept* chunk = ring.wait_for_kept(at);
    unsigned loaded = 0;
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (has(c, k)) to[k] = take_vector(chunk + column(k), ring.residual(at) + column(k), loaded);
    ring.leave(at, loaded, zero);
    at.advance();
  }

  // Loads what does not depend on the statistics of the row.
  NJ_METHOD void take_ahead(const Columns& of_row) {
    if constexpr (kParametersOfRow) columns = of_row.from(part.begin(0));
#pragma unroll
    for (int c = 0; c < kAsked && c < kOwn; ++c)
#pragma unroll
      for (int k = 0; k < kPerThread; ++k) ask(c, k);
#pragma unroll
    for (int c = 0; c < kTaken; ++c)
      if (has(c)) take(taken[c], c);
  }

  // Writes the slice of a row: y, and the sum.
  NJ_METHOD void write_slice(const Cut&, const RowStatistics& statistics, const Sink& sink, Residual* sum) {
#pragma unroll
    for (int c = 0; c < kOwn; ++c)
      if (has(c)) {
        Taken now[kPerThread];
        if (c >= kTaken) take(now, c);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
          Parameters parameters = next[c % kAsked][k];
#pragma unroll
          for (int p = 0; p < kHeldParameters; ++p) parameters.at[p] = held[p][c * kPerThread + k];
          parameters = unconverted(parameters);
          ask(c + kAsked, k);
          if (!has(c, k)) continue;
          const Taken& one = c < kTaken ? taken[c < kTaken ? c : 0][k] : now[k];
          if constexpr (kWritesSum) store(sum + offset(c) + column(k), stored_sum(one.sum));
          store(sink.y + offset(c) + column(k), finish(one.sum, statistics, parameters, one.added, sink.by));
        }
      }
  }
};

NJ_KERNEL(NJ_ENTRY, kThreads) {
  NJ_DYNAMIC_SHARED(unsigned char, places);
  NJ_SHARED(hw::MemoryBarrier, filled, kStages);
  NJ_SHARED(hw::MemoryBarrier, freed, kStages);
  NJ_SHARED(hw::MemoryBarrier, summed, kKeepsSum ? kStages : 1);
  NJ_SHARED(hw::MemoryBarrier, added, kKeepsSum ? kResidualPlaces : 1);
  NJ_SHARED(hw::MemoryBarrier, placed, 1);
  NJ_SHARED(hw::MemoryBarrier, measured, kRowDepth);
  NJ_SHARED(hw::MemoryBarrier, ready, kRowDepth);
  NJ_SHARED(Statistics, partial, 4 * kRowDepth);
  NJ_SHARED(RowStatistics, known, kRowDepth);
  NJ_SHARED(unsigned, tag, 1);  // of what was published before this launch
  const int warp = threadIdx.x / kWarp;
  const long long team = blockIdx.x / kBlocksPerRow, teams = gridDim.x / kBlocksPerRow;
  const int slice = static_cast<int>(blockIdx.x) % kBlocksPerRow;
  const Part part(slice);
  const Ring ring{places, filled, freed, summed, added, placed};
  const auto zero = static_cast<unsigned>(on.rows >> 63);  // 0, but opaque to the compiler

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      hw::barrier_init(filled + i, 1);
      // Consumers wait for the sum, and so for the reduce warps.
      hw::barrier_init(freed + i, kKeepsSum ? kThreadsPerRow / kWarp : 4 + kThreadsPerRow / kWarp);
      if constexpr (kKeepsSum) hw::barrier_init(summed + i, 4);
    }
    if constexpr (kKeepsSum)
      for (int i = 0; i < kResidualPlaces; ++i) hw::barrier_init(added + i, 4);
    if constexpr (kUnaligned) hw::barrier_init(placed, kThreadsPerRow / kWarp);
    for (int i = 0; i < kRowDepth; ++i) {
      hw::barrier_init(measured + i, 4);
      hw::barrier_init(ready + i, Exchange::chosen == Exchange::grid ? 2 : 1);
    }
    hw::barriers_ready();
  }
  hw::wait_for_previous_launch();
  hw::allow_next_launch();
  if constexpr (Exchange::chosen == Exchange::grid)
    if (threadIdx.x == 0) tag[0] = first_tag(on.workspace);
  hw::block_barrier();

  if (warp < 4) {
    hw::shrink_registers<kFewRegisters>();
    if (kUnaligned ? warp == 0 : threadIdx.x == 0) produce(ring, on, part, team, teams);
    const SliceParts parts{partial, measured};
    if (warp == 1) finalize_rows(parts, on, part, team, teams, known, ready, tag[0]);
    if (threadIdx.x == 3 * kWarp && !kAffineRows && !kUnaligned) prefetch_parameters(part, columns_of(on, 0));
    if constexpr (Exchange::chosen == Exchange::grid)
      if (warp == 2) publish_all(parts, on, part, team, teams, ready, tag[0]);
  } else if (warp < 8) {
    hw::shrink_registers<kFewRegisters>();
    measure(ring, on, part, team, teams, partial, measured, zero);
  } else {
    hw::grow_registers<kManyRegisters>();
    Choice<kUnaligned, CutConsumer<Input>, Consumer> consumer(ring, part, columns_of(on, team), zero);
    const Quantizer by = quantizer_of(on);
    RowState state;
    for (long long row = team; row < on.rows; row += teams, state.advance()) {
      consumer.take_ahead(columns_of(on, row));
      hw::barrier_wait(ready + state.index, state.phase);
      const Source from = source_of(on, row, part.begin(0));
      consumer.write_slice(cut_of_slice(on, row, part), known[state.index],
                           sink_of(on, row, part.begin(0), by), from.sum);
    }
  }
}

}  // namespace normjit
