// SPDX-License-Identifier: Apache-2.0
// Derivatives of the functions of one element, with backward specs.
namespace normjit {

// Behind the ends each derivative has long been 0 or 1: an infinity would be multiplied by 0 there. NaN
// stays.
NJ_DEVICE float within_ends(float v) { return hw::max_nan(hw::min_nan(v, 1000.0f), -1000.0f); }
NJ_DEVICE double within_ends(double v) { return v < -1000.0 ? -1000.0 : v > 1000.0 ? 1000.0 : v; }

// (v * Phi(v))' = Phi(v) + v * phi(v), and that of -v is 1 minus that of v. phi is the density of the normal
// distribution.
NJ_DEVICE float gelu_derivative(float v) {
  constexpr float kDensity = -1.3257480647f;   // log2 of 1 / sqrt(2 pi)
  constexpr float kExponent = -0.7213475204f;  // -log2(e) / 2
  const float a = hw::min_nan(fabsf(v), 1000.0f);
  const float lower = hw::exp2_approx(log2_phi(a)) - a * hw::exp2_approx(kExponent * a * a + kDensity);
  return v < 0 ? lower : 1.0f - lower;
}
NJ_CALLED double gelu_derivative(double v) {
  constexpr double kDensity = 4 * 0.39894228040143267794;  // of b: 4 / sqrt(2 pi)
  const double a = fabs(v);
  const double b = 0.25 * (a > kEndOfTail ? kEndOfTail : a);
  const double lower = times_bell(tail_ratio(b) - kDensity * b, b) * tail_unit();
  return v < 0 ? lower : 1.0 - lower;
}

// (v * s(u))' = s + v * s * (1 - s) * u', of the logistic function s and u = u(v).
NJ_DEVICE Acc logistic_derivative(Acc v, Acc s, Acc slope) { return s + v * s * ((Acc(1) - s) * slope); }

template <Activation kOf>
NJ_DEVICE Acc derivative(Acc v) {
  constexpr double kLog2E = 1.4426950408889634;
  if constexpr (kOf == Activation::gelu) {
    return gelu_derivative(v);
  } else if constexpr (kOf == Activation::gelu_tanh) {
    constexpr double kFirst = 1.5957691216057308, kThird = 0.0713548162726009;  // as activate()
    const Acc a = within_ends(v), square = a * a;
    const Acc s = logistic(Acc(1), a * (Acc(kFirst * kLog2E) + Acc(kThird * kLog2E) * square));
    return logistic_derivative(a, s, Acc(kFirst) + Acc(3 * kThird) * square);
  } else {
    const Acc a = within_ends(v);
    return logistic_derivative(a, logistic(Acc(1), a * Acc(kLog2E)), Acc(1));
  }
}

// The gradient of v from that of the activation of v.
template <Activation kOf>
NJ_DEVICE Acc gradient_through(Acc gradient, Acc v) {
  if constexpr (kOf == Activation::none) {
    return gradient;
  } else if constexpr (kOf == Activation::relu) {
    return v > 0 ? gradient : v <= 0 ? Acc(0) : v;  // which is NaN
  } else {
    return gradient * derivative<kOf>(v);
  }
}

// What a gate multiplies by, and how that changes with the gate.
struct Gated {
  Acc factor, slope;
};
template <GateFunction kOf>
NJ_DEVICE Gated gated(Acc v) {
  if constexpr (kOf == GateFunction::silu) {
    const Acc s = logistic(Acc(1), v * Acc(1.4426950408889634));
    return {v * s, logistic_derivative(within_ends(v), s, Acc(1))};
  } else if constexpr (kOf == GateFunction::sigmoid) {
    const Acc s = through<GateFunction::sigmoid>(v);
    return {s, s * (Acc(1) - s)};
  } else if constexpr (kOf == GateFunction::tanh) {
    const Acc t = through<GateFunction::tanh>(v);
    return {t, Acc(1) - t * t};
  } else {
    return {v, Acc(1)};
  }
}

}  // namespace normjit
