// SPDX-License-Identifier: Apache-2.0
// Functions of one element: activations, and what a gate passes before it multiplies.
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
// for bf16, 2e-7 and 2^-18 for f16, 5e-8 for f32; the relative one holds above 1e-3. A residual behind may
// cancel most of the result, so that bf16 tells more apart, too. Gradients are summed, and have all terms.
enum : bool {
  kFewTerms = !kBackward && kSame<Output, BF16> && ResidualAt::chosen != ResidualAt::after,
  kMoreTerms = !kBackward && !kFewTerms && (kSame<Output, BF16> || kSame<Output, F16>)
};
NJ_DEVICE float log2_phi(float a) {
  if constexpr (kFewTerms) {
    constexpr float kTerms[] = {-1.0000682f,    -1.1499668f,   -4.6232745e-1f,
                                -4.9625982e-2f, 6.2586605e-3f, -3.6678836e-4f};
    return polynomial(kTerms, a);
  } else if constexpr (kMoreTerms) {
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
  if constexpr (kMoreTerms) {
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

// What a gate passes before it multiplies.
NJ_DEVICE float tanh_of(float v) { return tanhf(v); }
NJ_DEVICE double tanh_of(double v) { return tanh(v); }
template <GateFunction kOf>
NJ_DEVICE Acc through(Acc v) {
  if constexpr (kOf == GateFunction::silu) {
    return activate<Activation::silu>(v);
  } else if constexpr (kOf == GateFunction::sigmoid) {
    return logistic(Acc(1), v * Acc(1.4426950408889634));
  } else if constexpr (kOf == GateFunction::tanh) {
    return tanh_of(v);
  } else {
    return v;
  }
}
// The factor of an element of the gate, with that of its table.
NJ_DEVICE Acc gate_factor(Acc gate, Acc table) {
  return through<GateFunction::chosen>(kHasGateTable ? gate + table : gate);
}

}  // namespace normjit
