// SPDX-License-Identifier: Apache-2.0
// The thin layer, host half: what templates/hw.cuh declares, for kernels that run on the CPU, and what else
// of CUDA C++ kernels use. Precedes the kernel texts in their translation unit.

// ---- CUDA C++ ----

extern "C" {
void* memcpy(void*, const void*, unsigned long);
double sqrt(double);
double exp2(double);
double tanh(double);
double fabs(double);
float tanhf(float);
float fabsf(float);
}

#define threadIdx (::normjit::simt::self().thread)
#define blockIdx (::normjit::simt::self().block)
#define blockDim (::normjit::simt::self().block_size)
#define gridDim (::normjit::simt::self().grid)

// ---- Declarations ----

#ifdef NJ_DEBUG  // each call is a frame in the debugger
#define NJ_DEVICE static
#define NJ_METHOD
#else
#define NJ_DEVICE static inline __attribute__((always_inline))
#define NJ_METHOD inline __attribute__((always_inline))
#endif
#define NJ_CALLED static
#define NJ_MATH constexpr
#define NJ_SHARED(T, name, n)       \
  static const char name##_key = 0; \
  T* const name = static_cast<T*>(  \
      ::normjit::simt::runtime.shared(&name##_key, sizeof(T) * (n), alignof(T), {__FILE__, __LINE__}))
#define NJ_DYNAMIC_SHARED(T, name) \
  T* const name = static_cast<T*>(::normjit::simt::runtime.dynamic_shared({__FILE__, __LINE__}))
#define NJ_KERNEL(name, threads) static void name(const Operands on)
#define NJ_GENERIC_KERNEL(name, threads) static void name(const Operands on, const RuntimeSpec spec)

namespace normjit::simt {

__attribute__((const)) static inline const Thread& self() { return *runtime.self(); }

// As a default argument: the place of the call.
constexpr Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return {file, line};
}

// The address of the call, for the executor's reports.
#define NJ_PC ::normjit::simt::pc()
__attribute__((noinline, no_sanitize("thread"), no_sanitize("address"))) static const void* pc() {
  return __builtin_return_address(0);
}

template <class To, class From>
NJ_DEVICE To bits(From from) {
  static_assert(sizeof(From) <= sizeof(To));
  To to{};
  __builtin_memcpy(&to, &from, sizeof from);
  return to;
}

// The type of a global access, which the compiler sees as one access of its size.
template <int kBytes>
struct Word;
template <>
struct Word<1> {
  typedef unsigned char Type;
};
template <>
struct Word<2> {
  typedef unsigned short Type __attribute__((may_alias));
};
template <>
struct Word<4> {
  typedef unsigned Type __attribute__((may_alias));
};
template <>
struct Word<8> {
  typedef unsigned long long Type __attribute__((may_alias));
};
template <>
struct Word<16> {
  typedef unsigned Type __attribute__((vector_size(16), may_alias));
};

template <int kBytes>
NJ_DEVICE void must_be_aligned(const void* at) {
  if (reinterpret_cast<unsigned long>(at) % kBytes != 0) runtime.misaligned(at, kBytes, NJ_PC);
}

}  // namespace normjit::simt

namespace normjit::hw {

// ---- Memory ----

enum class Cache { evict_first, no_l1, keep, evict_last };

union Piece {
  unsigned word[4];
  unsigned short half;
};

template <Cache kCache, int kBytes>
NJ_DEVICE Piece load_piece(const void* from) {
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes == 16);
  simt::must_be_aligned<kBytes>(from);
  const auto word = *static_cast<const typename simt::Word<kBytes>::Type*>(from);
  Piece to{};
  __builtin_memcpy(&to, &word, kBytes);
  return to;
}

template <int kBytes>
NJ_DEVICE void store_piece(void* to, const Piece& from) {
  simt::must_be_aligned<kBytes>(to);
  typename simt::Word<kBytes>::Type word;
  __builtin_memcpy(&word, &from, kBytes);
  *static_cast<typename simt::Word<kBytes>::Type*>(to) = word;
}

template <Cache kCache, class T>
NJ_DEVICE T load(const void* from) {
  constexpr int kBytes = sizeof(T) < 16 ? sizeof(T) : 16;
  T value;
  for (int at = 0; at < static_cast<int>(sizeof(T)); at += kBytes) {
    const Piece piece = load_piece<kCache, kBytes>(static_cast<const char*>(from) + at);
    __builtin_memcpy(reinterpret_cast<char*>(&value) + at, &piece, kBytes);
  }
  return value;
}

template <class T>
NJ_DEVICE void load_if(bool wanted, const void* from, T& to) {
  if (wanted) to = load<Cache::no_l1, T>(from);
}

template <class T>
NJ_DEVICE void store(void* to, const T& value) {
  constexpr int kBytes = sizeof(T) < 16 ? sizeof(T) : 16;
  for (int at = 0; at < static_cast<int>(sizeof(T)); at += kBytes) {
    Piece piece{};
    __builtin_memcpy(&piece, reinterpret_cast<const char*>(&value) + at, kBytes);
    store_piece<kBytes>(static_cast<char*>(to) + at, piece);
  }
}

template <class T>
NJ_DEVICE T load_shared(const void* from) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  return load<Cache::keep, T>(from);
}
template <class T>
NJ_DEVICE void store_shared(void* to, const T& value) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  store(to, value);
}

template <class T>
NJ_DEVICE void opaque(T&) {}

// ---- Lanes of a warp ----

constexpr unsigned kAllLanes = 0xffffffffu;

template <class T>
NJ_DEVICE T from_lane(T value, unsigned lane, unsigned members, simt::Place place) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  const auto got = simt::runtime.shuffle(simt::bits<unsigned long long>(value), lane, members, place);
  T result;
  __builtin_memcpy(&result, &got, sizeof result);
  return result;
}

template <class T>
NJ_DEVICE T shuffle(T value, int from, unsigned members = kAllLanes, simt::Place place = simt::here()) {
  return from_lane(value, static_cast<unsigned>(from) & 31, members, place);
}
template <class T>
NJ_DEVICE T shuffle_xor(T value, int lane_mask, unsigned members = kAllLanes,
                        simt::Place place = simt::here()) {
  return from_lane(value, (simt::runtime.lane() ^ static_cast<unsigned>(lane_mask)) & 31, members, place);
}
NJ_DEVICE void warp_barrier(unsigned members = kAllLanes, simt::Place place = simt::here()) {
  simt::runtime.warp_barrier(members, place);
}

// ---- Threads of a block ----

NJ_DEVICE void block_barrier(simt::Place place = simt::here()) { simt::runtime.block_barrier(place); }

template <int kCount>
NJ_DEVICE void shrink_registers() {
  static_assert(kCount >= 24 && kCount <= 256 && kCount % 8 == 0);
}
template <int kCount>
NJ_DEVICE void grow_registers() {
  static_assert(kCount >= 24 && kCount <= 256 && kCount % 8 == 0);
}

// ---- Blocks of a launch, through global memory ----

NJ_DEVICE unsigned long long take_ticket(unsigned long long* counter) {
  return simt::runtime.add(counter, 1, false, NJ_PC);
}
NJ_DEVICE unsigned long long arrive(unsigned long long* counter) {
  return simt::runtime.add(counter, 1, true, NJ_PC);
}
NJ_DEVICE void raise(unsigned long long* number, unsigned long long value) {
  simt::runtime.raise(number, value, NJ_PC);
}
NJ_DEVICE void wait_until(const unsigned long long* counter, unsigned long long value,
                          simt::Place place = simt::here()) {
  simt::runtime.wait_until(counter, value, place, NJ_PC);
}

template <class T>
NJ_DEVICE void publish(unsigned long long* at, const T& value, unsigned tag) {
  unsigned word[sizeof(T) / 4];
  __builtin_memcpy(word, &value, sizeof(T));
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) {
    const unsigned long long old = simt::runtime.add(at + i, 0, false, NJ_PC);
    simt::runtime.add(at + i, (static_cast<unsigned long long>(tag) << 32 | word[i]) - old, false, NJ_PC);
  }
}
template <int kCount, class T>
NJ_DEVICE void gather(const unsigned long long* at, int stride, int count, unsigned tag, T* to,
                      simt::Place place = simt::here()) {
  for (int j = 0; j < count && j < kCount; ++j) {
    unsigned word[sizeof(T) / 4];
    for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i)
      word[i] = static_cast<unsigned>(simt::runtime.gather(at + j * stride + i, tag, place, NJ_PC));
    __builtin_memcpy(to + j, word, sizeof(T));
  }
}

// ---- Asynchronous copies into shared memory ----

template <int kBytes>
NJ_DEVICE void copy_async(void* shared, const void* global) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  simt::must_be_aligned<kBytes>(shared);
  simt::must_be_aligned<kBytes>(global);
  simt::runtime.copy_async(shared, global, kBytes, NJ_PC);
}
NJ_DEVICE void copies_commit() { simt::runtime.copies_commit(); }
template <int kLeft>
NJ_DEVICE void copies_wait() {
  simt::runtime.copies_wait(kLeft);
}

// ---- Barriers in shared memory, and the copy engine ----

using MemoryBarrier = unsigned long long;

NJ_DEVICE void barrier_init(MemoryBarrier* barrier, int arrivals) {
  simt::runtime.barrier_init(barrier, arrivals, NJ_PC);
}
NJ_DEVICE void barriers_ready() { simt::runtime.barriers_ready(); }
NJ_DEVICE void barrier_arrive(MemoryBarrier* barrier, simt::Place place = simt::here()) {
  simt::runtime.barrier_arrive(barrier, 0, place);
}
NJ_DEVICE void barrier_arrive_after(MemoryBarrier* barrier, unsigned, unsigned,
                                    simt::Place place = simt::here()) {
  simt::runtime.barrier_arrive(barrier, 0, place);
}
NJ_DEVICE void barrier_arrive_expect(MemoryBarrier* barrier, int bytes, simt::Place place = simt::here()) {
  simt::runtime.barrier_arrive(barrier, bytes, place);
}
NJ_DEVICE void barrier_wait(MemoryBarrier* barrier, unsigned phase, simt::Place place = simt::here()) {
  simt::runtime.barrier_wait(barrier, phase, place);
}
NJ_DEVICE void writes_before_copies() {}
NJ_DEVICE void bulk_load(void* shared, const void* global, int bytes, MemoryBarrier* barrier,
                         simt::Place place = simt::here()) {
  simt::must_be_aligned<16>(shared);
  simt::must_be_aligned<16>(global);
  simt::runtime.bulk_load(shared, global, bytes, barrier, place, NJ_PC);
}
NJ_DEVICE void prefetch(const void* global, int bytes) {
  simt::must_be_aligned<16>(global);
  simt::must_be_aligned<16>(static_cast<const char*>(global) + bytes);
}

// ---- Blocks of a cluster, launches of a stream ----

NJ_DEVICE void cluster_enter(simt::Place place = simt::here()) { simt::runtime.cluster_enter(place); }
NJ_DEVICE void cluster_entered(simt::Place place = simt::here()) { simt::runtime.cluster_entered(place); }
template <class T>
NJ_DEVICE void send(const T& value, T* to, MemoryBarrier* barrier, int rank,
                    simt::Place place = simt::here()) {
  static_assert(sizeof(T) % 16 == 0 && alignof(T) == 16);
  simt::must_be_aligned<16>(to);
  simt::runtime.send(to, &value, sizeof(T), barrier, rank, place, NJ_PC);
}
NJ_DEVICE void wait_for_previous_launch() { simt::runtime.wait_for_previous_launch(); }
NJ_DEVICE void allow_next_launch() {}

// ---- Numbers ----

NJ_DEVICE float f16_to_f32(unsigned short half) {
  const unsigned sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ffu;
  if (exponent == 31) return simt::bits<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent > 0) return simt::bits<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float value = static_cast<float>(fraction) * 0x1p-24f;
  return sign != 0 ? -value : value;
}
NJ_DEVICE float bf16_to_f32(unsigned pair) { return simt::bits<float>(pair << 16); }
NJ_DEVICE float high_bf16_to_f32(unsigned pair) { return simt::bits<float>(pair & 0xffff0000u); }

// To nearest even. Adding to a power of two rounds what is below the last bit of an f16 subnormal.
NJ_DEVICE unsigned short f32_to_f16(float value) {
  const unsigned all = simt::bits<unsigned>(value), sign = all >> 16 & 0x8000u, size = all & 0x7fffffffu;
  unsigned half;
  if (size > 0x7f800000u) return 0x7fff;  // NaN
  if (size >= 0x477ff000u) {              // rounds to infinity
    half = 0x7c00u;
  } else if (size < 0x38800000u) {
    half = simt::bits<unsigned>(simt::bits<float>(size) + 0.5f) - 0x3f000000u;
  } else {
    half = (size - 0x38000000u + 0xfffu + (size >> 13 & 1)) >> 13;
  }
  return static_cast<unsigned short>(sign | half);
}
NJ_DEVICE unsigned short f32_to_bf16(float value) {
  const unsigned all = simt::bits<unsigned>(value);
  if ((all & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<unsigned short>((all + 0x7fffu + (all >> 16 & 1)) >> 16);
}

// By arithmetic in f32, unlike the integers of number.cuh: a multiple of the last place of the number's
// binade, rounded as the sum with a number whose last place that is.
template <int kMantissa, int kSmallest, int kLargest, int kBits = 8>
NJ_DEVICE unsigned f32_to_small_float(float value) {
  if (value != value) return (1u << (kBits - 1)) - 1;
  const unsigned sign = simt::bits<unsigned>(value) >> 31 << (kBits - 1);
  float size = __builtin_fabsf(value);
  if (size > kLargest) size = kLargest;
  int exponent = static_cast<int>(simt::bits<unsigned>(size) >> 23) - 127;
  if (exponent < kSmallest) exponent = kSmallest;
  const float unit = simt::bits<float>(static_cast<unsigned>(127 + exponent - kMantissa) << 23);
  const auto units = static_cast<unsigned>(__builtin_rintf(size / unit));
  return sign | ((static_cast<unsigned>(exponent - kSmallest) << kMantissa) + units);
}
enum : int { kConvertsFloat8From = 89 };
NJ_DEVICE unsigned short f32x2_to_e4m3x2(float first, float second) {
  return static_cast<unsigned short>(f32_to_small_float<3, -6, 448>(first) |
                                     f32_to_small_float<3, -6, 448>(second) << 8);
}
NJ_DEVICE unsigned short f32x2_to_e5m2x2(float first, float second) {
  return static_cast<unsigned short>(f32_to_small_float<2, -14, 57344>(first) |
                                     f32_to_small_float<2, -14, 57344>(second) << 8);
}
enum : int { kConvertsFloat4From = 100 };
NJ_DEVICE unsigned short f32x2_to_e2m1x2(float first, float second) {
  return static_cast<unsigned short>(f32_to_small_float<1, 0, 6, 4>(first) |
                                     f32_to_small_float<1, 0, 6, 4>(second) << 4);
}
NJ_DEVICE unsigned word_of(unsigned short low, unsigned short high) {
  return low | static_cast<unsigned>(high) << 16;
}
NJ_DEVICE unsigned f32_to_s8(float value) {
  if (value != value) return 0;
  const float whole = __builtin_rintf(value);
  return static_cast<unsigned char>(static_cast<int>(whole < -128 ? -128 : whole > 127 ? 127 : whole));
}
NJ_DEVICE unsigned short f32x2_to_s8x2(float first, float second) {
  return static_cast<unsigned short>(f32_to_s8(first) | f32_to_s8(second) << 8);
}

NJ_DEVICE float round_to_odd(float value) { return value; }
NJ_DEVICE float round_to_odd(double value) {
  float low = static_cast<float>(value);  // to nearest: one step too far, or not
  if (value != value || static_cast<double>(low) == value) return low;
  const unsigned word = simt::bits<unsigned>(low);
  const double size = value < 0 ? -value : value;
  const double rounded = value < 0 ? -static_cast<double>(low) : static_cast<double>(low);
  return simt::bits<float>((rounded > size ? word - 1 : word) | 1u);
}

NJ_DEVICE float rsqrt(float value) {
  return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(value)));
}
NJ_DEVICE double rsqrt(double value) { return 1.0 / __builtin_sqrt(value); }

NJ_DEVICE unsigned long long multiply_high(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

NJ_DEVICE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
NJ_DEVICE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

NJ_DEVICE float max_nan(float value, float limit) { return value < limit ? limit : value; }
NJ_DEVICE float min_nan(float value, float limit) { return value > limit ? limit : value; }
NJ_DEVICE double max_nan(double value, double limit) { return value < limit ? limit : value; }

NJ_DEVICE float with_sign_of(float size, float number) {
  return number != number ? size : __builtin_copysignf(size, number);
}

NJ_DEVICE float larger_magnitude(float magnitude, float number) {
  if (magnitude != magnitude || number != number) return __builtin_nanf("");
  return __builtin_fmaxf(magnitude, __builtin_fabsf(number));
}
NJ_DEVICE float reciprocal(float value) { return 1.0f / value; }

// Subnormals in and out are zero.
NJ_DEVICE float flushed(float value) {
  const unsigned word = simt::bits<unsigned>(value);
  return (word & 0x7f800000u) == 0 ? simt::bits<float>(word & 0x80000000u) : value;
}
NJ_DEVICE float rcp_approx(float value) { return flushed(1.0f / flushed(value)); }
NJ_DEVICE float exp2_approx(float value) { return flushed(__builtin_exp2f(flushed(value))); }
NJ_DEVICE double rcp_approx(double value) {
  return simt::bits<double>(simt::bits<unsigned long>(1.0 / value) & 0xffffffff00000000u);
}
NJ_DEVICE double times_power_of_2(double value, double power) {
  const auto n = static_cast<unsigned>(simt::bits<unsigned long>(power));
  return simt::bits<double>(simt::bits<unsigned long>(value) + (static_cast<unsigned long>(n) << 52));
}

}  // namespace normjit::hw
