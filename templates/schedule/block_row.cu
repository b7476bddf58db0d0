// SPDX-License-Identifier: Apache-2.0
// Ordinary and long rows: one block holds a row in registers, or kBlocksPerRow blocks hold a slice each.
//
// Why it is fast: x is read once and y written once; the row is never staged. All loads of a row are issued
// before the first is used, and several blocks on a multiprocessor overlap one's loads with another's stores.
// Blocks that share a row synchronize once a row. In a cluster, each warp sends its statistics to every
// block, and each block merges all of them. Without clusters, teams of blocks keep running over many rows
// and exchange statistics through memory.
namespace normjit {

static_assert(static_cast<long long>(kSpan) * kBlocksPerRow >= kCovered, "the blocks cover the row");
static_assert(kThreadsPerRow == kThreads, "all threads share the row");

enum : int { kParts = Exchange::chosen == Exchange::cluster ? kBlocksPerRow * kWarps : kWarps };
enum : bool { kMergesPairs = (kParts & (kParts - 1)) == 0 };  // equal parts, two by two

// Statistics as they are sent: a multiple of 16 bytes.
struct alignas(16) Part {
  Statistics statistics;
};

// Likewise the largest result of a warp.
struct alignas(16) LargestPart {
  Largest largest;
};

// Merges the parts of this block, or of all blocks of a cluster. `cut` and `from` are those of the slice.
NJ_DEVICE Statistics merge_parts(const Part* parts, const Cut& cut, const Source& from) {
  const auto part = [&](int i) { return parts[i].statistics; };
  if constexpr (kWhole && kMergesPairs) {
    return merge_equal_parts<kParts>(part, kSpan / kWarps);
  } else if constexpr (Exchange::chosen == Exchange::cluster) {
    return Statistics::merge_all<kParts>(
        part,
        [&](int i) { return columns_of_warp(i % kWarps, cut_of(from.x, columns_of_slice(i / kWarps))); },
        kColumns);
  } else {
    return merge_warps(part, cut);
  }
}

NJ_KERNEL(NJ_ENTRY, kThreads) {
  NJ_SHARED(Part, parts, 2 * kParts);
  NJ_SHARED(Statistics, whole, 1);
  // Where each row has a scale, the largest results follow as the statistics do.
  NJ_SHARED(LargestPart, largest_parts, kScalesRows ? 2 * kParts : 1);
  NJ_SHARED(Largest, largest_of_row, 1);
  NJ_SHARED(hw::MemoryBarrier, arrived, 2 * kTagsOfRow);  // of a cluster's parts, then of its largest results
  const int lane = threadIdx.x, warp = lane / kWarp;
  const int slice = static_cast<int>(blockIdx.x) % kBlocksPerRow, count = columns_of_slice(slice);
  const long long begin = static_cast<long long>(slice) * kSpan, teams = gridDim.x / kBlocksPerRow;
  if constexpr (Exchange::chosen == Exchange::cluster) {
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < 2 * kTagsOfRow; ++i) hw::barrier_init(arrived + i, 1);
      hw::barriers_ready();
    }
    hw::cluster_enter();
  }

  unsigned tag = 0;  // of the row published last; known to warp 0
  if constexpr (Exchange::chosen == Exchange::grid) {
    hw::wait_for_previous_launch();
    if (warp == 0) tag = first_tag(on.workspace);
  }

  // Double-buffered: the parts of a row are overwritten two rows later, behind the barrier of the row
  // between.
  Planes planes = {nullptr};
  if (kPlaced > 0) {
    NJ_DYNAMIC_SHARED(ColumnParameters, shared);
    planes.base = shared;
  }
  unsigned turn = 0;
  Largest amax = {0};
  for (long long i = blockIdx.x / kBlocksPerRow; i < on.rows; i += teams, ++turn) {
    const long long row = taken(on, 1, i);
    const int place = turn % 2, half = place * kParts;
    if constexpr (Exchange::chosen == Exchange::cluster)
      if (lane == 0) {
        hw::barrier_arrive_expect(arrived + place, kParts * sizeof(Part));
        if constexpr (kScalesRows)
          hw::barrier_arrive_expect(arrived + 2 + place, kParts * sizeof(LargestPart));
      }
    hw::wait_for_previous_launch();
    const Source from = source_of(on, row, begin);
    const Cut cut = cut_of(from.x, count);
    Fragment fragment;
    load<hw::Cache::evict_first>(fragment, from, lane, cut);
    AddedFragment added;
    load_added(added, residual_of(on, row, begin), lane, cut);
    Quantizer by = quantizer_of(on);
    // The compiler moves no load past this: all of x is asked for first, and the parameters before x is
    // waited for.
    hw::allow_next_launch();
    EarlyParameters early;
    if constexpr (kEarlyParameters) {
      load_early(early, columns_of(on, row).from(begin), lane, {0, 0, count, count});
      hw::allow_next_launch();
    }
    if constexpr (kPlaced > 0) {
      if (kAffineRows || turn == 0) {
        planes.of_turn(turn).fill(columns_of(on, row).from(begin), count, lane);
        // Without a cluster the barrier of the parts suffices.
        if constexpr (Exchange::chosen == Exchange::cluster) hw::block_barrier();
      }
    }
    store_sum(fragment, from, lane, cut);
    Statistics own;
    if constexpr (kWhole && kLowOccupancy) {
      own = measure_equal_lanes(fragment, lane, cut);
    } else {
      own = measure_warp(fragment, lane, cut);
    }
    if constexpr (Exchange::chosen == Exchange::cluster) {
      if (i < teams) hw::cluster_entered();
      hw::warp_barrier();  // all lanes have read the parts that other blocks may overwrite now
      if (lane % kWarp < kBlocksPerRow)
        hw::send(Part{own}, parts + half + slice * kWarps + warp, arrived + place, lane % kWarp);
      hw::barrier_wait(arrived + place, turn / 2 % 2);
    } else {
      if (lane % kWarp == 0) parts[half + warp].statistics = own;
      hw::block_barrier();
    }
    Statistics all = merge_parts(parts + half, cut, from);
    if constexpr (Exchange::chosen == Exchange::grid) {
      if (warp == 0) {
        // Two places suffice: a block publishes a row after it has gathered the row before, and that one
        // was published by all after they had gathered the row before it.
        ++tag;
        if (lane == 0) publish_part<2>(on.workspace, tag, all, slice);
        all = gather_row<2>(on.workspace, tag, [](int i) { return columns_of_slice(i); });
        if (lane == 0) whole[0] = all;
      }
      hw::block_barrier();
      all = whole[0];
    }
    const RowStatistics statistics = finalize(all);
    const Sink sink = sink_of(on, row, begin, by);
    const Planes of_turn = planes.of_turn(turn);
    const auto& parameters = written_with(early, of_turn);
    Results results;
    if constexpr (kScalesRows) {
      const Largest of_warp = lanes_largest<kWarp>(
          compute(results, fragment, own.around(statistics), parameters, added, sink, lane, cut));
      LargestPart* const parts_of_row = largest_parts + half;
      if constexpr (Exchange::chosen == Exchange::cluster) {
        if (lane % kWarp < kBlocksPerRow)
          hw::send(LargestPart{of_warp}, parts_of_row + slice * kWarps + warp, arrived + 2 + place,
                   lane % kWarp);
        hw::barrier_wait(arrived + 2 + place, turn / 2 % 2);
      } else {
        if (lane % kWarp == 0) parts_of_row[warp].largest = of_warp;
        hw::block_barrier();
      }
      Largest largest = largest_of_parts<kParts>([&](int i) { return parts_of_row[i].largest; });
      if constexpr (Exchange::chosen == Exchange::grid) {
        if (warp == 0) {
          ++tag;
          if (lane == 0) publish_part<2>(on.workspace, tag, largest, slice);
          largest = gather_largest<2>(on.workspace, tag);
          if (lane == 0) largest_of_row[0] = largest;
        }
        hw::block_barrier();
        largest = largest_of_row[0];
      }
      by = quantizer_of_row<Output>(largest, by);
    }

    if constexpr (kScalesRows) {
      write(results, by, sink.y, lane, cut);
    } else if constexpr (kScalesBlocks) {
      write_blocks(fragment, own.around(statistics), early, added, sink, lane, cut, true);
    } else {
      // The distances from the warp's own mean are known since the second pass.
      write(fragment, own.around(statistics), parameters, added, sink, lane, cut, amax);
    }
    if (lane == 0 && slice == 0) store(statistics, on, row);
    if (lane == 0 && slice == 0) store(by, on, row);
    if constexpr (kScalesBlocks)
      if (slice == 0) pad_scales(sink.scales, ScaleFormat::chosen, lane, kThreads);
  }
  if constexpr (kWritesAmax) {
    raise_largest(amax, meeting_in(on.workspace).header);
    hw::block_barrier();
  }
  if constexpr (Exchange::chosen == Exchange::grid) {
    if (lane == 0) leave(on, tag, blockIdx.x / kBlocksPerRow);
  } else if constexpr (kWritesAmax) {
    if (lane == 0) leave_with_amax(on);
  }
}

}  // namespace normjit
