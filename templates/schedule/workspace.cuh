// The caller's memory, for kernels whose blocks meet through it. What stands here stands in the same place
// for all of them, and each leaves it as the next expects it, so that they can use one workspace in turn: the
// counters are zero between launches, and the tags of slots only grow.
namespace normjit {

struct Header {
  unsigned long long next_ticket, finished_blocks;
  unsigned epoch;  // the largest tag of any publish so far
  unsigned unused[3];
};

// Rows of split_row take turns in a ring; the counters of a ring row grow over the rows that use it.
struct RingRow {
  unsigned long long measured;  // chunks whose moments stand
  unsigned long long ready;     // rows whose statistics stand
  unsigned long long applied;   // chunks that need the statistics no more
  unsigned long long unused;
};

// What a block leaves for the others that share its row (exchange.cuh).
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
