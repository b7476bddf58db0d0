// SPDX-License-Identifier: Apache-2.0
// Gradients of rows that a block, a warp or a part of one holds in registers. Blocks take rows in turn; each
// thread keeps the same columns, and adds up in registers what these contribute to dweight and dbias.
//
// Why it is fast: x and dy are read once and dx is written once, by one kernel. The next row is on its way
// while a row is worked on, and all of a row's sums are exchanged at once, over one barrier. There is one
// part of the sums for each block, and few blocks: 132 of 8192 columns are 8.7 MB, 2 % of what 8192 rows
// move. Parts are added in a fixed order, with no atomics on sums: by all blocks, which meet for that and
// must be resident (Exchange::grid), or by the last one.
//
// Where rows share scale and shift, blocks take pieces of these groups in place of rows: a group has as many
// pieces as there are blocks for it. A thread adds up d and d * n of a piece, from which all sums over its
// rows follow, as the scale is the same. Of a group in one piece they are the group's gradients.
namespace normjit {

static_assert(kSpan >= kColumns, "the threads cover the row");
static_assert(kBlocksPerRow == 1 && kStages == 0 && kGroupRows == 1);

enum : int { kRows = kThreads / kThreadsPerRow };  // a block
enum : bool { kInWarp = kThreadsPerRow <= kWarp };
enum : bool { kKeeps = kActivates && kWritesDx };  // d, from the sums of a row until it is written

// Over the rows of a block, which have the same columns each: over the lanes of a warp, then over warps, some
// elements at a time. Writes the block's row of sums `to`.
enum : int {
  kAtOnce = 16 * 1024 / (kThreads * static_cast<int>(sizeof(Acc))),
  kRound = kAtOnce < kElements ? kAtOnce : kElements,
  kOfRound = kRows > 1 ? kRound* kWarps* kThreadsPerRow : 0,
  kAcross = plan_math::larger(kThreads * kWide, kOfRound)
};
NJ_DEVICE void write_part(Acc (&sums)[kElements], Acc* to, Acc* across) {
  const int lane = threadIdx.x % kThreadsPerRow;
  if constexpr (kRows == 1) {
    add_to(to, sums, true, lane, {0, 0, kColumns, kColumns});
  } else {
    const int warp = threadIdx.x / kWarp;
#pragma unroll
    for (int e = 0; e < kElements; ++e)
#pragma unroll
      for (int mask = kThreadsPerRow; mask < kWarp; mask *= 2) sums[e] = add_from(sums[e], mask);
#pragma unroll
    for (int first = 0; first < kElements; first += kRound) {
      if (threadIdx.x % kWarp < kThreadsPerRow) {
#pragma unroll
        for (int e = 0; e < kRound; ++e)
          if (first + e < kElements) across[(e * kWarps + warp) * kThreadsPerRow + lane] = sums[first + e];
      }
      hw::block_barrier();
#pragma unroll 1
      for (int i = threadIdx.x; i < kRound * kThreadsPerRow; i += kThreads) {
        const int e = i / kThreadsPerRow, element = first + e, of = i % kThreadsPerRow;
        Acc total = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) total += across[(e * kWarps + w) * kThreadsPerRow + of];
        const int at_column = column(element / kVector, of) + element % kVector;
        if (element < kElements && at_column < kColumns) to[at_column] = total;
      }
      hw::block_barrier();
    }
  }
}

// All rows of sums.
template <class Any>
NJ_DEVICE Acc* all_sums(const Any& on) {
  return reinterpret_cast<Acc*>(&meeting_in(on.workspace) + 1);
}

// The rows that a block takes together, from `first` on: those of a unit up to `end`. None if that is 0.
struct Round {
  long long unit, first, end;

  NJ_METHOD bool there() const { return first < end; }
};
// Rows in turn: a round is a unit.
struct RowsInTurn {
  long long rows;

  NJ_METHOD bool sums() const { return false; }  // over groups
  NJ_METHOD bool in_parts() const { return false; }
  NJ_METHOD Round of_unit(long long unit) const { return {unit, unit * kRows, rows}; }
  NJ_METHOD Round behind(const Round& round) const { return of_unit(round.unit + gridDim.x); }
};
// Pieces of groups of rows that share a row of dmod_scale, or rows in turn.
struct PiecesInTurn {
  long long rows, group, pieces, of_piece;  // rows of a launch, a group, and a piece; pieces of a group
  bool shared;

  NJ_METHOD bool sums() const { return shared; }
  NJ_METHOD bool in_parts() const { return shared && pieces > 1; }  // sums of groups
  NJ_METHOD Round of_unit(long long unit) const {
    const long long number = unit / pieces, piece = unit % pieces;
    const long long first = number * group + piece * of_piece, last = (number + 1) * group;
    const long long most = last < rows ? last : rows, end = first + of_piece;
    return {unit, first, first >= rows ? 0 : end < most ? end : most};
  }
  NJ_METHOD Round behind(const Round& round) const {
    if (round.first + kRows < round.end) return {round.unit, round.first + kRows, round.end};
    return of_unit(round.unit + gridDim.x);
  }
};
template <class Any>
NJ_DEVICE auto in_turn_of(const Any& on) {
  if constexpr (kMaySumGroups) {
    PiecesInTurn turn = {on.rows, kRows, 1, kRows, false};
    if (on.dmod_scale_rows.inner != 0) return turn;
    turn.shared = true;
    turn.group = on.dmod_scale_rows.n;
    const long long groups = on.rows / turn.group, blocks = gridDim.x;
    const long long rounds = (turn.group + kRows - 1) / kRows;
    const long long wanted = groups < blocks ? blocks / groups : 1;
    turn.of_piece = (wanted < rounds ? (rounds + wanted - 1) / wanted : 1) * kRows;
    turn.pieces = (turn.group + turn.of_piece - 1) / turn.of_piece;
    return turn;
  } else {
    return RowsInTurn{on.rows};
  }
}

// Sums of a piece of a group: adds to the block's rows of sums what follows for dweight and dbias, or begins
// them, and writes the gradients of the modulation, or the piece's part of them.
template <class Any>
NJ_DEVICE void end_piece(const Any& on, const PiecesInTurn& turn, long long unit, bool begins, Acc* all,
                         ColumnSums& sums, Acc* across) {
  const long long parts = gridDim.x, block = blockIdx.x, row = unit / turn.pieces * turn.group;
  Acc* of[kSumPlaces];
#pragma unroll
  for (int s = 0; s < kHeldSums; ++s) {
    of[s] = all + row_of_sums(kSums + kGroupSums + s, parts, block);
    write_part(sums.of[s], of[s], across);
  }
  hw::block_barrier();
  const auto read = [](const Acc* from) { return hw::load<hw::Cache::no_l1, Acc>(from); };
#pragma unroll 1
  for (int c = threadIdx.x; c < kColumns; c += kThreads) {
    const GroupSums of_column = {read(of[0] + c), kAddsGradients ? read(of[kHeldSums - 1] + c) : Acc(0)};
    of_column.each_sum(on, row, c, [&](int s, Acc sum) {
      Acc* const to = all + row_of_sums(s, parts, block) + c;
      *to = begins ? sum : *to + sum;
    });
    const Acc scale = of_column.of_scale(on, c);
    if (turn.pieces > 1) {
      all[row_of_sums(kSums, parts, unit) + c] = scale;
      if constexpr (kShifts) all[row_of_sums(kSums + 1, parts, unit) + c] = of_column.gradients;
    } else {
      write_dmod(on, row, c, scale, of_column.gradients);
    }
  }
  hw::block_barrier();
  sums = {};
}
template <class Any>
NJ_DEVICE void end_piece(const Any&, const RowsInTurn&, long long, bool, Acc*, ColumnSums&, Acc*) {}

// Adds the parts of each group, in their order. Blocks share the columns of all groups.
template <class Any>
NJ_DEVICE void add_pieces(const Any& on, const PiecesInTurn& turn, const Acc* all, int block, int blocks) {
  const long long groups = turn.rows / turn.group, step = static_cast<long long>(blocks) * kThreads;
#pragma unroll 1
  for (long long i = static_cast<long long>(block) * kThreads + threadIdx.x; i < groups * kColumns;
       i += step) {
    const long long number = i / kColumns, row = number * turn.group;
    const int c = static_cast<int>(i % kColumns);
    Acc totals[2] = {};
#pragma unroll
    for (int s = 0; s < kGroupSums; ++s) {
#pragma unroll 8
      for (long long piece = 0; piece < turn.pieces; ++piece)
        totals[s] += hw::load<hw::Cache::no_l1, Acc>(
            all + row_of_sums(kSums + s, gridDim.x, number * turn.pieces + piece) + c);
    }
    write_dmod(on, row, c, totals[0], totals[1]);
  }
}
template <class Any>
NJ_DEVICE void add_pieces(const Any&, const RowsInTurn&, const Acc*, int, int) {}

// What the threads of a row learn of it in two exchanges, where g needs n. d is kept on the way.
struct Exchanged {
  Statistics measured[kWarps];
  Weighed weighed[kWarps];
};
NJ_DEVICE Pair sum_of_warps(const Weighed* weighed) {
  constexpr int kWidth = Merging<kWarps>::kWidth;
  const int i = threadIdx.x % kWidth;
  return lanes_sum<kWidth>(i < kWarps ? weighed[i].of : Pair{});
}
NJ_DEVICE RowGradient learn(GradientPart& part, const GradientWeights& weights, Acc (&d)[kElements],
                            Exchanged* exchanged) {
  const int lane = threadIdx.x % kThreadsPerRow, warp = threadIdx.x / kWarp;
  const Cut cut = {0, 0, kColumns, kColumns};
  const auto keep = [&](int e, Acc value) { d[e] = value; };
  const XElements<GradientPart> x = {part, lane, cut};
  if constexpr (kInWarp) {
    const RowStatistics s = finalize(Statistics::of<kThreadsPerRow>(x, kColumns));
    return gradient_of(s, lanes_sum<kThreadsPerRow>(weigh(part, weights, s, lane, cut, keep)));
  } else {
    const int own = columns_of_warp(warp, cut);
    const Statistics measured = Statistics::of<kWarp>(x, own > 0 ? own : 1);
    if (threadIdx.x % kWarp == 0) exchanged->measured[warp] = measured;
    hw::block_barrier();
    const RowStatistics s = finalize(merge_warps([&](int i) { return exchanged->measured[i]; }, cut));
    const Pair weighed = lanes_sum<kWarp>(weigh(part, weights, s, lane, cut, keep));
    if (threadIdx.x % kWarp == 0) exchanged->weighed[warp].of = weighed;
    hw::block_barrier();
    return gradient_of(s, sum_of_warps(exchanged->weighed));
  }
}

NJ_KERNEL(NJ_ENTRY, kThreads) {
  NJ_SHARED(RowSums, parts, kInWarp ? 1 : 2 * kWarps);
  NJ_SHARED(WideSum, across, kHeldSums > 0 ? (kAcross + kWide - 1) / kWide : 1);
  NJ_SHARED(bool, is_last, 1);
  NJ_SHARED(Exchanged, exchanged, 1);
  const int lane = threadIdx.x % kThreadsPerRow, warp = threadIdx.x / kWarp;
  const Cut cut = {0, 0, kColumns, kColumns};
  const auto turn = in_turn_of(on);
  hw::wait_for_previous_launch();
  hw::allow_next_launch();

  const int own = threadIdx.x / kThreadsPerRow;  // of the rows of a round
  Round round = turn.of_unit(blockIdx.x);
  GradientPart next = {};
  if (const long long row = round.first + own; row < round.end)
    load<hw::Cache::evict_first>(next, on, row, 0, lane, cut);
  ColumnSums sums = {};
  int half = 0;
  [[maybe_unused]] bool begins = true;  // the sums over pieces
  while (round.there()) {
    // Lanes beyond the last row take part in shuffles, and write nothing. Behind its last row a thread loads
    // that row again: a load behind a condition would be waited for there. 16,384 x 4096 bf16 134 us, and 184
    // us so.
    const Round following = turn.behind(round);
    const long long row = round.first + own, ahead = following.first + own;
    const bool works = kRows == 1 || row < round.end;
    GradientPart part = next;
    // In groups a thread without a row may have one in the next round.
    if (works || (kMaySumGroups && ahead < following.end))
      load<hw::Cache::evict_first>(next, on, ahead < following.end ? ahead : row, 0, lane, cut);
    // The weights come from L1, and again behind the exchange: held from row to row, they would take the
    // registers of elements.
    GradientWeights weights;
    load(weights, on, 0, lane, cut);
    load_modulation(weights, on, works ? row : round.first, 0, lane, cut);
    RowGradient of_row;
    Acc d[kElements];
    const auto keep = [&](int e, Acc value) {
      if constexpr (kKeeps) d[e] = value;
    };
    if constexpr (kWeighs) {
      of_row = learn(part, weights, d, exchanged);
    } else if constexpr (!kExchanges) {
      of_row = {part.given, 0, 0};
    } else if constexpr (kInWarp) {
      of_row = gradient_of(measure<kThreadsPerRow>(part, weights, lane, cut, kColumns, keep), part.given);
    } else {
      const Acc mean = measure_warp(part, weights, lane, cut, parts[half + warp], keep);
      hw::block_barrier();
      load(weights, on, 0, lane, cut);
      load_modulation(weights, on, works ? row : round.first, 0, lane, cut);
      of_row = gradient_of(merge_all<kWarps>([&](int i) { return parts[half + i]; },
                                             [&](int i) { return columns_of_warp(i, cut); }),
                           part.given)
                   .around(mean);
      half ^= kWarps;
    }
    if (works) {
      load_dsum(part, on, row, 0, lane, cut);
      if constexpr (kKeeps) {
        write(part, weights, KeptGradients{d}, of_row, on, row, 0, lane, cut, sums, turn.sums());
      } else {
        write(part, weights, of_row, on, row, 0, lane, cut, sums, turn.sums());
      }
    }
    if constexpr (kMaySumGroups) {
      if (turn.sums() && following.unit != round.unit) {
        end_piece(on, turn, round.unit, begins, all_sums(on), sums, reinterpret_cast<Acc*>(across));
        begins = false;
      }
    }
    round = following;
  }

  if constexpr (kSums > 0) {
    // A block without a piece has sums of 0.
    if (!turn.sums() || begins) {
#pragma unroll
      for (int s = 0; s < kSums; ++s)
        write_part(sums.of[held_sum(s)], all_sums(on) + row_of_sums(s, gridDim.x, blockIdx.x),
                   reinterpret_cast<Acc*>(across));
    }
  }
  if constexpr (kMaySumGroups) {
    if (kSums == 0 && !turn.in_parts()) return;
    finish_sums(on, meeting_in(on.workspace), gridDim.x, across, is_last, [&](int block, int blocks) {
      if (turn.in_parts()) add_pieces(on, turn, all_sums(on), block, blocks);
    });
  } else if constexpr (kSums > 0) {
    finish_sums(on, meeting_in(on.workspace), gridDim.x, across, is_last);
  }
}

}  // namespace normjit
