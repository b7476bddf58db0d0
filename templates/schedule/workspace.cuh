// SPDX-License-Identifier: Apache-2.0
// The workspace: the caller's memory, through which blocks exchange data. All kernels have this layout, and
// leave it ready for the next launch of any of them: the counters are zero between launches, and tags only
// grow.
namespace normjit {

struct Header {
  unsigned long long next_ticket, finished_blocks;
  unsigned epoch;  // the largest tag so far
  unsigned unused[3];
};

// Rows of split_row take turns in a ring; the counters of a ring row grow over the rows that use it.
struct RingRow {
  unsigned long long measured;  // chunks that are published
  unsigned long long ready;     // rows whose statistics are known
  unsigned long long applied;   // chunks that have read the statistics
  unsigned long long unused;
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

}  // namespace normjit
