// SPDX-License-Identifier: Apache-2.0
// One kernel for every spec: columns, dtypes, epsilon, activation and scale are launch arguments, and a
// null pointer is an absent operand. It serves while a spec's own kernel is being compiled, or without a
// compiler, and rows with a scale of their own that no other schedule holds.
// Why it is fast enough: run-time decisions are uniform over all threads, and made once for kTake elements
// of a lane, before their loads. A warp takes a row of up to kSpan columns; a block takes a longer row,
// each warp a part of it. A chunk is read three times: twice to be measured, the second time from L1, and
// once to be written, from L2; with a scale for each row once more. With channels first a lane's columns are
// a plane apart, and the caches serve the rows beside it.
namespace normjit {

static_assert(kThreadsPerRow == kWarp && kVector == 1, "the lanes of a warp take single elements");
static_assert(kBlocksPerRow == 1 && !kUnaligned && kHasStatistics, "a block has a row");

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
  DType input, output, weight, residual, modulation, also;
  bool is_rms, weight_offset, plain_modulation, rounds_sum, rounds_norm, rounds_y, inverse_scale,
      channels_first;
};

// In double no result is of 8 or 4 bits.
enum : bool { kQuantizes = kSame<Acc, float> };

// Elements that a lane takes at a time, each kWarp apart. In double fewer: the error function is long.
enum : int { kTake = kSame<Acc, double> ? 2 : 4 };
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
NJ_DEVICE void put(const Taken& from, void* row, DType dtype, long long at, long long left, long long step) {
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

// Results in e2m1, the first of lane 0 in the byte `to`: the even lane of two writes theirs. All lanes of a
// warp call this.
NJ_DEVICE void put_pairs(const Taken& from, unsigned char* to, long long left) {
#pragma unroll
  for (int j = 0; j < kTake; ++j) {
    const unsigned own = narrow_pair<E2M1>(static_cast<float>(from[j]), 0), next = hw::shuffle_xor(own, 1);
    if (threadIdx.x % 2 == 0 && j * kWarp < left)
      hw::store(to + j * (kWarp / 2), static_cast<unsigned char>(own | next << 4));
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

// A row, or a part of one: where it begins in each operand, which is null where the spec has none.
struct RowOperands {
  const void *x, *in_bias, *gate, *gate_table, *residual, *weight, *bias;
  const void *mod_scale, *mod_scale_table, *mod_shift, *mod_shift_table;
  void *y, *sum, *also;
  long long x_begin, gate_begin, residual_begin, weight_begin, bias_begin, mod_scale_begin, mod_shift_begin,
      y_begin, sum_begin, begin;
  long long step;  // from one column to the next, of x, residual, y and sum

  NJ_METHOD RowOperands(const Operands& on, long long row, long long begin, long long step, bool pairs)
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
        y(on.y),
        sum(on.sum),
        also(on.also),
        x_begin(begin_of(on.x_rows, row) + begin * step),
        gate_begin(begin_of(on.gate_rows, row) + begin),
        residual_begin(begin_of(on.residual_rows, row) + begin * step),
        weight_begin(begin_of(on.weight_rows, row) + begin),
        bias_begin(begin_of(on.bias_rows, row) + begin),
        mod_scale_begin(begin_of(on.mod_scale_rows, row) + begin),
        mod_shift_begin(begin_of(on.mod_shift_rows, row) + begin),
        y_begin((begin_of(on.y_rows, row) << pairs) + begin * step),
        sum_begin(begin_of(on.sum_rows, row) + begin * step),
        begin(begin),
        step(step) {}
};

template <Activation kOf>
NJ_DEVICE void activate_all(Taken& v) {
#pragma unroll
  for (int j = 0; j < kTake; ++j) v[j] = activate<kOf>(v[j]);
}
NJ_DEVICE void activate_all(Taken& v, Activation activation) {
  if (activation == Activation::relu) {
    activate_all<Activation::relu>(v);
  } else if (activation == Activation::gelu) {
    activate_all<Activation::gelu>(v);
  } else if (activation == Activation::gelu_tanh) {
    activate_all<Activation::gelu_tanh>(v);
  } else if (activation == Activation::silu) {
    activate_all<Activation::silu>(v);
  }
}

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
NJ_DEVICE void multiply_by_gate(Taken& v, const RowOperands& of, const RuntimeSpec& spec, long long at,
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
NJ_DEVICE void take_sum(Taken& to, const RowOperands& of, const RuntimeSpec& spec, long long at,
                        long long left) {
  take<kCache>(to, of.x, spec.input, of.x_begin + at * of.step, left, of.step);
  if (of.in_bias) add<hw::Cache::keep>(to, of.in_bias, spec.weight, of.begin + at, left);
  if (spec.gate_at == GateAt::before) multiply_by_gate<kCache>(to, of, spec, at, left);
  if (spec.residual_at == ResidualAt::before)
    add<kCache>(to, of.residual, spec.residual, of.residual_begin + at * of.step, left, of.step);
  if (spec.rounds_sum) round_to(to, spec.residual);
}

// The elements that a lane has of a chunk: `count` columns of a row from number `begin` on.
struct ChunkElements {
  const RowOperands& of;
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
NJ_DEVICE Of measure(const RowOperands& of, const RuntimeSpec& spec, long long count, int lane) {
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

// Those of a row, of which this warp has `count` columns, and warp i of the block own(i) of them, unless it
// has the row alone. `parts` are of as many warps.
template <class Of, class Own>
NJ_DEVICE RowStatistics statistics_of(const RowOperands& of, const RuntimeSpec& spec, long long count,
                                      bool alone, const Own& own, Of* parts) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Of all = measure<Of>(of, spec, count, lane);
  if (!alone) {
    if (lane == 0) parts[warp] = all;
    hw::block_barrier();
    all = Of::template merge_all<kWarps>([&](int i) { return parts[i]; }, own, spec.columns);
  }
  return all.finalize(Acc(1) / spec.columns, static_cast<Acc>(spec.epsilon));
}

// Scale and shift of an adaptive norm.
NJ_DEVICE void modulate(Taken& v, const RowOperands& of, const RuntimeSpec& spec, long long at,
                        long long left) {
  Taken scale;
  take<hw::Cache::keep>(scale, of.mod_scale, spec.modulation, of.mod_scale_begin + at, left);
  if (of.mod_scale_table) add<hw::Cache::keep>(scale, of.mod_scale_table, spec.weight, of.begin + at, left);
  const Acc one = spec.plain_modulation ? 0 : 1;
#pragma unroll
  for (int j = 0; j < kTake; ++j) v[j] *= scale[j] + one;
  if (!of.mod_shift) return;
  Taken shift;
  take<hw::Cache::keep>(shift, of.mod_shift, spec.modulation, of.mod_shift_begin + at, left);
  if (of.mod_shift_table) add<hw::Cache::keep>(shift, of.mod_shift_table, spec.weight, of.begin + at, left);
#pragma unroll
  for (int j = 0; j < kTake; ++j) v[j] += shift[j];
}

// Divides a result, or multiplies it.
NJ_DEVICE Acc quantize(Acc v, const Quantizer& by, bool divides) {
  const auto y = static_cast<float>(v);
  return divides ? quantized<E4M3, true>(y, by) : quantized<S8, false>(y, by);
}
NJ_DEVICE bool divides(const RuntimeSpec& spec) {
  return spec.output != DType::s8 && (spec.quantization == Quantization::row ||
                                      (spec.block > 0 && spec.scale_format == ScaleFormat::f32));
}
NJ_DEVICE float most_of(DType dtype) {
  return dtype == DType::e4m3   ? kMost<E4M3>
         : dtype == DType::e5m2 ? kMost<E5M2>
         : dtype == DType::e2m1 ? kMost<E2M1>
                                : kMost<S8>;
}
NJ_DEVICE Quantizer quantizer_of_row(float magnitude, DType dtype) {
  if (dtype == DType::e4m3) return quantizer_of_row<E4M3>(magnitude);
  if (dtype == DType::e5m2) return quantizer_of_row<E5M2>(magnitude);
  return quantizer_of_row<S8>(magnitude);
}

// What a lane has of columns that are not there is its first again.
NJ_DEVICE Largest largest_of(const Taken& v) {
  Largest largest = {0};
#pragma unroll
  for (int j = 0; j < kTake; ++j) largest = largest.with(static_cast<float>(v[j]));
  return largest;
}
NJ_DEVICE Scales scales_of(const Operands& on, const RuntimeSpec& spec, long long row) {
  return {on.block_scale, spec.scale_layout, on.rows, spec.columns / spec.block, row, 0};
}
// Called, since few rows need them: inlined, they would take registers from all the rest.
NJ_CALLED void store_scale(Scales scales, unsigned k, float scale, ScaleFormat format) {
  scales.store(scales.place(scales.row, k), scale, format);
}
NJ_CALLED void pad_last_scales(Scales scales, ScaleFormat format) {
  pad_scales(scales, format, threadIdx.x % kWarp, kWarp);
}
// Quantizes what the lanes of a warp have taken, block by block, and writes the scales. The first of the
// columns is number `column` of the row, and begins a block; this lane has `left` columns from its own on.
NJ_DEVICE void quantize_blocks(Taken& v, const Operands& on, const RuntimeSpec& spec, long long row,
                               unsigned column, long long left) {
  Quantizer given = {};
  if (on.global_scale) given.scale = hw::load<hw::Cache::keep, float>(on.global_scale);
  Largest largest[kTake];
#pragma unroll
  for (int j = 0; j < kTake; ++j) largest[j] = Largest{0}.with(static_cast<float>(v[j]));
    // Columns of a block that are a multiple of kWarp apart are in one lane. All of a block is there, or
    // nothing.
#pragma unroll
  for (int apart = 1; apart < kTake; apart *= 2)
    if (spec.block > apart * kWarp) {
#pragma unroll
      for (int j = 0; j < kTake; ++j)
        if ((j & apart) == 0) largest[j] = largest[j | apart] = larger_of(largest[j], largest[j | apart]);
    }
  const int lane = threadIdx.x % kWarp;
  const bool divided = divides(spec);
  const float most = most_of(spec.output);
#pragma unroll
  for (int j = 0; j < kTake; ++j) {
    const Largest all =
        spec.block < kWarp ? lanes_largest<kWarp / 2>(largest[j]) : lanes_largest<kWarp>(largest[j]);
    const Quantizer by = quantizer_of_block(all, most, spec.scale_format, given);
    v[j] = quantize(v[j], by, divided);
    const unsigned own = column + j * kWarp + lane;
    if (j * kWarp < left && (own & (spec.block - 1)) == 0)
      store_scale(scales_of(on, spec, row), own / spec.block, by.scale, spec.scale_format);
  }
}

NJ_GENERIC_KERNEL(NJ_ENTRY, kThreads) {
  NJ_SHARED(Moments, parts, 2 * kWarps);
  NJ_SHARED(SumOfSquares, squares, 2 * kWarps);
  NJ_SHARED(Largest, largest_parts, 2 * kWarps);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Acc scale = static_cast<Acc>(spec.scale);

  // Whether a warp has a row alone, and the columns of warp i otherwise.
  const bool alone = spec.columns <= kSpan;
  const long long unit = spec.block > 0 ? kTake * kWarp : kWarp;
  const long long most = alone ? spec.columns : ((spec.columns - 1) / (kWarps * unit) + 1) * unit;
  const auto own = [&](int i) {
    const long long left = spec.columns - i * most;
    return left < 0 ? 0 : left < most ? left : most;
  };
  const auto begin = static_cast<unsigned>(alone ? 0 : warp * most);
  const auto count = static_cast<unsigned>(alone ? most : own(warp));
  const long long first = alone ? static_cast<long long>(blockIdx.x) * kWarps + warp : blockIdx.x;

  hw::wait_for_previous_launch();
  hw::allow_next_launch();
  const bool by_row = kQuantizes && spec.quantization == Quantization::row;
  Quantizer by = {};
  if (kQuantizes && on.tensor_scale)
    by = quantizer_of_tensor(hw::load<hw::Cache::keep, float>(on.tensor_scale), spec.inverse_scale);
  int half = 0;  // double-buffered, as in block_row
  for (long long row = first; row < on.rows;
       row += static_cast<long long>(gridDim.x) * (alone ? kWarps : 1)) {
    const RowOperands of(on, row, begin, spec.channels_first ? on.x_rows.n : 1, spec.output == DType::e2m1);
    const RowStatistics statistics = spec.is_rms ? statistics_of(of, spec, count, alone, own, squares + half)
                                                 : statistics_of(of, spec, count, alone, own, parts + half);

    // With a scale for each row the results are worked out twice: to find the largest, and to be written.
    bool writes = !by_row;
    Largest largest = {0};
#pragma unroll 1
    for (;; writes = true) {
#pragma unroll 1
      for (unsigned at = lane; at - lane < count; at += kTake * kWarp) {
        const long long left = static_cast<long long>(count) - at;
        if (left <= 0 && spec.block == 0) break;
        Taken v = {}, weights;
        if (left > 0) {
          take_sum<hw::Cache::evict_first>(v, of, spec, at, left);
          if (of.weight) take<hw::Cache::keep>(weights, of.weight, spec.weight, of.weight_begin + at, left);
          if (of.sum && writes) put(v, of.sum, spec.residual, of.sum_begin + at * of.step, left, of.step);
#pragma unroll
          for (int j = 0; j < kTake; ++j) v[j] = normalized(v[j], statistics);
          if (spec.rounds_norm) round_to(v, spec.input);
#pragma unroll
          for (int j = 0; j < kTake; ++j)
            if (of.weight) v[j] *= weights[j] + (spec.weight_offset ? 1 : 0);
          if (of.bias) add<hw::Cache::keep>(v, of.bias, spec.weight, of.bias_begin + at, left);
          if (of.mod_scale) modulate(v, of, spec, at, left);
          activate_all(v, spec.activation);
#pragma unroll
          for (int j = 0; j < kTake; ++j) v[j] *= scale;
          if (spec.gate_at == GateAt::after) multiply_by_gate<hw::Cache::evict_first>(v, of, spec, at, left);
          if (spec.residual_at == ResidualAt::after)
            add<hw::Cache::evict_first>(v, of.residual, spec.residual, of.residual_begin + at * of.step, left,
                                        of.step);
          if (spec.rounds_y) round_to(v, spec.input);
        }
        if (!writes || on.amax) largest = larger_of(largest, largest_of(v));
        if (!writes) continue;
        if (of.also) put(v, of.also, spec.also, begin_of(on.also_rows, row) + begin + at, left, 1);
        if (kQuantizes && spec.block > 0) {
          quantize_blocks(v, on, spec, row, begin + at - lane, left);
        } else if (kQuantizes && spec.quantization != Quantization::none) {
#pragma unroll
          for (int j = 0; j < kTake; ++j) v[j] = quantize(v[j], by, divides(spec));
        }
        if (kQuantizes && spec.output == DType::e2m1) {
          put_pairs(v, static_cast<unsigned char*>(of.y) + (of.y_begin + at) / 2, left);
        } else {
          put(v, of.y, spec.output, of.y_begin + at * of.step, left, of.step);
        }
      }
      if (writes) break;
      largest = lanes_largest<kWarp>(largest);
      if (!alone) {
        if (lane == 0) largest_parts[half + warp] = largest;
        hw::block_barrier();
        largest = largest_of_parts<kWarps>([&](int i) { return largest_parts[half + i]; });
      }
      if (on.upper_bound) largest.magnitude = bounded(largest.magnitude, on.upper_bound[0]);
      by = quantizer_of_row(largest.magnitude, spec.output);
    }
    half ^= kWarps;
    if (on.amax) raise_largest(largest, meeting_in(on.workspace).header);
    if (lane == 0 && begin == 0) {
      if (on.mean) on.mean[row] = statistics.mean + statistics.mean_lo;
      if (on.rstd) on.rstd[row] = statistics.rstd;
      if (on.row_scale) on.row_scale[row] = by.scale;
    }
    if (kQuantizes && spec.block > 0 && begin == 0)
      pad_last_scales(scales_of(on, spec, row), spec.scale_format);
  }
  if (!on.amax) return;
  Header& header = meeting_in(on.workspace).header;
  hw::block_barrier();
  if (threadIdx.x == 0 && leaves_last(header)) {
    Taken all = {take_largest(header)};
    round_to(all, spec.output);
    on.amax[0] = static_cast<float>(all[0]);
    header.finished_blocks = 0;
  }
}

}  // namespace normjit
