// SPDX-License-Identifier: Apache-2.0
// The thin layer, device half: every hardware primitive that the kernels use, each a whole operation. It is
// the only file with PTX. The host half, src/simt/kernel/hw_host.h, has the same names and promises; where it
// has been included, with NJ_HOST defined, this file is empty, so that one rendered text serves both.
#ifndef NJ_HOST

#define NJ_DEVICE static __device__ __forceinline__
#define NJ_METHOD __device__ __forceinline__
#define NJ_MATH __host__ __device__ constexpr
#define NJ_CALLED static __device__ __noinline__
#define NJ_SHARED(T, name, n) __shared__ T name[n]
// The launch's dynamic shared memory, from a multiple of 128 bytes on: T* name.
#define NJ_DYNAMIC_SHARED(T, name)                                    \
  extern __shared__ __align__(128) unsigned char nj_dynamic_shared[]; \
  T* const name = reinterpret_cast<T*>(nj_dynamic_shared)
// A kernel's parameter. Strides are in elements.
#define NJ_KERNEL(name, threads)                                      \
  extern "C" __global__ void __launch_bounds__(threads, kBlocksPerSm) \
      name(const __grid_constant__ Operands on)
// A kernel that takes, behind it, what others know before they run.
#define NJ_GENERIC_KERNEL(name, threads)                              \
  extern "C" __global__ void __launch_bounds__(threads, kBlocksPerSm) \
      name(const __grid_constant__ Operands on, const RuntimeSpec spec)

namespace normjit::hw {

// ---- Memory ----

// How long a global access should stay in the caches.
enum class Cache {
  evict_first,  // read once: first to leave L1 and L2
  no_l1,        // read again soon, by another block: L2 only
  keep,         // read for every row: L1 and L2
  evict_last,   // read for every row, by one block of this multiprocessor: L2 only, last to leave it
};

// What L2 is told with an access (sm_80).
NJ_DEVICE unsigned long long evict_first_policy() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
NJ_DEVICE unsigned long long evict_last_policy() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

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

// The machine words of one access of 1, 2, 4, 8 or 16 bytes.
union Piece {
  unsigned word[4];
  unsigned short half;
};

// Volatile, or the compiler would move a load in front of the condition that guards it. Deliberately never
// ld.global.nc: the compiler would hoist such loads above the stores before them, all weights of a slice at
// once, at the cost of registers and so of resident blocks.
template <Cache kCache, int kBytes>
NJ_DEVICE Piece load_piece(const void* from) {
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes == 16);
  Piece to;
  if constexpr (kCache == Cache::evict_first) {
    NJ_LOAD(".cs")
  } else if constexpr (kCache == Cache::evict_last && kBytes == 16 && kArch >= 80) {
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(to.word[0]), "=r"(to.word[1]), "=r"(to.word[2]), "=r"(to.word[3])
                 : "l"(from), "l"(evict_last_policy()));
  } else if constexpr (kCache == Cache::no_l1 || kCache == Cache::evict_last) {
    NJ_LOAD(".L1::no_allocate")
  } else {
    NJ_LOAD("")
  }
  return to;
}
#undef NJ_LOAD

// Loads 4, 8 or 16 bytes into `to` where they are wanted, from L2, and else leaves it as it is. There is no
// branch behind which a load would be waited for before the next one begins.
template <class T>
NJ_DEVICE void load_if(bool wanted, const void* from, T& to) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  unsigned word[sizeof(T) / 4];
  memcpy(word, &to, sizeof(T));
  if constexpr (sizeof(T) == 16) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.u32 p, %5, 0;\n"
        "@p ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
        "}"
        : "+r"(word[0]), "+r"(word[1]), "+r"(word[2]), "+r"(word[3])
        : "l"(from), "r"(static_cast<unsigned>(wanted)));
  } else if constexpr (sizeof(T) == 8) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.u32 p, %3, 0;\n"
        "@p ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];\n"
        "}"
        : "+r"(word[0]), "+r"(word[1])
        : "l"(from), "r"(static_cast<unsigned>(wanted)));
  } else {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.u32 p, %2, 0;\n"
        "@p ld.global.L1::no_allocate.u32 %0, [%1];\n"
        "}"
        : "+r"(word[0])
        : "l"(from), "r"(static_cast<unsigned>(wanted)));
  }
  memcpy(&to, word, sizeof(T));
}

template <int kBytes>
NJ_DEVICE void store_piece(void* to, const Piece& from) {
  if constexpr (kBytes == 1) {
    asm volatile("st.global.cs.u8 [%0], %1;" ::"l"(to), "h"(from.half) : "memory");
  } else if constexpr (kBytes == 2) {
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
template <Cache kCache, class T>
NJ_DEVICE T load(const void* from) {
  constexpr int kBytes = sizeof(T) < 16 ? sizeof(T) : 16;
  T value;
#pragma unroll
  for (int at = 0; at < static_cast<int>(sizeof(T)); at += kBytes) {
    const Piece piece = load_piece<kCache, kBytes>(static_cast<const char*>(from) + at);
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

// ---- Shared memory ----

// What ptxas calls a shared address.
#define NJ_ADDRESS(shared) static_cast<unsigned>(__cvta_generic_to_shared(shared))

// Reads and writes a T of 2, 4, 8 or 16 bytes, at a multiple of that, in one access.
template <class T>
NJ_DEVICE T load_shared(const void* from) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  Piece piece;
  if constexpr (sizeof(T) == 2) {
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(piece.half) : "r"(NJ_ADDRESS(from)) : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(piece.word[0]) : "r"(NJ_ADDRESS(from)) : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(piece.word[0]), "=r"(piece.word[1])
                 : "r"(NJ_ADDRESS(from))
                 : "memory");
  } else {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(piece.word[0]), "=r"(piece.word[1]), "=r"(piece.word[2]), "=r"(piece.word[3])
                 : "r"(NJ_ADDRESS(from))
                 : "memory");
  }
  T value;
  memcpy(&value, &piece, sizeof value);
  return value;
}
template <class T>
NJ_DEVICE void store_shared(void* to, const T& value) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  Piece piece;
  memcpy(&piece, &value, sizeof value);
  if constexpr (sizeof(T) == 2) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(NJ_ADDRESS(to)), "h"(piece.half) : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(NJ_ADDRESS(to)), "r"(piece.word[0]) : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(NJ_ADDRESS(to)), "r"(piece.word[0]),
                 "r"(piece.word[1])
                 : "memory");
  } else {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(NJ_ADDRESS(to)), "r"(piece.word[0]),
                 "r"(piece.word[1]), "r"(piece.word[2]), "r"(piece.word[3])
                 : "memory");
  }
}

// Hides from the compiler what `value` is, so that it converts the loaded bits again where they are used
// again instead of holding the converted ones, which take twice the registers.
template <class T>
NJ_DEVICE void opaque(T& value) {
  if constexpr (sizeof(T) >= 4) {
    // Word by word: copied as a whole, 8 bytes become one number, which costs several instructions an
    // element.
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) {
      unsigned word;
      memcpy(&word, reinterpret_cast<char*>(&value) + 4 * i, 4);
      asm volatile("" : "+r"(word));
      memcpy(reinterpret_cast<char*>(&value) + 4 * i, &word, 4);
    }
  } else {
    unsigned short half;
    memcpy(&half, &value, 2);
    asm volatile("" : "+h"(half));
    memcpy(&value, &half, 2);
  }
}

// ---- Lanes of a warp ----

// `members` is the mask of the lanes that take part, the calling one among them; all of them call.
enum : unsigned { kAllLanes = 0xffffffffu };

// The value that lane `from_lane` has, 0 to 31.
template <class T>
NJ_DEVICE T shuffle(T value, int from_lane, unsigned members = kAllLanes) {
  return __shfl_sync(members, value, from_lane);
}

// The value of the lane whose number differs by these bits.
template <class T>
NJ_DEVICE T shuffle_xor(T value, int lane_mask, unsigned members = kAllLanes) {
  return __shfl_xor_sync(members, value, lane_mask);
}

// What the members wrote before is visible to the members behind.
NJ_DEVICE void warp_barrier(unsigned members = kAllLanes) { __syncwarp(members); }

// ---- Threads of a block ----

NJ_DEVICE void block_barrier() { __syncthreads(); }

// Gives registers back, or takes more, so that each thread has kCount from here on: a multiple of 8. All four
// warps of a group of four call this, and what one group takes others must have given back (sm_90a and such).
template <int kCount>
NJ_DEVICE void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
NJ_DEVICE void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// ---- Blocks of a launch, through global memory ----

// The next number of a counter; orders nothing.
NJ_DEVICE unsigned long long take_ticket(unsigned long long* counter) {
  unsigned long long old;
  asm volatile("atom.global.relaxed.gpu.add.u64 %0, [%1], 1;" : "=l"(old) : "l"(counter) : "memory");
  return old;
}

// Adds one and returns the number before. Acquire and release: a thread that sees the arrival sees what this
// thread wrote, or saw written behind a barrier; this thread sees what earlier arrivals released.
NJ_DEVICE unsigned long long arrive(unsigned long long* counter) {
  unsigned long long old;
  asm volatile("atom.global.acq_rel.gpu.add.u64 %0, [%1], 1;" : "=l"(old) : "l"(counter) : "memory");
  return old;
}

// Raises a number to `value` if it is less. Orders nothing. Atomics on one number take a nanosecond each, one
// after the other, and most threads find that theirs is not needed.
NJ_DEVICE void raise(unsigned long long* number, unsigned long long value) {
  unsigned long long now;
  asm volatile("ld.global.relaxed.gpu.u64 %0, [%1];" : "=l"(now) : "l"(number) : "memory");
  if (now < value)
    asm volatile("red.global.relaxed.gpu.max.u64 [%0], %1;" ::"l"(number), "l"(value) : "memory");
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

// Publishes a value of 4-byte words to other blocks. One 8-byte store writes each word with the tag, so a
// reader that sees the tag sees the word. `at` has room for one number a word; so far they had other tags.
template <class T>
NJ_DEVICE void publish(unsigned long long* at, const T& value, unsigned tag) {
  unsigned word[sizeof(T) / 4];
  memcpy(word, &value, sizeof(T));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i)
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at + i),
                 "l"(static_cast<unsigned long long>(tag) << 32 | word[i])
                 : "memory");
}

// Returns when what was published with this tag at `at`, at `at + stride` and so on, `count` of them and at
// most kCount, is all there, in `to`.
template <int kCount, class T>
NJ_DEVICE void gather(const unsigned long long* at, int stride, int count, unsigned tag, T* to) {
  constexpr int kWords = sizeof(T) / 4;
  bool missing[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) missing[j] = j < count;
  for (;;) {
    bool all = true;
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      if (missing[j]) {
        unsigned word[kWords];
        bool there = true;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          unsigned long long both;
          asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                       : "=l"(both)
                       : "l"(at + j * stride + i)
                       : "memory");
          there = there && both >> 32 == tag;
          word[i] = static_cast<unsigned>(both);
        }
        memcpy(to + j, word, sizeof(T));
        missing[j] = !there;
        all = all && there;
      }
    if (all) break;
    __nanosleep(100);  // back off: tight polling saturates the L2 sectors being written
  }
}

// ---- Asynchronous copies into shared memory (sm_80) ----

// Begins a copy of 4, 8 or 16 bytes, both addresses aligned to that; 16 bytes bypass L1.
template <int kBytes>
NJ_DEVICE void copy_async(void* shared, const void* global) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  static_assert(kBytes > 0 && kArch >= 80, "copy_async needs sm_80");
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(NJ_ADDRESS(shared)), "l"(global)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(NJ_ADDRESS(shared)), "l"(global),
                 "n"(kBytes)
                 : "memory");
  }
}

// Closes this thread's group of copies, which may be empty.
NJ_DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Returns when at most kLeft of this thread's newest groups are unfinished; this thread sees what the others
// brought, its block behind the next barrier.
template <int kLeft>
NJ_DEVICE void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// ---- Barriers in shared memory (sm_90) ----

// Counts through phases: a phase is over when all its arrivals have come, and all bytes that they said to
// expect. The phase of a phase is 0 for the first, 1 for the second, 0 for the third, and so on.
using MemoryBarrier = unsigned long long;

// By one thread; then barriers_ready(), and a barrier of the block or the cluster before others use it.
NJ_DEVICE void barrier_init(MemoryBarrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(NJ_ADDRESS(barrier)), "r"(arrivals)
               : "memory");
}
// What this thread has initialised is so for the cluster and the copy engine.
NJ_DEVICE void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Release: threads that wait for the phase see what this thread wrote before.
NJ_DEVICE void barrier_arrive(MemoryBarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(NJ_ADDRESS(barrier)) : "memory");
}

// Arrives when this warp has what it loaded from shared memory: `loaded` are bits of it. An arrival does not
// wait for such loads by itself, and the copy engine may write there before they are done. So the address is
// made to depend on them; `zero` is 0, and the compiler does not know it.
NJ_DEVICE void barrier_arrive_after(MemoryBarrier* barrier, unsigned loaded, unsigned zero) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(NJ_ADDRESS(barrier) + (loaded & zero))
               : "memory");
}

// Arrives, and lets the phase wait for so many more bytes of bulk_load too.
NJ_DEVICE void barrier_arrive_expect(MemoryBarrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(NJ_ADDRESS(barrier)), "r"(bytes)
               : "memory");
}

// Waits for the phase under way if it has this phase; else the phase of this phase is the one before, and
// is over. So on a new barrier phase 1 does not wait.
NJ_DEVICE void barrier_wait(MemoryBarrier* barrier, unsigned phase) {
  unsigned over;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(over)
        : "r"(NJ_ADDRESS(barrier)), "r"(phase)
        : "memory");
  } while (over == 0);
}

// ---- Bulk copies by the copy engine (sm_90) ----

// One thread copies for all. Addresses and sizes are multiples of 16.

// Orders what this thread has written to shared memory before copies to the same place that other threads
// begin when they have waited for its next arrival.
NJ_DEVICE void writes_before_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Begins a copy of what is read once. Its bytes count for the current phase of `barrier`; threads that wait
// for the phase see them.
NJ_DEVICE void bulk_load(void* shared, const void* global, int bytes, MemoryBarrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], "
      "%4;" ::"r"(NJ_ADDRESS(shared)),
      "l"(global), "r"(bytes), "r"(NJ_ADDRESS(barrier)), "l"(evict_first_policy())
      : "memory");
}

// Lets L2 fetch what many blocks or rows will read, and keep it.
NJ_DEVICE void prefetch(const void* global, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(global), "r"(bytes),
               "l"(evict_last_policy())
               : "memory");
}

// ---- Blocks of a cluster (sm_90) ----

// A block's shared memory is there for the others of its cluster once all its threads have called
// cluster_enter(), until the block leaves; cluster_entered() waits for that, and orders nothing.
NJ_DEVICE void cluster_enter() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
NJ_DEVICE void cluster_entered() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// Begins to write a value of 16 or 32 bytes into block `rank`'s copy of `place`. Its bytes count for the
// current phase of that block's copy of `barrier`; threads that wait for the phase see them, but not what
// this thread wrote before.
template <class T>
NJ_DEVICE void send(const T& value, T* place, MemoryBarrier* barrier, int rank) {
  static_assert(sizeof(T) % 16 == 0 && alignof(T) == 16);
  unsigned to, counts;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(NJ_ADDRESS(place)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counts) : "r"(NJ_ADDRESS(barrier)), "r"(rank));
  unsigned word[sizeof(T) / 4];
  memcpy(word, &value, sizeof(T));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); i += 4)
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            to + 4 * i),
        "r"(word[i]), "r"(word[i + 1]), "r"(word[i + 2]), "r"(word[i + 3]), "r"(counts)
        : "memory");
}

#undef NJ_ADDRESS

// ---- Launches that overlap the one before (sm_90; before it they do not overlap) ----

// Returns when the launch before has finished, and its writes are visible; at once if the launches do not
// overlap.
NJ_DEVICE void wait_for_previous_launch() {
  if constexpr (kArch >= 90) asm volatile("griddepcontrol.wait;" ::: "memory");
}

// The next launch may begin when all blocks have called this or left.
NJ_DEVICE void allow_next_launch() {
  if constexpr (kArch >= 90) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// ---- Numbers ----

NJ_DEVICE float f16_to_f32(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
// Of two bf16 in a word: the one in its low half, and the one in its high half.
NJ_DEVICE float bf16_to_f32(unsigned pair) { return __uint_as_float(pair << 16); }
NJ_DEVICE float high_bf16_to_f32(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

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

// The first architecture that converts to types of 8 bits by an instruction, as far as this compiler knows.
enum : int {
  kConvertsFloat8From =
      __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ > 0) ? 89 : 90
};
// To e4m3 or e5m2, ties to even, the first in the low half; from that architecture on. Beyond the largest
// number comes that number.
NJ_DEVICE unsigned short f32x2_to_e4m3x2(float first, float second) {
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  return pair;
}
NJ_DEVICE unsigned short f32x2_to_e5m2x2(float first, float second) {
  unsigned short pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  return pair;
}
// Likewise to e2m1, in targets for one architecture alone.
enum : int {
#if defined(__CUDA_ARCH_SPECIFIC__) && __CUDA_ARCH_SPECIFIC__ >= 1000
  kConvertsFloat4From = 100
#else
  kConvertsFloat4From = 1 << 30
#endif
};
// The same to e2m1, in one byte; NaN becomes the largest number, 6.
NJ_DEVICE unsigned short f32x2_to_e2m1x2(float first, float second) {
  unsigned short pair;
  asm("{ .reg .b8 byte; cvt.rn.satfinite.e2m1x2.f32 byte, %1, %2; mov.b16 %0, {byte, 0}; }"
      : "=h"(pair)
      : "f"(second), "f"(first));
  return pair;
}
// A word of two halves. (Shifted and combined the compiler takes them apart into bytes.)
NJ_DEVICE unsigned word_of(unsigned short low, unsigned short high) {
  unsigned word;
  asm("mov.b32 %0, {%1, %2};" : "=r"(word) : "h"(low), "h"(high));
  return word;
}
// To whole numbers from -128 to 127, ties to even, the first in the low half; NaN becomes 0.
NJ_DEVICE unsigned short f32x2_to_s8x2(float first, float second) {
  int low, high, pair;
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(low) : "f"(first));
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(high) : "f"(second));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(pair) : "r"(high), "r"(low));
  return static_cast<unsigned short>(pair);
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

// The upper 64 bits of a * b.
NJ_DEVICE unsigned long long multiply_high(unsigned long long a, unsigned long long b) {
  return __umul64hi(a, b);
}

// a * b + c, rounded once.
NJ_DEVICE float fma(float a, float b, float c) { return fmaf(a, b, c); }
NJ_DEVICE double fma(double a, double b, double c) { return ::fma(a, b, c); }

// The larger or smaller of the two; NaN stays. In one instruction since sm_80.
NJ_DEVICE float max_nan(float value, float limit) {
  if constexpr (kArch >= 80) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(value), "f"(limit));
    return result;
  } else {
    return value < limit ? limit : value;
  }
}
NJ_DEVICE float min_nan(float value, float limit) {
  if constexpr (kArch >= 80) {
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(value), "f"(limit));
    return result;
  } else {
    return value > limit ? limit : value;
  }
}
NJ_DEVICE double max_nan(double value, double limit) { return value < limit ? limit : value; }

// Such a number with the sign of another, which is + of NaN: arithmetic here makes no other NaN.
NJ_DEVICE float with_sign_of(float size, float number) { return copysignf(size, number); }

// The larger one of a magnitude and that of a number; NaN if one of them is. In one instruction since sm_80.
NJ_DEVICE float larger_magnitude(float magnitude, float number) {
  number = fabsf(number);
  if constexpr (kArch >= 80) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(magnitude), "f"(number));
    return result;
  } else {  // as whole numbers, among which NaN is above all
    return __float_as_uint(magnitude) < __float_as_uint(number) ? number : magnitude;
  }
}

// 1 / value, correctly rounded, where both are normal numbers: what the compiler makes of the division there,
// without its tests for the others. NaN stays.
NJ_DEVICE float reciprocal(float value) {
  float about;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(about) : "f"(value));
  return fmaf(fmaf(-value, about, 1.0f), about, about);
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
// About 20 bits, and no more than 21, of a normal number whose reciprocal is one.
NJ_DEVICE double rcp_approx(double value) {
  double result;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(result) : "d"(value));
  return result;
}
// value * 2^n, where both are normal numbers. The lowest 32 bits of `power` are n, as in n + 0x1.8p52.
NJ_DEVICE double times_power_of_2(double value, double power) {
  const unsigned high = __double2hiint(value), n = __double2loint(power);
  return __hiloint2double(static_cast<int>(high + (n << 20)), __double2loint(value));
}

}  // namespace normjit::hw

#endif  // NJ_HOST
