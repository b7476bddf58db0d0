// SPDX-License-Identifier: Apache-2.0
// LayerNorm over the channels of NCHW: the columns of a row are a plane apart, and rows that follow each
// other, the positions of a plane, lie side by side. kAcross neighbouring lanes have kVector positions each;
// kThreadsPerRow threads share the channels of these positions.
//
// Why it is fast: x is read once and y written once, as the memory has them: a warp moves a run of positions
// of one channel, then of the next. A block's tile of positions may end in another sample than it begins in,
// so that nothing is idle in planes of 7 x 7. Threads measure their own channels in registers; parts meet in
// shared memory once, where a few lanes merge those of a position, each position by other lanes. Parameters
// come into shared memory while x is on its way: waited for channel by channel they cost more than x does.
//
// More channels than a block holds pass in pieces, and are read twice.
namespace normjit {

static_assert(kChannelsFirst && kBlocksPerRow == 1 && !kUnaligned, "a block has all channels of its tile");
static_assert(!kScalesRows, "the rows of a tile have no scales");

enum : int {
  kAcross = kThreads / kThreadsPerRow,  // threads side by side
  kTile = kAcross * kVector,            // positions of a block
  kPitch = plan_math::parts_pitch(kThreads, kThreadsPerRow, kVector),
  kParts = plan_math::parts_of_tile(kThreads, kThreadsPerRow, kVector),
  kMerged = kThreadsPerRow > 1 ? kTile : 1,
};
enum : bool {
  kOnePiece = kSpan >= kColumns,
  kSharesParameters = plan_math::shares_parameters(kSpan, kColumns, kParameters * sizeof(Weight))
};

// What a thread holds: its positions of its channels.
struct Slab {
  Vec<Held> part[kPerThread];
  Vec<Residual> added[kAddsToResult ? kPerThread : 1];
};

// How many of `count` channels thread i has of the threads that share them.
NJ_DEVICE int share_of(int i, int count) {
  return static_cast<int>((count + kThreadsPerRow - 1u - i) / kThreadsPerRow);
}

// A piece of the channels from number `begin` on, of which this thread has number d, d + kThreadsPerRow, ...
struct Piece {
  int begin, d;
  Cut cut;

  NJ_METHOD bool has(int k) const { return inside(k, d, cut); }
  NJ_METHOD int channel(int k) const { return begin + column(k, d); }
  // How many of it the thread has.
  NJ_METHOD int own() const { return kWhole ? kPerThread : share_of(d, cut.count); }
};
NJ_DEVICE Piece piece_of(int begin, int d) {
  const int left = kColumns - begin, count = kOnePiece || left < kSpan ? left : kSpan;
  return {begin, d, {0, 0, count, count}};
}

// Where the vectors of a thread lie in an operand, one after the other. Opaque to the compiler, or it keeps
// the distances of all of them in registers, two each.
template <class T>
struct Walk {
  T* at;
  long long step;

  NJ_METHOD void next() {
    at += step;
    hw::opaque(at);
  }
};
template <class T>
NJ_DEVICE Walk<T> walk_of(T* operand, const GroupedRows& rows, long long row, const Piece& piece) {
  return {operand + begin_of(rows, row) + piece.channel(0) * rows.n, kThreadsPerRow * rows.n};
}

template <hw::Cache kCache, class T>
NJ_DEVICE void load_slab(Vec<T> (&to)[kPerThread], Walk<const T> from, const Piece& piece) {
#pragma unroll
  for (int k = 0; k < kPerThread; ++k, from.next())
    if (piece.has(k)) to[k] = load<kCache>(from.at);
}

// Of all operands of the positions from `row` on. All loads are issued before the first is used.
template <hw::Cache kCache, class Any>
NJ_DEVICE void load(Slab& slab, const Any& on, long long row, const Piece& piece) {
  if constexpr (kHasPrologue) {
    Vec<Input> x[kPerThread];
    Vec<Residual> residual[kPerThread];
    Weight in_bias[kPerThread];
    load_slab<kCache>(x, walk_of(on.x, on.x_rows, row, piece), piece);
    if constexpr (kAddsResidual)
      load_slab<kCache>(residual, walk_of(on.residual, on.residual_rows, row, piece), piece);
    if constexpr (kHasInBias)
#pragma unroll
      for (int k = 0; k < kPerThread; ++k)
        if (piece.has(k)) in_bias[k] = hw::load<hw::Cache::keep, Weight>(on.in_bias + piece.channel(k));
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (piece.has(k)) {
#pragma unroll
        for (int i = 0; i < kVector; ++i)
          slab.part[k].at[i] = sum_of(widen(x[k], i), kHasInBias ? widen(in_bias[k]) : Acc(), Acc(), Acc(),
                                      kAddsResidual ? widen(residual[k], i) : Acc());
      }
  } else {
    load_slab<kCache>(slab.part, walk_of(on.x, on.x_rows, row, piece), piece);
  }
  if constexpr (kAddsToResult)
    load_slab<kCache>(slab.added, walk_of(on.residual, on.residual_rows, row, piece), piece);
}

// Writes the sum, where the spec wants it.
template <class Any>
NJ_DEVICE void store_sum(const Slab& slab, const Any& on, long long row, const Piece& piece) {
  if constexpr (kWritesSum) {
    Walk<Residual> to = walk_of(on.sum, on.sum_rows, row, piece);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k, to.next())
      if (piece.has(k)) store(to.at, stored_sum(slab.part[k]));
  }
}

// The elements of position i of the thread.
struct PositionElements {
  Slab& slab;
  const Piece& piece;
  int i;

  template <class Take>
  NJ_METHOD void each(const Take& take) const {
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (piece.has(k)) {
        take(widen(slab.part[k], i), k % kVector);
        hw::opaque(slab.part[k]);
      }
  }
};
NJ_DEVICE Statistics measure(Slab& slab, const Piece& piece, int i) {
  const int own = piece.own();
  return Statistics::of<1>(PositionElements{slab, piece, i}, own > 0 ? own : 1);
}

// The statistics of position `p` of the tile, p % kAcross being the lane and p / kAcross its place there, as
// those of all its channels are known.
template <class Any>
NJ_DEVICE RowStatistics merged(const Statistics& all, const Any& on, long long first, int p, bool writes) {
  const RowStatistics statistics = finalize(all);
  const long long row = first + p % kAcross * kVector + p / kAcross;
  if (writes && row < on.rows) store(statistics, on, row);
  return statistics;
}

// From each thread's own statistics of its positions those of all channels. Lanes of a warp take the parts of
// a position, and as many positions at a time as they can.
template <class Any>
NJ_DEVICE void merge(RowStatistics (&of_rows)[kVector], const Statistics (&own)[kVector], Statistics* parts,
                     RowStatistics* of_tile, const Any& on, long long first) {
  const int across = threadIdx.x % kAcross, d = threadIdx.x / kAcross;
  if constexpr (kThreadsPerRow == 1) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) of_rows[i] = merged(own[i], on, first, i * kAcross + across, true);
  } else {
    constexpr int kWidth = Merging<kThreadsPerRow>::kWidth, kAtOnce = kWarp / kWidth;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int i = 0; i < kVector; ++i) parts[d * kPitch + i * kAcross + across] = own[i];
    hw::block_barrier();
#pragma unroll 1
    for (int p = warp * kAtOnce + lane / kWidth; p < kTile; p += kWarps * kAtOnce) {
      const Statistics statistics =
          Statistics::merge_all<kThreadsPerRow>([&](int i) { return parts[i * kPitch + p]; },
                                                [&](int i) { return share_of(i, kColumns); }, kColumns);
      const bool writes = lane % kWidth == 0;
      const RowStatistics finished = merged(statistics, on, first, p, writes);
      if (writes) of_tile[p] = finished;
    }
    hw::block_barrier();
#pragma unroll
    for (int i = 0; i < kVector; ++i) of_rows[i] = of_tile[i * kAcross + across];
  }
}

// Copies the parameters of all channels to shared memory. All loads are issued before the first is used.
NJ_DEVICE void share_parameters(Weight* shared, const Columns& columns) {
  constexpr int kOwn = (kColumns + kThreads - 1) / kThreads;
  if constexpr (kSharesParameters) {
    Weight own[kParameterPlaces][kOwn];
#pragma unroll
    for (int p = 0; p < kParameters; ++p)
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
        if (const int channel = i * kThreads + threadIdx.x; channel < kColumns)
          own[p][i] = hw::load<hw::Cache::keep, Weight>(columns.at[p] + channel);
#pragma unroll
    for (int p = 0; p < kParameters; ++p)
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
        if (const int channel = i * kThreads + threadIdx.x; channel < kColumns)
          shared[p * kColumns + channel] = own[p][i];
    if constexpr (kThreadsPerRow == 1) hw::block_barrier();  // others have one when they merge
  }
}

// The parameters of a channel.
NJ_DEVICE ElementParameters parameters_of(const Columns& columns, const Weight* shared, int channel) {
  ElementParameters parameters;
#pragma unroll
  for (int p = 0; p < kParameters; ++p)
    parameters.at[p] = widen(kSharesParameters ? shared[p * kColumns + channel]
                                               : hw::load<hw::Cache::keep, Weight>(columns.at[p] + channel));
  return parameters;
}

template <class Any>
NJ_DEVICE void write(const Slab& slab, const RowStatistics (&s)[kVector], const Any& on, long long row,
                     const Piece& piece, const Weight* shared, const Quantizer& by) {
  Walk<Output> to = walk_of(on.y, on.y_rows, row, piece);
  const Columns columns = columns_of(on, 0);
  ElementParameters next = {};
  if (piece.has(0)) next = parameters_of(columns, shared, piece.channel(0));
#pragma unroll
  for (int k = 0; k < kPerThread; ++k, to.next()) {
    const ElementParameters parameters = next;
    if (k + 1 < kPerThread && piece.has(k + 1)) next = parameters_of(columns, shared, piece.channel(k + 1));
    if (piece.has(k)) {
      Narrowed<Output> y;
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        y.set(i, quantized(result_of(widen(slab.part[k], i), s[i], parameters,
                                     kAddsToResult ? widen(slab.added[kAddsToResult ? k : 0], i) : Acc()),
                           by));
      store(to.at, y.all);
    }
  }
}

NJ_KERNEL(NJ_ENTRY, kThreads) {
  NJ_SHARED(Statistics, parts, kParts);
  NJ_SHARED(RowStatistics, of_tile, kMerged);
  NJ_SHARED(Weight, shared, kSharesParameters ? kParameters * kColumns : 1);
  const int d = threadIdx.x / kAcross;
  hw::wait_for_previous_launch();
  hw::allow_next_launch();
  const Quantizer by = quantizer_of(on);
  for (long long first = static_cast<long long>(blockIdx.x) * kTile; first < on.rows;
       first += static_cast<long long>(gridDim.x) * kTile) {
    // Lanes beyond the last row take part with zeros, and write nothing. All positions of a lane are there,
    // or none: a plane is a multiple of them.
    const long long row = first + threadIdx.x % kAcross * kVector;
    const bool works = row < on.rows;
    Slab slab = {};
    Statistics own[kVector];
    RowStatistics of_rows[kVector];
    if constexpr (kOnePiece) {
      const Piece all = piece_of(0, d);
      if (works) load<hw::Cache::evict_first>(slab, on, row, all);
      if (first < static_cast<long long>(gridDim.x) * kTile) share_parameters(shared, columns_of(on, 0));
      if (works) store_sum(slab, on, row, all);
#pragma unroll
      for (int i = 0; i < kVector; ++i) own[i] = measure(slab, all, i);
      merge(of_rows, own, parts, of_tile, on, first);
      if (works) write(slab, of_rows, on, row, all, shared, by);
    } else {
      WideSums sums[kVector] = {};
      double base[kVector];
#pragma unroll 1
      for (int begin = 0; begin < kColumns; begin += kSpan) {
        const Piece piece = piece_of(begin, d);
        if (works) load<hw::Cache::keep>(slab, on, row, piece);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const Statistics part = measure(slab, piece, i);
          if (begin == 0) base[i] = part.centre();
          sums[i] = sums[i] + part.widened(piece.own(), base[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) own[i] = Statistics::from(sums[i], base[i], share_of(d, kColumns));
      merge(of_rows, own, parts, of_tile, on, first);
      // The sum may stand where the residual does: it is written as all of it has been read.
#pragma unroll 1
      for (int begin = 0; begin < kColumns; begin += kSpan) {
        const Piece piece = piece_of(begin, d);
        if (works) load<hw::Cache::evict_first>(slab, on, row, piece);
        if (works) store_sum(slab, on, row, piece);
        if (works) write(slab, of_rows, on, row, piece, shared, by);
      }
    }
  }
}

}  // namespace normjit
