// SPDX-License-Identifier: Apache-2.0
// One kernel for every spec: columns, dtypes, epsilon, activation and scale are launch arguments, and a
// null pointer is an absent operand. It serves while a spec's own kernel is being compiled, or without a
// compiler.
// Why it is fast enough: run-time decisions are uniform over all threads, and made once for kTake elements
// of a lane, before their loads. A warp takes a row of up to kSpan columns; a block takes a longer row,
// each warp a part of it. A chunk is read three times: twice to be measured, the second time from L1, and
// once to be written, from L2.
namespace normjit {

static_assert(kThreadsPerRow == kWarp && kVector == 1, "the lanes of a warp take single elements");
static_assert(kBlocksPerRow == 1 && !kUnaligned && kHasStatistics, "a block has a row");

enum class DType : unsigned char { f16, bf16, f32, f64 };

// The spec, which is a constant in other kernels. src/normjit/service/prepared.h has the same structure.
struct RuntimeSpec {
  double epsilon, scale;
  int columns;
  Activation activation;
  DType input, output, weight;
};

// Elements that a lane takes at a time, each kWarp apart. In double fewer: the error function is long.
enum : int { kTake = kSame<Acc, double> ? 2 : 4 };
using Taken = Acc[kTake];

// In f32 there is no f64.
NJ_DEVICE bool is_f32(DType dtype) { return kSame<Acc, float> || dtype == DType::f32; }

// A lane's next elements of a row of this dtype, the first of them number `at`, in a part of it that has
// `left` columns from there on, at least one. In place of columns that are not there comes the first again:
// no load stands behind a condition, and none is of a column that another lane may be writing.
template <hw::Cache kCache, class T>
NJ_DEVICE void take_as(Taken& to, const void* row, long long at, long long left) {
  const T* const from = static_cast<const T*>(row) + at;
#pragma unroll
  for (int j = 0; j < kTake; ++j)
    to[j] = widen(hw::load<kCache, T>(from + (j * kWarp < left ? j * kWarp : 0)));
}
template <hw::Cache kCache>
NJ_DEVICE void take(Taken& to, const void* row, DType dtype, long long at, long long left) {
  if (dtype == DType::f16) {
    take_as<kCache, F16>(to, row, at, left);
  } else if (dtype == DType::bf16) {
    take_as<kCache, BF16>(to, row, at, left);
  } else if (is_f32(dtype)) {
    take_as<kCache, float>(to, row, at, left);
  } else {
    take_as<kCache, Acc>(to, row, at, left);
  }
}

// The same elements back to a row.
template <class T>
NJ_DEVICE void put_as(const Taken& from, void* row, long long at, long long left) {
  T* const to = static_cast<T*>(row) + at;
#pragma unroll
  for (int j = 0; j < kTake; ++j)
    if (j * kWarp < left) hw::store(to + j * kWarp, narrow<T>(from[j]));
}
NJ_DEVICE void put(const Taken& from, void* row, DType dtype, long long at, long long left) {
  if (dtype == DType::f16) {
    put_as<F16>(from, row, at, left);
  } else if (dtype == DType::bf16) {
    put_as<BF16>(from, row, at, left);
  } else if (is_f32(dtype)) {
    put_as<float>(from, row, at, left);
  } else {
    put_as<Acc>(from, row, at, left);
  }
}

// The elements that a lane has of a chunk: `count` columns of x from number `begin` on.
struct ChunkElements {
  const void* x;
  DType dtype;
  long long begin;
  int count, lane;

  template <class Act>
  NJ_METHOD void each(const Act& act) const {
#pragma unroll 1
    for (int at = lane; at < count; at += kTake * kWarp) {
      Taken taken;
      take<hw::Cache::keep>(taken, x, dtype, begin + at, count - at);
#pragma unroll
      for (int j = 0; j < kTake; ++j)
        if (at + j * kWarp < count) act(taken[j], 0);
    }
  }
};

// The statistics of `count` columns of x from number `begin` on, which a warp reads chunk by chunk.
NJ_DEVICE Statistics measure(const void* x, DType dtype, long long begin, long long count, int lane) {
  WideSums sums = {0, 0};
  double base = 0;
  long long done = 0;
  do {
    const int own = count - done < kSpan ? static_cast<int>(count - done) : kSpan;
    const Statistics part =
        Statistics::of<kWarp>(ChunkElements{x, dtype, begin + done, own, lane}, own > 0 ? own : 1);
    if (count <= kSpan) return part;
    if (done == 0) base = part.mean;
    sums = sums + part.widened(own, base);
    done += own;
  } while (done < count);
  return Statistics::from(sums, base, count);
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

NJ_GENERIC_KERNEL(NJ_ENTRY, kThreads) {
  NJ_SHARED(Statistics, parts, 2 * kWarps);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Acc share = Acc(1) / spec.columns, epsilon = static_cast<Acc>(spec.epsilon),
            scale = static_cast<Acc>(spec.scale);

  // Whether a warp has a row alone, and the columns of warp i otherwise.
  const bool alone = spec.columns <= kSpan;
  const long long most = alone ? spec.columns : ((spec.columns - 1) / kThreads + 1LL) * kWarp;
  const auto own = [&](int i) {
    const long long left = spec.columns - i * most;
    return left < 0 ? 0 : left < most ? left : most;
  };
  const long long begin = alone ? 0 : warp * most, count = alone ? most : own(warp);
  const long long first = alone ? static_cast<long long>(blockIdx.x) * kWarps + warp : blockIdx.x;
  const long long step = alone ? static_cast<long long>(gridDim.x) * kWarps : gridDim.x;

  hw::wait_for_previous_launch();
  hw::allow_next_launch();
  int half = 0;  // double-buffered, as in block_row
  for (long long row = first; row < on.rows; row += step) {
    const long long x_begin = row * on.x_stride + begin, y_begin = row * on.y_stride + begin;
    Statistics all = measure(on.x, spec.input, x_begin, count, lane);
    if (!alone) {
      if (lane == 0) parts[half + warp] = all;
      hw::block_barrier();
      all = Statistics::merge_all<kWarps>([&](int i) { return parts[half + i]; }, own, spec.columns);
      half ^= kWarps;
    }
    const RowStatistics statistics = all.finalize(share, epsilon);

#pragma unroll 1
    for (long long at = lane; at < count; at += kTake * kWarp) {
      const long long left = count - at;
      Taken v, weights, biases;
      take<hw::Cache::evict_first>(v, on.x, spec.input, x_begin + at, left);
      if (on.weight) take<hw::Cache::keep>(weights, on.weight, spec.weight, begin + at, left);
      if (on.bias) take<hw::Cache::keep>(biases, on.bias, spec.weight, begin + at, left);
#pragma unroll
      for (int j = 0; j < kTake; ++j) {
        v[j] = normalized(v[j], statistics);
        if (on.weight) v[j] *= weights[j];
        if (on.bias) v[j] += biases[j];
      }
      activate_all(v, spec.activation);
#pragma unroll
      for (int j = 0; j < kTake; ++j) v[j] *= scale;
      put(v, on.y, spec.output, y_begin + at, left);
    }
    if (on.rstd && lane == 0 && begin == 0) store(statistics, on, row);
  }
}

}  // namespace normjit
