// Rows of every spec, with one text: columns, dtypes, epsilon, activation and scale come with the launch, and
// pointers that are null say what the spec does not have. It serves while a spec's own kernel is still to be
// compiled, or where there is no compiler.
//
// Why it is fast enough: all that is decided at run time is the same for all threads, and decided once for
// kTake elements of a lane, in front of loads that then follow each other. A warp has a row that fits into a
// chunk of kSpan columns; a longer row has a block, each warp a part of it. A chunk is read twice to be
// measured, the second time out of L1, and once more, out of L2, to be applied.
namespace normjit {

static_assert(kLanes == kWarp && kVector == 1, "the lanes of a warp take single elements");
static_assert(kSlices == 1 && !kShifted && kHasStatistics, "a block has a row");

enum class DType : unsigned char { f16, bf16, f32, f64 };

// What other kernels know of their spec before they run; src/normjit/service/prepared.h has the same.
struct RuntimeSpec {
  double epsilon, scale;
  int columns;
  Activation activation;
  DType input, output, weight;
};

// Elements that a lane takes at a time, every kWarp-th. The error function in double is long.
constexpr int kTake = kSame<Acc, double> ? 2 : 8;
using Taken = Acc[kTake];

// Calls act with a T of this dtype. In f32 there is no f64.
template <class Act>
NJ_DEVICE void with_type(DType dtype, const Act& act) {
  if (dtype == DType::f16) {
    act(F16{});
  } else if (dtype == DType::bf16) {
    act(BF16{});
  } else if (kSame<Acc, float> || dtype == DType::f32) {
    act(0.0f);
  } else {
    act(Acc(0));
  }
}

// A lane's next elements, the first of them at `from`; the row, or its part, has `left` columns from there
// on, at least one. In place of columns that it does not have comes the first again: no load stands behind a
// condition, and none is of a column that another lane may be writing.
template <hw::Keep kKeep, class T>
NJ_DEVICE void take(Taken& to, const T* from, long long left) {
#pragma unroll
  for (int j = 0; j < kTake; ++j)
    to[j] = widen(hw::load<kKeep, T>(from + (j * kWarp < left ? j * kWarp : 0)));
}
template <hw::Keep kKeep>
NJ_DEVICE void take(Taken& to, const void* tensor, DType dtype, long long at, long long left) {
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    take<kKeep>(to, static_cast<const T*>(tensor) + at, left);
  });
}
NJ_DEVICE void put(const Taken& from, void* tensor, DType dtype, long long at, long long left) {
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
#pragma unroll
    for (int j = 0; j < kTake; ++j)
      if (j * kWarp < left) hw::store(static_cast<T*>(tensor) + at + j * kWarp, narrow<T>(from[j]));
  });
}

// The elements that a lane has of a chunk of `count` columns.
template <class T>
struct ChunkElements {
  const T* from;
  int count, lane;

  template <class Take>
  NJ_METHOD void each(const Take& take_one) const {
#pragma unroll 1
    for (int at = lane; at < count; at += kTake * kWarp) {
      Taken taken;
      take<hw::Keep::always>(taken, from + at, count - at);
#pragma unroll
      for (int j = 0; j < kTake; ++j)
        if (at + j * kWarp < count) take_one(taken[j], 0);
    }
  }
};
template <class T>
NJ_DEVICE Moments chunk_moments(const T* from, long long left, int lane) {
  const int own = left < kSpan ? static_cast<int>(left) : kSpan;
  return moments_of<kWarp>(ChunkElements<T>{from, own, lane}, own > 0 ? own : 1);
}

// The moments of `count` columns, which a warp reads chunk by chunk. Chunks are merged as merge() does it,
// relative to the mean of the first, but in double: there may be a million of them.
template <class T>
NJ_DEVICE Moments measure(const T* from, long long count, int lane) {
  const Moments first = chunk_moments(from, count, lane);
  if (count <= kSpan) return first;
  const double base = first.mean;
  double distances = kSpan * static_cast<double>(first.rest), squares = first.m2 + distances * first.rest;
#pragma unroll 1
  for (long long begin = kSpan; begin < count; begin += kSpan) {
    const Moments m = chunk_moments(from + begin, count - begin, lane);
    const double own = count - begin < kSpan ? count - begin : kSpan;
    const double distance = (m.mean - base) + m.rest;
    distances += own * distance;
    squares += m.m2 + own * distance * distance;
  }
  const double rest = distances / count;
  const Acc mean = static_cast<Acc>(base + rest);
  return {mean, static_cast<Acc>((base - mean) + rest),
          hw::at_least(static_cast<Acc>(squares - distances * rest), Acc(0))};
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

NJ_GENERIC_KERNEL(generic, kThreads) {
  NJ_SHARED(Moments, parts, 2 * kWarps);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Acc share = Acc(1) / spec.columns, epsilon = static_cast<Acc>(spec.epsilon),
            scale = static_cast<Acc>(spec.scale);

  // Who has a row, and which columns of it warp i has.
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
  int half = 0;  // parts are written again only behind the barrier of the row between
  for (long long row = first; row < rows; row += step) {
    const long long x_begin = row * x_stride + begin, y_begin = row * y_stride + begin;
    Moments moments;
    with_type(spec.input, [&](auto zero) {
      using T = decltype(zero);
      moments = measure(static_cast<const T*>(static_cast<const void*>(x)) + x_begin, count, lane);
    });
    if (!alone) {
      if (lane == 0) parts[half + warp] = moments;
      hw::block_barrier();
      moments = merge<kWarps>([&](int i) { return parts[half + i]; }, own, spec.columns);
      half ^= kWarps;
    }
    const RowStatistics statistics = row_statistics(moments, share, epsilon);

#pragma unroll 1
    for (long long at = lane; at < count; at += kTake * kWarp) {
      const long long left = count - at;
      Taken v, weights, biases;
      take<hw::Keep::once>(v, x, spec.input, x_begin + at, left);
      if (weight) take<hw::Keep::always>(weights, weight, spec.weight, begin + at, left);
      if (bias) take<hw::Keep::always>(biases, bias, spec.weight, begin + at, left);
#pragma unroll
      for (int j = 0; j < kTake; ++j) {
        v[j] = normalized(v[j], statistics);
        if (weight) v[j] *= weights[j];
        if (bias) v[j] += biases[j];
      }
      activate_all(v, spec.activation);
#pragma unroll
      for (int j = 0; j < kTake; ++j) v[j] *= scale;
      put(v, y, spec.output, y_begin + at, left);
    }
    if (mean_out && lane == 0 && begin == 0) store(statistics, mean_out, rstd_out, row);
  }
}

}  // namespace normjit
