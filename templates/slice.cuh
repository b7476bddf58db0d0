// A slice: the part of a row (or of a chunk of one) that a thread holds in registers, as it was loaded.
namespace normjit {

struct Slice {
  Vec<Input> part[kPerThread];
};

template <hw::Keep kKeep>
NJ_DEVICE void load(Slice& slice, const Input* row, int lane, int count) {
  if constexpr (kShifted) {
    load_shifted<kKeep>(slice.part, row, lane, count);
  } else {
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, count)) slice.part[k] = load<kKeep>(row + column(k, lane));
  }
}

NJ_DEVICE Acc sum(Slice& slice, int lane, int count) {
  Acc total = 0;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, count)) {
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        if (inside(k, i, lane, count)) total += widen(slice.part[k].at[i]);
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
        const Acc distance = inside(k, i, lane, count) ? widen(slice.part[k].at[i]) - mean : Acc(0);
        total.a += distance;
        total.b += distance * distance;
      }
      hw::forget(slice.part[k]);
    }
  return total;
}

}  // namespace normjit
