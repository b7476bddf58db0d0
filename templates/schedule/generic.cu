// SPDX-License-Identifier: Apache-2.0
// One kernel for every forward spec: columns, dtypes, epsilon, activation and scale are launch arguments, and
// a null pointer is an absent operand. It serves while a spec's own kernel is being compiled, or without a
// compiler, and rows with a scale of their own that no other schedule holds.
// Why it is fast enough: run-time decisions are uniform over all threads, and made once for kTake elements
// of a lane, before their loads. A warp takes a row of up to kSpan columns; a block takes a longer row,
// each warp a part of it. A chunk is read three times: twice to be measured, the second time from L1, and
// once to be written, from L2; with a scale for each row once more. With channels first a lane's columns are
// a plane apart, and the caches serve the rows beside it.
namespace normjit {

static_assert(!kBackward && kHasStatistics);

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

// Scale and shift of an adaptive norm.
NJ_DEVICE void modulate(Taken& v, const RowInputs& of, const RuntimeSpec& spec, long long at,
                        long long left) {
  Taken factor;
  take_factor(factor, of, spec, at, left);
#pragma unroll
  for (int j = 0; j < kTake; ++j) v[j] *= factor[j];
  add_shift(v, of, spec, at, left);
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

  const Division own(spec.columns, spec.block > 0 ? kTake * kWarp : kWarp);
  const bool alone = own.alone;
  const auto begin = static_cast<unsigned>(own.begin(warp)), count = static_cast<unsigned>(own(warp));
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
    const RowInputs of(on, row, begin, spec.channels_first ? on.x_rows.n : 1);
    const long long y_begin = (begin_of(on.y_rows, row) << (spec.output == DType::e2m1)) + begin * of.step;
    const long long sum_begin = begin_of(on.sum_rows, row) + begin * of.step;
    const RowStatistics statistics = spec.is_rms ? statistics_of(of, spec, own, squares + half)
                                                 : statistics_of(of, spec, own, parts + half);

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
          if (on.sum && writes) put(v, on.sum, spec.residual, sum_begin + at * of.step, left, of.step);
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
        if (on.also) put(v, on.also, spec.also, begin_of(on.also_rows, row) + begin + at, left);
        if (kQuantizes && spec.block > 0) {
          quantize_blocks(v, on, spec, row, begin + at - lane, left);
        } else if (kQuantizes && spec.quantization != Quantization::none) {
#pragma unroll
          for (int j = 0; j < kTake; ++j) v[j] = quantize(v[j], by, divides(spec));
        }
        if (kQuantizes && spec.output == DType::e2m1) {
          put_pairs(v, reinterpret_cast<unsigned char*>(on.y) + (y_begin + at) / 2, left);
        } else {
          put(v, on.y, spec.output, y_begin + at * of.step, left, of.step);
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
