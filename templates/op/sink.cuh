// SPDX-License-Identifier: Apache-2.0
// What becomes of a normalized row: affine, modulation, activation, scale, gate, quantization, one rounding,
// store.
namespace normjit {

// ---- Parameters: operands of one element for each column ----

enum : bool {
  kModulates = Modulation::chosen != Modulation::none,
  kShifts = Modulation::chosen == Modulation::scale_shift,
  kGatesResult = GateAt::chosen == GateAt::after,
  kHasScaleTable = kModulates && kHasModulationTable,
  kHasShiftTable = kShifts && kHasModulationTable,
};

// Vectors that all rows share (weight and bias but for kAffineRows), in the order of the formula.
enum : int {
  kBiasAt = kHasWeight,
  kScaleTableAt = kBiasAt + kHasBias,
  kShiftTableAt = kScaleTableAt + kHasScaleTable,
  kGateTableAt = kShiftTableAt + kHasShiftTable,
  kParameters = kGateTableAt + (kGatesResult && kHasGateTable)
};
// Those that each row has, mostly the same as its neighbours.
enum : int { kShiftAt = kModulates, kGateAt = kShiftAt + kShifts, kRowParameters = kGateAt + kGatesResult };
enum : bool { kParametersOfRow = kAffineRows || kRowParameters > 0 };  // they differ from row to row
// Of arrays of them.
enum : int {
  kParameterPlaces = kParameters > 0 ? kParameters : 1,
  kRowParameterPlaces = kRowParameters > 0 ? kRowParameters : 1
};

// Where those of a row begin, from some column on.
struct Columns {
  const Weight* at[kParameterPlaces];
  const Mod* of_row[kRowParameterPlaces];

  NJ_METHOD Columns from(long long column) const {
    Columns there = *this;
#pragma unroll
    for (int p = 0; p < kParameters; ++p) there.at[p] = at[p] + column;
#pragma unroll
    for (int p = 0; p < kRowParameters; ++p) there.of_row[p] = of_row[p] + column;
    return there;
  }
};
template <class Any>
NJ_DEVICE Columns columns_of(const Any& on, long long row) {
  Columns columns = {};
  if constexpr (kHasWeight) columns.at[0] = on.weight;
  if constexpr (kHasBias) columns.at[kBiasAt] = on.bias;
  if constexpr (kAffineRows) {
    columns.at[0] += begin_of(on.weight_rows, row);
    if constexpr (kHasBias) columns.at[kBiasAt] += begin_of(on.bias_rows, row);
  }
  if constexpr (kHasScaleTable) columns.at[kScaleTableAt] = on.mod_scale_table;
  if constexpr (kHasShiftTable) columns.at[kShiftTableAt] = on.mod_shift_table;
  if constexpr (kGatesResult && kHasGateTable) columns.at[kGateTableAt] = on.gate_table;
  if constexpr (kModulates) columns.of_row[0] = on.mod_scale + begin_of(on.mod_scale_rows, row);
  if constexpr (kShifts) columns.of_row[kShiftAt] = on.mod_shift + begin_of(on.mod_shift_rows, row);
  if constexpr (kGatesResult) columns.of_row[kGateAt] = on.gate + begin_of(on.gate_rows, row);
  return columns;
}

// ---- The order of rows ----

// Where many rows share a row of gate, scale and shift, all blocks would come to the next one at the same
// time, and all multiprocessors wait for the same few lines of L2. So the rows are taken from kShares places
// in turn, each a part of a group behind the one before: 32,768 x 3072 bf16 with scale and shift of 1024
// rows 108.3 us, and 100.9 us so (two places: 102.5, eight: 102.7). L1 must hold what they share.
enum : long long {
  kSharedBytes = (kRowParameters + kGatesX) * sizeof(Mod) * static_cast<long long>(kColumns)
};
enum : int { kShares = kSharedBytes <= 32 * 1024 ? 4 : 1 };

// The i-th of so many units of rows; `group` of them share. A bijection.
NJ_DEVICE long long in_turn(long long i, long long units, long long group) {
  const long long share = units / kShares;
  if (i >= share * kShares) return i;
  const int place = static_cast<int>(i % kShares);
  long long unit = i / kShares + place * ((group < share ? group : share) / kShares);
  if (unit >= share) unit -= share;
  return place * share + unit;
}
NJ_DEVICE long long in_turn(const Rows&, long long, int, long long first) { return first; }
NJ_DEVICE long long in_turn(const GroupedRows& shared, long long rows, int unit, long long first) {
  return kShares == 1 ? first : in_turn(first / unit, rows / unit, shared.n / unit) * unit;
}
// The first of the `unit` rows that are taken together in place of those that follow each other from `first`.
template <class Any>
NJ_DEVICE long long taken(const Any& on, int unit, long long first) {
  if constexpr (kModulates) {
    return in_turn(on.mod_scale_rows, on.rows, unit, first);
  } else if constexpr (GateAt::chosen != GateAt::none) {
    return in_turn(on.gate_rows, on.rows, unit, first);
  }
  return first;
}

// Those of one vector, as they were loaded.
struct Parameters {
  Vec<Weight> at[kParameterPlaces];
  Vec<Mod> of_row[kRowParameterPlaces];
};
// Those of one element.
struct ElementParameters {
  Acc at[kParameterPlaces], of_row[kRowParameterPlaces];
};
NJ_DEVICE ElementParameters widen(const Parameters& parameters, int i) {
  ElementParameters one;
#pragma unroll
  for (int p = 0; p < kParameters; ++p) one.at[p] = widen(parameters.at[p], i);
#pragma unroll
  for (int p = 0; p < kRowParameters; ++p) one.of_row[p] = widen(parameters.of_row[p], i);
  return one;
}

// Of vector k of a lane.
NJ_DEVICE Parameters load_parameters(const Columns& columns, int k, int lane) {
  Parameters parameters;
#pragma unroll
  for (int p = 0; p < kParameters; ++p) parameters.at[p] = load<hw::Cache::keep>(at(columns.at[p], k, lane));
#pragma unroll
  for (int p = 0; p < kRowParameters; ++p)
    parameters.of_row[p] = load<hw::Cache::keep>(at(columns.of_row[p], k, lane));
  return parameters;
}

// Held from row to row, as it was loaded: opaque, or the compiler holds it converted, which takes more
// registers.
NJ_DEVICE Parameters unconverted(Parameters held) {
  if constexpr (!kSame<Weight, Acc>) {
#pragma unroll
    for (int p = 0; p < kParameters; ++p) hw::opaque(held.at[p]);
  }
  if constexpr (!kSame<Mod, Acc>) {
#pragma unroll
    for (int p = 0; p < kRowParameters; ++p) hw::opaque(held.of_row[p]);
  }
  return held;
}

// ---- Results ----

enum : bool {
  kRoundsNorm = static_cast<int>(Rounding::chosen) / 2 % 2 == 1,
  kAddsToResult = ResidualAt::chosen == ResidualAt::after,
  kRoundsY = Rounding::chosen >= Rounding::y,
};

// An element of the result from one of the row, and from that of the residual that is added to it.
NJ_DEVICE Acc result_of(Acc x, const RowStatistics& s, const ElementParameters& parameters,
                        Acc residual = {}) {
  Acc v = normalized(x, s);
  if constexpr (kRoundsNorm) v = widen(narrow<Input>(v));
  if constexpr (kHasWeight) v *= kWeightOffset ? parameters.at[0] + Acc(1) : parameters.at[0];
  if constexpr (kHasBias) v += parameters.at[kBiasAt];
  if constexpr (kModulates) {
    const Acc scale =
        kHasScaleTable ? parameters.of_row[0] + parameters.at[kScaleTableAt] : parameters.of_row[0];
    v *= kPlainModulation ? scale : scale + Acc(1);
  }
  if constexpr (kShifts)
    v += kHasShiftTable ? parameters.of_row[kShiftAt] + parameters.at[kShiftTableAt]
                        : parameters.of_row[kShiftAt];
  v = activate<Activation::chosen>(v);
  if constexpr (kScale<Acc> != Acc(1)) v *= kScale<Acc>;
  if constexpr (kGatesResult)
    v *= gate_factor(parameters.of_row[kGateAt], kHasGateTable ? parameters.at[kGateTableAt] : Acc());
  if constexpr (kAddsToResult) v += residual;
  if constexpr (kRoundsY) v = widen(narrow<Input>(v));
  return v;
}
// An element of y.
NJ_DEVICE Output finish(Acc x, const RowStatistics& s, const ElementParameters& parameters,
                        const Quantizer& by, Acc residual = {}) {
  return narrow<Output>(quantized(result_of(x, s, parameters, residual), by));
}

// The results of a vector, one after the other: each(i, result).
template <class T, class Any, class Each>
NJ_DEVICE void each_result(const Vec<T>& x, const RowStatistics& s, const Any& parameters,
                           const Vec<Residual>& residual, const Each& each) {
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    each(i, result_of(widen(x, i), s, widen(parameters, i), kAddsToResult ? widen(residual, i) : Acc()));
}
template <class Any>
NJ_DEVICE Vec<Output> finish(const Vec<Held>& x, const RowStatistics& s, const Any& parameters,
                             const Vec<Residual>& residual, const Quantizer& by) {
  Narrowed<Output> y;
  each_result(x, s, parameters, residual, [&](int i, Acc v) { y.set(i, quantized(v, by)); });
  return y.all;
}

// Where the results of a row go, from some column on, with the parameters of its columns, and what they are
// divided by.
struct Sink {
  Columns columns;
  Output* y;
  Quantizer by;
  AlsoOutput* also;
  Scales scales;
};
template <class Any>
NJ_DEVICE Sink sink_of(const Any& on, long long row, long long begin, const Quantizer& by) {
  Sink sink = {columns_of(on, row).from(begin),
               on.y + begin_of(on.y_rows, row) + begin / kColumnsIn<Output>,
               by,
               nullptr,
               {}};
  if constexpr (kWritesAlso) sink.also = on.also + begin_of(on.also_rows, row) + begin;
  if constexpr (kScalesBlocks)
    sink.scales = {
        on.block_scale, ScaleLayout::chosen, on.rows, kBlocks, row, static_cast<int>(begin / kBlock)};
  return sink;
}
template <class Any>
NJ_DEVICE void store(const RowStatistics& s, const Any& on, long long row) {
  if constexpr (kHasStatistics) {
    if constexpr (kCentred) on.mean[row] = s.mean + s.mean_lo;
    on.rstd[row] = s.rstd;
  }
}
template <class Any>
NJ_DEVICE void store(const Quantizer& by, const Any& on, long long row) {
  if constexpr (kScalesRows) on.row_scale[row] = by.scale;
}

}  // namespace normjit
