// Conformance kernels for what the lanes of a warp tell each other.
#include <functional>

#include "tests/support/conformance_kernels.h"

namespace normjit::testing {
namespace {

constexpr int kThreadsPerRow = 32, kBallotThreads = 64;

constexpr const char* kShuffles = R"(
namespace normjit {

constexpr int kThreadsPerRow = 32;

// Returns y behind what it wrote.
template <class T>
NJ_DEVICE Output* exchange(const Input* x, Output* y) {
  const int lane = threadIdx.x;
  const T own = hw::load<hw::Cache::keep, T>(x + lane * 8);
  const auto put = [&](T value) {
    hw::store(y + lane * sizeof(T), value);
    y += kThreadsPerRow * sizeof(T);
  };
  for (int from = 0; from < kThreadsPerRow; from += 5) put(hw::shuffle(own, from));
  put(hw::shuffle(own, (7 * lane + 3) % kThreadsPerRow));
  for (int mask = 0; mask < kThreadsPerRow; mask = 2 * mask + 1) put(hw::shuffle_xor(own, mask));
  put(hw::shuffle_xor(own, 16));
  for (int by = 0; by < kThreadsPerRow; by = 3 * by + 1) {
    put(hw::shuffle_up(own, by));
    put(hw::shuffle_down(own, by));
  }

  // Two halves of the warp, in different places.
  if (lane < 16) {
    put(hw::shuffle(own, (lane + 3) % 16, 0x0000ffffu));
    put(hw::shuffle_xor(own, 9, 0x0000ffffu));
    put(hw::shuffle_up(own, 2, 0x0000ffffu));
  } else {
    put(hw::shuffle(own, 16 + (lane + 5) % 16, 0xffff0000u));
    put(hw::shuffle_xor(own, 6, 0xffff0000u));
    put(hw::shuffle_down(own, 2, 0xffff0000u));
  }
  // Even and odd lanes, in the same place.
  const unsigned members = lane % 2 == 0 ? 0x55555555u : 0xaaaaaaaau;
  put(hw::shuffle(own, (lane + 6) % kThreadsPerRow, members));
  put(hw::shuffle_xor(own, 10, members));
  put(hw::shuffle_up(own, 4, members));
  put(hw::shuffle_down(own, 4, members));
  return y;
}

NJ_KERNEL(shuffles, kThreadsPerRow) {
  y = exchange<int>(x, y);
  y = exchange<unsigned>(x, y);
  y = exchange<float>(x, y);
  y = exchange<long long>(x, y);
  y = exchange<unsigned long long>(x, y);
  exchange<double>(x, y);
}

}  // namespace normjit
)";

// The lane that each lane reads, for each value that the kernel puts.
std::vector<std::function<int(int)>> shuffle_sources() {
  const auto up = [](int by) { return [by](int lane) { return lane < by ? lane : lane - by; }; };
  const auto down = [](int by) {
    return [by](int lane) { return lane + by < kThreadsPerRow ? lane + by : lane; };
  };
  std::vector<std::function<int(int)>> sources;
  for (int from = 0; from < kThreadsPerRow; from += 5) sources.push_back([from](int) { return from; });
  sources.push_back([](int lane) { return (7 * lane + 3) % kThreadsPerRow; });
  for (const int mask : {0, 1, 3, 7, 15, 31, 16}) sources.push_back([mask](int lane) { return lane ^ mask; });
  for (const int by : {0, 1, 4, 13}) {
    sources.push_back(up(by));
    sources.push_back(down(by));
  }
  sources.push_back([](int lane) { return lane < 16 ? (lane + 3) % 16 : 16 + (lane + 5) % 16; });
  sources.push_back([](int lane) { return lane < 16 ? lane ^ 9 : lane ^ 6; });
  sources.push_back([=](int lane) { return lane < 16 ? up(2)(lane) : down(2)(lane); });
  sources.push_back([](int lane) { return (lane + 6) % kThreadsPerRow; });
  sources.push_back([](int lane) { return lane ^ 10; });
  sources.push_back(up(4));
  sources.push_back(down(4));
  return sources;
}

Bytes expected_shuffles(const ConformanceKernel& kernel) {
  Bytes y;
  for (const int bytes : {4, 4, 4, 8, 8, 8})
    for (const auto& source : shuffle_sources())
      for (int lane = 0; lane < kThreadsPerRow; ++lane) {
        const auto from = kernel.x.begin() + 8 * source(lane);
        y.insert(y.end(), from, from + bytes);
      }
  return y;
}

constexpr const char* kBallots = R"(
namespace normjit {

constexpr int kThreads = 64;

NJ_KERNEL(ballots, kThreads) {
  const unsigned votes = x[threadIdx.x];
  const auto put = [&](unsigned value) {
    y[threadIdx.x] = value;
    y += kThreads;
  };
  for (int i = 0; i < 32; ++i) put(hw::ballot((votes >> i & 1) != 0));
  put(hw::ballot(true));
  put(hw::ballot(false));
  if (threadIdx.x % 32 < 8) {
    put(hw::ballot((votes & 1) != 0, 0x000000ffu));
  } else {
    put(hw::ballot((votes & 2) != 0, 0xffffff00u));
  }
  put(hw::ballot((votes & 4) != 0, threadIdx.x % 2 == 0 ? 0x55555555u : 0xaaaaaaaau));
}

}  // namespace normjit
)";

Bytes expected_ballots(const ConformanceKernel& kernel) {
  const auto votes = values_of<std::uint32_t>(kernel.x);
  std::vector<std::uint32_t> y;
  const auto put = [&](const std::function<bool(int)>& vote, const std::function<bool(int, int)>& together) {
    for (int thread = 0; thread < kBallotThreads; ++thread) {
      std::uint32_t mask = 0;
      for (int lane = 0; lane < kThreadsPerRow; ++lane)
        if (together(thread % kThreadsPerRow, lane) && vote(thread / kThreadsPerRow * kThreadsPerRow + lane))
          mask |= 1U << lane;
      y.push_back(mask);
    }
  };
  const auto all = [](int, int) { return true; };
  for (int i = 0; i < 32; ++i) put([&](int thread) { return (votes[thread] >> i & 1) != 0; }, all);
  put([](int) { return true; }, all);
  put([](int) { return false; }, all);
  put([&](int thread) { return (votes[thread] & (thread % kThreadsPerRow < 8 ? 1 : 2)) != 0; },
      [](int a, int b) { return (a < 8) == (b < 8); });
  put([&](int thread) { return (votes[thread] & 4) != 0; }, [](int a, int b) { return a % 2 == b % 2; });
  return bytes_of(y);
}

}  // namespace

std::vector<ConformanceKernel> lanes_kernels() {
  return {{.name = "shuffles",
           .kernel = "shuffles",
           .input = "unsigned char",
           .output = "unsigned char",
           .text = kShuffles,
           .shape = {.threads = kThreadsPerRow},
           .x = random_bytes(8 * kThreadsPerRow, 3),
           .y_bytes = shuffle_sources().size() * kThreadsPerRow * (3 * 4 + 3 * 8),
           .expected = expected_shuffles},
          {.name = "ballots",
           .kernel = "ballots",
           .input = "unsigned",
           .output = "unsigned",
           .text = kBallots,
           .shape = {.threads = kBallotThreads},
           .x = random_bytes(4 * kBallotThreads, 4),
           .y_bytes = 4 * kBallotThreads * 36,
           .expected = expected_ballots}};
}

}  // namespace normjit::testing
