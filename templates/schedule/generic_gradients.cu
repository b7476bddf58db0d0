// SPDX-License-Identifier: Apache-2.0
// One kernel for every backward spec, as generic.cu is one for the forward specs: it serves while a spec's
// own kernel is being compiled, or without a compiler. op/gradients.cuh has the formulas.
//
// Why it is fast enough: a round of a block is one row, or of rows of up to kSpan columns one for each warp.
// First the rows of a round are measured. Then each thread has some columns of all of them, for which it
// writes dx and adds up what they contribute to the sums over rows: so these are read and written once a
// round, by the same thread each time. Each block has a part of the sums, and the last one adds the parts in
// their order, with no atomics on sums. Long rows have few parts, so that a sum takes some megabytes, or one
// row: 16 x 4,194,304 has one, and keeps one block busy. x is read up to four times and dy twice, mostly from
// the caches.
//
// A group of rows that share scale and shift is the work of one block, which writes their sums of the group.
namespace normjit {

static_assert(kBackward);

// ---- Elements ----

template <Activation kOf>
NJ_DEVICE void through_all(Taken& d, const Taken& argument) {
#pragma unroll
  for (int j = 0; j < kTake; ++j) d[j] = gradient_through<kOf>(d[j], argument[j]);
}
NJ_DEVICE void through_all(Taken& d, const Taken& argument, Activation activation) {
  if (activation == Activation::relu) {
    through_all<Activation::relu>(d, argument);
  } else if (activation == Activation::gelu) {
    through_all<Activation::gelu>(d, argument);
  } else if (activation == Activation::gelu_tanh) {
    through_all<Activation::gelu_tanh>(d, argument);
  } else if (activation == Activation::silu) {
    through_all<Activation::silu>(d, argument);
  }
}

// What the elements of the gate multiply by, in their place, and how that changes with them.
template <GateFunction kOf>
NJ_DEVICE void gate_all(Taken& gate, Taken& slope) {
#pragma unroll
  for (int j = 0; j < kTake; ++j) {
    const Gated of = gated<kOf>(gate[j]);
    gate[j] = of.factor;
    slope[j] = of.slope;
  }
}
NJ_DEVICE void gate_all(Taken& gate, Taken& slope, GateFunction function) {
  if (function == GateFunction::silu) {
    gate_all<GateFunction::silu>(gate, slope);
  } else if (function == GateFunction::sigmoid) {
    gate_all<GateFunction::sigmoid>(gate, slope);
  } else if (function == GateFunction::tanh) {
    gate_all<GateFunction::tanh>(gate, slope);
  } else {
    gate_all<GateFunction::none>(gate, slope);
  }
}

// What is worked out of a lane's elements of a row, with the names of op/gradients.cuh.
struct Worked {
  Taken x, n, a, d, da, g;
  Taken factor, slope;  // of the gate, where there is one
};
template <hw::Cache kCache>
NJ_DEVICE void work_out(Worked& of, const Operands& on, const RowInputs& row, long long dy_begin,
                        const RuntimeSpec& spec, const RowStatistics& statistics, long long at,
                        long long left) {
  take<kCache>(of.x, row.x, spec.input, row.x_begin + at, left);
  take<kCache>(of.d, on.dy, spec.output, dy_begin + at, left);
  if (spec.gate_at != GateAt::none) {
    take<kCache>(of.factor, row.gate, spec.modulation, row.gate_begin + at, left);
    gate_all(of.factor, of.slope, spec.gate_function);
  }
  Taken weight, modulation;
#pragma unroll
  for (int j = 0; j < kTake; ++j) weight[j] = modulation[j] = 1;
  if (row.weight) take<hw::Cache::keep>(weight, row.weight, spec.weight, row.weight_begin + at, left);
  if (row.mod_scale) take_factor(modulation, row, spec, at, left);
  const bool before = spec.gate_at == GateAt::before;
#pragma unroll
  for (int j = 0; j < kTake; ++j) {
    if (spec.weight_offset) weight[j] += 1;
    of.n[j] = normalized(before ? of.x[j] * of.factor[j] : of.x[j], statistics);
    of.a[j] = of.n[j] * weight[j];
    of.d[j] *= static_cast<Acc>(spec.scale);
  }
  if (row.bias) add<hw::Cache::keep>(of.a, row.bias, spec.weight, row.bias_begin + at, left);
  if (spec.activation != Activation::none) {
    Taken argument;
#pragma unroll
    for (int j = 0; j < kTake; ++j) argument[j] = of.a[j] * modulation[j];
    add_shift(argument, row, spec, at, left);
    through_all(of.d, argument, spec.activation);
  }
#pragma unroll
  for (int j = 0; j < kTake; ++j) {
    of.da[j] = of.d[j] * modulation[j];
    if (spec.gate_at == GateAt::after) of.da[j] *= of.factor[j];
    of.g[j] = of.da[j] * weight[j];
  }
}

// ---- A row ----

// Sums over columns, in double: rows may be as long as they like.
struct RowProducts {
  double g, gn;
};
NJ_DEVICE RowProducts operator+(RowProducts a, RowProducts b) { return {a.g + b.g, a.gn + b.gn}; }
NJ_DEVICE RowProducts add_from(RowProducts sums, int lane_mask) {
  return {add_from(sums.g, lane_mask), add_from(sums.gn, lane_mask)};
}

// What dx of a row is made of: its statistics, and rstd times the means of g and of g * n.
struct RowGradient {
  RowStatistics statistics;
  Acc g, gn;
};

// What warps exchange about their parts of a row.
struct Exchanged {
  Moments moments[kWarps];
  SumOfSquares squares[kWarps];
  RowProducts products[kWarps];
};

// Learns it of a row, the columns of which are divided among the warps, or this warp's alone.
NJ_DEVICE RowGradient learn(const Operands& on, const RuntimeSpec& spec, const Division& own, long long row,
                            Exchanged& exchanged) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const long long begin = own.begin(warp), count = own(warp);
  const RowInputs of(on, row, begin, 1);
  RowStatistics statistics = {};
  if (on.saved_rstd) {
    if (on.saved_mean) statistics.mean = on.saved_mean[row];
    statistics.rstd = on.saved_rstd[row];
  } else {
    statistics = spec.is_rms ? statistics_of(of, spec, own, exchanged.squares)
                             : statistics_of(of, spec, own, exchanged.moments);
  }
  if (!on.dx) return {statistics, 0, 0};

  const long long dy_begin = begin_of(on.dy_rows, row) + begin;
  RowProducts sums = {0, 0};
#pragma unroll 1
  for (long long at = lane; at < count; at += kTake * kWarp) {
    Worked worked;
    work_out<hw::Cache::keep>(worked, on, of, dy_begin, spec, statistics, at, count - at);
    Pair taken = {0, 0};
#pragma unroll
    for (int j = 0; j < kTake; ++j)
      if (at + j * kWarp < count) taken = taken + Pair{worked.g[j], worked.g[j] * worked.n[j]};
    sums = sums + RowProducts{taken.a, taken.b};
  }
  sums = lanes_sum<kWarp>(sums);
  if (!own.alone) {
    if (lane == 0) exchanged.products[warp] = sums;
    hw::block_barrier();
    sums = lanes_sum<kWarps>(exchanged.products[lane % kWarps]);
  }
  const double g = spec.is_rms ? 0 : sums.g / spec.columns;
  return {statistics, statistics.rstd * static_cast<Acc>(g),
          statistics.rstd * static_cast<Acc>(sums.gn / spec.columns)};
}

// ---- Sums over rows ----

// Those of a launch, one behind the other in the workspace: a row for each part of each sum.
struct Sums {
  Acc* first;
  long long parts;
  int columns;

  NJ_METHOD Acc* of(int sum, long long part) const { return first + (sum * parts + part) * columns; }
};

// Adds a lane's elements to those of a part, or begins it.
NJ_DEVICE void add_to(Acc* part, Taken& of, bool begins, long long at, long long left) {
  if (!begins) {
    Taken before;
    take_as<hw::Cache::no_l1, Acc>(before, part, at, left, 1);
#pragma unroll
    for (int j = 0; j < kTake; ++j) of[j] += before[j];
  }
  put_as<Acc>(of, part, at, left, 1);
}

// The last block adds all parts of a sum, in their order.
NJ_DEVICE void add_parts(const Sums& sums, int sum, long long parts, void* to, DType dtype) {
  for (long long at = threadIdx.x / kWarp * (kTake * kWarp) + threadIdx.x % kWarp; at < sums.columns;
       at += kTake * kThreads) {
    const long long left = sums.columns - at;
    Taken total = {};
#pragma unroll 4
    for (long long part = 0; part < parts; ++part) {
      Taken of;
      take_as<hw::Cache::no_l1, Acc>(of, sums.of(sum, part), at, left, 1);
#pragma unroll
      for (int j = 0; j < kTake; ++j) total[j] += of[j];
    }
    put(total, to, dtype, at, left);
  }
}

// ---- Rows side by side ----

// The rows of a round: `count` of them, the first and the last perhaps of a group.
struct Round {
  long long first;
  int count;
  bool begins, begins_group, ends_group;  // begins: the block's first
};

// Writes what each of these rows has of some columns, and adds to the sums over rows.
NJ_DEVICE void write(const Operands& on, const RuntimeSpec& spec, const Round& round, bool sums_groups,
                     const RowGradient* known, const Sums& sums, long long at, long long left) {
  Taken dweight = {}, dbias = {}, dscale = {}, dshift = {};
#pragma unroll 1
  for (int r = 0; r < round.count; ++r) {
    const long long row = round.first + r;
    const RowGradient of_row = known[r];
    Worked of;
    work_out<hw::Cache::evict_first>(of, on, RowInputs(on, row, 0, 1), begin_of(on.dy_rows, row), spec,
                                     of_row.statistics, at, left);
    const bool before = spec.gate_at == GateAt::before;
    Taken scale;
    if (on.dx) {
      Taken dx, dgate;
#pragma unroll
      for (int j = 0; j < kTake; ++j)
        dx[j] = hw::fma(-of.n[j], of_row.gn, hw::fma(of.g[j], of_row.statistics.rstd, -of_row.g));
      if (on.dsum)
        add<hw::Cache::evict_first>(dx, on.dsum, spec.residual, begin_of(on.dsum_rows, row) + at, left);
      if (on.dgate) {
#pragma unroll
        for (int j = 0; j < kTake; ++j) {
          dgate[j] = (before ? dx[j] * of.x[j] : of.d[j] * of.a[j]) * of.slope[j];
          if (before) dx[j] *= of.factor[j];
        }
        put(dgate, on.dgate, spec.modulation, begin_of(on.dgate_rows, row) + at, left);
      }
      put(dx, on.dx, spec.input, begin_of(on.dx_rows, row) + at, left);
    }
#pragma unroll
    for (int j = 0; j < kTake; ++j) {
      scale[j] = of.d[j] * of.a[j];
      dweight[j] += of.da[j] * of.n[j];
      dbias[j] += of.da[j];
      dscale[j] += scale[j];
      dshift[j] += of.d[j];
    }
    if (sums_groups) continue;
    if (on.dmod_scale)
      put(scale, on.dmod_scale, spec.modulation, begin_of(on.dmod_scale_rows, row) + at, left);
    if (on.dmod_shift)
      put(of.d, on.dmod_shift, spec.modulation, begin_of(on.dmod_shift_rows, row) + at, left);
  }
  int sum = 0;
  if (on.dweight) add_to(sums.of(sum++, blockIdx.x), dweight, round.begins, at, left);
  if (on.dbias) add_to(sums.of(sum++, blockIdx.x), dbias, round.begins, at, left);
  if (!sums_groups) return;
  add_to(sums.of(sum++, blockIdx.x), dscale, round.begins_group, at, left);
  if (on.dmod_shift) add_to(sums.of(sum, blockIdx.x), dshift, round.begins_group, at, left);
  if (!round.ends_group) return;
  put(dscale, on.dmod_scale, spec.modulation, begin_of(on.dmod_scale_rows, round.first) + at, left);
  if (on.dmod_shift)
    put(dshift, on.dmod_shift, spec.modulation, begin_of(on.dmod_shift_rows, round.first) + at, left);
}

NJ_GENERIC_KERNEL(NJ_ENTRY, kThreads) {
  NJ_SHARED(Exchanged, exchanged, 2);
  NJ_SHARED(RowGradient, known, 2 * kWarps);
  NJ_SHARED(bool, is_last, 1);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Division own(spec.columns, kWarp);
  const int rows = own.alone ? kWarps : 1;  // of a round
  // Blocks take groups in turn, or rounds.
  const bool sums_groups = on.dmod_scale && on.dmod_scale_rows.inner == 0;
  const long long group = sums_groups ? on.dmod_scale_rows.n : rows;
  const long long groups = (on.rows + group - 1) / group;
  Sums sums = {nullptr, gridDim.x, spec.columns};
  if (on.workspace) sums.first = reinterpret_cast<Acc*>(&meeting_in(on.workspace) + 1);

  hw::wait_for_previous_launch();
  hw::allow_next_launch();
  int half = 0;  // double-buffered, as in block_row
  for (long long number = blockIdx.x; number < groups; number += gridDim.x) {
    const long long begin = number * group, end = begin + group < on.rows ? begin + group : on.rows;
    for (long long first = begin; first < end; first += rows) {
      const int count = end - first < rows ? static_cast<int>(end - first) : rows;
      const int row = own.alone ? warp : 0;
      if (row < count) {
        const RowGradient learned = learn(on, spec, own, first + row, exchanged[half]);
        if (lane == 0 && (own.alone || warp == 0)) known[half * kWarps + row] = learned;
      }
      hw::block_barrier();
      const Round round = {first, count, number == blockIdx.x && first == begin, first == begin,
                           first + count == end};
#pragma unroll 1
      for (long long at = warp * (kTake * kWarp) + lane; at < spec.columns; at += kTake * kThreads)
        write(on, spec, round, sums_groups, known + half * kWarps, sums, at, spec.columns - at);
      half ^= 1;
    }
  }

  if (!on.dweight && !on.dbias) return;
  hw::block_barrier();
  Header& header = meeting_in(on.workspace).header;
  if (threadIdx.x == 0) is_last[0] = leaves_last(header);
  hw::block_barrier();
  if (!is_last[0]) return;
  const long long parts = groups < sums.parts ? groups : sums.parts;
  if (on.dweight) add_parts(sums, 0, parts, on.dweight, spec.gradient);
  if (on.dbias) add_parts(sums, on.dweight ? 1 : 0, parts, on.dbias, spec.gradient);
  if (threadIdx.x == 0) header.finished_blocks = 0;
}

}  // namespace normjit
