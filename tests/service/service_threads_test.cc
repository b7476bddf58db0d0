// SPDX-License-Identifier: Apache-2.0
// A Service under many threads: one compile and one load a kernel, and nobody waits for a foreign kernel.
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

constexpr int kThreads = 32;
constexpr int kSpecs = 8;

NormSpec spec(int index) { return {.columns = 4096 + 512 * (index % kSpecs)}; }

template <class Body>
void in_threads(const Body& body) {
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      body(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ServiceThreads, OneCompileAndOneLoadAKernel) {
  FakeMachine machine;
  Service service = machine.service();
  std::atomic<int> wrong = 0;
  machine.compiler->hold();  // until all kernels are wanted at once
  std::thread release([&] {
    machine.compiler->wait_for_calls(kSpecs);
    machine.compiler->release();
  });
  in_threads([&](int thread) {
    for (int i = thread; i < thread + kSpecs; ++i) {
      const auto kernel = service.prepare(spec(i));
      if (!kernel || kernel->spec().columns != spec(i).columns) ++wrong;
    }
  });
  release.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(machine.compiles(), kSpecs);
  EXPECT_EQ(machine.loads(), kSpecs);
}

TEST(ServiceThreads, OneLoadOfAWarmEntry) {
  FakeMachine machine;
  for (int i = 0; i < kSpecs; ++i) ASSERT_TRUE(machine.service().prepare(spec(i)).ok());
  Service service = machine.service();
  std::atomic<int> failed = 0;
  in_threads([&](int thread) {
    if (!service.prepare(spec(thread))) ++failed;
  });
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(machine.compiles(), kSpecs);
  EXPECT_EQ(machine.loads(), 2 * kSpecs);
}

TEST(ServiceThreads, AFailureReachesAllWhoWait) {
  FakeMachine machine;
  Service service = machine.service();
  machine.compiler->fail({Code::CompileFailed, "no"});
  std::atomic<int> failed = 0;
  in_threads([&](int thread) {
    if (service.prepare(spec(thread)).code() == Code::CompileFailed) ++failed;
  });
  EXPECT_EQ(failed, kThreads);
  EXPECT_EQ(machine.loads(), 0);
}

// Would hang if a hit waited for another kernel's compile.
TEST(ServiceThreads, HitsProceedWhileAnotherKernelCompiles) {
  FakeMachine machine;
  Service service = machine.service();
  ASSERT_TRUE(service.prepare(spec(0)).ok());
  machine.compiler->hold();
  std::thread slow([&] { EXPECT_TRUE(service.prepare(spec(1)).ok()); });
  machine.compiler->wait_for_calls(2);
  EXPECT_TRUE(service.prepare(spec(0)).ok());
  machine.compiler->release();
  slow.join();
}

TEST(ServiceThreads, OneCallFormAndHandlesFromManyThreads) {
  FakeMachine machine;
  Service service = machine.service();
  auto* const memory = reinterpret_cast<void*>(std::uintptr_t{1} << 20);
  const Tensors tensors{.x = memory, .y = memory, .rows = 5};
  std::atomic<int> failed = 0;
  in_threads([&](int thread) {
    const Kernel kernel = service.prepare(spec(thread)).value();
    for (int i = 0; i < 100; ++i) {
      if (!service.layer_norm(spec(i), tensors, nullptr)) ++failed;
      if (!kernel.launch(tensors, nullptr)) ++failed;
    }
  });
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(machine.driver->launches().size(), 200U * kThreads);
}

TEST(ServiceThreads, PrebuildAndPrepareShareCompiles) {
  FakeMachine machine;
  Service service = machine.service();
  const DeviceProfile device = profile_of(90);
  std::vector<NormSpec> specs;
  for (int i = 0; i < kSpecs; ++i) specs.push_back(spec(i));
  std::atomic<int> failed = 0, all = 0;
  in_threads([&](int thread) {
    if (thread < 4) {
      const auto report =
          service.prebuild(specs, {&device, 1}, {.jobs = 3, .dry_run = false, .progress = {}});
      if (!report || report->failed != 0) ++failed;
      all = report->requested;
    } else if (!service.prepare(spec(thread))) {
      ++failed;
    }
  });
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(machine.compiles(), all);
}

// A layer serves as soon as it was added, also those who were looking through the others meanwhile.
TEST(ServiceThreads, LayersAreAddedWhileOthersPrepare) {
  constexpr int kLayers = 4;
  std::vector<std::string> packs;
  for (int i = 0; i < kLayers; ++i) packs.push_back(FakeMachine::pack_of({spec(i)}));
  FakeMachine machine;
  Service service = machine.service();
  const DeviceProfile device = profile_of(90);
  std::atomic<int> failed = 0;
  in_threads([&](int thread) {
    if (thread < kLayers) {
      const std::string& pack = packs[static_cast<std::size_t>(thread)];
      if (!service.add_layer(pack)) ++failed;
      if (service.add_layer(pack.substr(1)).code() != Code::BadArgument) ++failed;
      const auto kernel = service.prepare(spec(thread));
      if (!kernel || kernel->origin() == Origin::compiled) ++failed;
    } else if (thread % 2 == 0) {
      if (!service.prepare({.columns = 64 + thread})) ++failed;
    } else if (thread == kThreads - 1) {
      if (!service.why(spec(0), device) || !service.verify()) ++failed;
    } else {
      if (!service.entries() || service.environment().layers.size() > kLayers) ++failed;
    }
  });
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(machine.compiles(), (kThreads - kLayers) / 2) << "what no layer has";
  std::set<std::string> names;
  for (const Environment::Layer& layer : service.environment().layers) names.insert(layer.path);
  EXPECT_EQ(names.size(), std::size_t{kLayers});
}

}  // namespace
}  // namespace normjit::testing
