// SPDX-License-Identifier: Apache-2.0
// Short rows that begin anywhere: kThreadsPerRow neighbouring lanes of a warp share a row, and pass
// kGroupRows rows one after the other. The rows of a warp, its tile, go through shared memory.
//
// Why it is fast: where rows follow each other without a gap, a tile is one run of memory, however long its
// rows are. The warp moves it in accesses of 16 bytes that are contiguous over its lanes, and in single
// elements only at the two ends. In shared memory the lanes then read and write elements of their rows, of
// which no two lie in the same bank where the planner could choose so. There are no barriers but the
// warp's. Where rows have gaps, and in the last tile, each row is a run of its own.
namespace normjit {

static_assert(kSpan >= kColumns && !kUnaligned, "the lanes cover the row");
static_assert(kThreadsPerRow <= kWarp, "a row stays in a warp");

enum : int { kRows = kWarp / kThreadsPerRow * kGroupRows };  // of a tile
enum : int {
  kLargest = plan_math::larger(sizeof(Residual), plan_math::larger(sizeof(Input), sizeof(Output)))
};
// Elements of a wide access: 16 bytes of the larger type.
enum : int { kWide = 16 / kLargest };
static_assert(kVector <= kWide, "what a lane reads in shared memory is aligned");
// Elements from one row to the next, where each row is a run of its own.
enum : int { kPitch = plan_math::tile_pitch(kColumns, kWide) };
// Shared memory of a warp: for x and y, for the residual, and for the sum, which else stands where the
// residual did.
enum : int { kTileBytes = plan_math::tile_bytes(kRows, kColumns, kLargest) };
enum : int { kSumTile = kHasResidual + (kWritesSum && !kAddsResidual) };
enum : int { kTiles = 1 + kSumTile };

template <class T>
struct Wide {
  T at[kWide];
};

// Whether rows follow each other without a gap.
NJ_DEVICE bool is_contiguous(const Rows& rows) { return rows.stride == kColumns; }
NJ_DEVICE bool is_contiguous(const GroupedRows& rows) { return rows.inverse == 0 && rows.inner == kColumns; }

// The rows of a tile in memory, at most kRows, and their places in the tile's shared memory: as far from an
// aligned one as in memory, so that wide accesses are aligned there too.
template <class T, class Where>
struct Tile {
  T* first;
  Where where;
  long long begin;  // the number of its first row
  int rows;

  NJ_METHOD bool is_one_run() const { return (kRows == 1 || is_contiguous(where)) && rows == kRows; }
  NJ_METHOD T* row(int r) const {
    if constexpr (kSame<Where, Rows>) return first + r * where.stride;
    return first + (begin_of(where, begin + r) - begin_of(where, begin));
  }
  NJ_METHOD int place(int r) const {
    return is_one_run() ? cut_into<kWide>(first, 0).past + r * kColumns
                        : r * kPitch + cut_into<kWide>(row(r), 0).past;
  }
};
template <class T, class Where>
NJ_DEVICE Tile<T, Where> tile_of(T* operand, const Where& where, long long begin, int rows) {
  return {operand + begin_of(where, begin), where, begin, rows};
}

// Which row of the tile is the g-th of this lane.
NJ_DEVICE int row_of(int g) {
  return static_cast<int>(threadIdx.x % kWarp) / kThreadsPerRow * kGroupRows + g;
}

enum : int { kRun = kRows * kColumns };  // of a whole tile
enum : int { kMoves = (kRun + kWarp * kWide - 1) / (kWarp * kWide) };
// Where the k-th wide access of a lane begins in the body of such a run, and whether it has one.
NJ_DEVICE int wide_at(int k) { return (k * kWarp + static_cast<int>(threadIdx.x % kWarp)) * kWide; }
NJ_DEVICE bool is_wide(int k, const Cut& cut) {
  return (k + 1) * kWarp * kWide <= kRun - 2 * (kWide - 1) || wide_at(k) < cut.body;
}

// Copies a tile to its shared memory, and calls meanwhile() when its copies are under way. Asynchronous
// copies (sm_80) need no registers: 0.97 instead of 0.93 of copy speed at 39 bf16 columns, 0.98 instead of
// 0.95 at 24 f16.
template <class T, class Where, class Meanwhile>
NJ_DEVICE void fetch(const Tile<const T, Where>& tile, T* place, const Meanwhile& meanwhile) {
  if (tile.is_one_run()) {
    const Cut cut = cut_into<kWide>(tile.first, kRun);
    const int edge = static_cast<int>(threadIdx.x % kWarp);
    T* const to = place + cut.past;
    T single;
    if (edge < cut.edges()) single = hw::load<hw::Cache::evict_first, T>(tile.first + cut.edge(edge));
    if constexpr (kArch >= 80) {
#pragma unroll
      for (int k = 0; k < kMoves; ++k)
        if (const int at = cut.head + wide_at(k); is_wide(k, cut))
          hw::copy_async<sizeof(Wide<T>)>(to + at, tile.first + at);
      hw::copies_commit();
      meanwhile();
      hw::copies_wait<0>();
    } else {
      Wide<T> wide[kMoves];
#pragma unroll
      for (int k = 0; k < kMoves; ++k)
        if (is_wide(k, cut))
          wide[k] = hw::load<hw::Cache::evict_first, Wide<T>>(tile.first + cut.head + wide_at(k));
#pragma unroll
      for (int k = 0; k < kMoves; ++k)
        if (is_wide(k, cut)) hw::store_shared(to + cut.head + wide_at(k), wide[k]);
      meanwhile();
    }
    if (edge < cut.edges()) to[cut.edge(edge)] = single;
  } else {
    meanwhile();
#pragma unroll 1
    for (int g = 0; g < kGroupRows; ++g)
      if (const int r = row_of(g); r < tile.rows) {
        const T* const row = tile.row(r);
        const Cut cut = cut_into<kWide>(row, kColumns);
        T* const to = place + tile.place(r);
        const int lane = threadIdx.x % kThreadsPerRow;
#pragma unroll 1
        for (int at = cut.head + lane * kWide; at < cut.head + cut.body; at += kThreadsPerRow * kWide)
          hw::store_shared(to + at, hw::load<hw::Cache::evict_first, Wide<T>>(row + at));
#pragma unroll 1
        for (int e = lane; e < cut.edges(); e += kThreadsPerRow)
          to[cut.edge(e)] = hw::load<hw::Cache::evict_first, T>(row + cut.edge(e));
      }
  }
}

// Copies a tile from its shared memory.
template <class T, class Where>
NJ_DEVICE void put(const Tile<T, Where>& tile, const T* place) {
  if (tile.is_one_run()) {
    const Cut cut = cut_into<kWide>(tile.first, kRun);
    const int edge = static_cast<int>(threadIdx.x % kWarp);
    place += cut.past;
#pragma unroll
    for (int k = 0; k < kMoves; ++k)
      if (is_wide(k, cut))
        hw::store(tile.first + cut.head + wide_at(k),
                  hw::load_shared<Wide<T>>(place + cut.head + wide_at(k)));
    if (edge < cut.edges()) hw::store(tile.first + cut.edge(edge), place[cut.edge(edge)]);
  } else {
#pragma unroll 1
    for (int g = 0; g < kGroupRows; ++g)
      if (const int r = row_of(g); r < tile.rows) {
        T* const row = tile.row(r);
        const Cut cut = cut_into<kWide>(row, kColumns);
        const T* const from = place + tile.place(r);
        const int lane = threadIdx.x % kThreadsPerRow;
#pragma unroll 1
        for (int at = cut.head + lane * kWide; at < cut.head + cut.body; at += kThreadsPerRow * kWide)
          hw::store(row + at, hw::load_shared<Wide<T>>(from + at));
#pragma unroll 1
        for (int e = lane; e < cut.edges(); e += kThreadsPerRow)
          hw::store(row + cut.edge(e), from[cut.edge(e)]);
      }
  }
}

// A vector of a row in shared memory; a single element may be of 16 bits.
template <class T>
NJ_DEVICE Vec<T> read_vector(const T* from) {
  if constexpr (kVector == 1) {
    Vec<T> only;
    only.at[0] = *from;
    return only;
  } else {
    return hw::load_shared<Vec<T>>(from);
  }
}
template <class T>
NJ_DEVICE void write_vector(T* to, const Vec<T>& value) {
  if constexpr (kVector == 1) {
    *to = value.at[0];
  } else {
    hw::store_shared(to, value);
  }
}

// Whether a lane has a vector k.
NJ_DEVICE bool has(int k, int lane) { return inside(k, lane, {0, 0, kColumns, kColumns}); }

// A lane's part of a row, widened: a single 16-bit element takes a register, too.
struct WidenedFragment {
  Acc at[kPerThread][kVector];

  // `row` and `residual` are in shared memory, the other operands of `from` are not.
  NJ_METHOD void read(const Input* row, const Residual* residual, const Source& from, int lane) {
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      Vec<Input> part = {};
      Vec<Residual> added = {};
      Prologue other = {};
      if (has(k, lane)) {
        part = read_vector(row + column(k, lane));
        if constexpr (kAddsResidual) added = read_vector(residual + column(k, lane));
        if constexpr (kHasInBias) other.in_bias = load<hw::Cache::keep>(from.in_bias + column(k, lane));
        if constexpr (kGatesX) other.gate = load<hw::Cache::keep>(from.gate + column(k, lane));
        if constexpr (kGatesX && kHasGateTable)
          other.gate_table = load<hw::Cache::keep>(from.gate_table + column(k, lane));
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        at[k][i] = kHasPrologue ? widen(sum_of(part, other, added), i) : widen(part, i);
    }
  }
  template <class Take>
  NJ_METHOD void each(const Take& take) const {
    const int lane = threadIdx.x % kThreadsPerRow;
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (has(k, lane)) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) take(at[k][i], i);
      }
  }
  NJ_METHOD Vec<Residual> stored_sum(int k) const {
    Vec<Residual> sum;
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum.at[i] = narrow<Residual>(at[k][i]);
    return sum;
  }
  // The results of vector k, one after the other: each(i, result).
  template <class Each>
  NJ_METHOD void each_result(int k, const RowStatistics& s, const Parameters& parameters,
                             const Vec<Residual>& added, const Each& each) const {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      each(i, result_of(at[k][i], s, widen(parameters, i), kAddsToResult ? widen(added, i) : Acc()));
  }
  NJ_METHOD Vec<Output> finished(int k, const RowStatistics& s, const Parameters& parameters,
                                 const Vec<Residual>& added, const Quantizer& by) const {
    Narrowed<Output> y;
    each_result(k, s, parameters, added, [&](int i, Acc v) { y.set(i, quantized(v, by)); });
    return y.all;
  }
  // The largest result of the lane. `residual` is in shared memory.
  NJ_METHOD Largest largest(const RowStatistics& s, const Columns& columns, const Residual* residual,
                            int lane) const {
    Largest own = {0};
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (has(k, lane)) {
        Vec<Residual> added = {};
        if constexpr (kAddsToResult) added = read_vector(residual + column(k, lane));
        each_result(k, s, load_parameters(columns, k, lane), added, [&](int, Acc v) { own = own.with(v); });
      }
    return own;
  }
};

// The tile of the residual, and where a row of the sum stands, of specs that have them. (Templates over
// Operands.)
template <class Any>
NJ_DEVICE auto residual_tile(const Any& on, long long first, int count) {
  if constexpr (kHasResidual) {
    return tile_of(on.residual, on.residual_rows, first, count);
  } else {
    return tile_of(on.x, on.x_rows, first, count);
  }
}
template <class Any>
NJ_DEVICE void fetch_residual(const Any& on, long long first, int count, Residual* place) {
  if constexpr (kHasResidual) fetch(residual_tile(on, first, count), place, [] {});
}
template <class Any>
NJ_DEVICE int place_of_sum(const Any& on, long long first, int count, int r) {
  if constexpr (kWritesSum) return tile_of(on.sum, on.sum_rows, first, count).place(r);
  return 0;
}
template <class Any>
NJ_DEVICE void put_sum(const Any& on, long long first, int count, const Residual* place) {
  if constexpr (kWritesSum) put(tile_of(on.sum, on.sum_rows, first, count), place);
}

NJ_KERNEL(NJ_ENTRY, kThreads) {
  NJ_DYNAMIC_SHARED(unsigned char, tiles);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kThreadsPerRow;
  unsigned char* const shared = tiles + warp * kTiles * kTileBytes;
  hw::wait_for_previous_launch();
  hw::allow_next_launch();
  const Quantizer given = quantizer_of(on);
  for (long long first = (static_cast<long long>(blockIdx.x) * kWarps + warp) * kRows; first < on.rows;
       first += static_cast<long long>(gridDim.x) * kWarps * kRows) {
    const int count = on.rows - first < kRows ? static_cast<int>(on.rows - first) : kRows;
    const auto from = tile_of(on.x, on.x_rows, first, count);
    const auto to = tile_of(on.y, on.y_rows, first, count);
    const auto residual = residual_tile(on, first, count);
    // Here, since the compiler holds the addresses of all vectors where it meets it behind the statistics.
    Columns columns = columns_of(on, first);
    Input* const in = reinterpret_cast<Input*>(shared);
    Output* const out = reinterpret_cast<Output*>(shared);
    Residual* const second = reinterpret_cast<Residual*>(shared + kTileBytes);
    Residual* const summed = reinterpret_cast<Residual*>(shared + kSumTile * kTileBytes);
    fetch(from, in, [&] { fetch_residual(on, first, count, second); });
    hw::warp_barrier();

    // Lanes beyond the last row compute that row again, for the shuffles; their results are not copied.
    WidenedFragment held[kGroupRows];
#pragma unroll
    for (int g = 0; g < kGroupRows; ++g) {
      const int r = row_of(g) < count ? row_of(g) : count - 1;
      const Residual* added = nullptr;
      if constexpr (kAddsResidual) added = second + residual.place(r);
      held[g].read(in + from.place(r), added, source_of(on, first + r, 0), lane);
    }
    RowStatistics statistics[kGroupRows];
    Quantizer by[kGroupRows];
#pragma unroll
    for (int g = 0; g < kGroupRows; ++g) {
      statistics[g] = finalize(Statistics::of<kThreadsPerRow>(held[g], kColumns));
      if (row_of(g) < count && lane == 0) store(statistics[g], on, first + row_of(g));
      by[g] = given;
      if constexpr (kScalesRows) {
        const int r = row_of(g) < count ? row_of(g) : count - 1;
        const Largest own =
            held[g].largest(statistics[g], columns_of(on, first + r), second + residual.place(r), lane);
        by[g] = quantizer_of_row<Output>(lanes_largest<kThreadsPerRow>(own), given);
        if (row_of(g) < count && lane == 0) store(by[g], on, first + row_of(g));
      }
    }
    hw::warp_barrier();  // before y stands where x did

    Output* write[kGroupRows];
#pragma unroll
    for (int g = 0; g < kGroupRows; ++g) write[g] = out + to.place(row_of(g));
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (has(k, lane)) {
        Parameters parameters;
        if constexpr (!kParametersOfRow) parameters = load_parameters(columns, k, lane);
#pragma unroll
        for (int g = 0; g < kGroupRows; ++g) {
          const int r = row_of(g) < count ? row_of(g) : count - 1;
          if constexpr (kParametersOfRow) parameters = load_parameters(columns_of(on, first + r), k, lane);
          Vec<Residual> added = {};
          if constexpr (kAddsToResult) added = read_vector(second + residual.place(r) + column(k, lane));
          write_vector(write[g] + column(k, lane),
                       held[g].finished(k, statistics[g], parameters, added, by[g]));
          if constexpr (kWritesSum)
            write_vector(summed + place_of_sum(on, first, count, row_of(g)) + column(k, lane),
                         held[g].stored_sum(k));
        }
      }
    hw::warp_barrier();
    put(to, out);
    put_sum(on, first, count, summed);
    hw::warp_barrier();  // before the next tile comes
  }
}

}  // namespace normjit
