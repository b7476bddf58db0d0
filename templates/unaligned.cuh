// Rows that may begin anywhere: the vectors of x, of the weights and of y begin at different columns. So the
// row passes through shared memory, where lanes read and write single elements: neighbouring lanes
// neighbouring elements, at any distance from an aligned place without a conflict. Global memory sees whole
// vectors, and single elements only at the ends of a row.
namespace normjit {

// Neighbouring elements that a lane takes at a time: two of 16 bits fill a register.
enum : int { kFew = sizeof(Input) == 2 && sizeof(Output) == 2 ? 2 : 1 };
template <class T>
struct Few {
  T at[kFew];
};

// Columns that lanes hold together, at most.
enum : int { kRowSpan = kSpan < kCovered ? kSpan : kColumns };
enum : int { kSteps = (kRowSpan + kThreadsPerRow * kFew - 1) / (kThreadsPerRow * kFew) };
// Shared memory of the lanes that share a row, as shared_bytes() on the host has it.
enum : int { kLargest = sizeof(Input) < sizeof(Output) ? sizeof(Output) : sizeof(Input) };
// An odd number of 16 bytes, so that the rows of a warp lie in different banks.
enum : int { kStageBytes = (((kRowSpan + kVector) * kLargest + 15) / 16 | 1) * 16 };

NJ_DEVICE void lanes_barrier() {
  if constexpr (kThreadsPerRow <= kWarp) {
    hw::warp_barrier();
  } else {
    hw::block_barrier();
  }
}

// Of weight or bias, of which there are `count`. 16-bit neighbours are read together where they are aligned
// to that.
template <bool kTogether>
NJ_DEVICE Few<Weight> load_few(const Weight* from, int at, int count) {
  if constexpr (kTogether)
    if (at + kFew <= count) return hw::load<hw::Cache::keep, Few<Weight>>(from + at);
  Few<Weight> few = {};
#pragma unroll
  for (int i = 0; i < kFew; ++i)
    if (at + i < count) few.at[i] = hw::load<hw::Cache::keep, Weight>(from + at + i);
  return few;
}

// The steps of a lane, from `in` to registers. kKnown: the number of columns where the compiler knows it,
// else 0; then it can leave out the conditions, behind which it would wait for each load alone.
template <bool kTogether, int kKnown>
NJ_DEVICE void finish_few(Few<Output>* done, const Input* in, const RowStatistics& s, const Weight* weight,
                          const Weight* bias, int lane, int columns) {
  const int count = kKnown > 0 ? kKnown : columns;
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    const int at = (j * kThreadsPerRow + lane) * kFew;
    const int end = (j + 1) * kThreadsPerRow * kFew <= kKnown ? at + kFew : count;
    Few<Weight> weights = {}, biases = {};
    if constexpr (kHasWeight) weights = load_few<kTogether>(weight, at, end);
    if constexpr (kHasBias) biases = load_few<kTogether>(bias, at, end);
#pragma unroll
    for (int i = 0; i < kFew; ++i)
      if (at + i < end)
        done[j].at[i] = finish(widen(in[at + i]), s, widen(weights.at[i]), widen(biases.at[i]));
    hw::opaque(done[j]);
  }
}

// A slice, whose row or chunk begins at weight, bias and y. All lanes that share it call this, with the same
// `stage` of kStageBytes.
template <class T>
NJ_DEVICE void store_unaligned(const Fragment& slice, const Cut& cut, const RowStatistics& s,
                               const Weight* weight, const Weight* bias, T* y, int lane,
                               unsigned char* stage) {
  // As far from an aligned place as in global memory, so that vectors are vectors here too.
  const Cut to = cut_of(y, cut.count);
  Input* const in = reinterpret_cast<Input*>(stage) + cut.past;
  T* const out = reinterpret_cast<T*>(stage) + to.past;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, cut)) hw::store_shared(at(in + cut.head, k, lane), slice.part[k]);
#pragma unroll
  for (int i = 0; i < kEdges; ++i)
    if (edge_of(i, lane) < cut.edges()) in[cut.edge(edge_of(i, lane))] = slice.edge[i];
  lanes_barrier();

  Few<T> done[kSteps];
  const auto aligned = [](const Weight* from) {
    return reinterpret_cast<unsigned long long>(from) % sizeof(Few<Weight>) == 0;
  };
  const bool together = kFew == 1 || (aligned(weight) && aligned(bias));
  if (cut.count < kRowSpan) {  // never, where a block has whole rows
    finish_few<false, 0>(done, in, s, weight, bias, lane, cut.count);
  } else if (together) {
    finish_few<true, kRowSpan>(done, in, s, weight, bias, lane, kRowSpan);
  } else {
    finish_few<false, kRowSpan>(done, in, s, weight, bias, lane, kRowSpan);
  }
  lanes_barrier();
#pragma unroll
  for (int j = 0; j < kSteps; ++j)
#pragma unroll
    for (int i = 0; i < kFew; ++i)
      if (const int at = (j * kThreadsPerRow + lane) * kFew + i; at < cut.count) out[at] = done[j].at[i];
  lanes_barrier();
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, to))
      store(at(y + to.head, k, lane), hw::load_shared<Vec<T>>(at(out + to.head, k, lane)));
#pragma unroll
  for (int i = 0; i < kEdges; ++i)
    if (edge_of(i, lane) < to.edges())
      hw::store(y + to.edge(edge_of(i, lane)), out[to.edge(edge_of(i, lane))]);
  lanes_barrier();
}

}  // namespace normjit
