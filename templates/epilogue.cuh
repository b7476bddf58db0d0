// From a row in registers to y: normalize, affine, activation, scale, one rounding, store.
namespace normjit {

// The polynomial with these coefficients, from that of 1 on.
template <int kTerms>
NJ_DEVICE float polynomial(const float (&term)[kTerms], float x) {
  float value = term[kTerms - 1];
#pragma unroll
  for (int i = kTerms - 2; i >= 0; --i) value = value * x + term[i];
  return value;
}

// log2 of Phi(-a), a >= 0. It is smooth, so a short polynomial tells Phi down to where it no longer counts.
// It has as many terms as the output can tell apart: the error of a * Phi(-a) is at most 7e-6 and 2^-14 of it
// for bf16, 2e-7 and 2^-18 for f16, 5e-8 for f32; the relative one holds above 1e-3.
NJ_DEVICE float log2_phi(float a) {
  if constexpr (kSame<Output, BF16>) {
    constexpr float kTerms[] = {-1.0000682f,    -1.1499668f,   -4.6232745e-1f,
                                -4.9625982e-2f, 6.2586605e-3f, -3.6678836e-4f};
    return polynomial(kTerms, a);
  } else if constexpr (kSame<Output, F16>) {
    constexpr float kTerms[] = {-9.9999815e-1f, -1.1511732f,    -4.5879796e-1f, -5.3437173e-2f,
                                8.1248609e-3f,  -7.8846526e-4f, 3.5738576e-5f};
    return polynomial(kTerms, a);
  } else {
    constexpr float kTerms[] = {-9.9999923e-1f, -1.1511230f,    -4.5909894e-1f, -5.2774683e-2f, 7.420218e-3f,
                                -3.8564333e-4f, -9.0818445e-5f, 2.0559033e-5f,  -1.3476478e-6f};
    return polynomial(kTerms, a);
  }
}

// v * Phi(v) = max(v, 0) - |v| * Phi(-|v|), in 9 to 12 instructions; libdevice's erff takes about 27, which
// no longer hide behind the memory. v ends where Phi(-v) has long been 0, since infinity times 0 would be
// NaN. That is what minus infinity becomes, as in PyTorch; the polynomial of f16 grows again, and so must end
// below too.
NJ_DEVICE float gelu(float v) {
  constexpr float kEnd = 13;
  if constexpr (kSame<Output, F16>) {
    const float a = hw::min_nan(fabsf(v), kEnd), half = 0.5f * v;
    return (half + fabsf(half)) - a * hw::exp2_approx(log2_phi(a));
  } else {
    const float a = fabsf(hw::min_nan(v, kEnd));
    return hw::max_nan(v, 0.0f) - a * hw::exp2_approx(log2_phi(a));
  }
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

// v / (1 + 2^-u), where u has the factor log2(e) in it.
NJ_DEVICE float logistic(float v, float u) { return v * hw::rcp_approx(1.0f + hw::exp2_approx(-u)); }
NJ_DEVICE double logistic(double v, double u) { return v / (1.0 + exp2(-u)); }

template <Activation kOf>
NJ_DEVICE Acc activate(Acc v) {
  constexpr double kLog2E = 1.4426950408889634;
  if constexpr (kOf == Activation::relu) {
    return hw::max_nan(v, Acc(0));
  } else if constexpr (kOf == Activation::gelu) {
    return gelu(v);
  } else if constexpr (kOf == Activation::gelu_tanh) {
    // 0.5 * (1 + tanh(u)) = 1 / (1 + exp(-2u)), u = sqrt(2/pi) * (v + 0.044715 v^3)
    constexpr double kFirst = 1.5957691216057308 * kLog2E, kThird = 0.0713548162726009 * kLog2E;
    return logistic(v, v * (Acc(kFirst) + Acc(kThird) * (v * v)));
  } else if constexpr (kOf == Activation::silu) {
    return logistic(v, v * Acc(kLog2E));
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
  if constexpr (kHasWeight) affine.weight = load<hw::Cache::keep>(at(weight, k, lane));
  if constexpr (kHasBias) affine.bias = load<hw::Cache::keep>(at(bias, k, lane));
  return affine;
}

NJ_DEVICE Acc normalized(Acc x, const RowStatistics& s) {
  return (x - s.mean) * s.rstd + -s.mean_lo * s.rstd;
}

// An element of y from one of x; weight and bias are not looked at where there are none.
NJ_DEVICE Output finish(Acc x, const RowStatistics& s, Acc weight, Acc bias) {
  Acc v = normalized(x, s);
  if constexpr (kHasWeight) v *= weight;
  if constexpr (kHasBias) v += bias;
  v = activate<Activation::chosen>(v);
  if constexpr (kScale<Acc> != Acc(1)) v *= kScale<Acc>;
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
    if constexpr (kHasWeight) hw::opaque(held.weight);
    if constexpr (kHasBias) hw::opaque(held.bias);
  }
  return held;
}

// Weight and bias of a slice. A thread with few vectors loads them together with x, so that they have arrived
// when the statistics are known; longer slices load them as they are used, which saves registers. With few
// threads, few are what leaves as many for x, weight and bias together as for the rest: 128 x 5120 f16 with
// three vectors a thread 2.96 us, 3.11 us as they are used.
enum : int { kVectorWords = kVector * (sizeof(Input) + 2 * sizeof(Weight)) / 4 };
enum : bool {
  kEarlyAffine = (kPerThread <= 2 || (kLowOccupancy && kPerThread * kVectorWords <= 64)) && !kUnaligned
};
struct AffineFragment {
  Affine part[kEarlyAffine ? kPerThread : 1];
};

NJ_DEVICE void load_early(AffineFragment& affine, const Weight* weight, const Weight* bias, int lane,
                          const Cut& cut) {
  if constexpr (kEarlyAffine) {
#pragma unroll
    for (int k = 0; k < kPerThread; ++k)
      if (inside(k, lane, cut)) affine.part[k] = load_affine(weight, bias, k, lane);
  }
}

// A slice, whose row or chunk begins at weight, bias and y.
NJ_DEVICE void apply(const Fragment& slice, const RowStatistics& s, const AffineFragment& early,
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
