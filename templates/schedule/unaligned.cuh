// SPDX-License-Identifier: Apache-2.0
// Writing rows that may begin anywhere: the aligned vectors of x, of the parameters and of y begin at
// different columns. So the row passes through shared memory, where neighbouring lanes read and write
// neighbouring single elements, without bank conflicts at any offset. Global memory sees whole vectors, and
// single elements only at the ends of a row.
namespace normjit {

static_assert(!kUnaligned || !(kAddsToResult || kRowParameters > 0),
              "operands of a row are cut at the same columns");

// Neighbouring elements that a lane takes at a time: two of 16 bits fill a register.
enum : int { kFew = sizeof(Input) == 2 && sizeof(Output) == 2 ? 2 : 1 };
template <class T>
struct Few {
  T at[kFew];
};

// Columns that lanes hold together, at most.
enum : int { kRowSpan = kSpan < kCovered ? kSpan : kColumns };
enum : int { kSteps = (kRowSpan + kThreadsPerRow * kFew - 1) / (kThreadsPerRow * kFew) };
// Shared memory of the lanes that share a row.
enum : int {
  kLargest = plan_math::larger(sizeof(Residual), plan_math::larger(sizeof(Input), sizeof(Output)))
};
enum : int { kStageBytes = plan_math::stage_bytes(kRowSpan, kVector, kLargest) };

NJ_DEVICE void lanes_barrier() {
  if constexpr (kThreadsPerRow <= kWarp) {
    hw::warp_barrier();
  } else {
    hw::block_barrier();
  }
}

// Loads elements of a parameter that has `count`. 16-bit neighbours are read together where they are
// aligned to that.
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

// Finishes the elements of a lane, from `in` to registers. kKnown is the number of columns if it is a
// constant, else 0: without conditions, the compiler does not wait for each load alone.
template <bool kTogether, int kKnown>
NJ_DEVICE void finish_few(Few<Output>* done, const Held* in, const RowStatistics& s, const Columns& columns,
                          const Quantizer& by, int lane, int of_row) {
  const int count = kKnown > 0 ? kKnown : of_row;
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    const int at = (j * kThreadsPerRow + lane) * kFew;
    const int end = (j + 1) * kThreadsPerRow * kFew <= kKnown ? at + kFew : count;
    Few<Weight> few[kParameterPlaces] = {};
#pragma unroll
    for (int p = 0; p < kParameters; ++p) few[p] = load_few<kTogether>(columns.at[p], at, end);
#pragma unroll
    for (int i = 0; i < kFew; ++i)
      if (at + i < end) {
        ElementParameters one;
#pragma unroll
        for (int p = 0; p < kParameters; ++p) one.at[p] = widen(few[p].at[i]);
        done[j].at[i] = finish(widen(in[at + i]), s, one, by);
      }
    hw::opaque(done[j]);
  }
}

// As write(). All lanes that share the row call this, with the same `stage` of kStageBytes. (A template, so
// that schedules whose accesses it does not fit leave it out.)
template <class Any>
NJ_DEVICE void write_unaligned(const Any& fragment, const RowStatistics& s, const Sink& sink, int lane,
                               const Cut& cut, unsigned char* stage) {
  // As far from an aligned place as in global memory, so that vectors are vectors here too.
  Output* const y = sink.y;
  const Cut to = cut_of(y, cut.count);
  Held* const in = reinterpret_cast<Held*>(stage) + cut.past;
  Output* const out = reinterpret_cast<Output*>(stage) + to.past;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, cut)) hw::store_shared(at(in + cut.head, k, lane), fragment.part[k]);
#pragma unroll
  for (int i = 0; i < kEdges; ++i)
    if (edge_of(i, lane) < cut.edges()) in[cut.edge(edge_of(i, lane))] = fragment.edge[i];
  lanes_barrier();

  Few<Output> done[kSteps];
  bool together = true;
  if constexpr (kFew > 1)
#pragma unroll
    for (int p = 0; p < kParameters; ++p)
      together =
          together && reinterpret_cast<unsigned long long>(sink.columns.at[p]) % sizeof(Few<Weight>) == 0;
  if (cut.count < kRowSpan) {  // never, where a block has whole rows
    finish_few<false, 0>(done, in, s, sink.columns, sink.by, lane, cut.count);
  } else if (together) {
    finish_few<true, kRowSpan>(done, in, s, sink.columns, sink.by, lane, kRowSpan);
  } else {
    finish_few<false, kRowSpan>(done, in, s, sink.columns, sink.by, lane, kRowSpan);
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
      store(at(y + to.head, k, lane), hw::load_shared<Vec<Output>>(at(out + to.head, k, lane)));
#pragma unroll
  for (int i = 0; i < kEdges; ++i)
    if (edge_of(i, lane) < to.edges())
      hw::store(y + to.edge(edge_of(i, lane)), out[to.edge(edge_of(i, lane))]);
  lanes_barrier();
}

}  // namespace normjit
