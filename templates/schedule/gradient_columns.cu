// SPDX-License-Identifier: Apache-2.0
// Gradients of rows that no block holds: kGroupRows rows at a time, a batch, are measured chunk by chunk, all
// blocks meet, and then the same rows are read again column by column.
//
// Why it is fast: few rows of any length occupy all multiprocessors, and the rows of two batches are as many
// as L2 holds, so that most of x and dy comes from memory once. A block measures the next batch before it
// waits for the others, which have long arrived then. For the second read a block has a chunk of columns, and
// a part of the rows if there are fewer chunks than blocks: so the sums over rows need no part for each
// block, which for 4,194,304 columns would be as large as x, but one for as many blocks as share the columns.
// Behind an activation a batch is read three times: when all have measured it, its sums of g are found, as it
// is written one meeting later. Where the statistics are given it is read twice.
// All blocks must be resident (Exchange::grid); without an exchange there is one.
//
// Where rows share scale and shift, no batch has rows of two such groups. Blocks that share columns add up d
// and d * n of their rows of a group, and three meetings later, when all have, its parts are added: each
// thread has some columns then, of all groups.
namespace normjit {

static_assert(kThreadsPerRow == kThreads, "all threads share a chunk");
static_assert(kBlocksPerRow == 1 && kStages == 0);

enum : int { kChunks = static_cast<int>(plan_math::chunks(kColumns, kSpan, kColumns)) };

// Batches of which what is measured is kept. A block that measures a batch has waited for the one two before
// it, which others have begun to measure only when they had written the one four before it. (Behind an
// activation likewise: it has waited for all to write the one four before.)
enum : int { kBatches = plan_math::kBatches };
// Batches from one that is written to the one that is measured when all blocks have written it.
enum : int { kUntilAdded = 3 };

// What blocks measure, by batch, row and chunk.
struct Workspace {
  Header* header;
  RowSums* measured;  // [kBatches][kGroupRows][kChunks]
  Acc* sums;          // [kSums][parts][kColumns]; behind them [kBatches][kHeldSums][sharing][kColumns]

  NJ_METHOD RowSums& at(long long batch, long long row, long long chunk) const {
    return measured[(batch % kBatches * kGroupRows + row) * kChunks + chunk];
  }
};
NJ_DEVICE Workspace workspace_of(unsigned char* base) {
  Meeting* const meeting = reinterpret_cast<Meeting*>(base);
  RowSums* const measured = reinterpret_cast<RowSums*>(meeting + 1);
  constexpr long long kMeasured = plan_math::measured_bytes(kGroupRows, kChunks, sizeof(Acc));
  return {&meeting->header, measured,
          reinterpret_cast<Acc*>(reinterpret_cast<unsigned char*>(measured) + kMeasured)};
}

NJ_DEVICE long long begin_of_chunk(int chunk) { return static_cast<long long>(chunk) * kSpan; }
NJ_DEVICE int columns_of_chunk(int chunk) {
  return kWhole || chunk < kChunks - 1 ? kSpan
                                       : static_cast<int>(kColumns - static_cast<long long>(chunk) * kSpan);
}

NJ_DEVICE Cut cut_of_chunk(int chunk) { return {0, 0, columns_of_chunk(chunk), columns_of_chunk(chunk)}; }

// The rows in batches: those of a group, which are all rows unless groups share scale and shift.
struct Batches {
  long long rows, group, pieces;  // of the launch; of a group, and its batches
  bool shared;

  NJ_METHOD long long number() const { return (rows + group - 1) / group * pieces; }
  NJ_METHOD long long begin(long long batch) const {
    return batch / pieces * group + batch % pieces * kGroupRows;
  }
  NJ_METHOD int rows_of(long long batch) const {
    const long long end = (batch / pieces + 1) * group, left = (end < rows ? end : rows) - begin(batch);
    return left < kGroupRows ? static_cast<int>(left) : static_cast<int>(kGroupRows);
  }
  NJ_METHOD bool begins_group(long long batch) const { return batch % pieces == 0; }
  NJ_METHOD bool ends_group(long long batch) const { return (batch + 1) % pieces == 0; }
};
template <class Any>
NJ_DEVICE Batches batches_of(const Any& on) {
  Batches batches = {on.rows, on.rows > 0 ? on.rows : 1, 0, false};
  if constexpr (kMaySumGroups) {
    batches.shared = on.dmod_scale_rows.inner == 0;
    if (batches.shared) batches.group = on.dmod_scale_rows.n;
  }
  batches.pieces = (batches.group + kGroupRows - 1) / kGroupRows;
  return batches;
}

// Sums of chunks, in double: there may be a million of them.
struct WideGradientSums {
  double squares, g, gd, distances;
};
NJ_DEVICE WideGradientSums operator+(const WideGradientSums& a, const WideGradientSums& b) {
  return {a.squares + b.squares, a.g + b.g, a.gd + b.gd, a.distances + b.distances};
}
NJ_DEVICE WideGradientSums add_from(const WideGradientSums& sums, int lane_mask) {
  return {add_from(sums.squares, lane_mask), add_from(sums.g, lane_mask), add_from(sums.gd, lane_mask),
          add_from(sums.distances, lane_mask)};
}
// Of a row of a batch, with the sums of g or before they are known. A warp calls this; all lanes get the
// same.
template <bool kWeighed>
NJ_DEVICE RowGradient gradient_of_row(const Workspace& w, long long batch, long long row,
                                      const RowStatistics& given) {
  if constexpr (!kExchanges) return {given, 0, 0};
  const double base = w.at(batch, row, 0).mean;
  WideGradientSums all = {};
#pragma unroll 4
  for (int i = threadIdx.x % kWarp; i < kChunks; i += kWarp) {
    const RowSums& part = w.at(batch, row, i);
    const GradientSums& of = part.sums;
    const double g = kWeighed ? of.g : Acc(0), gd = kWeighed ? of.gd : Acc(0);
    all =
        all + moved(WideGradientSums{of.squares, g, gd, of.distances}, columns_of_chunk(i), part.mean - base);
  }
  all = lanes_sum<kWarp>(all);
  const Acc mean = static_cast<Acc>(kCentred ? base + all.distances / kColumns : 0);
  all = moved(all, kColumns, base - mean);
  return gradient_of({GradientSums{static_cast<Acc>(all.squares), static_cast<Acc>(all.g),
                                   static_cast<Acc>(all.gd), static_cast<Acc>(all.distances)},
                      mean},
                     given);
}

// Measures a batch, of `rows` rows from row `begin` on: blocks take its chunks in turn.
NJ_DEVICE void measure_batch(const Operands& on, const Workspace& w, long long batch, long long begin,
                             int rows, RowSums* parts) {
  if constexpr (!kExchanges) return;
  const int lane = threadIdx.x;
  const long long items = static_cast<long long>(rows) * kChunks;
  const auto load_item = [&](GradientPart& part, long long item) {
    const int chunk = static_cast<int>(item % kChunks);
    load<hw::Cache::no_l1>(part, on, begin + item / kChunks, begin_of_chunk(chunk), lane,
                           cut_of_chunk(chunk));
  };
  // The next chunk is on its way while one is measured; behind the last one comes that one again.
  GradientPart next = {};
  int half = 0;
  if (blockIdx.x < items) load_item(next, blockIdx.x);
  for (long long item = blockIdx.x; item < items; item += gridDim.x) {
    const int chunk = static_cast<int>(item % kChunks);
    GradientPart part = next;
    load_item(next, item + gridDim.x < items ? item + gridDim.x : item);
    GradientWeights weights;
    const Cut cut = cut_of_chunk(chunk);
    if constexpr (kMeasuresG) {
      load(weights, on, begin_of_chunk(chunk), lane, cut);
      load_modulation(weights, on, begin + item / kChunks, begin_of_chunk(chunk), lane, cut);
    }
    measure_warp(part, weights, lane, cut, parts[half + lane / kWarp]);
    hw::block_barrier();
    // The other warps go on with the next chunk.
    if (lane < kWarp) {
      const RowSums all = merge_all<kWarps>([&](int i) { return parts[half + i]; },
                                            [&](int i) { return columns_of_warp(i, cut); });
      if (lane == 0) w.at(batch, item / kChunks, chunk) = all;
    }
    half ^= kWarps;
  }
}

// The columns and rows of which a block writes dx: chunks from its first one on, a grid apart, and every
// `sharing`-th row of a batch from its share on.
struct Share {
  int sharing, own, first_chunk;

  NJ_METHOD bool works() const { return own < sharing; }
  // Whether the block has one chunk of all rows, so that its sums stay in registers.
  static NJ_METHOD bool keeps_sums() { return kChunks <= static_cast<int>(gridDim.x); }
};
NJ_DEVICE Share share_of_block() {
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  return {kChunks < blocks ? blocks / kChunks : 1, block / kChunks, block % kChunks};
}
// Writes the sums of a chunk, or adds them to those of earlier batches.
NJ_DEVICE void flush(const Workspace& w, const Share& share, int chunk, const ColumnSums& sums, bool begins) {
  if constexpr (kSums > 0) {
#pragma unroll
    for (int s = 0; s < kSums; ++s)
      add_to(w.sums + row_of_sums(s, share.sharing, share.own) + begin_of_chunk(chunk), sums.of[held_sum(s)],
             begins, threadIdx.x, cut_of_chunk(chunk));
  }
}

// The same of a group. While its parts are added, those of three others are written.
NJ_DEVICE Acc* part_of_group(const Workspace& w, long long group, int s, int sharing, int part) {
  return w.sums + row_of_sums(kSums, 1, 0) +
         row_of_sums(static_cast<int>(group % kBatches) * kHeldSums + s, sharing, part);
}
NJ_DEVICE void flush_group(const Workspace& w, const Share& share, int chunk, const ColumnSums& sums,
                           long long group, bool begins) {
  if constexpr (kMaySumGroups) {
#pragma unroll
    for (int s = 0; s < kHeldSums; ++s)
      add_to(part_of_group(w, group, s, share.sharing, share.own) + begin_of_chunk(chunk), sums.of[s], begins,
             threadIdx.x, cut_of_chunk(chunk));
  }
}
// Adds the parts of the group that a batch ends, if it does: its gradients, and what follows for dweight and
// dbias, of which there is one part.
template <class Any>
NJ_DEVICE void end_group(const Any& on, const Workspace& w, const Batches& batches, long long batch,
                         int sharing) {
  if (!batches.ends_group(batch)) return;
  const long long group = batch / batches.pieces, row = group * batches.group;
  const long long step = static_cast<long long>(gridDim.x) * kThreads;
#pragma unroll 1
  for (long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x; i < kColumns; i += step) {
    const int c = static_cast<int>(i);
    Acc totals[2] = {};
#pragma unroll
    for (int s = 0; s < kHeldSums; ++s) {
#pragma unroll 8
      for (int part = 0; part < sharing; ++part)
        totals[s] += hw::load<hw::Cache::no_l1, Acc>(part_of_group(w, group, s, sharing, part) + c);
    }
    const GroupSums of_column = {totals[0], totals[1]};
    of_column.each_sum(on, row, c, [&](int s, Acc sum) {
      Acc* const to = w.sums + row_of_sums(s, 1, 0) + c;
      *to = group == 0 ? sum : *to + sum;
    });
    write_dmod(on, row, c, of_column.of_scale(on, c), of_column.gradients);
  }
}

// Works out what is known of the rows of a batch, from row `begin` on, that a block shares in: the warps a
// row each.
template <bool kWeighed>
NJ_DEVICE void share_out(const Operands& on, const Workspace& w, long long batch, long long begin, int rows,
                         const Share& share, RowGradient* gradients) {
  const int lane = threadIdx.x, warp = lane / kWarp;
  for (int row = share.own + warp * share.sharing; row < rows; row += kWarps * share.sharing) {
    const RowGradient of_row = gradient_of_row<kWeighed>(w, batch, row, given_statistics(on, begin + row));
    if (lane % kWarp == 0) gradients[row] = of_row;
  }
  hw::block_barrier();
}

// Finds the sums of g of a batch that all blocks have measured, chunk by chunk.
NJ_DEVICE void weigh_batch(const Operands& on, const Workspace& w, long long batch, long long begin, int rows,
                           const Share& share, RowGradient* gradients, Weighed* weighed) {
  const int lane = threadIdx.x;
  share_out<false>(on, w, batch, begin, rows, share, gradients);
  if (!share.works() || share.own >= rows) return;
  int half = 0;
  for (int chunk = share.first_chunk; chunk < kChunks; chunk += static_cast<int>(gridDim.x)) {
    const long long first = begin_of_chunk(chunk);
    const Cut cut = cut_of_chunk(chunk);
    GradientWeights weights;
    load(weights, on, first, lane, cut);
    GradientPart next = {};
    load<hw::Cache::no_l1>(next, on, begin + share.own, first, lane, cut);
#pragma unroll 1
    for (int row = share.own; row < rows; row += share.sharing) {
      const int following = row + share.sharing < rows ? row + share.sharing : row;
      GradientPart part = next;
      load<hw::Cache::no_l1>(next, on, begin + following, first, lane, cut);
      load_modulation(weights, on, begin + row, first, lane, cut);
      const Pair own =
          lanes_sum<kWarp>(weigh(part, weights, gradients[row].statistics, lane, cut, [](int, Acc) {}));
      if (lane % kWarp == 0) weighed[half + lane / kWarp].of = own;
      hw::block_barrier();
      if (lane < kWarp) {
        const Pair all = lanes_sum<kWarps>(weighed[half + lane % kWarps].of);
        GradientSums& to = w.at(batch, row, chunk).sums;
        if (lane < 2) (lane == 0 ? to.g : to.gd) = lane == 0 ? all.a : all.b;
      }
      half ^= kWarps;
    }
  }
}

// Writes dx of a batch, and adds to the sums over rows.
NJ_DEVICE void write_batch(const Operands& on, const Workspace& w, const Batches& batches, long long batch,
                           const Share& share, RowGradient* gradients, ColumnSums& sums) {
  const int lane = threadIdx.x, rows = batches.rows_of(batch);
  const long long begin = batches.begin(batch);
  share_out<true>(on, w, batch, begin, rows, share, gradients);
  // The parts of a group are those of all blocks that share columns, also of one that has none of its rows.
  const bool ends_part =
      kMaySumGroups && batches.shared && (!Share::keeps_sums() || batches.ends_group(batch));
  if (!share.works() || (share.own >= rows && !ends_part)) return;
  for (int chunk = share.first_chunk; chunk < kChunks; chunk += static_cast<int>(gridDim.x)) {
    const long long first = begin_of_chunk(chunk);
    const Cut cut = cut_of_chunk(chunk);
    GradientWeights weights;
    load(weights, on, first, lane, cut);
    if (!Share::keeps_sums()) sums = {};
    GradientPart next = {};
    if (share.own < rows) load<hw::Cache::evict_first>(next, on, begin + share.own, first, lane, cut);
#pragma unroll 1
    for (int row = share.own; row < rows; row += share.sharing) {
      const int following = row + share.sharing < rows ? row + share.sharing : row;
      GradientPart part = next;
      load<hw::Cache::evict_first>(next, on, begin + following, first, lane, cut);
      load_dsum(part, on, begin + row, first, lane, cut);
      load_modulation(weights, on, begin + row, first, lane, cut);
      write(part, weights, gradients[row], on, begin + row, first, lane, cut, sums, batches.shared);
    }
    if (ends_part) {
      flush_group(w, share, chunk, sums, batch / batches.pieces,
                  Share::keeps_sums() || batches.begins_group(batch));
      sums = {};
    } else if (!Share::keeps_sums()) {
      flush(w, share, chunk, sums, batch == 0);
    }
  }
}

NJ_KERNEL(NJ_ENTRY, kThreads) {
  NJ_SHARED(RowSums, parts, 2 * kWarps);
  NJ_SHARED(RowGradient, gradients, kGroupRows);
  NJ_SHARED(WideSum, across, kSums > 0 ? kThreads : 1);
  NJ_SHARED(Weighed, weighed, 2 * kWarps);
  const Share share = share_of_block();
  const Workspace w = workspace_of(on.workspace);
  hw::wait_for_previous_launch();
  hw::allow_next_launch();

  ColumnSums sums = {};
  const Batches in = batches_of(on);
  const long long batches = in.number();
  constexpr int kLag = plan_math::rows_behind(kWeighs);  // from the batch that is measured
  const long long steps = batches + kLag;
  for (long long batch = 0; batch < steps; ++batch) {
    if (batch < batches) measure_batch(on, w, batch, in.begin(batch), in.rows_of(batch), parts);
    if (kWeighs ? batch == 0 : batch < batches) arrive_at_meeting(*w.header, batch + 1);
    if (batch == 0) continue;
    wait_for_meeting(*w.header, batch);
    if constexpr (kMaySumGroups)
      if (in.shared && batch >= kUntilAdded) end_group(on, w, in, batch - kUntilAdded, share.sharing);
    if constexpr (kWeighs) {
      const long long weighs = batch - 1;
      if (weighs < batches)
        weigh_batch(on, w, weighs, in.begin(weighs), in.rows_of(weighs), share, gradients, weighed);
    }
    const long long written = batch - kLag;
    if (!kWeighs || written >= 0) write_batch(on, w, in, written, share, gradients, sums);
    if (kWeighs && batch + 1 < steps) arrive_at_meeting(*w.header, batch + 1);
  }
  if constexpr (kMaySumGroups) {
    if (in.shared) {
      arrive_at_meeting(*w.header, steps);
      wait_for_meeting(*w.header, steps);
      for (long long batch = steps > kUntilAdded ? steps - kUntilAdded : 0; batch < batches; ++batch)
        end_group(on, w, in, batch, share.sharing);
      meet_and_add(on, *w.header, steps + 1, w.sums, 1, across);
      return;
    }
  }
  if constexpr (kSums > 0) {
    if (Share::keeps_sums() && share.works()) flush(w, share, share.first_chunk, sums, true);
    meet_and_add(on, *w.header, steps, w.sums, share.sharing, across);
  } else if (threadIdx.x == 0) {
    end_leave(*w.header, begin_to_leave(*w.header));
  }
}

}  // namespace normjit
