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

NJ_DEVICE int columns_of_chunk(int chunk) {
  return kWhole || chunk < kChunks - 1 ? kSpan
                                       : static_cast<int>(kColumns - static_cast<long long>(chunk) * kSpan);
}

// The sums of a chunk, from those of the warps. The whole block calls this; thread 0 gets the result.
NJ_DEVICE RowSums measure_chunk(GradientPart& part, const GradientWeights& weights, const Cut& cut,
                                RowSums* parts) {
  const int lane = threadIdx.x, warp = lane / kWarp, own = columns_of_warp(warp, cut);
  const RowSums of_warp = measure<kWarp>(part, weights, lane, cut, own > 0 ? own : 1);
  if (lane % kWarp == 0) parts[warp] = of_warp;
  hw::block_barrier();
  RowSums all = {};
  if (warp == 0)
    all = merge_all<kWarps>([&](int i) { return parts[i]; }, [&](int i) { return columns_of_warp(i, cut); },
                            cut.count);
  hw::block_barrier();
  return all;
}

// Sums of chunks, in double: there may be a million of them.
struct WideGradientSums {
  double distances, squares, g, gd;
};
NJ_DEVICE WideGradientSums operator+(const WideGradientSums& a, const WideGradientSums& b) {
  return {a.distances + b.distances, a.squares + b.squares, a.g + b.g, a.gd + b.gd};
}
NJ_DEVICE WideGradientSums add_from(const WideGradientSums& sums, int lane_mask) {
  return {add_from(sums.distances, lane_mask), add_from(sums.squares, lane_mask), add_from(sums.g, lane_mask),
          add_from(sums.gd, lane_mask)};
}
// Of a row of the batch. A warp calls this; all lanes get the same.
NJ_DEVICE RowGradient gradient_of_row(const Workspace& w, int half, long long row) {
  const double base = w.at(half, row, 0).mean;
  WideGradientSums sums = {};
#pragma unroll 1
  for (int i = threadIdx.x % kWarp; i < kChunks; i += kWarp) {
    const RowSums& part = w.at(half, row, i);
    const double own = columns_of_chunk(i), apart = part.mean - base, distance = apart + part.mean_lo;
    sums = sums + WideGradientSums{own * distance, part.squares + own * distance * distance, part.g,
                                   part.gd + part.g * apart};
  }
  sums = lanes_sum<kWarp>(sums);
  const double mean_lo = sums.distances / kColumns, mean = base + mean_lo;
  const Acc rounded = static_cast<Acc>(mean);
  return gradient_of({rounded, static_cast<Acc>((base - rounded) + mean_lo),
                      hw::max_nan(static_cast<Acc>(sums.squares - sums.distances * mean_lo), Acc(0)),
                      static_cast<Acc>(sums.g),
                      static_cast<Acc>(kCentred ? sums.gd - sums.g * (rounded - base) : sums.gd)});
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
    for (long long item = block; item < static_cast<long long>(batch) * kChunks; item += blocks) {
      const int row = static_cast<int>(item / kChunks), chunk = static_cast<int>(item % kChunks);
      const long long first = static_cast<long long>(chunk) * kSpan;
      const Cut cut = {0, 0, columns_of_chunk(chunk), columns_of_chunk(chunk)};
      GradientPart part;
      load<hw::Cache::no_l1>(part, on, begin + row, first, lane, cut);
      GradientWeights weights;
      load(weights, on, first, lane, cut);
      const RowSums all = measure_chunk(part, weights, cut, parts);
      if (lane == 0) w.at(half, row, chunk) = all;
    }
    meet(*w.header, ++meetings);

    for (int chunk = block % kChunks; chunk < kChunks && block / kChunks < sharing; chunk += blocks) {
      const int share = block / kChunks;
      const long long first = static_cast<long long>(chunk) * kSpan;
      const Cut cut = {0, 0, columns_of_chunk(chunk), columns_of_chunk(chunk)};
      GradientWeights weights;
      load(weights, on, first, lane, cut);
      ColumnSums sums = {};
      // The warps work out kWarps rows at a time, one each.
      for (int from = share; from < batch; from += kWarps * sharing) {
        if (const int own = from + warp * sharing; own < batch) {
          const RowGradient of_row = gradient_of_row(w, half, own);
          if (lane % kWarp == 0) gradients[warp] = of_row;
        }
        hw::block_barrier();
#pragma unroll 1
        for (int i = 0; i < kWarps && from + i * sharing < batch; ++i) {
          const long long row = begin + from + i * sharing;
          GradientPart part;
          load<hw::Cache::evict_first>(part, on, row, first, lane, cut);
          write(part, weights, gradients[i], on, row, first, lane, cut, sums);
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
