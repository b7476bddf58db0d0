// A slice: the part of a row (or of a chunk of one) that a thread holds in registers, as it was loaded.
// Vector k of lane l stands at column (k * kLanes + l) * kVector, so neighbouring lanes read neighbouring
// memory.
namespace normjit {

constexpr int kSpan = kLanes * kVector * kPerThread;  // columns that the lanes hold together
constexpr bool kWhole = kColumns % kSpan == 0;        // then no slice ever reaches past its row

static_assert(kColumns % kVector == 0, "vectors do not straddle the end of a row");
static_assert((kLanes & (kLanes - 1)) == 0 && kThreads % kLanes == 0 && kThreads % 32 == 0);

struct Slice {
  Vec<Input> part[kPerThread];
};

NJ_DEVICE int column(int k, int lane) { return (k * kLanes + lane) * kVector; }
// Whether vector k is one of the `count` columns.
NJ_DEVICE bool inside(int k, int lane, int count) { return kWhole || column(k, lane) < count; }

template <hw::Keep kKeep>
NJ_DEVICE void load(Slice& slice, const Input* row, int lane, int count) {
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, count)) slice.part[k] = load<kKeep>(row + column(k, lane));
}

NJ_DEVICE Acc sum(Slice& slice, int lane, int count) {
  Acc total = 0;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, count)) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) total += widen(slice.part[k].at[i]);
      hw::forget(slice.part[k]);
    }
  return total;
}

// Sum, and sum of squares, of the distances from `mean`.
NJ_DEVICE Pair centred_sums(Slice& slice, Acc mean, int lane, int count) {
  Pair total = {0, 0};
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, count)) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const Acc distance = widen(slice.part[k].at[i]) - mean;
        total.a += distance;
        total.b += distance * distance;
      }
      hw::forget(slice.part[k]);
    }
  return total;
}

}  // namespace normjit
