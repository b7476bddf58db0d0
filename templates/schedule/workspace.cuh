// SPDX-License-Identifier: Apache-2.0
// The workspace: the caller's memory, through which blocks exchange data. All kernels have this layout, and
// leave it ready for the next launch of any of them: the counters are zero between launches, and tags only
// grow.
namespace normjit {

struct Header {
  unsigned long long next_ticket, finished_blocks;
  unsigned epoch;  // the largest tag so far
  unsigned unused;
  // The largest result of the blocks that have left, as the bits of its magnitude. Gradients have none, and
  // count blocks at meetings.
  unsigned long long largest;
};

// Rows of split_row take turns in a ring; the counters of a ring row grow over the rows that use it.
struct RingRow {
  unsigned long long measured;  // chunks that are published, where rows have scales twice
  unsigned long long ready;     // rows whose statistics are known, and once more their largest results
  unsigned long long applied;   // chunks that have read the statistics
  unsigned long long largest;   // result of a row that has a scale, as the bits of its magnitude
};

// What a block publishes to its team (exchange.cuh).
struct Slot {
  unsigned long long words[plan_math::kSlotWords];
};

struct Meeting {
  Header header;
  RingRow ring[plan_math::kMaxRingRows];
  Slot slots[plan_math::kMaxSlots];
};
static_assert(sizeof(Header) == plan_math::kHeaderBytes && sizeof(RingRow) == plan_math::kRingRowBytes);

// The last block to leave makes the workspace ready for the next launch. One thread of the block calls this;
// true in the last.
NJ_DEVICE bool leaves_last(Header& header) { return hw::arrive(&header.finished_blocks) + 1 == gridDim.x; }

NJ_DEVICE Meeting& meeting_in(unsigned char* workspace) { return *reinterpret_cast<Meeting*>(workspace); }

// Joins the largest result of each lane of a warp with those of others. Magnitudes order as their bits do,
// and NaN is above all. All threads of a block have done so, and met at a barrier, before one leaves for it.
NJ_DEVICE void raise_largest(Largest own, Header& header) {
  own = lanes_largest<kWarp>(own);
  if (threadIdx.x % kWarp == 0) hw::raise(&header.largest, bits_of(own.magnitude));
}
// The largest of all, once the last block has left. The next launch finds none.
NJ_DEVICE float take_largest(Header& header) {
  const float magnitude = float_of(static_cast<unsigned>(header.largest));
  header.largest = 0;
  return magnitude;
}
// Where results are stored in 16 bits, the largest is rounded as they are, which keeps their order.
template <class Stored>
NJ_DEVICE float as_stored(float largest) {
  if constexpr (sizeof(Stored) == 2) return widen(narrow<Stored>(largest));
  return largest;
}
template <class Any>
NJ_DEVICE void store_amax(Header& header, const Any& on) {
  on.amax[0] = as_stored<Output>(take_largest(header));
}
// One thread of each block calls this at the end, where blocks exchange nothing else.
template <class Any>
NJ_DEVICE void leave_with_amax(const Any& on) {
  Header& header = meeting_in(on.workspace).header;
  if (!leaves_last(header)) return;
  store_amax(header, on);
  header.finished_blocks = 0;
}

}  // namespace normjit
