// SPDX-License-Identifier: Apache-2.0
// Sums and the largest of the threads that share a row. Every thread gets the total, and the order of
// additions is fixed, so the same input gives the same bits.
namespace normjit {

// Two sums at once.
struct Pair {
  Acc a, b;
};
NJ_DEVICE Pair operator+(Pair x, Pair y) { return {x.a + y.a, x.b + y.b}; }
template <class T>
NJ_DEVICE T add_from(T x, int lane_mask) {
  return x + hw::shuffle_xor(x, lane_mask);
}
NJ_DEVICE Pair add_from(Pair x, int lane_mask) {
  return {add_from(x.a, lane_mask), add_from(x.b, lane_mask)};
}

// Over kWidth neighbouring lanes of a warp, a power of two.
template <int kWidth, class T>
NJ_DEVICE T lanes_sum(T value) {
#pragma unroll
  for (int mask = kWidth / 2; mask > 0; mask /= 2) value = add_from(value, mask);
  return value;
}

// Over all threads of the block. `partial` holds kWarps values and is in use until the next barrier.
template <class T>
NJ_DEVICE T block_sum(T value, T* partial) {
  value = lanes_sum<kWarp>(value);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  hw::block_barrier();
  return lanes_sum<kWarps>(partial[threadIdx.x % kWarps]);
}

// The largest magnitude of some numbers, NaN if one is. The order of the numbers does not matter.
struct Largest {
  float magnitude;

  NJ_METHOD Largest with(float number) const { return {hw::larger_magnitude(magnitude, number)}; }
};
NJ_DEVICE Largest larger_of(Largest a, Largest b) { return a.with(b.magnitude); }
// Over kWidth neighbouring lanes of a warp, a power of two.
template <int kWidth>
NJ_DEVICE Largest lanes_largest(Largest own) {
#pragma unroll
  for (int mask = kWidth / 2; mask > 0; mask /= 2) own = own.with(hw::shuffle_xor(own.magnitude, mask));
  return own;
}
// Of kParts parts: part(i). A warp calls this, and all its lanes get the same.
template <int kParts, class Part>
NJ_DEVICE Largest largest_of_parts(const Part& part) {
  constexpr int kWidth = kParts < kWarp && (kParts & (kParts - 1)) == 0 ? kParts : kWarp;
  Largest own = {0};
#pragma unroll
  for (int first = 0; first < kParts; first += kWarp)
    if (const int i = first + static_cast<int>(threadIdx.x % kWidth); i < kParts)
      own = larger_of(own, part(i));
  return lanes_largest<kWidth>(own);
}

}  // namespace normjit
