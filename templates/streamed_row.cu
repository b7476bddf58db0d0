// Long rows, and few of them: kSlices blocks, one on each multiprocessor, share a row, hold their slice of it
// in shared memory, and stay for row after row.
//
// Why it is fast: x is read once. What is in flight does not depend on registers: one thread feeds a ring of
// chunks by bulk copies, and the next rows arrive while this one is written. The roles are dealt to the
// warps, so that nobody waits for what he does not need: one feeds the ring, four measure, one posts the
// moments of the slice, one concludes the statistics of the row from all posts, eight apply. The appliers
// keep weight and bias in registers from row to row, as far as they fit. Chunks are dealt to the blocks in
// turn, so that together they walk along the row.
namespace normjit {

static_assert(kArch >= 90, "bulk copies and barriers in shared memory");
static_assert(kThreads == 2 * kLanes, "half of the threads apply");
static_assert(kVector * sizeof(Input) == 16, "bulk copies move whole 16 bytes");
static_assert(!kShifted && kExchange != Exchange::cluster);

// The warps: four for odd jobs, four that measure, the others apply. Registers are dealt to groups of four;
// to measure 16-bit elements takes more of them.
constexpr int kMeasurers = 4 * kWarp, kFirstApplier = kThreads - kLanes;
constexpr int kFewRegisters = sizeof(Input) == 2 ? 72 : 56, kManyRegisters = 256 - kFewRegisters;
static_assert(2 * kFewRegisters * 4 * kWarp + kManyRegisters * kLanes <= 65536);

constexpr int kChunks = (kColumns - 1) / kSpan + 1;          // of a row
constexpr int kOwn = (kChunks + kSlices - 1) / kSlices;      // of a slice, at most
constexpr int kMeasured = kLanes * kPerThread / kMeasurers;  // vectors of a chunk that a measurer takes
static_assert(kOwn <= kStages, "a slice fits in the ring");
// Chunks in flight: 40 KiB on a multiprocessor keep the memory busy; more of them disturb the writes.
constexpr int kEnough = 40 * 1024 / (kSpan * static_cast<int>(sizeof(Input)));
constexpr int kInFlight = kEnough < 1 ? 1 : kEnough < kStages ? kEnough : kStages;

// Rows between the first of which a chunk is in the ring and the last that is applied, and some: what is
// passed on for each row has as many places, in turn.
constexpr int kPlaces = kStages / (kChunks / kSlices) + 3;
// Of two blocks of a team one may be as many rows ahead in measuring as the other in applying.
constexpr int kPostPlaces = 2 * kPlaces;

// Weight and bias of a slice stay in registers if they fit, the weight first.
constexpr int kAffineRegisters = kOwn * kPerThread * kVector * static_cast<int>(sizeof(Weight)) / 4;
constexpr int kMostHeld = 128;
constexpr bool kHoldsWeight = kHasWeight && kAffineRegisters <= kMostHeld;
constexpr bool kHoldsBias = kHasBias && (kHoldsWeight ? 2 : 1) * kAffineRegisters <= kMostHeld;
// What is not held is asked for so many chunks ahead.
constexpr int kUnheld = (kHasWeight && !kHoldsWeight) + (kHasBias && !kHoldsBias);
constexpr int kAsked = kUnheld > 0 ? 2 : 1;
// Chunks of the next row that the appliers take into registers while they wait for its statistics, where the
// ring is short: what then remains of the registers.
constexpr int kUsed =
    40 + ((kHoldsWeight + kHoldsBias) * kOwn + kUnheld * kAsked) * (kAffineRegisters / kOwn);
constexpr int kLeft = kManyRegisters > kUsed ? kManyRegisters - kUsed : 0;
constexpr int kWanted = kStages >= 3 * kOwn ? 0 : kLeft / (4 * kPerThread);
constexpr int kTaken = kWanted < kOwn ? kWanted : kOwn;

// Where something is in the ring: goes round with the chunks, and flips the parity of the barriers each time.
struct Cursor {
  int slot = 0;
  unsigned parity = 0;

  NJ_METHOD void advance() {
    if (++slot == kStages) slot = 0, parity ^= 1;
  }
};

struct Ring {
  Input* chunks;                      // [kStages][kSpan]
  hw::MemoryBarrier *filled, *freed;  // [kStages]

  NJ_METHOD const Input* wait(Cursor at) const {
    hw::barrier_wait(filled + at.slot, at.parity);
    return chunks + at.slot * kSpan;
  }
};

// Bits that are known when the vector has been loaded.
NJ_DEVICE unsigned first_word(const Vec<Input>& value) {
  unsigned word;
  memcpy(&word, &value, sizeof word);
  return word;
}

// Places in turn, with the parity of their barriers.
struct Turn {
  int place = 0;
  unsigned parity = 0;

  NJ_METHOD void advance() {
    if (++place == kPlaces) place = 0, parity ^= 1;
  }
};

// The chunks of a slice: kSlices chunks of the row lie from one to the next.
struct Part {
  int slice, own;  // how many
  NJ_METHOD long long begin(int c) const { return (static_cast<long long>(c) * kSlices + slice) * kSpan; }
  NJ_METHOD int columns(int c) const {
    if constexpr (kWhole) return kSpan;
    const long long left = kColumns - begin(c);
    return left < kSpan ? static_cast<int>(left) : kSpan;
  }
};
NJ_DEVICE int chunks_of_slice(int slice) {
  if constexpr (kChunks % kSlices == 0) return kOwn;
  return (kChunks - slice + kSlices - 1) / kSlices;
}
NJ_DEVICE int columns_of_part(int slice) {
  const int own = chunks_of_slice(slice);
  if constexpr (kWhole) return own * kSpan;
  const bool last = (kChunks - 1) % kSlices == slice;
  return own * kSpan - (last ? static_cast<int>(static_cast<long long>(kChunks) * kSpan - kColumns) : 0);
}

// One thread: keeps the ring full, row after row.
NJ_DEVICE void feed(const Ring& ring, const Input* x, long long rows, long long x_stride, const Part& part,
                    long long team, long long teams) {
  Cursor at, oldest;  // the oldest that may be in flight
  int in_flight = 0;
  for (long long row = team; row < rows; row += teams)
#pragma unroll 1
    for (int c = 0; c < part.own; ++c, at.advance()) {
      hw::barrier_wait(ring.freed + at.slot, at.parity ^ 1);
      if (in_flight == kInFlight) {
        ring.wait(oldest);
        oldest.advance();
      } else {
        ++in_flight;
      }
      const int bytes = part.columns(c) * static_cast<int>(sizeof(Input));
      hw::barrier_arrive_expect(ring.filled + at.slot, bytes);
      hw::bulk_load(ring.chunks + at.slot * kSpan, x + row * x_stride + part.begin(c), bytes,
                    ring.filled + at.slot);
    }
}

// Whole 16 bytes of so many weights: narrower than x, they may begin and end between them.
NJ_DEVICE void prefetch(const Weight* from, int count) {
  const auto past = static_cast<int>(reinterpret_cast<unsigned long long>(from) % 16);
  const int skipped = (16 - past) % 16, bytes = count * static_cast<int>(sizeof(Weight)) - skipped;
  if (bytes >= 16) hw::prefetch(reinterpret_cast<const unsigned char*>(from) + skipped, bytes / 16 * 16);
}

// One thread: what the appliers will read of weight and bias for every row.
NJ_DEVICE void prefetch_affine(const Part& part, const Weight* weight, const Weight* bias) {
  for (int c = 0; c < part.own; ++c) {
    if constexpr (kHasWeight && !kHoldsWeight) prefetch(weight + part.begin(c), part.columns(c));
    if constexpr (kHasBias && !kHoldsBias) prefetch(bias + part.begin(c), part.columns(c));
  }
}

// A measuring warp's part of the chunk at `at`, which has `count` columns, joins what the thread has seen.
template <bool kFull>
NJ_DEVICE void measure_chunk(const Ring& ring, Cursor at, int count, int self, unsigned zero, Moments& all,
                             Acc& seen) {
  const Input* chunk = ring.wait(at);
  const auto inside = [&](int k) { return kFull || (k * kMeasurers + self) * kVector < count; };
  Vec<Input> vectors[kMeasured];
  int own = kFull ? kMeasured * kVector : 0;
  unsigned loaded = 0;
#pragma unroll
  for (int k = 0; k < kMeasured; ++k)
    if (inside(k)) {
      vectors[k] = hw::load_shared<Vec<Input>>(chunk + (k * kMeasurers + self) * kVector);
      loaded |= first_word(vectors[k]);
      if (!kFull) own += kVector;
    }
  hw::warp_barrier();
  if (self % kWarp == 0) hw::barrier_arrive_after(ring.freed + at.slot, loaded, zero);
  const Moments moments = moments_of<1>(elements_of<kMeasured>(vectors, inside), Acc(own > 0 ? own : 1));
  all = join(all, seen, moments, Acc(own));
  seen += own;
}

// Four warps: the moments of the slice, row after row, each warp's into sums.
NJ_DEVICE void measure(const Ring& ring, long long rows, const Part& part, long long team, long long teams,
                       Moments* sums, hw::MemoryBarrier* summed, unsigned zero) {
  const int self = static_cast<int>(threadIdx.x) - 4 * kWarp;
  Cursor at;
  Turn turn;
  for (long long row = team; row < rows; row += teams, turn.advance()) {
    Moments all = {0, 0, 0};
    Acc seen = 0;  // columns
#pragma unroll 1
    for (int c = 0; c < part.own; ++c, at.advance()) {
      // All but the last chunk are full, and the compiler knows.
      if (kWhole || c + 1 < kOwn)
        measure_chunk<true>(ring, at, kSpan, self, zero, all, seen);
      else
        measure_chunk<false>(ring, at, part.columns(c), self, zero, all, seen);
    }
    const Acc columns = kWhole ? kWarp * seen : lanes_sum<kWarp>(seen);
    const Moments sum =
        merge<kWarp>([&](int) { return all; }, [&](int) { return seen; }, columns > 0 ? columns : Acc(1));
    if (self % kWarp == 0) {
      sums[turn.place * 4 + self / kWarp] = sum;
      hw::barrier_arrive(summed + turn.place);
    }
  }
}

// Columns of a slice that measuring warp `warp` has.
NJ_DEVICE int columns_of_measurer(int warp, const Part& part) {
  int columns = (part.own - 1) * (kSpan / 4);
  const int last = part.columns(part.own - 1);
#pragma unroll
  for (int k = 0; k < kMeasured; ++k) {
    const int left = last - (k * kMeasurers + warp * kWarp) * kVector;
    columns += left < 0 ? 0 : left < kWarp * kVector ? left : kWarp * kVector;
  }
  return columns;
}

// What the measuring warps know of a slice.
struct Sums {
  const Moments* warps;  // [kPlaces][4]
  hw::MemoryBarrier* ready;

  NJ_METHOD Moments wait(Turn turn, const Part& part) const {
    hw::barrier_wait(ready + turn.place, turn.parity);
    return merge<4>([&](int i) { return warps[turn.place * 4 + i]; },
                    [&](int i) { return columns_of_measurer(i, part); }, columns_of_part(part.slice));
  }
};

// One warp: leaves the moments of the slice for the team.
NJ_DEVICE void post_all(const Sums& sums, const Part& part, long long rows, long long team, long long teams,
                        hw::MemoryBarrier* ready, unsigned tag, unsigned char* workspace) {
  Turn turn;
  for (long long row = team; row < rows; row += teams, turn.advance()) {
    const Moments moments = sums.wait(turn, part);
    hw::warp_barrier();
    if (threadIdx.x % kWarp == 0) {
      post_part<kPostPlaces>(workspace, ++tag, moments, part.slice);
      hw::barrier_arrive(ready + turn.place);  // its sums are read
    }
  }
}

// One warp: the statistics of each row, for the appliers.
NJ_DEVICE void conclude(const Sums& sums, const Part& part, long long rows, long long team, long long teams,
                        RowStatistics* known, hw::MemoryBarrier* ready, unsigned tag,
                        unsigned char* workspace, Acc* mean_out, Acc* rstd_out) {
  const bool first = threadIdx.x % kWarp == 0;
  Turn turn;
  for (long long row = team; row < rows; row += teams, turn.advance()) {
    Moments moments;
    if constexpr (kExchange == Exchange::grid) {
      // What the team has posted follows from what this block has measured. The wait says so to the memory
      // model: the place for the statistics was read before.
      hw::barrier_wait(sums.ready + turn.place, turn.parity);
      moments = collect_row<kPostPlaces>(workspace, ++tag, [](int i) { return columns_of_part(i); });
    } else {
      moments = sums.wait(turn, part);
    }
    const RowStatistics statistics = row_statistics(moments);
    hw::warp_barrier();
    if (first) {
      known[turn.place] = statistics;
      hw::barrier_arrive(ready + turn.place);
      if (part.slice == 0) store(statistics, mean_out, rstd_out, row);
    }
  }
  if constexpr (kExchange == Exchange::grid)
    if (first) leave(workspace, tag, team, rows);
}

// Eight warps: normalize and write, with what each thread keeps of weight and bias.
struct Applier {
  const Ring& ring;
  const Part& part;
  const Weight *weight, *bias;
  unsigned zero;
  Cursor at;
  Vec<Weight> held_weight[kHoldsWeight ? kOwn * kPerThread : 1],
      held_bias[kHoldsBias ? kOwn * kPerThread : 1];
  Vec<Input> taken[kTaken > 0 ? kTaken : 1][kPerThread];
  Affine next[kAsked][kPerThread];  // of the chunks that are next, where it is not held

  // Whether there is a chunk c, and vector k of it is this thread's. Known before it runs for all but the
  // last chunk, or loads would stand behind branches and be waited for there.
  NJ_METHOD bool has(int c) const { return c < kOwn - 1 || c < part.own; }
  NJ_METHOD bool has(int c, int k) const {
    return has(c) && (kWhole || c < kOwn - 1 || column(k) < part.columns(c));
  }
  static NJ_METHOD int column(int k) {
    return (k * kLanes + static_cast<int>(threadIdx.x) - kFirstApplier) * kVector;
  }

  NJ_METHOD Applier(const Ring& ring, const Part& part, const Weight* weight, const Weight* bias,
                    unsigned zero)
      : ring(ring), part(part), weight(weight), bias(bias), zero(zero) {
#pragma unroll
    for (int c = 0; c < kOwn; ++c)
#pragma unroll
      for (int k = 0; k < kPerThread; ++k)
        if (has(c, k)) {
          const long long from = part.begin(c) + column(k);
          if constexpr (kHoldsWeight) held_weight[c * kPerThread + k] = load<hw::Keep::once>(weight + from);
          if constexpr (kHoldsBias) held_bias[c * kPerThread + k] = load<hw::Keep::once>(bias + from);
        }
  }

  // Asks for what is not held of weight and bias of a chunk.
  NJ_METHOD void ask(int c, int k) {
    if (c >= kOwn || !has(c, k)) return;
    const long long from = part.begin(c) + column(k);
    Affine& to = next[c % kAsked][k];
    if constexpr (kHasWeight && !kHoldsWeight) to.weight = load<hw::Keep::stays>(weight + from);
    if constexpr (kHasBias && !kHoldsBias) to.bias = load<hw::Keep::stays>(bias + from);
  }

  // Takes a chunk out of the ring, and frees its place.
  NJ_METHOD void take(Vec<Input>* to, int c) {
    const Input* chunk = ring.wait(at);
    unsigned loaded = 0;
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (has(c, k)) {
        to[k] = hw::load_shared<Vec<Input>>(chunk + column(k));
        loaded |= first_word(to[k]);
      }
    hw::warp_barrier();
    if (threadIdx.x % kWarp == 0) hw::barrier_arrive_after(ring.freed + at.slot, loaded, zero);
    at.advance();
  }

  // What can be had before the statistics of the row are known.
  NJ_METHOD void take_ahead() {
#pragma unroll
    for (int c = 0; c < kAsked && c < kOwn; ++c)
#pragma unroll
      for (int k = 0; k < kPerThread; ++k) ask(c, k);
#pragma unroll
    for (int c = 0; c < kTaken; ++c)
      if (has(c)) take(taken[c], c);
  }

  NJ_METHOD void apply_row(const RowStatistics& statistics, Output* y) {
#pragma unroll
    for (int c = 0; c < kOwn; ++c)
      if (has(c)) {
        Vec<Input> x[kPerThread];
        if (c >= kTaken) take(x, c);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
          Affine affine = next[c % kAsked][k];
          if constexpr (kHoldsWeight) affine.weight = held_weight[c * kPerThread + k];
          if constexpr (kHoldsBias) affine.bias = held_bias[c * kPerThread + k];
          affine = unconverted(affine);
          ask(c + kAsked, k);
          if (has(c, k))
            store(y + part.begin(c) + column(k),
                  finish(c < kTaken ? taken[c < kTaken ? c : 0][k] : x[k], statistics, affine));
        }
      }
  }
};

NJ_KERNEL(streamed_row, kThreads) {
  NJ_DYNAMIC_SHARED(Input, chunks);
  NJ_SHARED(hw::MemoryBarrier, filled, kStages);
  NJ_SHARED(hw::MemoryBarrier, freed, kStages);
  NJ_SHARED(hw::MemoryBarrier, summed, kPlaces);
  NJ_SHARED(hw::MemoryBarrier, ready, kPlaces);
  NJ_SHARED(Moments, sums, 4 * kPlaces);
  NJ_SHARED(RowStatistics, known, kPlaces);
  NJ_SHARED(unsigned, tag, 1);  // of the posts before this launch
  const int warp = threadIdx.x / kWarp;
  const long long team = blockIdx.x / kSlices, teams = gridDim.x / kSlices;
  const int slice = static_cast<int>(blockIdx.x) % kSlices;
  const Part part{slice, chunks_of_slice(slice)};
  const Ring ring{chunks, filled, freed};
  const auto zero = static_cast<unsigned>(rows >> 63);  // which the compiler does not know

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      hw::barrier_init(filled + i, 1);
      hw::barrier_init(freed + i, 4 + kLanes / kWarp);
    }
    for (int i = 0; i < kPlaces; ++i) {
      hw::barrier_init(summed + i, 4);
      hw::barrier_init(ready + i, kExchange == Exchange::grid ? 2 : 1);
    }
    hw::barriers_ready();
  }
  hw::wait_for_previous_launch();
  hw::allow_next_launch();
  if constexpr (kExchange == Exchange::grid)
    if (threadIdx.x == 0) tag[0] = first_tag(workspace);
  hw::block_barrier();

  if (warp < 4) {
    hw::shrink_registers<kFewRegisters>();
    if (threadIdx.x == 0) feed(ring, x, rows, x_stride, part, team, teams);
    const Sums slice_sums{sums, summed};
    if (warp == 1)
      conclude(slice_sums, part, rows, team, teams, known, ready, tag[0], workspace, mean_out, rstd_out);
    if (threadIdx.x == 3 * kWarp) prefetch_affine(part, weight, bias);
    if constexpr (kExchange == Exchange::grid)
      if (warp == 2) post_all(slice_sums, part, rows, team, teams, ready, tag[0], workspace);
  } else if (warp < 8) {
    hw::shrink_registers<kFewRegisters>();
    measure(ring, rows, part, team, teams, sums, summed, zero);
  } else {
    hw::grow_registers<kManyRegisters>();
    Applier applier(ring, part, weight, bias, zero);
    Turn turn;
    for (long long row = team; row < rows; row += teams, turn.advance()) {
      applier.take_ahead();
      hw::barrier_wait(ready + turn.place, turn.parity);
      applier.apply_row(known[turn.place], y + row * y_stride);
    }
  }
}

}  // namespace normjit
