// The thin layer, device half: every hardware primitive that the kernels use, each a whole operation. It is
// the only file with PTX, and the only one to be written a second time for another executor.

#define NJ_DEVICE static __device__ __forceinline__
#define NJ_METHOD __device__ __forceinline__
#define NJ_SHARED(T, name, n) __shared__ T name[n]
// The one argument list of all kernels. Strides are in elements; pointers that the spec does not have are
// null.
#define NJ_KERNEL(name, threads)                                                               \
  extern "C" __global__ void __launch_bounds__(threads, kBlocksPerSm)                          \
      name(const Input* x, const Weight* weight, const Weight* bias, Output* y, Acc* mean_out, \
           Acc* rstd_out, long long rows, long long x_stride, long long y_stride, unsigned char* workspace)

namespace normjit::hw {

// ---- Memory ----

// How long a global access should stay in the caches.
enum class Keep {
  once,    // streamed: first to leave L1 and L2
  l2,      // read again soon by another block: L2 only
  always,  // read by every row: L1 and L2
};

#define NJ_LOAD(suffix)                                                                   \
  if constexpr (kBytes == 2) {                                                            \
    asm volatile("ld.global" suffix ".u16 %0, [%1];" : "=h"(to.half) : "l"(from));        \
  } else if constexpr (kBytes == 4) {                                                     \
    asm volatile("ld.global" suffix ".u32 %0, [%1];" : "=r"(to.word[0]) : "l"(from));     \
  } else if constexpr (kBytes == 8) {                                                     \
    asm volatile("ld.global" suffix ".v2.u32 {%0, %1}, [%2];"                             \
                 : "=r"(to.word[0]), "=r"(to.word[1])                                     \
                 : "l"(from));                                                            \
  } else {                                                                                \
    asm volatile("ld.global" suffix ".v4.u32 {%0, %1, %2, %3}, [%4];"                     \
                 : "=r"(to.word[0]), "=r"(to.word[1]), "=r"(to.word[2]), "=r"(to.word[3]) \
                 : "l"(from));                                                            \
  }

// The machine words of one access of 2, 4, 8 or 16 bytes.
union Piece {
  unsigned word[4];
  unsigned short half;
};

// Volatile, or the compiler would move a load in front of the condition that guards it. Deliberately never
// ld.global.nc: the compiler would hoist such loads above the stores before them, all weights of a slice at
// once, at the cost of registers and so of resident blocks.
template <Keep kKeep, int kBytes>
NJ_DEVICE Piece load_piece(const void* from) {
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes == 16);
  Piece to;
  if constexpr (kKeep == Keep::once) {
    NJ_LOAD(".cs")
  } else if constexpr (kKeep == Keep::l2) {
    NJ_LOAD(".L1::no_allocate")
  } else {
    NJ_LOAD("")
  }
  return to;
}
#undef NJ_LOAD

template <int kBytes>
NJ_DEVICE void store_piece(void* to, const Piece& from) {
  if constexpr (kBytes == 2) {
    asm volatile("st.global.cs.u16 [%0], %1;" ::"l"(to), "h"(from.half) : "memory");
  } else if constexpr (kBytes == 4) {
    asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(to), "r"(from.word[0]) : "memory");
  } else if constexpr (kBytes == 8) {
    asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(from.word[0]), "r"(from.word[1])
                 : "memory");
  } else {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(from.word[0]),
                 "r"(from.word[1]), "r"(from.word[2]), "r"(from.word[3])
                 : "memory");
  }
}

// Reads a T in accesses of at most 16 bytes, each aligned to its own size.
template <Keep kKeep, class T>
NJ_DEVICE T load(const void* from) {
  constexpr int kBytes = sizeof(T) < 16 ? sizeof(T) : 16;
  T value;
#pragma unroll
  for (int at = 0; at < static_cast<int>(sizeof(T)); at += kBytes) {
    const Piece piece = load_piece<kKeep, kBytes>(static_cast<const char*>(from) + at);
    memcpy(reinterpret_cast<char*>(&value) + at, &piece, kBytes);
  }
  return value;
}

// Writes a T in accesses of at most 16 bytes, each aligned to its own size; not read again by this kernel.
template <class T>
NJ_DEVICE void store(void* to, const T& value) {
  constexpr int kBytes = sizeof(T) < 16 ? sizeof(T) : 16;
#pragma unroll
  for (int at = 0; at < static_cast<int>(sizeof(T)); at += kBytes) {
    Piece piece;
    memcpy(&piece, reinterpret_cast<const char*>(&value) + at, kBytes);
    store_piece<kBytes>(static_cast<char*>(to) + at, piece);
  }
}

// Hides from the compiler what `value` is, so that it converts the loaded bits again where they are used
// again instead of holding the converted ones, which take twice the registers.
template <class T>
NJ_DEVICE void forget(T& value) {
  if constexpr (sizeof(T) >= 4) {
    unsigned word[sizeof(T) / 4];
    memcpy(word, &value, sizeof(T));
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) asm volatile("" : "+r"(word[i]));
    memcpy(&value, word, sizeof(T));
  } else {
    unsigned short half;
    memcpy(&half, &value, 2);
    asm volatile("" : "+h"(half));
    memcpy(&value, &half, 2);
  }
}

// ---- Threads of a block ----

template <class T>
NJ_DEVICE T shuffle_xor(T value, int lane_mask) {
  return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}

NJ_DEVICE void block_barrier() { __syncthreads(); }

// ---- Blocks of a launch, through global memory ----

// The next number of a counter; orders nothing.
NJ_DEVICE unsigned long long take_ticket(unsigned long long* counter) {
  unsigned long long old;
  asm volatile("atom.global.relaxed.gpu.add.u64 %0, [%1], 1;" : "=l"(old) : "l"(counter) : "memory");
  return old;
}

// Adds one and returns the number before. What this thread wrote, or saw written behind a barrier, is visible
// to whoever sees the arrival; and what earlier arrivals published is visible from here on.
NJ_DEVICE unsigned long long arrive(unsigned long long* counter) {
  unsigned long long old;
  asm volatile("atom.global.acq_rel.gpu.add.u64 %0, [%1], 1;" : "=l"(old) : "l"(counter) : "memory");
  return old;
}

// Returns once the counter is at least `value`; what those arrivals published is visible then.
NJ_DEVICE void wait_until(const unsigned long long* counter, unsigned long long value) {
  for (;;) {
    unsigned long long now;
    asm volatile("ld.global.acquire.gpu.u64 %0, [%1];" : "=l"(now) : "l"(counter) : "memory");
    if (now >= value) break;
    __nanosleep(20);
  }
}

// ---- Numbers ----

NJ_DEVICE float f16_to_f32(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
NJ_DEVICE float bf16_to_f32(unsigned short bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

NJ_DEVICE unsigned short f32_to_f16(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
NJ_DEVICE unsigned short f32_to_bf16(float value) {
  if constexpr (kArch >= 80) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  } else {  // round to nearest even in integers
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
  }
}

// An f32 whose later rounding to 16 bits is as if the argument had been rounded at once: truncated, with the
// last bit set if anything was lost.
NJ_DEVICE float round_to_odd(float value) { return value; }
NJ_DEVICE float round_to_odd(double value) {
  float low;
  asm("cvt.rz.f32.f64 %0, %1;" : "=f"(low) : "d"(value));
  const bool exact = static_cast<double>(low) == value || value != value;
  return exact ? low : __uint_as_float(__float_as_uint(low) | 1u);
}

// 1 / sqrt(value), to 1 ulp and correctly rounded twice; subnormals count.
NJ_DEVICE float rsqrt(float value) {
  float result;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
NJ_DEVICE double rsqrt(double value) { return 1.0 / sqrt(value); }

// a * b, clamped to [0, 1]; NaN becomes 0.
NJ_DEVICE float mul_saturated(float a, float b) {
  float result;
  asm("mul.sat.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// About 1 ulp and 2 ulp; infinities behave, subnormals become zero.
NJ_DEVICE float rcp_approx(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
NJ_DEVICE float exp2_approx(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

}  // namespace normjit::hw
