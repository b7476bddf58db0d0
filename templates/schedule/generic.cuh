// SPDX-License-Identifier: Apache-2.0
// What the generic kernels share: elements whose dtype is known at run time, the operands of a row, and its
// statistics.
namespace normjit {

static_assert(kThreadsPerRow == kWarp && kVector == 1, "the lanes of a warp take single elements");
static_assert(kBlocksPerRow == 1 && !kUnaligned, "a block has a row");

enum class DType : unsigned char { f16, bf16, f32, f64, e4m3, e5m2, s8, e2m1, e8m0 };

// The spec, which is a constant in other kernels. src/normjit/service/prepared.h has the same structure.
struct RuntimeSpec {
  double epsilon, scale;
  int columns;
  Activation activation;
  ResidualAt residual_at;
  GateAt gate_at;
  GateFunction gate_function;
  Quantization quantization;
  int block;  // columns of a block that has a scale; 0: none has
  ScaleFormat scale_format;
  ScaleLayout scale_layout;
  DType input, output, weight, residual, modulation, also, gradient;
  bool is_rms, weight_offset, plain_modulation, rounds_sum, rounds_norm, rounds_y, inverse_scale,
      channels_first;
};

// In double no result is of 8 or 4 bits, and no gradient is.
enum : bool { kQuantizes = kSame<Acc, float> && !kBackward };

// Elements that a lane takes at a time, each kWarp apart. In double fewer: the error function is long. Of
// gradients fewer, too: more is held of each.
enum : int { kTake = (kSame<Acc, double> ? 2 : 4) / (kBackward ? 2 : 1) };
using Taken = Acc[kTake];

// In f32 there is no f64.
NJ_DEVICE bool is_f32(DType dtype) { return kSame<Acc, float> || dtype == DType::f32; }

// A lane's next elements of a row of this dtype, the first of them number `at`, in a part of it that has
// `left` columns from there on, at least one. In place of columns that are not there comes the first again:
// no load stands behind a condition, and none is of a column that another lane may be writing. Columns are
// `step` elements apart: 1, or with channels first a plane.
template <hw::Cache kCache, class T>
NJ_DEVICE void take_as(Taken& to, const void* row, long long at, long long left, long long step) {
  const T* const from = static_cast<const T*>(row) + at;
#pragma unroll
  for (int j = 0; j < kTake; ++j)
    to[j] = widen(hw::load<kCache, T>(from + (j * kWarp < left ? j * kWarp : 0) * step));
}
template <hw::Cache kCache>
NJ_DEVICE void take(Taken& to, const void* row, DType dtype, long long at, long long left,
                    long long step = 1) {
  if (dtype == DType::f16) {
    take_as<kCache, F16>(to, row, at, left, step);
  } else if (dtype == DType::bf16) {
    take_as<kCache, BF16>(to, row, at, left, step);
  } else if (is_f32(dtype)) {
    take_as<kCache, float>(to, row, at, left, step);
  } else {
    take_as<kCache, Acc>(to, row, at, left, step);
  }
}

// The same elements back to a row.
template <class T>
NJ_DEVICE void put_as(const Taken& from, void* row, long long at, long long left, long long step) {
  T* const to = static_cast<T*>(row) + at;
#pragma unroll
  for (int j = 0; j < kTake; ++j)
    if (j * kWarp < left) hw::store(to + j * kWarp * step, narrow<T>(from[j]));
}
NJ_DEVICE void put(const Taken& from, void* row, DType dtype, long long at, long long left,
                   long long step = 1) {
  if (dtype == DType::f16) {
    put_as<F16>(from, row, at, left, step);
  } else if (dtype == DType::bf16) {
    put_as<BF16>(from, row, at, left, step);
  } else if (kQuantizes && dtype == DType::e4m3) {
    put_as<E4M3>(from, row, at, left, step);
  } else if (kQuantizes && dtype == DType::e5m2) {
    put_as<E5M2>(from, row, at, left, step);
  } else if (kQuantizes && dtype == DType::s8) {
    put_as<S8>(from, row, at, left, step);
  } else if (is_f32(dtype)) {
    put_as<float>(from, row, at, left, step);
  } else {
    put_as<Acc>(from, row, at, left, step);
  }
}

// To the nearest value of a dtype.
template <class T>
NJ_DEVICE void round_to(Taken& v) {
#pragma unroll
  for (int j = 0; j < kTake; ++j) v[j] = widen(narrow<T>(v[j]));
}
NJ_DEVICE void round_to(Taken& v, DType dtype) {
  if (dtype == DType::f16) {
    round_to<F16>(v);
  } else if (dtype == DType::bf16) {
    round_to<BF16>(v);
  } else if (is_f32(dtype)) {
    round_to<float>(v);
  }
}

// How the warps of a block share the columns: each has a row alone, or a part of one row, which is a multiple
// of `unit` columns.
struct Division {
  int columns;
  bool alone;
  long long most;  // columns of a warp

  NJ_METHOD Division(int columns, int unit)
      : columns(columns),
        alone(columns <= kSpan),
        most(alone ? columns : ((columns - 1) / (kWarps * static_cast<long long>(unit)) + 1) * unit) {}

  NJ_METHOD long long begin(int warp) const { return alone ? 0 : warp * most; }
  // The columns of a warp, perhaps none.
  NJ_METHOD long long operator()(int warp) const {
    const long long left = columns - begin(warp);
    return left < 0 ? 0 : left < most ? left : most;
  }
};

// A row, or a part of one: where it begins in each input, which is null where the spec has none.
struct RowInputs {
  const void *x, *in_bias, *gate, *gate_table, *residual, *weight, *bias;
  const void *mod_scale, *mod_scale_table, *mod_shift, *mod_shift_table;
  long long x_begin, gate_begin, residual_begin, weight_begin, bias_begin, mod_scale_begin, mod_shift_begin,
      begin;
  long long step;  // from one column to the next, of x and residual

  NJ_METHOD RowInputs(const Operands& on, long long row, long long begin, long long step)
      : x(on.x),
        in_bias(on.in_bias),
        gate(on.gate),
        gate_table(on.gate_table),
        residual(on.residual),
        weight(on.weight),
        bias(on.bias),
        mod_scale(on.mod_scale),
        mod_scale_table(on.mod_scale_table),
        mod_shift(on.mod_shift),
        mod_shift_table(on.mod_shift_table),
        x_begin(begin_of(on.x_rows, row) + begin * step),
        gate_begin(begin_of(on.gate_rows, row) + begin),
        residual_begin(begin_of(on.residual_rows, row) + begin * step),
        weight_begin(begin_of(on.weight_rows, row) + begin),
        bias_begin(begin_of(on.bias_rows, row) + begin),
        mod_scale_begin(begin_of(on.mod_scale_rows, row) + begin),
        mod_shift_begin(begin_of(on.mod_shift_rows, row) + begin),
        begin(begin),
        step(step) {}
};

// Adds the elements of an operand from column `at` of the part on.
template <hw::Cache kCache>
NJ_DEVICE void add(Taken& to, const void* row, DType dtype, long long at, long long left,
                   long long step = 1) {
  Taken added;
  take<kCache>(added, row, dtype, at, left, step);
#pragma unroll
  for (int j = 0; j < kTake; ++j) to[j] += added[j];
}

template <GateFunction kOf>
NJ_DEVICE void multiply_through(Taken& v, const Taken& gate) {
#pragma unroll
  for (int j = 0; j < kTake; ++j) v[j] *= through<kOf>(gate[j]);
}
// Multiplies by the gate.
template <hw::Cache kCache>
NJ_DEVICE void multiply_by_gate(Taken& v, const RowInputs& of, const RuntimeSpec& spec, long long at,
                                long long left) {
  Taken gate;
  take<kCache>(gate, of.gate, spec.modulation, of.gate_begin + at, left);
  if (of.gate_table) add<hw::Cache::keep>(gate, of.gate_table, spec.weight, of.begin + at, left);
  if (spec.gate_function == GateFunction::silu) {
    multiply_through<GateFunction::silu>(v, gate);
  } else if (spec.gate_function == GateFunction::sigmoid) {
    multiply_through<GateFunction::sigmoid>(v, gate);
  } else if (spec.gate_function == GateFunction::tanh) {
    multiply_through<GateFunction::tanh>(v, gate);
  } else {
    multiply_through<GateFunction::none>(v, gate);
  }
}

// Takes what is normalized.
template <hw::Cache kCache>
NJ_DEVICE void take_sum(Taken& to, const RowInputs& of, const RuntimeSpec& spec, long long at,
                        long long left) {
  take<kCache>(to, of.x, spec.input, of.x_begin + at * of.step, left, of.step);
  if (of.in_bias) add<hw::Cache::keep>(to, of.in_bias, spec.weight, of.begin + at, left);
  if (spec.gate_at == GateAt::before) multiply_by_gate<kCache>(to, of, spec, at, left);
  if (spec.residual_at == ResidualAt::before)
    add<kCache>(to, of.residual, spec.residual, of.residual_begin + at * of.step, left, of.step);
  if (spec.rounds_sum) round_to(to, spec.residual);
}

// What an adaptive norm multiplies by; what it adds then, if anything.
NJ_DEVICE void take_factor(Taken& to, const RowInputs& of, const RuntimeSpec& spec, long long at,
                           long long left) {
  take<hw::Cache::keep>(to, of.mod_scale, spec.modulation, of.mod_scale_begin + at, left);
  if (of.mod_scale_table) add<hw::Cache::keep>(to, of.mod_scale_table, spec.weight, of.begin + at, left);
  const Acc one = spec.plain_modulation ? 0 : 1;
#pragma unroll
  for (int j = 0; j < kTake; ++j) to[j] += one;
}
NJ_DEVICE void add_shift(Taken& to, const RowInputs& of, const RuntimeSpec& spec, long long at,
                         long long left) {
  if (!of.mod_shift) return;
  Taken shift;
  take<hw::Cache::keep>(shift, of.mod_shift, spec.modulation, of.mod_shift_begin + at, left);
  if (of.mod_shift_table) add<hw::Cache::keep>(shift, of.mod_shift_table, spec.weight, of.begin + at, left);
#pragma unroll
  for (int j = 0; j < kTake; ++j) to[j] += shift[j];
}

// The elements that a lane has of a chunk: `count` columns of a row from number `begin` on.
struct ChunkElements {
  const RowInputs& of;
  const RuntimeSpec& spec;
  long long begin;
  int count, lane;

  template <class Act>
  NJ_METHOD void each(const Act& act) const {
#pragma unroll 1
    for (int at = lane; at < count; at += kTake * kWarp) {
      Taken taken;
      take_sum<hw::Cache::keep>(taken, of, spec, begin + at, count - at);
#pragma unroll
      for (int j = 0; j < kTake; ++j)
        if (at + j * kWarp < count) act(taken[j], 0);
    }
  }
};

// The statistics of the first `count` columns, which a warp reads chunk by chunk.
template <class Of>
NJ_DEVICE Of measure(const RowInputs& of, const RuntimeSpec& spec, long long count, int lane) {
  WideSums sums = {0, 0};
  double base = 0;
  long long done = 0;
  do {
    const int own = count - done < kSpan ? static_cast<int>(count - done) : kSpan;
    const Of part = Of::template of<kWarp>(ChunkElements{of, spec, done, own, lane}, own > 0 ? own : 1);
    if (count <= kSpan) return part;
    if (done == 0) base = part.centre();
    sums = sums + part.widened(own, base);
    done += own;
  } while (done < count);
  return Of::from(sums, base, count);
}

// Those of a row, of which `of` is this warp's part. `parts` are of as many warps.
template <class Of>
NJ_DEVICE RowStatistics statistics_of(const RowInputs& of, const RuntimeSpec& spec, const Division& own,
                                      Of* parts) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Of all = measure<Of>(of, spec, own(warp), lane);
  if (!own.alone) {
    if (lane == 0) parts[warp] = all;
    hw::block_barrier();
    all = Of::template merge_all<kWarps>([&](int i) { return parts[i]; }, own, spec.columns);
  }
  return all.finalize(Acc(1) / spec.columns, static_cast<Acc>(spec.epsilon));
}

}  // namespace normjit
