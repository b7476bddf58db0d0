// SPDX-License-Identifier: Apache-2.0
// A ring of chunks in shared memory, through which rows pass: kBlocksPerRow blocks share a row, and each
// keeps its ring full, row after row. Bulk copies move whole aligned vectors. Where rows begin anywhere, a
// chunk lies in the ring as far from an aligned place as in memory; the few elements at the ends of a row
// that share a vector with another row come one by one.
namespace normjit {

static_assert(kArch >= 90, "bulk copies and barriers in shared memory");
static_assert(kThreads == 2 * kThreadsPerRow, "half of the threads apply");
static_assert(kVector * sizeof(Input) == 16, "bulk copies move whole 16 bytes");
static_assert(Exchange::chosen != Exchange::cluster);
static_assert(!kUnaligned || kColumns >= 2 * kVector, "the ends of a row have a vector each");

// Warps 0 to 3 produce, publish and finalize, warps 4 to 7 reduce, the others consume. Registers are dealt
// to groups of four warps; to reduce 16-bit or single elements takes more of them.
enum : int { kReduceThreads = 4 * kWarp, kFirstConsumer = kThreads - kThreadsPerRow };
enum : int {
  kFewRegisters = sizeof(Input) == 2 || kUnaligned ? 72 : 56,
  kManyRegisters = 256 - kFewRegisters
};
static_assert(2 * kFewRegisters * 4 * kWarp + kManyRegisters * kThreadsPerRow <= 65536);

enum : int { kChunks = plan_math::chunks(kColumns, kSpan, kColumns) };  // of a row
enum : int { kOwn = (kChunks + kBlocksPerRow - 1) / kBlocksPerRow };    // of a slice, at most
enum : bool { kFullChunks = kColumns % kSpan == 0 };
// Columns of the last chunk of a slice, where the compiler knows them, else 0.
enum : int { kLast = kFullChunks ? kSpan : kBlocksPerRow == 1 ? kColumns % kSpan : 0 };
static_assert(kOwn <= kStages, "a slice fits in the ring");
enum : int {
  kRoom = plan_math::ring_room(kSpan, kVector, kUnaligned)
};  // for a chunk in the ring, in columns
// Chunks in flight: 40 KiB on a multiprocessor keep the memory busy; more slows the writes down.
enum : int { kEnough = 40 * 1024 / (kColumns / kChunks * static_cast<int>(sizeof(Input))) };
enum : int { kInFlight = kEnough < 1 ? 1 : kEnough < kStages ? kEnough : kStages };

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
using ChunkState = PipelineState<kStages>;  // of a chunk in the ring
using RowState = PipelineState<kRowDepth>;  // of what is passed on for a row

struct Ring {
  Input* chunks;                      // [kStages][kRoom]
  hw::MemoryBarrier *filled, *freed;  // [kStages]

  NJ_METHOD Input* chunk(ChunkState at) const { return chunks + at.index * kRoom; }
  NJ_METHOD const Input* wait(ChunkState at) const {
    hw::barrier_wait(filled + at.index, at.phase);
    return chunk(at);
  }
  // One warp: frees a chunk when `loaded`, bits of all that the lanes read of it, has arrived.
  NJ_METHOD void leave(ChunkState at, unsigned loaded, unsigned zero) const {
    hw::warp_barrier();
    if (threadIdx.x % kWarp == 0) hw::barrier_arrive_after(freed + at.index, loaded, zero);
  }
};

// Registers of a consumer for parameters, at most; from sm_120 on the compiler does not deal registers.
enum : int { kMostHeld = kArch < 120 ? 128 : 32 };

// How far behind an aligned vector a row begins.
NJ_DEVICE int past_of(const Input* row) { return cut_of(row, kColumns).past; }

// Bits of a value, to wait for its load.
template <class T>
NJ_DEVICE unsigned first_word(const T& value) {
  unsigned word;
  memcpy(&word, &value, sizeof word);
  return word;
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

// Which single element of a slice of `columns` a lane copies to the ring: the first half of a warp has
// those before the first whole vector, the second half those behind the last. -1: none.
NJ_DEVICE int end_column(int past, int lane, int columns) {
  const int head = (kVector - past) % kVector, tail = (past + columns) % kVector;
  const int i = lane % (kWarp / 2);
  if (lane < kWarp / 2) return i < head && i < columns ? i : -1;
  const int column = columns - tail + i;
  return i < tail && column >= head ? column : -1;
}
NJ_DEVICE Input load_end(const Input* slice, int lane, int columns) {
  const int column = end_column(past_of(slice), lane, columns);
  return column < 0 ? Input() : hw::load<hw::Cache::evict_first, Input>(slice + column);
}

// The producer warp: keeps the ring full, row after row. One thread suffices for aligned rows.
NJ_DEVICE void produce(const Ring& ring, const Operands& on, const Part& part, long long team,
                       long long teams) {
  const int lane = static_cast<int>(threadIdx.x), columns = columns_of_part(part.slice);
  ChunkState at, oldest;  // the oldest that may be in flight
  int in_flight = 0;
  const Input* from = source_of(on, team, part.begin(0)).x;
  Input next_end = Input();  // of the next row
  if (kUnaligned && team < on.rows) next_end = load_end(from, lane, columns);
  for (long long row = team; row < on.rows; row += teams, from += teams * on.x_stride) {
    const int past = past_of(from), own_end = end_column(past, lane, columns);
    const Input end = next_end;
    if (kUnaligned && row + teams < on.rows) next_end = load_end(from + teams * on.x_stride, lane, columns);
#pragma unroll 1
    for (int c = 0; c < part.own; ++c, at.advance()) {
      hw::barrier_wait(ring.freed + at.index, at.phase ^ 1);
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
        // Vectors with a column of the chunk, but not those that are shared with another slice.
        const int behind = (past + count + kVector - 1) / kVector;
        const int whole = (past + columns - static_cast<int>(begin)) / kVector;
        first = c == 0 && past > 0 ? 1 : 0;
        vectors = (behind < whole ? behind : whole) - first;
        if (own_end >= begin && own_end < begin + count) ring.chunk(at)[past + own_end - begin] = end;
        hw::warp_barrier();
        if (lane > 0) continue;
      }
      const int bytes = vectors > 0 ? vectors * kVector * static_cast<int>(sizeof(Input)) : 0;
      hw::barrier_arrive_expect(ring.filled + at.index, bytes);
      if (!kUnaligned || bytes > 0)
        hw::bulk_load(ring.chunk(at) + first * kVector, from - past + begin + first * kVector, bytes,
                      ring.filled + at.index);
    }
  }
}

}  // namespace normjit
