// A slice: the part of a row (or of a chunk of one) that a thread holds in registers, as it was loaded.
namespace normjit {

struct Slice {
  Vec<Input> part[kPerThread];
  Input edge[kEdges > 0 ? kEdges : 1];
};

// The columns of `cut`, which begin at `row`.
template <hw::Keep kKeep>
NJ_DEVICE void load(Slice& slice, const Input* row, int lane, const Cut& cut) {
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, cut)) slice.part[k] = load<kKeep>(row + cut.head + column(k, lane));
#pragma unroll
  for (int i = 0; i < kEdges; ++i)
    if (edge_of(i, lane) < cut.edges())
      slice.edge[i] = hw::load<kKeep, Input>(row + cut.edge(edge_of(i, lane)));
}

// The elements of kCount vectors, those that are inside(k). each(take) calls take with each of them.
template <int kCount, class Inside>
struct VectorElements {
  Vec<Input>* part;
  Inside inside;

  template <class Take>
  NJ_METHOD void each(const Take& take) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      if (inside(k)) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) take(widen(part[k], i));
        hw::forget(part[k]);
      }
  }
};
template <int kCount, class Inside>
NJ_DEVICE VectorElements<kCount, Inside> elements_of(Vec<Input>* part, const Inside& inside) {
  return {part, inside};
}

// The elements of a slice.
struct SliceElements {
  Slice& slice;
  int lane;
  Cut cut;

  template <class Take>
  NJ_METHOD void each(const Take& take) const {
    elements_of<kPerThread>(slice.part, [&](int k) { return inside(k, lane, cut); }).each(take);
#pragma unroll
    for (int i = 0; i < kEdges; ++i)
      if (edge_of(i, lane) < cut.edges()) take(widen(slice.edge[i]));
  }
};

template <class Elements>
NJ_DEVICE Acc sum(const Elements& elements) {
  Acc total = 0;
  elements.each([&](Acc value) { total += value; });
  return total;
}

// Sum, and sum of squares, of the distances from `mean`.
template <class Elements>
NJ_DEVICE Pair centred_sums(const Elements& elements, Acc mean) {
  Pair total = {0, 0};
  elements.each([&](Acc value) {
    const Acc distance = value - mean;
    total.a += distance;
    total.b += distance * distance;
  });
  return total;
}

// The sum of squares alone.
template <class Elements>
NJ_DEVICE Acc centred_squares(const Elements& elements, Acc mean) {
  Acc total = 0;
  elements.each([&](Acc value) {
    const Acc distance = value - mean;
    total += distance * distance;
  });
  return total;
}

}  // namespace normjit
