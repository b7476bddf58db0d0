// A slice: the part of a row (or of a chunk of one) that a thread holds in registers, as it was loaded.
namespace normjit {

struct Fragment {
  Vec<Input> part[kPerThread];
  Input edge[kEdges > 0 ? kEdges : 1];
};

// The columns of `cut`, which begin at `row`.
template <hw::Cache kCache>
NJ_DEVICE void load(Fragment& slice, const Input* row, int lane, const Cut& cut) {
  const Input* const first = first_of(row + cut.head, lane);
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, cut)) slice.part[k] = load<kCache>(at(first, k, 0));
#pragma unroll
  for (int i = 0; i < kEdges; ++i)
    if (edge_of(i, lane) < cut.edges())
      slice.edge[i] = hw::load<kCache, Input>(row + cut.edge(edge_of(i, lane)));
}

// The elements of kCount vectors, those that are inside(k). each(take) calls take with each of them, and its
// place in the vector.
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
        for (int i = 0; i < kVector; ++i) take(widen(part[k], i), i);
        hw::opaque(part[k]);
      }
  }
};
template <int kCount, class Inside>
NJ_DEVICE VectorElements<kCount, Inside> elements_of(Vec<Input>* part, const Inside& inside) {
  return {part, inside};
}

// The elements of a slice.
struct FragmentElements {
  Fragment& slice;
  int lane;
  Cut cut;

  template <class Take>
  NJ_METHOD void each(const Take& take) const {
    elements_of<kPerThread>(slice.part, [&](int k) { return inside(k, lane, cut); }).each(take);
#pragma unroll
    for (int i = 0; i < kEdges; ++i)
      if (edge_of(i, lane) < cut.edges()) take(widen(slice.edge[i]), 0);
  }
};

// One sum for each place in a vector: kVector short chains of additions instead of a long one. -0 is what
// nothing has to be added to.
template <class T>
struct Chains {
  T at[kVector];

  NJ_METHOD explicit Chains(T none) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) at[i] = none;
  }
  NJ_METHOD T all() {
#pragma unroll
    for (int half = kVector / 2; half > 0; half /= 2)
#pragma unroll
      for (int i = 0; i < half; ++i) at[i] = at[i] + at[i + half];
    return at[0];
  }
};

template <class Elements>
NJ_DEVICE Acc sum(const Elements& elements) {
  Chains<Acc> total(-Acc(0));
  elements.each([&](Acc value, int i) { total.at[i] += value; });
  return total.all();
}

// Sum of the squares of the distances from `mean`.
template <class Elements>
NJ_DEVICE Acc centred_squares(const Elements& elements, Acc mean) {
  Chains<Acc> total(-Acc(0));
  elements.each([&](Acc value, int i) {
    const Acc distance = value - mean;
    total.at[i] += distance * distance;
  });
  return total.all();
}

// And the sum of the distances: a is that, b the squares.
template <class Elements>
NJ_DEVICE Pair centred_sums(const Elements& elements, Acc mean) {
  Chains<Pair> total({-Acc(0), -Acc(0)});
  elements.each([&](Acc value, int i) {
    const Acc distance = value - mean;
    total.at[i] = total.at[i] + Pair{distance, distance * distance};
  });
  return total.all();
}

}  // namespace normjit
