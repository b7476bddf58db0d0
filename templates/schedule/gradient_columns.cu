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
// is written one meeting later.
// All blocks must be resident (Exchange::grid); without an exchange there is one.
namespace normjit {

static_assert(kThreadsPerRow == kThreads, "all threads share a chunk");
static_assert(kBlocksPerRow == 1 && kStages == 0);

enum : int { kChunks = static_cast<int>(plan_math::chunks(kColumns, kSpan, kColumns)) };

// Batches of which what is measured is kept. A block that measures a batch has waited for the one two before
// it, which others have begun to measure only when they had written the one four before it. (Behind an
// activation likewise: it has waited for all to write the one four before.)
enum : int { kBatches = plan_math::kBatches };

// What blocks measure, by batch, row and chunk.
struct Workspace {
  Header* header;
  RowSums* measured;  // [kBatches][kGroupRows][kChunks]
  Acc* sums;          // [kSums][parts][kColumns]

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
NJ_DEVICE RowGradient gradient_of_row(const Workspace& w, long long batch, long long row) {
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
                      mean});
}

// Measures a batch, of `rows` rows from row `begin` on: blocks take its chunks in turn.
NJ_DEVICE void measure_batch(const Operands& on, const Workspace& w, long long batch, long long begin,
                             int rows, RowSums* parts) {
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
    if constexpr (kMeasuresG) load(weights, on, begin_of_chunk(chunk), lane, cut_of_chunk(chunk));
    const Cut cut = cut_of_chunk(chunk);
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
      add_to(w.sums + row_of_sums(s, share.sharing, share.own) + begin_of_chunk(chunk), sums.of[s], begins,
             threadIdx.x, cut_of_chunk(chunk));
  }
}

// Works out what is known of the rows of a batch that a block shares in: the warps a row each.
template <bool kWeighed>
NJ_DEVICE void share_out(const Workspace& w, long long batch, int rows, const Share& share,
                         RowGradient* gradients) {
  const int lane = threadIdx.x, warp = lane / kWarp;
  for (int row = share.own + warp * share.sharing; row < rows; row += kWarps * share.sharing) {
    const RowGradient of_row = gradient_of_row<kWeighed>(w, batch, row);
    if (lane % kWarp == 0) gradients[row] = of_row;
  }
  hw::block_barrier();
}

// Finds the sums of g of a batch that all blocks have measured, chunk by chunk.
NJ_DEVICE void weigh_batch(const Operands& on, const Workspace& w, long long batch, long long begin, int rows,
                           const Share& share, RowGradient* gradients, Weighed* weighed) {
  const int lane = threadIdx.x;
  share_out<false>(w, batch, rows, share, gradients);
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
NJ_DEVICE void write_batch(const Operands& on, const Workspace& w, long long batch, long long begin, int rows,
                           const Share& share, RowGradient* gradients, ColumnSums& sums) {
  const int lane = threadIdx.x;
  share_out<true>(w, batch, rows, share, gradients);
  if (share.works() && share.own < rows) {
    for (int chunk = share.first_chunk; chunk < kChunks; chunk += static_cast<int>(gridDim.x)) {
      const long long first = begin_of_chunk(chunk);
      const Cut cut = cut_of_chunk(chunk);
      GradientWeights weights;
      load(weights, on, first, lane, cut);
      if (!Share::keeps_sums()) sums = {};
      GradientPart next = {};
      load<hw::Cache::evict_first>(next, on, begin + share.own, first, lane, cut);
#pragma unroll 1
      for (int row = share.own; row < rows; row += share.sharing) {
        const int following = row + share.sharing < rows ? row + share.sharing : row;
        GradientPart part = next;
        load<hw::Cache::evict_first>(next, on, begin + following, first, lane, cut);
        load_dsum(part, on, begin + row, first, lane, cut);
        write(part, weights, gradients[row], on, begin + row, first, lane, cut, sums);
      }
      if (!Share::keeps_sums()) flush(w, share, chunk, sums, batch == 0);
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

  const auto rows_of = [&](long long batch) {
    const long long left = on.rows - batch * kGroupRows;
    return left < kGroupRows ? static_cast<int>(left) : static_cast<int>(kGroupRows);
  };
  ColumnSums sums = {};
  const long long batches = (on.rows + kGroupRows - 1) / kGroupRows;
  constexpr int kLag = plan_math::rows_behind(kWeighs);  // from the batch that is measured
  const long long steps = batches + kLag;
  for (long long batch = 0; batch < steps; ++batch) {
    if (batch < batches) measure_batch(on, w, batch, batch * kGroupRows, rows_of(batch), parts);
    if (kWeighs ? batch == 0 : batch < batches) arrive_at_meeting(*w.header, batch + 1);
    if (batch == 0) continue;
    wait_for_meeting(*w.header, batch);
    if constexpr (kWeighs) {
      const long long weighs = batch - 1;
      if (weighs < batches)
        weigh_batch(on, w, weighs, weighs * kGroupRows, rows_of(weighs), share, gradients, weighed);
    }
    const long long written = batch - kLag;
    if (!kWeighs || written >= 0)
      write_batch(on, w, written, written * kGroupRows, rows_of(written), share, gradients, sums);
    if (kWeighs && batch + 1 < steps) arrive_at_meeting(*w.header, batch + 1);
  }
  if constexpr (kSums > 0) {
    if (Share::keeps_sums() && share.works()) flush(w, share, share.first_chunk, sums, true);
    meet_and_add(on, *w.header, steps, w.sums, share.sharing, across);
  } else if (threadIdx.x == 0) {
    end_leave(*w.header, begin_to_leave(*w.header));
  }
}

}  // namespace normjit
