// SPDX-License-Identifier: Apache-2.0
// A ring of chunks in shared memory, through which rows pass: kBlocksPerRow blocks share a row, and each
// keeps its ring full, row after row. Bulk copies move whole aligned vectors. Where rows begin anywhere, a
// place of the ring has as many vectors as else, which are aligned in memory; the few elements at the ends of
// a slice that share a vector with another slice or row come one by one.
namespace normjit {

static_assert(kArch >= 90, "bulk copies and barriers in shared memory");
static_assert(kThreads == 2 * kThreadsPerRow, "half of the threads apply");
static_assert(kVector * sizeof(Input) == 16, "bulk copies move whole 16 bytes");
static_assert(Exchange::chosen != Exchange::cluster);
static_assert(!kUnaligned || kColumns >= 2 * kVector, "the ends of a row have a vector each");
static_assert(!kScalesRows, "consumers write as they read, before all of a row's results are known");
static_assert(!kHasInBias && !kGatesX, "what happens to x before the norm lies in the ring, with x");
static_assert(!kUnaligned || !(kHasResidualType || kRowParameters > 0),
              "unaligned rows are those of x and y");

// A place in the ring has a chunk of x. Where the sum with the residual is as large as x, the reduce warps
// put it in the place of x, and residuals pass through a short ring of their own behind the places. Else, and
// where the residual is added to the result, it lies behind x in the same place.
enum : bool { kKeepsSum = kAddsResidual && sizeof(Held) == sizeof(Input) };

// Warps 0 to 3 produce, publish and finalize, warps 4 to 7 reduce, the others consume. Registers are dealt
// to groups of four warps; to reduce 16-bit elements, unaligned rows or sums takes more of them.
enum : int { kReduceThreads = 4 * kWarp, kFirstConsumer = kThreads - kThreadsPerRow };
enum : int {
  // From sm_100 on the compiler needs more for sums of 16-bit elements.
  kFewRegisters = kArch >= 100 && kHasPrologue && sizeof(Input) == 2
                      ? (kKeepsSum && !kSame<Input, Residual> ? 96 : 88)
                  : kKeepsSum && sizeof(Input) >= 4                  ? (sizeof(Input) == 4 ? 64 : 80)
                  : sizeof(Input) == 2 || kUnaligned || kHasPrologue ? 72
                                                                     : 56,
  kManyRegisters = 256 - kFewRegisters
};
static_assert(2 * kFewRegisters * 4 * kWarp + kManyRegisters * kThreadsPerRow <= 65536);

enum : int { kChunks = plan_math::chunks(kColumns, kSpan, kColumns) };  // of a row
enum : int { kChunkVectors = kSpan / kVector };
enum : int { kOwn = (kChunks + kBlocksPerRow - 1) / kBlocksPerRow };  // of a slice, at most
enum : bool { kFullChunks = kColumns % kSpan == 0 };
static_assert(kOwn <= kStages, "a slice fits in the ring");
enum : int {
  kRoom = plan_math::ring_room(kSpan, kVector, kUnaligned)
};  // for a chunk in the ring, in columns

using Kept = Choice<kKeepsSum, Held, Input>;  // what consumers find in a place
enum : int { kColumnBytes = sizeof(Input) + (kHasResidual ? sizeof(Residual) : 0) };
enum : int { kPlaceBytes = kRoom * (kKeepsSum ? static_cast<int>(sizeof(Input)) : kColumnBytes) };
enum : int { kResidualBytes = kRoom * sizeof(Residual) };
enum : int { kChunkBytes = kColumns / kChunks * kColumnBytes };  // that are read
enum : int { kInFlight = plan_math::chunks_in_flight(kStages, kChunkBytes) };
enum : int { kResidualPlaces = plan_math::residual_places(kStages, kChunkBytes) };

// Places for what is passed on for each row, in the block and in the team.
enum : int { kRowDepth = plan_math::row_depth(kStages, kChunks, kBlocksPerRow) };
enum : int { kSlotDepth = plan_math::slot_depth(kRowDepth) };

// A place in a ring of kDepth places, and the phase of the barrier there, which flips with each round.
template <int kDepth>
struct PipelineState {
  int index = 0;
  unsigned phase = 0;

  NJ_METHOD void advance() {
    if (++index == kDepth) index = 0, phase ^= 1;
  }
};
// Of a chunk in the ring, and of its residual where that has a ring of its own.
struct ChunkState : PipelineState<kStages> {
  PipelineState<kResidualPlaces> residual;

  NJ_METHOD void advance() {
    PipelineState<kStages>::advance();
    if constexpr (kKeepsSum) residual.advance();
  }
};
using RowState = PipelineState<kRowDepth>;  // of what is passed on for a row

struct Ring {
  unsigned char* places;              // [kStages][kPlaceBytes]; with kKeepsSum, residuals behind them
  hw::MemoryBarrier *filled, *freed;  // [kStages]
  // With kKeepsSum: [kStages], the sum stands; [kResidualPlaces], the residual is read.
  hw::MemoryBarrier *summed, *added;
  hw::MemoryBarrier* placed;  // of unaligned rows: the parameters are in their planes

  NJ_METHOD Input* chunk(ChunkState at) const {
    return reinterpret_cast<Input*>(places + at.index * kPlaceBytes);
  }
  NJ_METHOD Residual* residual(ChunkState at) const {
    if constexpr (kKeepsSum)
      return reinterpret_cast<Residual*>(places + kStages * kPlaceBytes + at.residual.index * kResidualBytes);
    return reinterpret_cast<Residual*>(chunk(at) + kRoom);
  }
  // Behind the places, with kUnaligned.
  NJ_METHOD Planes planes() const {
    return {reinterpret_cast<ColumnParameters*>(places + kStages * kPlaceBytes)};
  }
  NJ_METHOD const Input* wait(ChunkState at) const {
    hw::barrier_wait(filled + at.index, at.phase);
    return chunk(at);
  }
  // A consumer waits for what it takes.
  NJ_METHOD const Kept* wait_for_kept(ChunkState at) const {
    hw::barrier_wait((kKeepsSum ? summed : filled) + at.index, at.phase);
    return reinterpret_cast<const Kept*>(chunk(at));
  }
  // One reduce warp, with kKeepsSum: its part of the sum is written.
  NJ_METHOD void keep_sum(ChunkState at) const {
    hw::writes_before_copies();  // x of a later chunk comes to the same place
    hw::warp_barrier();
    if (threadIdx.x % kWarp == 0) {
      hw::barrier_arrive(summed + at.index);
      hw::barrier_arrive(added + at.residual.index);
    }
  }
  // One warp: frees a chunk when `loaded`, bits of all that the lanes read of it, has arrived.
  NJ_METHOD void leave(ChunkState at, unsigned loaded, unsigned zero) const {
    hw::warp_barrier();
    if (threadIdx.x % kWarp == 0) hw::barrier_arrive_after(freed + at.index, loaded, zero);
  }
};

// Registers of a consumer for parameters, at most; from sm_120 on the compiler does not deal registers.
enum : int { kMostHeld = kArch < 120 ? 128 : 32 };

// Bits of a value, to wait for its load.
template <class T>
NJ_DEVICE unsigned first_word(const T& value) {
  unsigned word;
  memcpy(&word, &value, sizeof word);
  return word;
}

// A vector of a chunk, in accesses of at most 16 bytes.
template <class T>
NJ_DEVICE Vec<T> read_chunk(const T* from) {
  if constexpr (sizeof(Vec<T>) <= 16) {
    return hw::load_shared<Vec<T>>(from);
  } else {
    struct Half {
      T at[kVector / 2];
    };
    static_assert(sizeof(Half) <= 16, "no element is more than twice as large as one of x");
    const Half halves[] = {hw::load_shared<Half>(from), hw::load_shared<Half>(from + kVector / 2)};
    Vec<T> vector;
    memcpy(&vector, halves, sizeof vector);
    return vector;
  }
}

// How many chunks of a row a slice has, and its first one. Numbers differ by one at most. Slices take
// chunks in turn, so that all walk along the row together. Slices of unaligned rows take neighbouring
// chunks, so that few vectors are shared between slices; the last slices have more, so that a partial last
// chunk is always in a slice of kOwn chunks.
NJ_DEVICE int chunks_of_slice(int slice) {
  if constexpr (kChunks % kBlocksPerRow == 0) return kOwn;
  if constexpr (kUnaligned)
    return kChunks / kBlocksPerRow + (slice >= kBlocksPerRow - kChunks % kBlocksPerRow);
  return (kChunks - slice + kBlocksPerRow - 1) / kBlocksPerRow;
}
NJ_DEVICE int first_chunk_of_slice(int slice) {
  if constexpr (!kUnaligned) return slice;
  const int more = slice - (kBlocksPerRow - kChunks % kBlocksPerRow);
  return slice * (kChunks / kBlocksPerRow) + (more > 0 ? more : 0);
}
NJ_DEVICE int columns_of_part(int slice) {
  const int own = chunks_of_slice(slice);
  if constexpr (kFullChunks) return own * kSpan;
  const bool last = slice == (kUnaligned ? kBlocksPerRow - 1 : (kChunks - 1) % kBlocksPerRow);
  return own * kSpan - (last ? static_cast<int>(static_cast<long long>(kChunks) * kSpan - kColumns) : 0);
}

struct Part {
  int slice, own;  // chunks
  NJ_METHOD explicit Part(int slice) : slice(slice), own(chunks_of_slice(slice)) {}
  NJ_METHOD long long begin(int c) const {
    return (static_cast<long long>(c) * (kUnaligned ? 1 : kBlocksPerRow) + first_chunk_of_slice(slice)) *
           kSpan;
  }
  NJ_METHOD int columns(int c) const {
    if constexpr (kFullChunks) return kSpan;
    const long long left = kColumns - begin(c);
    return left < kSpan ? static_cast<int>(left) : kSpan;
  }
};

// The vector of a slice's places with which its whole vectors begin: the one before it shares with another
// slice or row.
NJ_DEVICE int first_vector(const Cut& cut) { return cut.past > 0 ? 1 : 0; }
// What a slice of an unaligned row has in its chunk c.
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
  // Whether the single element of a lane, of which a slice has a few at its ends, is in this chunk, and its
  // place there.
  NJ_METHOD bool has_end(int lane) const {
    return lane < cut.edges() && c == (cut.edge(lane) < cut.head ? 0 : own - 1);
  }
  NJ_METHOD int place_of_end(int lane) const { return cut.past + cut.edge(lane) - c * kSpan; }
};
NJ_DEVICE Input load_end(const Input* slice, int lane, int columns) {
  const Cut cut = cut_of(slice, columns);
  return lane < cut.edges() ? hw::load<hw::Cache::evict_first, Input>(slice + cut.edge(lane)) : Input();
}

// The producer warp: keeps the ring full, row after row. One thread suffices for aligned rows.
NJ_DEVICE void produce(const Ring& ring, const Operands& on, const Part& part, long long team,
                       long long teams) {
  const int lane = static_cast<int>(threadIdx.x), columns = columns_of_part(part.slice);
  ChunkState at, oldest;  // the oldest that may be in flight
  int in_flight = 0;
  Input next_end = Input();  // of the next row
  const auto x_of = [&](long long row) { return source_of(on, row, part.begin(0)).x; };
  if (kUnaligned && team < on.rows) next_end = load_end(x_of(team), lane, columns);
  for (long long row = team; row < on.rows; row += teams) {
    const Input* const from = x_of(row);
    const Residual* const residual = residual_of(on, row, part.begin(0));
    const Cut cut = cut_of(from, columns);
    const Input end = next_end;
    if (kUnaligned && row + teams < on.rows) next_end = load_end(x_of(row + teams), lane, columns);
#pragma unroll 1
    for (int c = 0; c < part.own; ++c, at.advance()) {
      hw::barrier_wait(ring.freed + at.index, at.phase ^ 1);
      if constexpr (kKeepsSum) hw::barrier_wait(ring.added + at.residual.index, at.residual.phase ^ 1);
      if (in_flight == kInFlight) {
        ring.wait(oldest);
        oldest.advance();
      } else {
        ++in_flight;
      }
      const int count = part.columns(c);
      const long long begin = part.begin(c) - part.begin(0);
      int first = 0, vectors = count / kVector;
      if constexpr (kUnaligned) {
        const int left = first_vector(cut) + cut.body / kVector - c * kChunkVectors;
        first = c == 0 ? first_vector(cut) : 0;
        vectors = (left < kChunkVectors ? left : kChunkVectors) - first;
        const CutChunk chunk{cut, c, part.own};
        if (chunk.has_end(lane)) ring.chunk(at)[chunk.place_of_end(lane)] = end;
        hw::warp_barrier();
        if (lane > 0) continue;
      }
      const int bytes = vectors > 0 ? vectors * kVector * static_cast<int>(sizeof(Input)) : 0;
      const int others = kHasResidual ? vectors * kVector * static_cast<int>(sizeof(Residual)) : 0;
      hw::barrier_arrive_expect(ring.filled + at.index, bytes + others);
      if (!kUnaligned || bytes > 0)
        hw::bulk_load(ring.chunk(at) + first * kVector, from - cut.past + begin + first * kVector, bytes,
                      ring.filled + at.index);
      if constexpr (kHasResidual)
        hw::bulk_load(ring.residual(at), residual + begin, others, ring.filled + at.index);
    }
  }
}

}  // namespace normjit
