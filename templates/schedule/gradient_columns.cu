// SPDX-License-Identifier: Apache-2.0
// Gradients of rows that no block holds: kGroupRows rows at a time are measured chunk by chunk, all blocks
// meet, and then the same rows are read again column by column.
//
// Why it is fast: few rows of any length occupy all multiprocessors, and the rows of a batch are as many as
// stay in L2, so that x and dy come from memory once. For the second read a block has a chunk of columns, and
// a part of the rows if there are fewer chunks than blocks: so the sums over rows need no part for each
// block, which for 4,194,304 columns would be as large as x, but one for as many blocks as share the columns.
// All blocks must be resident (Exchange::grid); without an exchange there is one.
namespace normjit {

static_assert(kThreadsPerRow == kThreads, "all threads share a chunk");
static_assert(kBlocksPerRow == 1 && kStages == 0);

enum : int { kChunks = static_cast<int>(plan_math::chunks(kColumns, kSpan, kColumns)) };

// What blocks measure, by row of the batch and chunk; a block may be one batch ahead of another.
struct Workspace {
  Header* header;
  RowSums* measured;  // [2][kGroupRows][kChunks]
  Acc* sums;          // [kSums][parts][kColumns]

  NJ_METHOD RowSums& at(int half, long long row, long long chunk) const {
    return measured[(half * kGroupRows + row) * kChunks + chunk];
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

// The chunks of a batch of rows, which blocks take in turn.
struct Items {
  const Operands& on;
  long long begin, count;

  NJ_METHOD void load(GradientPart& part, long long item, int lane) const {
    const int chunk = static_cast<int>(item % kChunks);
    normjit::load<hw::Cache::no_l1>(part, on, begin + item / kChunks, begin_of_chunk(chunk), lane,
                                    cut_of_chunk(chunk));
  }
};

// The sums of a chunk, from those of the warps. The whole block calls this; the first warp gets the result.
NJ_DEVICE RowSums measure_chunk(GradientPart& part, const GradientWeights& weights, const Cut& cut,
                                RowSums* parts) {
  measure_warp(part, weights, threadIdx.x, cut, parts[threadIdx.x / kWarp]);
  hw::block_barrier();
  RowSums all = {};
  if (threadIdx.x < kWarp)
    all = merge_all<kWarps>([&](int i) { return parts[i]; }, [&](int i) { return columns_of_warp(i, cut); });
  hw::block_barrier();
  return all;
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
// Of a row of the batch. A warp calls this; all lanes get the same.
NJ_DEVICE RowGradient gradient_of_row(const Workspace& w, int half, long long row) {
  const double base = w.at(half, row, 0).mean;
  WideGradientSums all = {};
#pragma unroll 1
  for (int i = threadIdx.x % kWarp; i < kChunks; i += kWarp) {
    const RowSums& part = w.at(half, row, i);
    const GradientSums& of = part.sums;
    all = all + moved(WideGradientSums{of.squares, of.g, of.gd, of.distances}, columns_of_chunk(i),
                      part.mean - base);
  }
  all = lanes_sum<kWarp>(all);
  const Acc mean = static_cast<Acc>(kCentred ? base + all.distances / kColumns : 0);
  all = moved(all, kColumns, base - mean);
  return gradient_of({{static_cast<Acc>(all.squares), static_cast<Acc>(all.g), static_cast<Acc>(all.gd),
                       static_cast<Acc>(all.distances)},
                      mean});
}

// Adds what a thread has of a chunk to a row of sums, or begins it.
NJ_DEVICE void add_to(Acc* to, const Acc (&sums)[kElements], bool begins, int lane, const Cut& cut) {
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, cut)) {
      Vec<Acc> all = {};
      if (!begins) all = load<hw::Cache::no_l1>(to + column(k, lane));
#pragma unroll
      for (int i = 0; i < kVector; ++i) all.at[i] += sums[k * kVector + i];
      store(to + column(k, lane), all);
    }
}

NJ_KERNEL(NJ_ENTRY, kThreads) {
  NJ_SHARED(RowSums, parts, kWarps);
  NJ_SHARED(RowGradient, gradients, kWarps);
  NJ_SHARED(Acc, across, kThreads);
  const int lane = threadIdx.x, warp = lane / kWarp;
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  // Blocks that have the same chunks take a part of the rows each.
  const int sharing = kChunks < blocks ? blocks / kChunks : 1;
  const Workspace w = workspace_of(on.workspace);
  hw::wait_for_previous_launch();
  hw::allow_next_launch();

  unsigned long long meetings = 0;
  int half = 0;
  for (long long begin = 0; begin < on.rows; begin += kGroupRows, half ^= 1) {
    const int batch = on.rows - begin < kGroupRows ? static_cast<int>(on.rows - begin) : kGroupRows;
    const Items items = {on, begin, static_cast<long long>(batch) * kChunks};
    // The next chunk is on its way while one is measured; behind the last one comes that one again.
    GradientPart next = {};
    if (block < items.count) items.load(next, block, lane);
    for (long long item = block; item < items.count; item += blocks) {
      const int row = static_cast<int>(item / kChunks), chunk = static_cast<int>(item % kChunks);
      GradientPart part = next;
      items.load(next, item + blocks < items.count ? item + blocks : item, lane);
      GradientWeights weights;
      load(weights, on, begin_of_chunk(chunk), lane, cut_of_chunk(chunk));
      const RowSums all = measure_chunk(part, weights, cut_of_chunk(chunk), parts);
      if (lane == 0) w.at(half, row, chunk) = all;
    }
    meet(*w.header, ++meetings);

    for (int chunk = block % kChunks; chunk < kChunks && block / kChunks < sharing; chunk += blocks) {
      const int share = block / kChunks;
      const long long first = begin_of_chunk(chunk);
      const Cut cut = cut_of_chunk(chunk);
      GradientWeights weights;
      load(weights, on, first, lane, cut);
      ColumnSums sums = {};
      if (share < batch) load<hw::Cache::evict_first>(next, on, begin + share, first, lane, cut);
      // The warps work out kWarps rows at a time, one each.
      for (int from = share; from < batch; from += kWarps * sharing) {
        if (const int own = from + warp * sharing; own < batch) {
          const RowGradient of_row = gradient_of_row(w, half, own);
          if (lane % kWarp == 0) gradients[warp] = of_row;
        }
        hw::block_barrier();
#pragma unroll 1
        for (int i = 0; i < kWarps && from + i * sharing < batch; ++i) {
          const int row = from + i * sharing, following = row + sharing < batch ? row + sharing : row;
          const GradientPart part = next;
          load<hw::Cache::evict_first>(next, on, begin + following, first, lane, cut);
          write(part, weights, gradients[i], on, begin + row, first, lane, cut, sums);
        }
        hw::block_barrier();
      }
      if constexpr (kSums > 0) {
#pragma unroll
        for (int s = 0; s < kSums; ++s)
          add_to(row_of_sums(w.sums, s, sharing, share) + first, sums.of[s], begin == 0, lane, cut);
      }
    }
  }
  if constexpr (kSums > 0) {
    meet(*w.header, ++meetings);
    add_parts(on, w.sums, sharing, block, blocks, across);
  }
  if (lane == 0) leave_meeting(*w.header);
}

}  // namespace normjit
