// SPDX-License-Identifier: Apache-2.0
// Conformance kernels for asynchronous copies, and for the barriers in shared memory that wait for them.
#include "tests/support/conformance_kernels.h"

namespace normjit::testing {
namespace {

constexpr Arch kSm80{.number = 80}, kSm90{.number = 90};

// ---- Copies of a thread ----

constexpr const char* kCopies = R"(
namespace normjit {

constexpr int kThreads = 64, kRounds = 8;

NJ_KERNEL(copies, kThreads) {
  NJ_DYNAMIC_SHARED(unsigned, staged);
  const Input* x = on.x;
  Output* y = on.y;
  const int own = threadIdx.x, other = (own + 41) % kThreads;

  // A group for each size, waited for one by one.
  unsigned* eights = staged + kThreads;
  unsigned* sixteens = eights + 2 * kThreads;
  hw::copy_async<4>(staged + own, x + own);
  hw::copies_commit();
  hw::copy_async<8>(eights + 2 * own, x + kThreads + 2 * own);
  hw::copies_commit();
  hw::copy_async<16>(sixteens + 4 * own, x + 3 * kThreads + 4 * own);
  hw::copies_commit();
  hw::copies_wait<2>();
  y[own] = staged[own];
  y += kThreads;
  hw::copies_wait<1>();
  hw::block_barrier();
  for (int i = 0; i < 2; ++i) y[2 * own + i] = eights[2 * other + i];
  y += 2 * kThreads;
  hw::copies_wait<0>();
  hw::block_barrier();
  for (int i = 0; i < 4; ++i) y[4 * own + i] = sixteens[4 * other + i];
  y += 4 * kThreads;

  // Two stages in turn. The last groups are empty.
  unsigned* ring = sixteens + 4 * kThreads;
  x += 7 * kThreads;
  const auto begin = [&](int round) {
    if (round < kRounds)
      hw::copy_async<16>(ring + (round % 2 * kThreads + own) * 4, x + (round * kThreads + own) * 4);
    hw::copies_commit();
  };
  begin(0);
  for (int round = 0; round < kRounds; ++round) {
    begin(round + 1);
    hw::copies_wait<1>();
    hw::block_barrier();
    for (int i = 0; i < 4; ++i)
      y[(round * kThreads + own) * 4 + i] = ring[(round % 2 * kThreads + other) * 4 + i];
    hw::block_barrier();
  }
}

}  // namespace normjit
)";
constexpr int kCopiesWords = 64 * (1 + 2 + 4) + 8 * 64 * 4;
constexpr int kCopiesSharedWords = 64 * (1 + 2 + 4) + 2 * 64 * 4;

Bytes expected_copies(const ConformanceKernel& kernel) {
  const auto x = values_of<std::uint32_t>(kernel.x);
  std::vector<std::uint32_t> y(x.begin(), x.begin() + 64);
  const auto of_others = [&](int begin, int words) {
    for (int own = 0; own < 64; ++own)
      for (int i = 0; i < words; ++i) y.push_back(x[begin + (own + 41) % 64 * words + i]);
  };
  of_others(64, 2);
  of_others(3 * 64, 4);
  for (int round = 0; round < 8; ++round) of_others(7 * 64 + round * 256, 4);
  return bytes_of(y);
}

// ---- Barriers in shared memory ----

// One warp hands over to two others, through two cells in turn. Both sides wait: for a full cell, for an
// empty one.
constexpr const char* kPhases = R"(
namespace normjit {

constexpr int kThreads = 96, kRounds = 7;

NJ_KERNEL(phases, kThreads) {
  NJ_SHARED(hw::MemoryBarrier, full, 2);
  NJ_SHARED(hw::MemoryBarrier, empty, 2);
  NJ_SHARED(unsigned, cells, 2 * 32);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      hw::barrier_init(&full[i], 32);
      hw::barrier_init(&empty[i], 64);
    }
    hw::barriers_ready();
  }
  hw::block_barrier();

  for (int round = 0; round < kRounds; ++round) {
    const int at = round % 2;
    const unsigned phase = round / 2 % 2;
    unsigned* cell = cells + 32 * at;
    if (warp == 0) {
      hw::barrier_wait(&empty[at], phase ^ 1);  // at once in the first two rounds
      cell[lane] = on.x[32 * round + lane];
      hw::barrier_arrive(&full[at]);
    } else {
      hw::barrier_wait(&full[at], phase);
      on.y[64 * round + threadIdx.x - 32] = cell[(lane + 3 * warp) % 32];
      hw::barrier_arrive(&empty[at]);
    }
  }
}

}  // namespace normjit
)";

Bytes expected_phases(const ConformanceKernel& kernel) {
  const auto x = values_of<std::uint32_t>(kernel.x);
  std::vector<std::uint32_t> y;
  for (int round = 0; round < 7; ++round)
    for (const int warp : {1, 2})
      for (int lane = 0; lane < 32; ++lane) y.push_back(x[32 * round + (lane + 3 * warp) % 32]);
  return bytes_of(y);
}

// ---- Bulk copies ----

// Two stages in turn, of several sizes; a phase has two copies and an arrival without one.
constexpr const char* kBulkLoads = R"(
namespace normjit {

constexpr int kThreads = 64, kRounds = 6, kStage = 256;

NJ_KERNEL(bulk_loads, kThreads) {
  NJ_DYNAMIC_SHARED(unsigned, staged);
  NJ_SHARED(hw::MemoryBarrier, full, 2);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) hw::barrier_init(&full[i], 3);
    hw::barriers_ready();
  }
  hw::block_barrier();

  const auto words = [](int round) { return 8 + 40 * round; };
  const auto begin = [&](int round) {
    unsigned* to = staged + round % 2 * kStage;
    const unsigned* from = on.x + round * kStage;
    hw::MemoryBarrier* barrier = &full[round % 2];
    if (threadIdx.x == 0) {
      hw::barrier_arrive_expect(barrier, 16);
      hw::bulk_load(to, from, 16, barrier);
      hw::barrier_arrive_expect(barrier, 4 * words(round) - 16);
      hw::bulk_load(to + 4, from + 4, 4 * words(round) - 16, barrier);
    } else if (threadIdx.x == 33) {
      hw::barrier_arrive(barrier);
    }
  };
  if (threadIdx.x == 32) hw::prefetch(on.x, 4 * kRounds * kStage);  // which changes nothing but the time
  begin(0);
  begin(1);
  for (int round = 0; round < kRounds; ++round) {
    hw::barrier_wait(&full[round % 2], round / 2 % 2);
    const unsigned* stage = staged + round % 2 * kStage;
    for (int i = threadIdx.x; i < kStage; i += kThreads)
      on.y[round * kStage + i] = i < words(round) ? stage[words(round) - 1 - i] : 0;
    hw::block_barrier();
    if (round + 2 < kRounds) begin(round + 2);
  }
}

}  // namespace normjit
)";

Bytes expected_bulk_loads(const ConformanceKernel& kernel) {
  const auto x = values_of<std::uint32_t>(kernel.x);
  std::vector<std::uint32_t> y;
  for (int round = 0; round < 6; ++round)
    for (int i = 0; i < 256; ++i) {
      const int words = 8 + 40 * round;
      y.push_back(i < words ? x[round * 256 + words - 1 - i] : 0);
    }
  return bytes_of(y);
}

// One thread feeds a ring of two stages for two warps, each of which says by one arrival that it has taken
// what it needs, and written something else there; the next copy overwrites it.
constexpr const char* kHandedBack = R"(
namespace normjit {

constexpr int kThreads = 96, kTakers = 64, kRounds = 9;

struct alignas(16) Four {
  unsigned at[4];
};

NJ_KERNEL(handed_back, kThreads) {
  NJ_DYNAMIC_SHARED(Four, staged);
  NJ_SHARED(hw::MemoryBarrier, full, 2);
  NJ_SHARED(hw::MemoryBarrier, free, 2);
  const auto zero = static_cast<unsigned>(on.rows >> 63);  // which the compiler does not know
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      hw::barrier_init(&full[i], 1);
      hw::barrier_init(&free[i], kTakers / 32);
    }
    hw::barriers_ready();
  }
  hw::block_barrier();

  const int taker = static_cast<int>(threadIdx.x) - 32;
  for (int round = 0; round < kRounds; ++round) {
    const int at = round % 2;
    const unsigned phase = round / 2 % 2;
    if (threadIdx.x == 0) {
      hw::barrier_wait(&free[at], phase ^ 1);
      hw::barrier_arrive_expect(&full[at], 16 * kTakers);
      hw::bulk_load(staged + at * kTakers, on.x + 4 * kTakers * round, 16 * kTakers, &full[at]);
    } else if (taker >= 0) {
      hw::barrier_wait(&full[at], phase);
      Four* const place = staged + at * kTakers + (taker + 37) % kTakers;
      const Four own = hw::load_shared<Four>(place);
      hw::store_shared(place, Four{{own.at[1], own.at[2], own.at[3], ~own.at[0]}});
      hw::writes_before_copies();
      hw::warp_barrier();
      if (taker % 32 == 0) hw::barrier_arrive_after(&free[at], own.at[0], zero);
      for (int i = 0; i < 4; ++i) on.y[(round * kTakers + taker) * 4 + i] = own.at[i] + i;
    }
  }
}

}  // namespace normjit
)";

Bytes expected_handed_back(const ConformanceKernel& kernel) {
  const auto x = values_of<std::uint32_t>(kernel.x);
  std::vector<std::uint32_t> y;
  for (int round = 0; round < 9; ++round)
    for (int taker = 0; taker < 64; ++taker)
      for (std::uint32_t i = 0; i < 4; ++i) y.push_back(x[(round * 64 + (taker + 37) % 64) * 4 + i] + i);
  return bytes_of(y);
}

ConformanceKernel on_words(const char* name, const char* text, Arch oldest, LaunchShape shape, int x_words,
                           int y_words, Bytes (*expected)(const ConformanceKernel&)) {
  return {.name = name,
          .kernel = name,
          .input = "unsigned",
          .output = "unsigned",
          .text = text,
          .oldest = oldest,
          .shape = shape,
          .x = random_bytes(4 * std::size_t(x_words), 5),
          .y_bytes = 4 * std::size_t(y_words),
          .expected = expected};
}

}  // namespace

std::vector<ConformanceKernel> copies_kernels() {
  const LaunchShape two_stages{.threads = 64, .dynamic_shared_bytes = 2 * 4 * 256};
  return {
      on_words("copies", kCopies, kSm80, {.threads = 64, .dynamic_shared_bytes = 4 * kCopiesSharedWords},
               kCopiesWords, kCopiesWords, expected_copies),
      on_words("phases", kPhases, kSm90, {.threads = 96}, 7 * 32, 7 * 64, expected_phases),
      on_words("bulk_loads", kBulkLoads, kSm90, two_stages, 6 * 256, 6 * 256, expected_bulk_loads),
      on_words("handed_back", kHandedBack, kSm90, {.threads = 96, .dynamic_shared_bytes = 2 * 16 * 64},
               9 * 64 * 4, 9 * 64 * 4, expected_handed_back),
  };
}

}  // namespace normjit::testing
