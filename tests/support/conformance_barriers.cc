// SPDX-License-Identifier: Apache-2.0
// Conformance kernels for what holds threads back until others have come: lanes, threads of a block, blocks
// of a launch.
#include <algorithm>

#include "normjit/base/text.h"
#include "tests/support/conformance_kernels.h"

namespace normjit::testing {
namespace {

// Eight rounds in which `count` threads show each other their values. A barrier that does not hold them back,
// or does not order memory, lets one read a value of another round.
constexpr std::string_view kMix = R"(
namespace normjit {

template <class Barrier>
NJ_DEVICE unsigned mix(unsigned value, unsigned* cell, int own, int count, Barrier barrier) {
  for (int round = 0; round < 8; ++round) {
    cell[own] = value;
    barrier();
    value = 3 * value + cell[(own + 5 * round + 1) % count];
    barrier();
  }
  return value;
}

}  // namespace normjit
)";

void mix(std::vector<std::uint32_t>& values, const std::vector<int>& threads) {
  const std::size_t count = threads.size();
  for (std::size_t round = 0; round < 8; ++round) {
    std::vector<std::uint32_t> next(count);
    for (std::size_t own = 0; own < count; ++own)
      next[own] = 3 * values[threads[own]] + values[threads[(own + 5 * round + 1) % count]];
    for (std::size_t own = 0; own < count; ++own) values[threads[own]] = next[own];
  }
}
// Every step-th thread from `first` on.
std::vector<int> threads_from(int first, int count, int step = 1) {
  std::vector<int> threads(count);
  for (int i = 0; i < count; ++i) threads[i] = first + i * step;
  return threads;
}

constexpr std::string_view kWarpBarriers = R"(
namespace normjit {

constexpr int kThreads = 64;

NJ_KERNEL(warp_barriers, kThreads) {
  NJ_SHARED(unsigned, cells, kThreads);
  const int lane = threadIdx.x % 32;
  unsigned* cell = cells + threadIdx.x - lane;
  unsigned value = on.x[threadIdx.x];
  value = mix(value, cell, lane, 32, [] { hw::warp_barrier(); });

  // Two halves of the warp, in different places.
  if (lane < 16) {
    value = mix(value, cell, lane, 16, [] { hw::warp_barrier(0x0000ffffu); });
  } else {
    value = mix(value, cell + 16, lane - 16, 16, [] { hw::warp_barrier(0xffff0000u); });
  }
  hw::warp_barrier();

  // Even and odd lanes, in the same place.
  const unsigned members = lane % 2 == 0 ? 0x55555555u : 0xaaaaaaaau;
  on.y[threadIdx.x] = mix(value, cell + lane % 2 * 16, lane / 2, 16, [=] { hw::warp_barrier(members); });
}

}  // namespace normjit
)";

Bytes expected_warp_barriers(const ConformanceKernel& kernel) {
  auto values = values_of<std::uint32_t>(kernel.x);
  for (const int warp : {0, 32}) {
    mix(values, threads_from(warp, 32));
    for (const int half : {0, 16}) mix(values, threads_from(warp + half, 16));
    for (const int odd : {0, 1}) mix(values, threads_from(warp + odd, 16, 2));
  }
  return bytes_of(values);
}

constexpr std::string_view kBlockBarriers = R"(
namespace normjit {

constexpr int kThreads = 128;

NJ_KERNEL(block_barriers, kThreads) {
  NJ_SHARED(unsigned, cell, kThreads);
  const int own = blockIdx.x * kThreads + threadIdx.x;
  on.y[own] = mix(on.x[own], cell, threadIdx.x, kThreads, [] { hw::block_barrier(); });
}

}  // namespace normjit
)";

Bytes expected_block_barriers(const ConformanceKernel& kernel) {
  auto values = values_of<std::uint32_t>(kernel.x);
  for (const int block : {0, 128, 256}) mix(values, threads_from(block, 128));
  return bytes_of(values);
}

// A third of the threads gives up registers, of which the others hold many values then. All keep theirs.
constexpr std::string_view kRegisters = R"(
namespace normjit {

constexpr int kThreads = 384, kHeld = 96;

NJ_KERNEL(registers, kThreads) {
  NJ_SHARED(unsigned, sent, kThreads);
  const int own = threadIdx.x;
  const unsigned value = on.x[blockIdx.x * kThreads + own];
  sent[own] = value ^ 3;
  hw::block_barrier();
  unsigned sum = value;
  if (own < 128) {
    hw::shrink_registers<40>();
    sum = 5 * sum + sent[own + 128];
  } else {
    hw::grow_registers<232>();
    unsigned held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held[i] = sent[(own + i) % kThreads];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) sum = 5 * sum + (held[i] ^ held[kHeld - 1 - i] * 3);
  }
  on.y[blockIdx.x * kThreads + own] = sum;
}

}  // namespace normjit
)";

Bytes expected_registers(const ConformanceKernel& kernel) {
  const auto x = values_of<std::uint32_t>(kernel.x);
  std::vector<std::uint32_t> y;
  for (int block = 0; block < 3; ++block)
    for (int own = 0; own < 384; ++own) {
      const auto sent = [&](int thread) { return x[block * 384 + thread % 384] ^ 3; };
      std::uint32_t sum = x[block * 384 + own];
      if (own < 128) sum = 5 * sum + sent(own + 128);
      for (int i = 0; own >= 128 && i < 96; ++i) sum = 5 * sum + (sent(own + i) ^ sent(own + 95 - i) * 3);
      y.push_back(sum);
    }
  return bytes_of(y);
}

// ---- Blocks of a launch ----

constexpr std::string_view kTickets = R"(
namespace normjit {

constexpr int kThreads = 64;

// Each ticket is taken once, or something stays unwritten.
NJ_KERNEL(tickets, kThreads) {
  const unsigned long long ticket = hw::take_ticket(reinterpret_cast<unsigned long long*>(on.workspace));
  on.y[ticket] = on.x[ticket] + 1;
}

}  // namespace normjit
)";

Bytes expected_tickets(const ConformanceKernel& kernel) {
  auto values = values_of<std::uint32_t>(kernel.x);
  for (std::uint32_t& value : values) ++value;
  return bytes_of(values);
}

constexpr std::string_view kArrivals = R"(
namespace normjit {

constexpr int kThreads = 64;

NJ_KERNEL(arrivals, kThreads) {
  NJ_SHARED(unsigned long long, ticket, 1);
  NJ_SHARED(bool, last, 1);
  auto* const counters = reinterpret_cast<unsigned long long*>(on.workspace);
  unsigned* total = reinterpret_cast<unsigned*>(counters + 3);
  unsigned* parts = total + kThreads;
  const int own = threadIdx.x;
  if (own == 0) ticket[0] = hw::take_ticket(&counters[0]);
  hw::block_barrier();

  // One block after the other, in the order of the tickets.
  const unsigned long long turn = ticket[0];
  hw::wait_until(&counters[1], turn);
  total[own] = 3 * total[own] + on.x[turn * kThreads + own];
  parts[turn * kThreads + own] = total[own] ^ 5;
  hw::block_barrier();
  if (own == 0) hw::arrive(&counters[1]);

  // The last one to finish, whichever that is, sees what all have written.
  if (own == 0) last[0] = hw::arrive(&counters[2]) + 1 == gridDim.x;
  hw::block_barrier();
  if (last[0]) {
    for (int block = 0; block < static_cast<int>(gridDim.x); ++block)
      on.y[block * kThreads + own] = parts[block * kThreads + (own + 7) % kThreads];
  }
}

}  // namespace normjit
)";

Bytes expected_arrivals(const ConformanceKernel& kernel) {
  const auto x = values_of<std::uint32_t>(kernel.x);
  std::vector<std::uint32_t> total(64), y;
  for (std::size_t block = 0; block < x.size() / 64; ++block) {
    for (int own = 0; own < 64; ++own) total[own] = 3 * total[own] + x[block * 64 + own];
    for (int own = 0; own < 64; ++own) y.push_back(total[(own + 7) % 64] ^ 5);
  }
  return bytes_of(y);
}

// Every thread raises numbers that others raise, too. The last block to finish writes them.
constexpr std::string_view kRaised = R"(
namespace normjit {

constexpr int kThreads = 64, kNumbers = 16;

NJ_KERNEL(raised, kThreads) {
  NJ_SHARED(bool, last, 1);
  auto* const counter = reinterpret_cast<unsigned long long*>(on.workspace);
  unsigned long long* const numbers = counter + 1;
  const int own = threadIdx.x;
  const unsigned x = on.x[blockIdx.x * kThreads + own];
  for (int round = 0; round < 4; ++round)
    hw::raise(&numbers[(own + round) % kNumbers], static_cast<unsigned long long>(x) << round * 10);
  hw::block_barrier();
  if (own == 0) last[0] = hw::arrive(counter) + 1 == gridDim.x;
  hw::block_barrier();
  if (last[0]) {
    for (int block = 0; block < static_cast<int>(gridDim.x); ++block)
      on.y[block * kThreads + own] =
          static_cast<unsigned>(numbers[(own + block) % kNumbers] >> (own < kNumbers ? 0 : 32));
  }
}

}  // namespace normjit
)";

Bytes expected_raised(const ConformanceKernel& kernel) {
  const auto x = values_of<std::uint32_t>(kernel.x);
  std::uint64_t numbers[16] = {};
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t round = 0; round < 4; ++round) {
      std::uint64_t& number = numbers[(i % 64 + round) % 16];
      number = std::max(number, std::uint64_t{x[i]} << round * 10);
    }
  std::vector<std::uint32_t> y;
  for (std::size_t i = 0; i < x.size(); ++i)
    y.push_back(static_cast<std::uint32_t>(numbers[(i % 64 + i / 64) % 16] >> (i % 64 < 16 ? 0 : 32)));
  return bytes_of(y);
}

// Every thread slots things of three sizes in turn in one of two places, and collects those of a thread of
// every block. A place is written again when all have gathered what it held: their blocks have published
// since.
constexpr std::string_view kSlots = R"(
namespace normjit {

constexpr int kThreads = 64, kRounds = 6, kMostBlocks = 10;

struct Six {
  unsigned word[6];
};

// In its place of the round; at least that many numbers.
template <class T>
NJ_DEVICE unsigned long long* place_of(unsigned long long* places, int round, int block, int thread) {
  return places + ((round % 2 * gridDim.x + block) * kThreads + thread) * (sizeof(T) / 4);
}
template <class T>
NJ_DEVICE void leave(unsigned long long* places, int round, const T& value, unsigned tag) {
  hw::publish(place_of<T>(places, round, blockIdx.x, threadIdx.x), value, tag);
}
// What one thread of every block has left. There is room for more blocks than there are.
template <class T>
NJ_DEVICE void take(T* to, unsigned long long* places, int round, unsigned tag) {
  hw::gather<kMostBlocks>(place_of<T>(places, round, 0, (threadIdx.x + round) % kThreads),
                           kThreads * static_cast<int>(sizeof(T) / 4), gridDim.x, tag, to);
}

NJ_KERNEL(slots, kThreads) {
  auto* const ones = reinterpret_cast<unsigned long long*>(on.workspace);
  auto* const twos = ones + 2 * gridDim.x * kThreads;
  auto* const sixes = twos + 2 * gridDim.x * kThreads * 2;
  unsigned value = on.x[blockIdx.x * kThreads + threadIdx.x];
  for (int round = 0; round < kRounds; ++round) {
    const unsigned tag = round < 3 ? round + 1 : 0xfffffffau + round;  // the last is the largest that there is
    Six six;
    for (int i = 0; i < 6; ++i) six.word[i] = value * (2 * i + 1);
    leave(ones, round, value, tag);
    leave(twos, round, static_cast<double>(value), tag);
    leave(sixes, round, six, tag);
    unsigned one[kMostBlocks], sum = 0;
    double two[kMostBlocks];
    Six all[kMostBlocks];
    take(one, ones, round, tag);
    take(two, twos, round, tag);
    take(all, sixes, round, tag);
    for (int block = 0; block < static_cast<int>(gridDim.x); ++block) {
      sum = 3 * sum + one[block];
      sum = 3 * sum + static_cast<unsigned>(two[block]);
      for (int i = 0; i < 6; ++i) sum = 3 * sum + all[block].word[i];
    }
    value = sum;
    hw::block_barrier();
  }
  on.y[blockIdx.x * kThreads + threadIdx.x] = value;
}

}  // namespace normjit
)";
constexpr std::size_t kPostsBytes = std::size_t{8} * (1 + 2 + 6) * 2;  // of workspace for a thread

Bytes expected_posts(const ConformanceKernel& kernel) {
  auto values = values_of<std::uint32_t>(kernel.x);
  for (int round = 0; round < 6; ++round) {
    std::vector<std::uint32_t> sums(64);
    for (int own = 0; own < 64; ++own)
      for (std::size_t block = 0; block < values.size() / 64; ++block) {
        const std::uint32_t value = values[block * 64 + (own + round) % 64];
        std::uint32_t& sum = sums[own];
        sum = 9 * sum + 3 * value + value;
        for (std::uint32_t i = 0; i < 6; ++i) sum = 3 * sum + value * (2 * i + 1);
      }
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = sums[i % 64];
  }
  return bytes_of(values);
}

ConformanceKernel on_words(const char* name, std::string text, int threads, int blocks,
                           Bytes (*expected)(const ConformanceKernel&)) {
  const std::size_t bytes = std::size_t{4} * threads * blocks;
  return {.name = name,
          .kernel = name,
          .input = "unsigned",
          .output = "unsigned",
          .text = std::move(text),
          .shape = {.threads = threads},
          .blocks = static_cast<std::uint32_t>(blocks),
          .x = random_bytes(bytes, 2),
          .y_bytes = bytes,
          .expected = expected};
}

}  // namespace

std::vector<ConformanceKernel> barriers_kernels() {
  const auto mixing = [](std::string_view text) { return concat({kMix, text}); };
  std::vector<ConformanceKernel> kernels = {
      on_words("warp_barriers", mixing(kWarpBarriers), 64, 1, expected_warp_barriers),
      on_words("block_barriers", mixing(kBlockBarriers), 128, 3, expected_block_barriers),
      on_words("registers", std::string(kRegisters), 384, 3, expected_registers),
      on_words("tickets", std::string(kTickets), 64, 8, expected_tickets),
      on_words("arrivals", std::string(kArrivals), 64, 8, expected_arrivals),
      on_words("raised", std::string(kRaised), 64, 8, expected_raised),
      on_words("slots", std::string(kSlots), 64, 8, expected_posts)};
  for (ConformanceKernel& kernel : kernels) {
    kernel.shape.cooperative = kernel.name == "slots";
    kernel.workspace_bytes = 1024 + kernel.x.size();
    if (kernel.name == "registers") kernel.oldest = {.number = 90}, kernel.own_target = true;
    if (kernel.name == "slots") kernel.workspace_bytes = kPostsBytes * kernel.x.size() / 4;
  }
  return kernels;
}

}  // namespace normjit::testing
