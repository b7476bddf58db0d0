// SPDX-License-Identifier: Apache-2.0
// Functions of one element: activations, and what a gate passes before it multiplies.
namespace normjit {

// The polynomial with these coefficients, from that of 1 on.
template <class T, int kTerms>
NJ_DEVICE T polynomial(const T (&term)[kTerms], T x) {
  T value = term[kTerms - 1];
#pragma unroll
  for (int i = kTerms - 2; i >= 0; --i) value = hw::fma(value, x, term[i]);
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

// The same in double, to 4 ulp of the result, small results included, in some 55 instructions of f64. With
// libdevice's erfc it takes twice as many, and a small result is off by up to 1700 ulp, since v / sqrt(2) was
// rounded. Phi(-a) is exp(-a^2 / 2) times a smooth ratio, which falls like 1 / a. Both are made of b = a / 4,
// and a ends where Phi(-a) has long been 0. Phi has a factor until the last step, so that it stays a normal
// number.
enum : int { kEndOfTail = 39, kTailPower = 128 };
NJ_MATH double tail_unit() { return 0x1p-128; }  // 2^-kTailPower

// Phi(-a) / exp(-a^2 / 2) is u times a polynomial in u - 1/2, where u = 1 / (1 + b).
NJ_DEVICE double tail_ratio(double b) {
  constexpr double kTerms[] = {
      0.18882128260393788,   0.30394832098594604,    0.3871374007422195,     0.37304371591933083,
      0.24158629956266522,   0.06032151173148167,    -0.0556750777857209,    -0.05218619050498687,
      0.008534031905946387,  0.029580147676830454,   -0.0004884080662801572, -0.017994019695352345,
      0.0007321350567928944, 0.012124183360614315,   -0.0025609367313851376, -0.008371056390678372,
      0.0043279142892093244, 0.00513121979277657,    -0.005060084206832174,  -0.0021062529525882265,
      0.0038323360587813452, 0.00017778199724494633, -0.0012547078427596985};
  // A step of third order. What is missing of 1 is exact but for one rounding, since `about` is short.
  const double about = hw::rcp_approx(1.0 + b), missing = hw::fma(-about, b, 1.0 - about);
  const double u = hw::fma(about, hw::fma(missing, missing, missing), about);
  return u * polynomial(kTerms, hw::fma(-b, u, 0.5));
}

// factor * exp(-a^2 / 2) * 2^kTailPower; a factor of 0 becomes next to nothing. -a^2 / 2 is n * ln(2) + 8 * z
// with |z| <= ln(2) / 16, and the polynomial is (exp(8 * z) - 1) / z. A sum with kWhole is rounded to a whole
// number, n and kTailPower.
NJ_DEVICE double times_bell(double factor, double b) {
  constexpr double kTerms[] = {8.0,
                               32.000000000000036,
                               85.3333333333328,
                               170.66666666628643,
                               273.066666668784,
                               364.0888900264846,
                               416.1015844909738,
                               416.10019928011695,
                               369.8693623828847,
                               296.6348867838958,
                               215.19555357183654};
  constexpr double kWhole = 0x1.8p52 + kTailPower;
  constexpr double kEightOverLn2 = 11.541560327111707, kLn2OverEight = 0.08664339756999316,
                   kItsRest = 2.8988085173078744e-18;
  const double square = b * b, rest = hw::fma(b, b, -square);  // together exact
  const double power = hw::fma(square, -kEightOverLn2, kWhole), n = power - kWhole;
  const double z = hw::fma(n, -kItsRest, hw::fma(n, -kLn2OverEight, -square)) - rest;
  const double scaled = hw::times_power_of_2(factor, power);
  return hw::fma(scaled, z * polynomial(kTerms, z), scaled);
}

// With a copy of it for each element of a narrower input, the compiler no longer unrolls the loops around it
// and a slice lands in local memory, so it is called there. A slice of f64 stays in registers. Minus infinity
// becomes NaN, as above.
NJ_DEVICE double inlined_gelu(double v) {
  const double a = fabs(v);
  const bool ends = a > kEndOfTail, negative = v < 0;
  const double b = 0.25 * (ends ? kEndOfTail : a), unscaled = ends ? 0 : tail_unit();
  const double lower = times_bell(tail_ratio(b), b);  // Phi(-a)
  return v * (negative ? lower : hw::fma(-lower, unscaled, 1.0)) * (negative ? unscaled : 1.0);
}
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
