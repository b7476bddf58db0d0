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
struct E4M3 {
  unsigned char bits;
};
struct E5M2 {
  unsigned char bits;
};
struct S8 {
  unsigned char bits;
};
struct E2M1 {
  unsigned char bits;  // of two columns, the even one in the lower half
};

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

// Columns in an element of a type.
template <class T>
constexpr int kColumnsIn = kSame<T, E2M1> ? 2 : 1;

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

// The bits of a number.
NJ_DEVICE unsigned bits_of(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
NJ_DEVICE float float_of(unsigned bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

NJ_DEVICE unsigned smaller(unsigned a, unsigned b) { return a < b ? a : b; }

// Bits of mantissa of a floating-point type of 8 bits; 0 of others.
template <class T>
constexpr int kMantissa = kSame<T, E4M3>   ? 3
                          : kSame<T, E5M2> ? 2
                                           : 0;

// To such a type, in integers: numbers that are too large become the largest one. Its exponents are fewer:
// the bits of a normal number move down, those that are lost round them, and the bias of the exponent
// changes. Adding to a power of two rounds what is below the last bit of a subnormal one.
template <class T>
NJ_DEVICE unsigned to_small_float(float value) {
  constexpr int kLost = 23 - kMantissa<T>, kExponents = 1 << (7 - kMantissa<T>);
  constexpr unsigned kBias = 128 - kExponents / 2;  // of f32, less that of T
  constexpr unsigned kMagic = (kBias + kLost + 1) << 23;
  constexpr unsigned kLargest = kSame<T, E4M3> ? 0x7e : 0x7b;
  const unsigned bits = bits_of(value), size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return 0x7f;  // NaN
  unsigned code;
  if (size < (kBias + 1) << 23) {
    code = bits_of(fabsf(value) + float_of(kMagic)) - kMagic;
  } else {
    code = ((size + ((1u << (kLost - 1)) - 1) + (size >> kLost & 1)) >> kLost) - (kBias << kMantissa<T>);
  }
  return smaller(code, kLargest) | bits >> 24 & 0x80;
}

// To e2m1: its code in the last bits. Below 2 its numbers are 0.5 apart, below 4 they are 1 apart, then 2. A
// sum beyond 2^23 is a whole number, so each of three sums has the code by one of these distances; the least
// is right. As whole numbers NaN is above all; it becomes the largest number.
NJ_DEVICE unsigned to_e2m1(float value) {
  constexpr float kZero = 0x1p23f + 4;
  const float size = fabsf(value), twice = size + size;
  const unsigned halves = bits_of(twice + kZero), ones = bits_of(size + (kZero + 2)),
                 twos = bits_of(hw::fma(twice, 0.25f, kZero + 4));
  const unsigned code = smaller(smaller(smaller(halves, ones), twos), bits_of(kZero + 7));
  return bits_of(float_of(code) - hw::with_sign_of(4, value));  // 8 more if it is negative
}

// Of an e4m3 that is not negative. Its exponent and mantissa are in the places of those of an f32, which
// counts exponents from another number on.
NJ_DEVICE float e4m3_to_f32(unsigned char bits) {
  const unsigned moved = bits == 0x7f ? 0x7fffffffu : static_cast<unsigned>(bits) << 20;  // NaN stays
  return float_of(moved) * 0x1p120f;
}

// Two at a time, the first in the low half, E2M1 in one byte: an instruction where there is one.
enum : bool { kConvertsFloat8 = kArch >= hw::kConvertsFloat8From };
enum : bool { kConvertsFloat4 = kArch >= hw::kConvertsFloat4From };
template <class T>
NJ_DEVICE unsigned short narrow_pair(float first, float second) {
  if constexpr (kSame<T, S8>) {
    return hw::f32x2_to_s8x2(first, second);
  } else if constexpr (kSame<T, E2M1>) {
    if constexpr (kConvertsFloat4) return hw::f32x2_to_e2m1x2(first, second);
    return static_cast<unsigned short>(to_e2m1(first) + (to_e2m1(second) << 4));
  } else if constexpr (!kConvertsFloat8) {
    return static_cast<unsigned short>(to_small_float<T>(first) | to_small_float<T>(second) << 8);
  } else if constexpr (kSame<T, E4M3>) {
    return hw::f32x2_to_e4m3x2(first, second);
  } else {
    return hw::f32x2_to_e5m2x2(first, second);
  }
}

// To the nearest T, ties to even. Of 8 and 4 bits the largest number stands for all that are beyond it.
template <class T>
NJ_DEVICE T narrow(Acc value) {
  if constexpr (kSame<T, F16>) {
    return {hw::f32_to_f16(hw::round_to_odd(value))};
  } else if constexpr (kSame<T, BF16>) {
    return {hw::f32_to_bf16(hw::round_to_odd(value))};
  } else if constexpr (sizeof(T) == 1) {
    return {static_cast<unsigned char>(narrow_pair<T>(value, 0))};
  } else {
    return static_cast<T>(value);
  }
}

// kVector neighbours of a row, moved in one access where they fit in 16 bytes.
template <class T>
struct Vec {
  T at[kVector / kColumnsIn<T>];
};

// Element i of several. Two bf16 are widened from their word by an instruction each; cut out of it first,
// every second one took two.
template <class T, int kCount>
NJ_DEVICE Acc widen(const T (&values)[kCount], int i) {
  if constexpr (kSame<T, BF16> && kCount % 2 == 0) {
    unsigned pair;
    memcpy(&pair, values + i / 2 * 2, sizeof pair);
    return i % 2 == 0 ? hw::bf16_to_f32(pair) : hw::high_bf16_to_f32(pair);
  } else {
    return widen(values[i]);
  }
}
template <class T>
NJ_DEVICE Acc widen(const Vec<T>& value, int i) {
  return widen(value.at, i);
}

// A vector of results, which are narrowed one after the other; those of 4 bits in pairs. Those of 8 bits four
// at a time: byte by byte they took three times the instructions.
template <class T>
struct Narrowed {
  Vec<T> all;
  Acc four[4];

  NJ_METHOD void set(int i, Acc value) {
    if constexpr (kSame<T, E2M1>) {
      four[i % 2] = value;
      if (i % 2 > 0) all.at[i / 2] = {static_cast<unsigned char>(narrow_pair<T>(four[0], value))};
    } else if constexpr (sizeof(T) == 1 && kVector % 4 == 0) {
      four[i % 4] = value;
      if (i % 4 < 3) return;
      const unsigned word = hw::word_of(narrow_pair<T>(four[0], four[1]), narrow_pair<T>(four[2], four[3]));
      memcpy(all.at + i - 3, &word, sizeof word);
    } else {
      all.at[i] = narrow<T>(value);
    }
  }
};

template <hw::Cache kCache, class T>
NJ_DEVICE Vec<T> load(const T* from) {
  return hw::load<kCache, Vec<T>>(from);
}
template <class T>
NJ_DEVICE void store(T* to, const Vec<T>& value) {
  hw::store(to, value);
}

}  // namespace normjit
