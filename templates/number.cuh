// SPDX-License-Identifier: Apache-2.0
// Storage types and vectors of them. Arithmetic is always in Acc; a value is widened as it is used and
// rounded once, as it is stored.
namespace normjit {

struct F16 {
  unsigned short bits;
};
struct BF16 {
  unsigned short bits;
};

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

template <bool kFirst, class A, class B>
struct Choose {
  using Type = A;
};
template <class A, class B>
struct Choose<false, A, B> {
  using Type = B;
};
template <bool kFirst, class A, class B>
using Choice = typename Choose<kFirst, A, B>::Type;

NJ_DEVICE Acc widen(F16 value) { return hw::f16_to_f32(value.bits); }
NJ_DEVICE Acc widen(BF16 value) { return hw::bf16_to_f32(value.bits); }
NJ_DEVICE Acc widen(float value) { return value; }
NJ_DEVICE Acc widen(double value) { return static_cast<Acc>(value); }

// To the nearest T, ties to even.
template <class T>
NJ_DEVICE T narrow(Acc value) {
  if constexpr (kSame<T, F16>) {
    return {hw::f32_to_f16(hw::round_to_odd(value))};
  } else if constexpr (kSame<T, BF16>) {
    return {hw::f32_to_bf16(hw::round_to_odd(value))};
  } else {
    return static_cast<T>(value);
  }
}

// kVector neighbours of a row, moved in one access where they fit in 16 bytes.
template <class T>
struct Vec {
  T at[kVector];
};

// Element i of a vector. Two bf16 are widened from their word by an instruction each; cut out of it first,
// every second one took two.
template <class T>
NJ_DEVICE Acc widen(const Vec<T>& value, int i) {
  if constexpr (kSame<T, BF16> && kVector % 2 == 0) {
    unsigned pair;
    memcpy(&pair, value.at + i / 2 * 2, sizeof pair);
    return i % 2 == 0 ? hw::bf16_to_f32(pair) : hw::high_bf16_to_f32(pair);
  } else {
    return widen(value.at[i]);
  }
}

template <hw::Cache kCache, class T>
NJ_DEVICE Vec<T> load(const T* from) {
  return hw::load<kCache, Vec<T>>(from);
}
template <class T>
NJ_DEVICE void store(T* to, const Vec<T>& value) {
  hw::store(to, value);
}

}  // namespace normjit
