// SPDX-License-Identifier: Apache-2.0
// 64 threads over 1,000 specs, on real files. Built with ThreadSanitizer, the library too.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "normjit/service.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

constexpr int kThreads = 64;
constexpr int kSpecs = 1000;
constexpr int kOverlap = 4;  // threads that want a spec

NormSpec spec(int number) { return {.columns = 64 + number % kSpecs}; }

// Threads begin spread over the specs, and each goes on into what the next ones have begun with.
template <class Body>
void storm(const Body& body) {
  constexpr int kEach = kOverlap * kSpecs / kThreads + 1;
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      for (int k = 0; k < kEach; ++k) body(i, i * kSpecs / kThreads + k);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Storm, EveryKernelIsCompiledOnceAndEveryResultIsRight) {
  FakeMachine machine;
  Service service = machine.service();
  auto* const memory = reinterpret_cast<void*>(std::uintptr_t{1} << 20);
  const Tensors tensors{.x = memory, .y = memory, .rows = 500};
  std::atomic<int> wrong = 0;
  const auto ask = [&](int thread, int number) {
    // The two ways to a kernel, for two regimes.
    if (thread % 4 == 0) {
      if (!service.layer_norm(spec(number), tensors, nullptr)) ++wrong;
    } else {
      const auto kernel = service.prepare(spec(number));
      if (!kernel || kernel->spec() != canonical(spec(number)) || !kernel->launch(tensors, nullptr)) ++wrong;
    }
  };
  storm(ask);
  EXPECT_EQ(wrong, 0);

  // Nothing is compiled twice: not now, and not among those compiles.
  const auto calls = machine.compiler->calls();
  std::set<std::string> texts;
  for (const FakeCompiler::Call& call : calls) texts.insert(call.text);
  EXPECT_EQ(texts.size(), calls.size());
  EXPECT_GE(calls.size(), std::size_t{kSpecs});

  Service next = machine.service();  // as another process: from the files
  storm([&](int, int number) {
    const auto kernel = next.prepare(spec(number));
    if (!kernel || kernel->spec() != canonical(spec(number))) ++wrong;
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(machine.warnings(), std::vector<std::string>());
}

TEST(Storm, PrebuildsAndLooksGoOnMeanwhile) {
  FakeMachine machine;
  Service service = machine.service();
  const DeviceProfile device = profile_of(90);
  std::atomic<int> wrong = 0;
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      for (int k = 0; k < 4; ++k) {
        const NormSpec one = spec(i / 4 + k);
        if (i % 4 == 0) {
          const auto report =
              service.prebuild({&one, 1}, {&device, 1}, {.jobs = 4, .dry_run = false, .progress = {}});
          if (!report || report->failed != 0) ++wrong;
        } else if (i % 4 == 1) {
          const auto plan = service.tuned(one, device, RowsRegime::many, Alignment::one);
          if (!plan || *plan) ++wrong;
        } else if (i % 4 == 2) {
          if (!service.workspace_bytes(one)) ++wrong;
        } else if (!service.prepare(one)) {
          ++wrong;
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  std::set<std::string> texts;
  for (const FakeCompiler::Call& call : machine.compiler->calls())
    EXPECT_TRUE(texts.insert(call.text).second) << "compiled twice";
}

}  // namespace
}  // namespace normjit::testing
