// SPDX-License-Identifier: Apache-2.0
// Where the elements of a row come from, and how a row is held on chip.
namespace normjit {

// The type in which a row is held: as it was read, or as the sum that is normalized, which is not rounded.
using Held = Choice<kHasResidual, Acc, Input>;

// A row, or a part of one that begins at some column.
struct Source {
  const Input* x;
  const Residual* residual;  // where the spec has one
  Residual* sum;             // where the spec writes it
};

// A row from column `begin` on. (A template, since Operands has only what the spec has.)
template <class Any>
NJ_DEVICE Source source_of(const Any& on, long long row, long long begin) {
  Source from = {on.x + row * on.x_stride + begin, nullptr, nullptr};
  if constexpr (kHasResidual) from.residual = on.residual + row * on.residual_stride + begin;
  if constexpr (kWritesSum) from.sum = on.sum + row * on.sum_stride + begin;
  return from;
}

// x + residual of a vector, and its rounded value where that is written.
NJ_DEVICE Vec<Held> summed(const Vec<Input>& x, const Vec<Residual>& residual) {
  Vec<Held> sum;
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum.at[i] = narrow<Held>(widen(x, i) + widen(residual, i));
  return sum;
}
NJ_DEVICE Vec<Residual> rounded(const Vec<Held>& sum) {
  Vec<Residual> stored;
#pragma unroll
  for (int i = 0; i < kVector; ++i) stored.at[i] = narrow<Residual>(widen(sum, i));
  return stored;
}

static_assert(!kHasResidual || !kUnaligned, "x and the residual are cut at the same columns");

// The vectors of a lane in the columns of `cut`. All loads are issued before the first is used.
template <hw::Cache kCache>
NJ_DEVICE void load_vectors(Vec<Held> (&part)[kPerThread], const Source& from, int lane, const Cut& cut) {
  const Input* const first = first_of(from.x + cut.head, lane);
  if constexpr (kHasResidual) {
    const Residual* const second = first_of(from.residual, lane);
    Vec<Input> x[kPerThread];
    Vec<Residual> residual[kPerThread];
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut)) x[k] = load<kCache>(at(first, k, 0));
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut)) residual[k] = load<kCache>(at(second, k, 0));
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut)) part[k] = summed(x[k], residual[k]);
  } else {
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut)) part[k] = load<kCache>(at(first, k, 0));
  }
}

}  // namespace normjit
