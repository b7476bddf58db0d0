// SPDX-License-Identifier: Apache-2.0
// Where the elements of a row come from, and how a row is held on chip.
namespace normjit {

enum : bool {
  kAddsResidual = ResidualAt::chosen == ResidualAt::before,
  kGatesX = GateAt::chosen == GateAt::before,
  kHasPrologue = kAddsResidual || kHasInBias || kGatesX,  // something happens to x before the norm
  kRoundsSum = static_cast<int>(Rounding::chosen) % 2 == 1,
  kHasResidual = ResidualAt::chosen != ResidualAt::none,  // before or behind the norm
  kHasResidualType = kHasResidual || kWritesSum,
};

// The type in which a row is held: as it was read, or as the sum that is normalized.
using Held = Choice<!kHasPrologue, Input, Choice<kRoundsSum, Residual, Acc>>;
// Whether the sum that is written is exactly what is normalized, and so may be read in its place.
enum : bool { kSumIsExact = kHasPrologue && kWritesSum && kSame<Held, Residual> };

// A row, or a part of one that begins at some column.
struct Source {
  const Input* x;
  const Residual* residual;  // where it is added to x
  const Weight* in_bias;     // where the spec has one
  const Mod* gate;           // where it multiplies x
  const Weight* gate_table;  // where such a gate has one
  Residual* sum;             // where the spec writes it
};

// Points to the residual of a row, from column `begin` on. Null if the spec has none.
template <class Any>
NJ_DEVICE const Residual* residual_of(const Any& on, long long row, long long begin) {
  if constexpr (kHasResidual) return on.residual + begin_of(on.residual_rows, row) + begin;
  return nullptr;
}

// A row from column `begin` on. (A template, since Operands has only what the spec has.)
template <class Any>
NJ_DEVICE Source source_of(const Any& on, long long row, long long begin) {
  Source from = {on.x + begin_of(on.x_rows, row) + begin, nullptr, nullptr, nullptr, nullptr, nullptr};
  if constexpr (kAddsResidual) from.residual = residual_of(on, row, begin);
  if constexpr (kHasInBias) from.in_bias = on.in_bias + begin;
  if constexpr (kGatesX) from.gate = on.gate + begin_of(on.gate_rows, row) + begin;
  if constexpr (kGatesX && kHasGateTable) from.gate_table = on.gate_table + begin;
  if constexpr (kWritesSum) from.sum = on.sum + begin_of(on.sum_rows, row) + begin;
  return from;
}

// What is normalized, of an element of each.
NJ_DEVICE Held sum_of(Acc x, Acc in_bias, Acc gate, Acc gate_table, Acc residual) {
  Acc sum = x;
  if constexpr (kHasInBias) sum += in_bias;
  if constexpr (kGatesX) sum *= gate_factor(gate, gate_table);
  if constexpr (kAddsResidual) sum += residual;
  return narrow<Held>(sum);
}
// What is added to a vector of x, or multiplies it, besides a residual.
struct Prologue {
  Vec<Weight> in_bias, gate_table;
  Vec<Mod> gate;
};
NJ_DEVICE Vec<Held> sum_of(const Vec<Input>& x, const Prologue& other, const Vec<Residual>& residual) {
  Vec<Held> sum;
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    sum.at[i] = sum_of(widen(x, i), kHasInBias ? widen(other.in_bias, i) : Acc(),
                       kGatesX ? widen(other.gate, i) : Acc(),
                       kGatesX && kHasGateTable ? widen(other.gate_table, i) : Acc(),
                       kAddsResidual ? widen(residual, i) : Acc());
  return sum;
}
// What is normalized, where nothing but a residual is added. (Templates, for what only some types have.)
template <class T>
NJ_DEVICE Vec<Held> sum_of(const Vec<T>& x, const Vec<Residual>& residual) {
  if constexpr (kHasPrologue) {
    return sum_of(x, {}, residual);
  } else {
    return x;
  }
}
// As it is written.
template <class T>
NJ_DEVICE Vec<Residual> stored_sum(const Vec<T>& sum) {
  if constexpr (kSame<T, Residual>) {
    return sum;
  } else {
    Vec<Residual> stored;
#pragma unroll
    for (int i = 0; i < kVector; ++i) stored.at[i] = narrow<Residual>(widen(sum, i));
    return stored;
  }
}

static_assert(!kUnaligned || !(kHasInBias || (kGatesX && kHasGateTable)),
              "operands of a column are not aligned where x is");

// One element of each operand.
template <hw::Cache kCache>
struct SourceElement {
  Input x;
  Residual residual;
  Mod gate;

  NJ_METHOD void load(const Source& from, int column) {
    x = hw::load<kCache, Input>(from.x + column);
    if constexpr (kAddsResidual) residual = hw::load<kCache, Residual>(from.residual + column);
    if constexpr (kGatesX) gate = hw::load<hw::Cache::keep, Mod>(from.gate + column);
  }
  NJ_METHOD Held sum() const {
    return sum_of(widen(x), Acc(), kGatesX ? widen(gate) : Acc(), Acc(),
                  kAddsResidual ? widen(residual) : Acc());
  }
};

// The vectors of a lane in the columns of `cut`, and the single element that it may have. All loads are
// issued before the first is used.
template <hw::Cache kCache, bool kAligned>
NJ_DEVICE void load_sums(Vec<Held>* part, Held& edge, const Source& from, int lane, const Cut& cut) {
  Vec<Input> x[kPerThread];
  Vec<Residual> residual[kPerThread];
  Prologue other[kPerThread];
  load_vectors<kCache, true>(x, first_of(from.x + cut.head, lane), lane, cut);
  if constexpr (kAddsResidual)
    load_vectors<kCache, kAligned>(residual, first_of(from.residual + cut.head, lane), lane, cut);
  if constexpr (kHasInBias)
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut)) other[k].in_bias = load<hw::Cache::keep>(at(from.in_bias, k, lane));
  if constexpr (kGatesX)
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut))
        other[k].gate = load_vector<hw::Cache::keep, kAligned>(at(from.gate + cut.head, k, lane));
  if constexpr (kGatesX && kHasGateTable)
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut)) other[k].gate_table = load<hw::Cache::keep>(at(from.gate_table, k, lane));
  SourceElement<kCache> element;
  if (has_edge(lane, cut)) element.load(from, column_of_edge(lane, cut));
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, cut)) part[k] = sum_of(x[k], other[k], residual[k]);
  if (has_edge(lane, cut)) edge = element.sum();
}
template <hw::Cache kCache>
NJ_DEVICE void load(Vec<Held>* part, Held& edge, const Source& from, int lane, const Cut& cut) {
  if constexpr (!kHasPrologue) {
    load_vectors<kCache, true>(part, first_of(from.x + cut.head, lane), lane, cut);
    if (has_edge(lane, cut)) edge = hw::load<kCache, Input>(from.x + column_of_edge(lane, cut));
  } else if constexpr (!kUnaligned) {
    load_sums<kCache, true>(part, edge, from, lane, cut);
  } else {
    const bool residual = !kAddsResidual || is_aligned(from.residual, cut);
    if (residual && (!kGatesX || is_aligned(from.gate, cut))) {
      load_sums<kCache, true>(part, edge, from, lane, cut);
    } else {
      load_sums<kCache, false>(part, edge, from, lane, cut);
    }
  }
}

}  // namespace normjit
