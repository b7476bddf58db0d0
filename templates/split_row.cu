// Rows of any length: each row is cut into chunks that one block holds, and is read twice in one launch, for
// its statistics and to apply them.
//
// Why it is fast: a few gigantic rows occupy all multiprocessors, and what is read again is still near. Rows
// whose weights fit in L2 are applied one by one, right behind the measuring, so that the second read of x
// hits L2. Longer ones are applied in groups, chunk by chunk, so that weight and bias are fetched once for
// the whole group.
//
// The work is two streams of items. Measuring goes chunk after chunk and row after row; applying goes group
// after group, in it chunk after chunk, kBatch rows an item. Blocks claim items by tickets, in an order where
// everything that an item waits for has a smaller ticket, so the block with the smallest unfinished ticket
// never waits: the launch needs no co-resident blocks and cannot deadlock.
namespace normjit {

static_assert(kThreadsPerRow == kThreads, "all threads share a chunk");

// The few elements at the ends of a row that is cut are no chunk of their own.
enum : long long { kChunks = kSpan >= kCovered ? 1 : (static_cast<long long>(kColumns) + kSpan - 1) / kSpan };
// Rows that an apply item takes, with the same weights, out of L1.
enum : int { kBatch = kGroupRows < 4 ? kGroupRows : 4 };
enum : int { kBatches = kGroupRows / kBatch };
static_assert(kGroupRows == kBatch * kBatches);

struct alignas(16) ChunkMoments {
  Moments moments;
  Acc unused;
};
struct alignas(16) KnownRow {
  RowStatistics statistics;
  Acc unused;
};

// The workspace: the ring of rows, and behind what all kernels share, what a row of it holds.
struct Workspace {
  Header* header;
  RingRow* ring;              // ring_rows of them in use
  KnownRow* known;            // [ring_rows]
  ChunkMoments* chunks;       // [ring_rows][kChunks]
  int ring_rows, ring_shift;  // a power of two, and its logarithm

  NJ_METHOD int slot(long long row) const { return static_cast<int>(row & (ring_rows - 1)); }
  // How many rows used the slot before.
  NJ_METHOD unsigned long long turn(long long row) const { return row >> ring_shift; }
};

// How many items are measured before the first is applied: a group, and all that the blocks may have in hand
// (one that is measured and one that is not yet published), so that applying rarely waits. At 2048 x 65,536
// f32 on an H200 half of it cost 6 %, a quarter 71 %, and twice of it gained nothing.
NJ_DEVICE long long lag_items() { return kGroupRows * kChunks + 2 * gridDim.x; }

NJ_DEVICE Workspace workspace_of(unsigned char* base) {
  Workspace w;
  const long long wanted = kGroupRows + (lag_items() + gridDim.x) / kChunks + 2;
  w.ring_shift = 0;
  while (1 << w.ring_shift < wanted && 1 << w.ring_shift < kMaxRingRows) ++w.ring_shift;
  w.ring_rows = 1 << w.ring_shift;
  Meeting* const meeting = reinterpret_cast<Meeting*>(base);
  w.header = &meeting->header;
  w.ring = meeting->ring;
  w.known = reinterpret_cast<KnownRow*>(meeting + 1);
  w.chunks = reinterpret_cast<ChunkMoments*>(w.known + w.ring_rows);
  return w;
}

// Columns of a chunk.
NJ_DEVICE int columns_of_chunk(long long chunk) {
  return kWhole || chunk < kChunks - 1 ? kSpan : static_cast<int>(kColumns - chunk * kSpan);
}

// The order of the tickets: first only measuring, then steps of kBatch measuring items and one applying item,
// which takes as many chunks, then only applying.
struct Schedule {
  long long measure_items, leading, mixed_steps;
  unsigned long long tickets;
};

NJ_DEVICE Schedule schedule_of(long long rows) {
  Schedule s;
  s.measure_items = rows * kChunks;
  const long long apply_items = (rows + kGroupRows - 1) / kGroupRows * kBatches * kChunks;
  s.leading = lag_items() < s.measure_items ? lag_items() : s.measure_items;
  s.mixed_steps = (s.measure_items - s.leading + kBatch - 1) / kBatch;
  s.tickets = s.leading + s.mixed_steps * kBatch + apply_items;
  return s;
}

struct Work {
  bool measures;
  long long item;
};

NJ_DEVICE Work work_of(long long ticket, const Schedule& s) {
  if (ticket < s.leading) return {true, ticket};
  ticket -= s.leading;
  const long long step = ticket / (kBatch + 1), place = ticket % (kBatch + 1);
  if (step >= s.mixed_steps) return {false, ticket - s.mixed_steps * kBatch};
  return place < kBatch ? Work{true, s.leading + step * kBatch + place} : Work{false, step};
}

// Lets others know the moments of a measured chunk, which was cut so. True if that completes its row. One
// warp calls this.
NJ_DEVICE bool publish(long long item, const Cut& cut, const Workspace& w, const Moments* parts, int lane) {
  const long long row = item / kChunks, chunk = item % kChunks;
  const Moments moments = merge_warps([&](int i) { return parts[i]; }, cut);
  if (lane != 0) return false;
  const int slot = w.slot(row);
  const unsigned long long turn = w.turn(row);
  if (turn > 0) hw::wait_until(&w.ring[slot].applied, turn * kChunks);  // the ring row is free
  w.chunks[slot * kChunks + chunk].moments = moments;
  return hw::arrive(&w.ring[slot].measured) + 1 == (turn + 1) * kChunks;
}

// Merges the chunks of a row in their order, whichever block does it, and lets the row be applied. The whole
// block calls this. In double: it is a handful of operations for thousands of columns, and chunks may differ
// as much as they like.
NJ_DEVICE void complete(long long row, const Workspace& w, Acc* mean_out, Acc* rstd_out, double* sums) {
  const int slot = w.slot(row);
  const ChunkMoments* chunks = w.chunks + slot * kChunks;
  const auto mean_of = [](const Moments& m) {
    return static_cast<double>(m.mean) + static_cast<double>(m.mean_lo);
  };
  double total = 0;
#pragma unroll 1
  for (long long i = threadIdx.x; i < kChunks; i += kThreads)
    total += columns_of_chunk(i) * mean_of(chunks[i].moments);
  const double mean = block_sum(total, sums) / kColumns;
  double m2 = 0;
#pragma unroll 1
  for (long long i = threadIdx.x; i < kChunks; i += kThreads) {
    const double off = mean_of(chunks[i].moments) - mean;
    m2 += static_cast<double>(chunks[i].moments.m2) + columns_of_chunk(i) * off * off;
  }
  m2 = block_sum(m2, sums + kWarps);
  const Acc high = static_cast<Acc>(mean);
  const RowStatistics statistics =
      row_statistics({high, static_cast<Acc>(mean - static_cast<double>(high)), static_cast<Acc>(m2)});
  if (threadIdx.x == 0) {
    w.known[slot].statistics = statistics;
    hw::arrive(&w.ring[slot].ready);
    store(statistics, mean_out, rstd_out, row);
  }
}

NJ_KERNEL(NJ_ENTRY, kThreads) {
  // Pairs of halves, used in turn, so that one barrier an item is enough.
  NJ_SHARED(unsigned long long, claimed, 2);
  NJ_SHARED(bool, completes, 2);
  NJ_SHARED(Moments, parts, 2 * kWarps);
  NJ_SHARED(double, sums, 2 * kWarps);
  NJ_SHARED(RowStatistics, statistics, kBatch);

  // What is the same for all items lies in shared memory, which leaves the registers to the slice.
  NJ_SHARED(Workspace, shared_workspace, 1);
  NJ_SHARED(Schedule, shared_schedule, 1);
  const Workspace& w = shared_workspace[0];
  const Schedule& schedule = shared_schedule[0];
  const int lane = threadIdx.x;
  const bool first = lane == 0;

  hw::wait_for_previous_launch();
  hw::allow_next_launch();

  // Tickets are taken ahead: one is known to all threads, the next is on its way to thread 0.
  unsigned long long next = 0;
  if (first) {
    shared_workspace[0] = workspace_of(workspace);
    shared_schedule[0] = schedule_of(rows);
    claimed[1] = hw::take_ticket(&w.header->next_ticket);
    next = hw::take_ticket(&w.header->next_ticket);
  }
  hw::block_barrier();
  unsigned long long ticket = claimed[1];
  long long measured = -1;  // the item before, if it measured: its moments are still to be published
  Cut cut_before = {};
  for (int half = 0;; half ^= 1) {
    const bool done = ticket >= schedule.tickets;
    const Work work = work_of(ticket, schedule);
    const bool measures = !done && work.measures && work.item < schedule.measure_items;

    // Where the item begins: a chunk of one row to measure, or of kBatch rows to apply.
    const long long place = work.measures ? work.item : work.item / kBatches;
    const long long chunk = place % kChunks;
    const long long row =
        work.measures ? place / kChunks : place / kChunks * kGroupRows + work.item % kBatches * kBatch;
    const long long begin = chunk * kSpan;
    const Input* const from = x + row * x_stride + begin;
    const Cut cut = cut_of(from, columns_of_chunk(chunk));
    const bool applies = !done && !work.measures && row < rows;  // the last group may be short

    // The first read of a chunk. Behind its loads the chunk before is published.
    Fragment slice;
    if (measures) load<hw::Cache::no_l1>(slice, from, lane, cut);
    bool completed = false;
    if (measured >= 0 && lane < kWarp)
      completed = publish(measured, cut_before, w, parts + (half ^ 1) * kWarps, lane);
    if (measures) store_warp_moments(slice, lane, cut, parts + half * kWarps);

    if (first) {
      completes[half] = completed;
      claimed[half] = next;
      next = hw::take_ticket(&w.header->next_ticket);
    }
    hw::block_barrier();
    if (completes[half]) complete(measured / kChunks, w, mean_out, rstd_out, sums);
    if (done) break;

    if (applies) {
      // The second read of a chunk, of kBatch rows, and its write.
      load<hw::Cache::evict_first>(slice, from, lane, cut);
      const int batch = rows - row < kBatch ? static_cast<int>(rows - row) : kBatch;
      if (lane < batch) {
        const int slot = w.slot(row + lane);
        hw::wait_until(&w.ring[slot].ready, w.turn(row + lane) + 1);
        statistics[lane] = w.known[slot].statistics;
        hw::arrive(&w.ring[slot].applied);  // this block needs the ring row no more
      }
      hw::block_barrier();
      AffineFragment affine;
      load_early(affine, weight + begin, bias + begin, lane, cut);
#pragma unroll 1
      for (int i = 0; i < batch; ++i) {
        const Input* const from_row = from + i * x_stride;
        const Cut cut_row = cut_of(from_row, cut.count);
        if (i > 0) load<hw::Cache::evict_first>(slice, from_row, lane, cut_row);
        Output* const to = y + (row + i) * y_stride + begin;
        if constexpr (kUnaligned) {
          NJ_DYNAMIC_SHARED(unsigned char, stage);
          store_unaligned(slice, cut_row, statistics[i], weight + begin, bias + begin, to, lane, stage);
        } else {
          apply(slice, statistics[i], affine, weight + begin, bias + begin, to, lane, cut_row);
        }
      }
    }
    measured = measures ? work.item : -1;
    cut_before = cut;
    ticket = claimed[half];
  }

  hw::block_barrier();

  // The last block to leave makes the workspace ready for the next launch.
  if (first) completes[0] = leaves_last(*w.header);
  hw::block_barrier();
  if (completes[0]) {
    for (long long i = threadIdx.x; i < w.ring_rows; i += kThreads) w.ring[i] = {};
    if (first) w.header->next_ticket = w.header->finished_blocks = 0;
  }
}

}  // namespace normjit
