// SPDX-License-Identifier: Apache-2.0
// Rows of any length: a row is cut into chunks, each of which a block holds, and is read twice in one
// launch: to be measured, and to be written. Where a row has a scale, it is read once more between these, for
// its largest result.
// Why it is fast: a few gigantic rows occupy all multiprocessors. Rows whose parameters fit in L2 are
// written one by one, right behind the measuring, so that the second read of x hits L2. Longer rows are
// written in groups, chunk by chunk, so that parameters are fetched once for the whole group.
//
// The work is two streams of items. Measuring goes chunk after chunk and row after row, where rows have
// scales twice over the chunks of each; applying goes group after group, in it chunk after chunk, kBatch rows
// an item. Blocks claim items by tickets, in an order where everything that an item waits for has a smaller
// ticket, so the block with the smallest unfinished ticket never waits: the launch needs no co-resident
// blocks and cannot deadlock.
namespace normjit {

static_assert(kThreadsPerRow == kThreads, "all threads share a chunk");

enum : long long { kChunks = plan_math::chunks(kColumns, kSpan, kCovered) };
// How often a row is read before it is written, and the measuring items that makes.
enum : int { kReads = plan_math::reads_before_writing(kScalesRows) };
enum : long long { kItemsOfRow = kReads * kChunks };
// Rows of an apply item, which share the parameters in L1.
enum : int { kBatch = kGroupRows < 4 ? kGroupRows : 4 };
enum : int { kBatches = kGroupRows / kBatch };
static_assert(kGroupRows == kBatch * kBatches);

struct alignas(16) ChunkStatistics {
  Statistics statistics;
  Acc unused;
};
struct alignas(16) KnownRow {
  RowStatistics statistics;
  Acc unused;
};

// The workspace. Behind what all kernels share lie the statistics of the ring's rows and of their chunks.
struct Workspace {
  Header* header;
  RingRow* ring;              // ring_rows of them in use
  KnownRow* known;            // [ring_rows]
  ChunkStatistics* chunks;    // [ring_rows][kChunks]
  int ring_rows, ring_shift;  // a power of two, and its logarithm

  NJ_METHOD int slot(long long row) const { return static_cast<int>(row & (ring_rows - 1)); }
  NJ_METHOD Largest largest_of(int slot) const {
    return {float_of(static_cast<unsigned>(ring[slot].largest))};
  }
  // How many rows have used its slot before.
  NJ_METHOD unsigned long long turn(long long row) const { return row >> ring_shift; }
};

NJ_DEVICE long long lag_items() { return plan_math::split_lag(kGroupRows, kItemsOfRow, gridDim.x); }

NJ_DEVICE Workspace workspace_of(unsigned char* base) {
  Workspace w;
  w.ring_shift = plan_math::split_ring_shift(kGroupRows, kItemsOfRow, gridDim.x);
  w.ring_rows = 1 << w.ring_shift;
  Meeting* const meeting = reinterpret_cast<Meeting*>(base);
  w.header = &meeting->header;
  w.ring = meeting->ring;
  w.known = reinterpret_cast<KnownRow*>(meeting + 1);
  w.chunks = reinterpret_cast<ChunkStatistics*>(w.known + w.ring_rows);
  return w;
}

// Columns of a chunk.
NJ_DEVICE int columns_of_chunk(long long chunk) {
  return kWhole || chunk < kChunks - 1 ? kSpan : static_cast<int>(kColumns - chunk * kSpan);
}

// The order of the tickets: first only measuring, then steps of measuring items of kBatch chunks and one
// applying item, which takes as many chunks, then only applying.
enum : int { kMeasuringItems = kBatch * kReads };
struct Schedule {
  long long measure_items, leading, mixed_steps;
  long long full_groups;  // before the last one, which may be short
  int last_batches;       // of the last one
  unsigned long long tickets;
};

NJ_DEVICE Schedule schedule_of(long long rows) {
  Schedule s;
  s.measure_items = rows * kItemsOfRow;
  s.full_groups = (rows - 1) / kGroupRows;
  s.last_batches = static_cast<int>((rows - s.full_groups * kGroupRows + kBatch - 1) / kBatch);
  const long long apply_items = (s.full_groups * kBatches + s.last_batches) * kChunks;
  s.leading = lag_items() < s.measure_items ? lag_items() : s.measure_items;
  s.mixed_steps = (s.measure_items - s.leading + kMeasuringItems - 1) / kMeasuringItems;
  s.tickets = s.leading + s.mixed_steps * kMeasuringItems + apply_items;
  return s;
}

struct Work {
  bool measures;
  long long item;
};

NJ_DEVICE Work work_of(long long ticket, const Schedule& s) {
  if (ticket < s.leading) return {true, ticket};
  ticket -= s.leading;
  const long long step = ticket / (kMeasuringItems + 1), place = ticket % (kMeasuringItems + 1);
  if (step >= s.mixed_steps) return {false, ticket - s.mixed_steps * kMeasuringItems};
  return place < kMeasuringItems ? Work{true, s.leading + step * kMeasuringItems + place} : Work{false, step};
}

// Where an item begins: at a chunk of one row to read, or of up to kBatch rows to apply.
struct Place {
  long long row, chunk;
};
NJ_DEVICE Place place_of(const Work& work, const Schedule& s) {
  if (work.measures) return {work.item / kItemsOfRow, work.item % kChunks};
  const long long group = work.item / (kBatches * kChunks), item = work.item % (kBatches * kChunks);
  const int batches = kBatches > 1 && group == s.full_groups ? s.last_batches : kBatches;
  return {group * kGroupRows + item % batches * kBatch, item / batches};
}

// Publishes the statistics of a measured chunk. True if that completes its row. One warp calls this.
NJ_DEVICE bool publish(long long item, const Cut& cut, const Workspace& w, const Statistics* parts,
                       int lane) {
  const long long row = item / kItemsOfRow, chunk = item % kChunks;
  const Statistics all = merge_warps([&](int i) { return parts[i]; }, cut);
  if (lane != 0) return false;
  const int slot = w.slot(row);
  const unsigned long long turn = w.turn(row);
  if (turn > 0) hw::wait_until(&w.ring[slot].applied, turn * kChunks);  // the ring row is free
  w.chunks[slot * kChunks + chunk].statistics = all;
  return hw::arrive(&w.ring[slot].measured) + 1 == turn * kItemsOfRow + kChunks;
}
// Publishes the largest result of a chunk, and releases the row to be written if that is the last one. One
// warp calls this.
NJ_DEVICE void publish_largest(long long row, const Workspace& w, const Largest* parts, int lane) {
  const Largest largest = largest_of_parts<kWarps>([&](int i) { return parts[i]; });
  if (lane != 0) return;
  const int slot = w.slot(row);
  hw::raise(&w.ring[slot].largest, bits_of(largest.magnitude));
  if (hw::arrive(&w.ring[slot].measured) + 1 == (w.turn(row) + 1) * kItemsOfRow)
    hw::arrive(&w.ring[slot].ready);
}

// Merges the chunks of a row, in the same order in any block, and releases the row to be read again. The
// whole block calls this.
NJ_DEVICE void complete(long long row, const Workspace& w, const Operands& on, WideSums* sums) {
  const int slot = w.slot(row);
  const ChunkStatistics* chunks = w.chunks + slot * kChunks;
  const double base = chunks[0].statistics.centre();
  WideSums total = {0, 0};
#pragma unroll 1
  for (long long i = threadIdx.x; i < kChunks; i += kThreads)
    total = total + chunks[i].statistics.widened(columns_of_chunk(i), base);
  total = block_sum(total, sums);
  const RowStatistics statistics = finalize(Statistics::from(total, base, kColumns));
  if (threadIdx.x == 0) {
    if constexpr (kScalesRows) w.ring[slot].largest = 0;
    w.known[slot].statistics = statistics;
    hw::arrive(&w.ring[slot].ready);
    store(statistics, on, row);
  }
}

// The second read of a chunk: of the sum, once it is known to be written; else `now`, or before that. (A
// template, since not every sum can be held as it is written.)
template <class Any>
NJ_DEVICE void read_again(Any& fragment, const Source& from, int lane, const Cut& cut, bool now) {
  if constexpr (kSumIsExact) {
    load_sum<hw::Cache::evict_first>(fragment, from, lane, cut);
  } else {
    if (now) load<hw::Cache::evict_first>(fragment, from, lane, cut);
  }
}

NJ_KERNEL(NJ_ENTRY, kThreads) {
  // Double-buffered, so that one barrier an item is enough.
  NJ_SHARED(unsigned long long, claimed, 2);
  NJ_SHARED(bool, completes, 2);
  NJ_SHARED(Statistics, parts, 2 * kWarps);
  NJ_SHARED(WideSums, sums, kWarps);
  NJ_SHARED(RowStatistics, statistics, kBatch);
  NJ_SHARED(Largest, largest_parts, kScalesRows ? kWarps : 1);
  NJ_SHARED(Quantizer, quantizers, kScalesRows ? kBatch : 1);

  // Constant over all items: in shared memory, to leave the registers to the fragment.
  NJ_SHARED(Workspace, shared_workspace, 1);
  NJ_SHARED(Schedule, shared_schedule, 1);
  const Workspace& w = shared_workspace[0];
  const Schedule& schedule = shared_schedule[0];
  Planes planes = {nullptr};
  if (kPlaced > 0) {
    NJ_DYNAMIC_SHARED(ColumnParameters, shared);
    planes.base = shared;
  }
  const int lane = threadIdx.x;
  const bool first = lane == 0;

  hw::wait_for_previous_launch();
  hw::allow_next_launch();

  // Tickets are taken ahead: one is known to all threads, the next is on its way to thread 0.
  unsigned long long next = 0;
  if (first) {
    shared_workspace[0] = workspace_of(on.workspace);
    shared_schedule[0] = schedule_of(on.rows);
    claimed[1] = hw::take_ticket(&w.header->next_ticket);
    next = hw::take_ticket(&w.header->next_ticket);
  }
  hw::block_barrier();
  unsigned long long ticket = claimed[1];
  long long measured = -1;  // the item before, if it measured: not published yet
  Cut cut_before = {};
  Largest amax = {0};
  for (int half = 0;; half ^= 1) {
    const bool done = ticket >= schedule.tickets;
    const Work work = work_of(ticket, schedule);
    const bool reads = !done && work.measures && work.item < schedule.measure_items;
    const bool seeks = reads && work.item / kChunks % kReads == 1;  // the largest result
    const bool measures = reads && !seeks;
    const bool applies = !done && !work.measures;

    const Place place = place_of(work, schedule);
    const long long row = place.row, chunk = place.chunk;
    const long long begin = chunk * kSpan;
    const Source from = source_of(on, row, begin);
    const Cut cut = cut_of(from.x, columns_of_chunk(chunk));

    // The first read of a chunk. The chunk before is published while its loads are in flight.
    Fragment fragment;
    if (measures) load<hw::Cache::no_l1>(fragment, from, lane, cut);
    // A sum that is exact takes the place of x from then on. Another may stand where the residual does, which
    // is read again; so it is written with y.
    if (measures && kSumIsExact) store_sum(fragment, from, lane, cut);
    bool completed = false;
    if (measured >= 0 && lane < kWarp)
      completed = publish(measured, cut_before, w, parts + (half ^ 1) * kWarps, lane);
    if (measures) {
      const Statistics own = measure_warp(fragment, lane, cut);
      if (lane % kWarp == 0) parts[half * kWarps + lane / kWarp] = own;
    }

    if (first) {
      completes[half] = completed;
      claimed[half] = next;
      next = hw::take_ticket(&w.header->next_ticket);
    }
    hw::block_barrier();
    if (completes[half]) complete(measured / kItemsOfRow, w, on, sums);
    if (done) break;

    if (applies || seeks) {
      // The next read of a chunk: of kBatch rows, and its write; or of one, for its largest result.
      if constexpr (!kSumIsExact) load<hw::Cache::evict_first>(fragment, from, lane, cut);
      const int batch = seeks ? 1 : on.rows - row < kBatch ? static_cast<int>(on.rows - row) : kBatch;
      if (lane < batch) {
        const int slot = w.slot(row + lane);
        hw::wait_until(&w.ring[slot].ready, (w.turn(row + lane) + 1) * kReads - seeks);
        statistics[lane] = w.known[slot].statistics;
        if constexpr (kScalesRows)
          if (!seeks) quantizers[lane] = quantizer_of_row<Output>(w.largest_of(slot), quantizer_of(on));
        if (!seeks) hw::arrive(&w.ring[slot].applied);  // this block needs the ring row no more
      }
      hw::block_barrier();
      const Quantizer by = quantizer_of(on);
      EarlyParameters early;
      if constexpr (!kParametersOfRow) load_early(early, columns_of(on, row).from(begin), lane, cut);
#pragma unroll 1
      for (int i = 0; i < batch; ++i) {
        const Source from_row = source_of(on, row + i, begin);
        const Cut cut_row = cut_of(from_row.x, cut.count);
        read_again(fragment, from_row, lane, cut_row, i > 0);
        AddedFragment added;
        load_added(added, residual_of(on, row + i, begin), lane, cut_row);
        if constexpr (kParametersOfRow) load_early(early, columns_of(on, row + i).from(begin), lane, cut);
        if constexpr (!kSumIsExact)
          if (!seeks) store_sum(fragment, from_row, lane, cut_row);
        const Planes of_turn = planes.of_turn(i);
        if constexpr (kPlaced > 0)
          if (kAffineRows || i == 0) {
            of_turn.fill(columns_of(on, row + i).from(begin), cut.count, lane);
            hw::block_barrier();
          }
        const Sink sink = sink_of(on, row + i, begin, kScalesRows && !seeks ? quantizers[i] : by);
        if constexpr (kScalesRows) {
          const auto& parameters = written_with(early, of_turn);
          if (seeks) {
            const Largest largest = lanes_largest<kWarp>(
                largest_result(fragment, statistics[0], parameters, added, sink.columns, lane, cut_row));
            if (lane % kWarp == 0) largest_parts[lane / kWarp] = largest;
            hw::block_barrier();
            if (lane < kWarp) publish_largest(row, w, largest_parts, lane);
          } else {
            write(fragment, statistics[i], parameters, added, sink, lane, cut_row, amax);
            if (lane == 0 && chunk == 0) store(sink.by, on, row + i);
          }
        } else if constexpr (kScalesBlocks) {
          write_blocks(fragment, statistics[i], early, added, sink, lane, cut_row, true);
          if (chunk == 0) pad_scales(sink.scales, ScaleFormat::chosen, lane, kThreads);
        } else {
          write(fragment, statistics[i], written_with(early, of_turn), added, sink, lane, cut_row, amax);
        }
      }
    }
    measured = measures ? work.item : -1;
    cut_before = cut;
    ticket = claimed[half];
  }

  if constexpr (kWritesAmax) raise_largest(amax, *w.header);
  hw::block_barrier();

  // The last block to leave makes the workspace ready for the next launch.
  if (first) completes[0] = leaves_last(*w.header);
  hw::block_barrier();
  if (completes[0]) {
    for (long long i = threadIdx.x; i < w.ring_rows; i += kThreads) w.ring[i] = {};
    if constexpr (kWritesAmax)
      if (first) store_amax(*w.header, on);
    if (first) w.header->next_ticket = w.header->finished_blocks = 0;
  }
}

}  // namespace normjit
