// SPDX-License-Identifier: Apache-2.0
// Short rows, up to 2 KiB: kThreadsPerRow neighbouring lanes of a warp share a row, a block works on kThreads
// / kThreadsPerRow rows at once.
//
// Why it is fast: x is read once and y written once, in 16-byte accesses that are contiguous over the warp.
// Nothing but shuffles joins the lanes, so no barrier ever stalls a block, and one short-lived block per
// group of rows keeps the memory queue full (grids of long-lived blocks were 5-8 % slower).
namespace normjit {

static_assert(kSpan >= kColumns && !kUnaligned, "the lanes cover the row");
static_assert(kThreadsPerRow <= kWarp, "a row stays in a warp");

enum : int { kRows = kThreads / kThreadsPerRow };  // a block

NJ_KERNEL(NJ_ENTRY, kThreads) {
  const int lane = threadIdx.x % kThreadsPerRow;
  Largest amax = {0};
  for (long long first = static_cast<long long>(blockIdx.x) * kRows; first < on.rows;
       first += static_cast<long long>(gridDim.x) * kRows) {
    // Lanes beyond the last row take part in the shuffles with zeros, and write nothing. They may not read
    // another row meanwhile: its own lanes may be writing it, where y is x.
    const long long row = taken(on, kRows, first) + threadIdx.x / kThreadsPerRow;
    const bool works = row < on.rows;
    const Source from = source_of(on, row, 0);
    const Cut cut = cut_of(from.x, kColumns);

    Fragment fragment = {};
    AddedFragment added;
    EarlyParameters early;
    if constexpr (!kParametersOfRow) load_early(early, columns_of(on, row), lane, cut);
    hw::wait_for_previous_launch();
    hw::allow_next_launch();
    if constexpr (kParametersOfRow)
      if (works) load_early(early, columns_of(on, row), lane, cut);
    if (works) load<hw::Cache::evict_first>(fragment, from, lane, cut);
    if (works) load_added(added, residual_of(on, row, 0), lane, cut);
    Quantizer by = quantizer_of(on);
    if (works) store_sum(fragment, from, lane, cut);
    const RowStatistics statistics =
        finalize(Statistics::of<kThreadsPerRow>(FragmentElements{fragment, lane, cut}, kColumns));
    if constexpr (kScalesRows) {
      const Sink sink = sink_of(on, row, 0, by);
      Largest own = {0};
      Results results;
      if (works) own = compute(results, fragment, statistics, early, added, sink, lane, cut);
      by = quantizer_of_row<Output>(lanes_largest<kThreadsPerRow>(own), by);
      if (works) write(results, by, sink.y, lane, cut);
    } else if constexpr (kScalesBlocks) {
      // Lanes without a row read the parameters of the last row: there are none behind it.
      const Sink sink = sink_of(on, works ? row : on.rows - 1, 0, by);
      write_blocks(fragment, statistics, early, added, sink, lane, cut, works);
      if (works) pad_scales(sink.scales, ScaleFormat::chosen, lane, kThreadsPerRow);
    } else {
      if (works) write(fragment, statistics, early, added, sink_of(on, row, 0, by), lane, cut, amax);
    }
    if (works && lane == 0) store(statistics, on, row);
    if (works && lane == 0) store(by, on, row);
  }
  if constexpr (kWritesAmax) {
    raise_largest(amax, meeting_in(on.workspace).header);
    hw::block_barrier();
    if (threadIdx.x == 0) leave_with_amax(on);
  }
}

}  // namespace normjit
