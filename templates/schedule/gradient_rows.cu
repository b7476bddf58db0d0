// SPDX-License-Identifier: Apache-2.0
// Gradients of rows that a block, a warp or a part of one holds in registers. Blocks take rows in turn; each
// thread keeps the same columns, and adds up in registers what these contribute to dweight and dbias.
//
// Why it is fast: x and dy are read once and dx is written once, by one kernel. The next row is on its way
// while a row is worked on, and all of a row's sums are exchanged at once, over one barrier. There is one
// part of the sums for each block, and few blocks: 132 of 8192 columns are 8.7 MB, 2 % of what 8192 rows
// move. Parts are added in a fixed order, with no atomics on sums: by all blocks, which meet for that and
// must be resident (Exchange::grid), or by the last one.
namespace normjit {

static_assert(kSpan >= kColumns, "the threads cover the row");
static_assert(kBlocksPerRow == 1 && kStages == 0 && kGroupRows == 1);

enum : int { kRows = kThreads / kThreadsPerRow };  // a block
enum : bool { kInWarp = kThreadsPerRow <= kWarp };

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

// What the threads of a row learn of it in two exchanges, where g needs n. da is kept on the way.
struct Exchanged {
  Statistics measured[kWarps];
  Weighed weighed[kWarps];
};
NJ_DEVICE Pair sum_of_warps(const Weighed* weighed) {
  constexpr int kWidth = Merging<kWarps>::kWidth;
  const int i = threadIdx.x % kWidth;
  return lanes_sum<kWidth>(i < kWarps ? weighed[i].of : Pair{});
}
NJ_DEVICE RowGradient learn(GradientPart& part, const GradientWeights& weights, Acc (&da)[kElements],
                            Exchanged* exchanged) {
  const int lane = threadIdx.x % kThreadsPerRow, warp = threadIdx.x / kWarp;
  const Cut cut = {0, 0, kColumns, kColumns};
  const auto keep = [&](int e, Acc value) { da[e] = value; };
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
  NJ_SHARED(WideSum, across, kSums > 0 ? (kAcross + kWide - 1) / kWide : 1);
  NJ_SHARED(bool, is_last, 1);
  NJ_SHARED(Exchanged, exchanged, 1);
  const int lane = threadIdx.x % kThreadsPerRow, warp = threadIdx.x / kWarp;
  const Cut cut = {0, 0, kColumns, kColumns};
  const long long step = static_cast<long long>(gridDim.x) * kRows;
  hw::wait_for_previous_launch();
  hw::allow_next_launch();

  long long row = static_cast<long long>(blockIdx.x) * kRows + threadIdx.x / kThreadsPerRow;
  GradientPart next = {};
  if (row < on.rows) load<hw::Cache::evict_first>(next, on, row, 0, lane, cut);
  ColumnSums sums = {};
  int half = 0;
  for (long long first = static_cast<long long>(blockIdx.x) * kRows; first < on.rows; first += step) {
    // Lanes beyond the last row take part in shuffles, and write nothing. Behind its last row a thread loads
    // that row again: a load behind a condition would be waited for there. 16,384 x 4096 bf16 134 us, and 184
    // us so.
    const bool works = kRows == 1 || row < on.rows;
    GradientPart part = next;
    if (works) load<hw::Cache::evict_first>(next, on, row + step < on.rows ? row + step : row, 0, lane, cut);
    // The weights come from L1, and again behind the exchange: held from row to row, they would take the
    // registers of elements.
    GradientWeights weights;
    load(weights, on, 0, lane, cut);
    RowGradient of_row;
    Acc da[kElements];
    if constexpr (kWeighs) {
      of_row = learn(part, weights, da, exchanged);
    } else if constexpr (kInWarp) {
      of_row = gradient_of(measure<kThreadsPerRow>(part, weights, lane, cut, kColumns));
    } else {
      const Acc mean = measure_warp(part, weights, lane, cut, parts[half + warp]);
      hw::block_barrier();
      load(weights, on, 0, lane, cut);
      of_row = gradient_of(merge_all<kWarps>([&](int i) { return parts[half + i]; },
                                             [&](int i) { return columns_of_warp(i, cut); }))
                   .around(mean);
      half ^= kWarps;
    }
    if (works) {
      load_dsum(part, on, row, 0, lane, cut);
      if constexpr (kWeighs) {
        write(part, weights, KeptGradients{da}, of_row, on, row, 0, lane, cut, sums);
      } else {
        write(part, weights, of_row, on, row, 0, lane, cut, sums);
      }
    }
    row += step;
  }

  if constexpr (kSums > 0) {
    Meeting& meeting = meeting_in(on.workspace);
    Acc* const all = reinterpret_cast<Acc*>(&meeting + 1);
#pragma unroll
    for (int s = 0; s < kSums; ++s)
      write_part(sums.of[s], all + row_of_sums(s, gridDim.x, blockIdx.x), reinterpret_cast<Acc*>(across));
    finish_sums(on, meeting, gridDim.x, across, is_last);
  }
}

}  // namespace normjit
