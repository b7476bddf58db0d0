// From a row in registers to y: normalize, affine, activation, scale, one rounding, store.
namespace normjit {

// v * Phi(v) = max(v, 0) - |v| / 2 * erfc(z), z = |v| / sqrt(2), in about 16 instructions: with t = 1 / (1 +
// 0.3275911 z), erfc(z) is a polynomial in t times exp(-z^2) (Abramowitz and Stegun 7.1.26, absolute
// error 1.5e-7). libdevice's erff takes about 27, which no longer hides behind the memory.
NJ_DEVICE float gelu(float v) {
  // |v| / 64, clamped where erfc has long been 0, since infinity times 0 would be NaN. 4,194,304 x 64 on an
  // H200: 517 us so, 524 us with fminf, 507 us without.
  const float s = hw::mul_saturated(fabsf(v), 1.0f / 64);
  const float t = hw::rcp_approx(1.0f + 14.825081f * s);
  const float e = hw::exp2_approx(5.0f - 2954.6394f * s * s);  // 32 exp(-z^2)
  const float p =
      (((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f;
  const float half = 0.5f * v;
  return (half + fabsf(half)) - s * e * (p * t);
}

// With a copy of erfc for each element of a narrower input, the compiler no longer unrolls the loops around
// it and a slice lands in local memory, so erfc is called there. A slice of f64 stays in registers, and calls
// cost 7 % (831 to 891 us for 16,384 x 4096 on an H200).
NJ_DEVICE double inlined_gelu(double v) { return 0.5 * v * erfc(-0.70710678118654752440 * v); }
NJ_CALLED double called_gelu(double v) { return inlined_gelu(v); }
NJ_DEVICE double gelu(double v) {
  if constexpr (kSame<Input, double>) {
    return inlined_gelu(v);
  } else {
    return called_gelu(v);
  }
}

// v / (1 + exp(-u)).
NJ_DEVICE float logistic(float v, float u) {
  return v * hw::rcp_approx(1.0f + hw::exp2_approx(-1.4426950408889634f * u));
}
NJ_DEVICE double logistic(double v, double u) { return v / (1.0 + exp(-u)); }

NJ_DEVICE Acc activate(Acc v) {
  if constexpr (kActivation == Activation::relu) {
    return v < 0 ? Acc(0) : v;
  } else if constexpr (kActivation == Activation::gelu) {
    return gelu(v);
  } else if constexpr (kActivation == Activation::gelu_tanh) {
    // 0.5 * (1 + tanh(u)) = 1 / (1 + exp(-2u)), u = sqrt(2/pi) * (v + 0.044715 v^3)
    return logistic(v, v * (Acc(1.5957691216057308) + Acc(0.0713548162726009) * v * v));
  } else if constexpr (kActivation == Activation::silu) {
    return logistic(v, v);
  } else {
    return v;
  }
}

// Weight and bias of one vector.
struct Affine {
  Vec<Weight> weight, bias;
};

// Of vector k of a lane.
NJ_DEVICE Affine load_affine(const Weight* weight, const Weight* bias, int k, int lane) {
  Affine affine;
  if constexpr (kHasWeight) affine.weight = load<hw::Keep::always>(at(weight, k, lane));
  if constexpr (kHasBias) affine.bias = load<hw::Keep::always>(at(bias, k, lane));
  return affine;
}

// An element of y from one of x; weight and bias are not looked at where there are none.
NJ_DEVICE Output finish(Acc x, const RowStatistics& s, Acc weight, Acc bias) {
  Acc v = (x - s.mean) * s.rstd + -s.rest * s.rstd;
  if constexpr (kHasWeight) v *= weight;
  if constexpr (kHasBias) v += bias;
  v = activate(v);
  if constexpr (kScale != Acc(1)) v *= kScale;
  return narrow<Output>(v);
}
NJ_DEVICE Vec<Output> finish(const Vec<Input>& x, const RowStatistics& s, const Affine& affine) {
  Vec<Output> y;
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    y.at[i] = finish(widen(x, i), s, widen(affine.weight, i), widen(affine.bias, i));
  return y;
}

// Held from row to row, as it was loaded: the compiler shall not hold it converted, which takes more
// registers.
NJ_DEVICE Affine unconverted(Affine held) {
  if constexpr (!kSame<Weight, Acc>) {
    if constexpr (kHasWeight) hw::forget(held.weight);
    if constexpr (kHasBias) hw::forget(held.bias);
  }
  return held;
}

// Weight and bias of a slice. A thread with one or two vectors loads them together with x, so that they have
// arrived when the statistics are known; longer slices load them as they are used, which saves registers.
constexpr bool kEarlyAffine = kPerThread <= 2 && !kShifted;
struct AffineSlice {
  Affine part[kEarlyAffine ? kPerThread : 1];
};

NJ_DEVICE void load_early(AffineSlice& affine, const Weight* weight, const Weight* bias, int lane,
                          const Cut& cut) {
  if constexpr (kEarlyAffine) {
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut)) affine.part[k] = load_affine(weight, bias, k, lane);
  }
}

// A slice, whose row or chunk begins at weight, bias and y.
NJ_DEVICE void apply(const Slice& slice, const RowStatistics& s, const AffineSlice& early,
                     const Weight* weight, const Weight* bias, Output* y, int lane, const Cut& cut) {
  Output* const first = first_of(y, lane);
  Affine next;
  if (!kEarlyAffine && inside(0, lane, cut)) next = load_affine(weight, bias, 0, lane);
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    Affine affine = kEarlyAffine ? unconverted(early.part[kEarlyAffine ? k : 0]) : next;
    if (!kEarlyAffine && k + 1 < kPerThread && inside(k + 1, lane, cut))
      next = load_affine(weight, bias, k + 1, lane);
    if (inside(k, lane, cut)) store(at(first, k, 0), finish(slice.part[k], s, affine));
  }
}

}  // namespace normjit
