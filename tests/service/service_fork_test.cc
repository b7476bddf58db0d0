// SPDX-License-Identifier: Apache-2.0
// Children that are forked while other threads prepare and prebuild.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "normjit/service/single_flight.h"
#include "tests/support/child.h"
#include "tests/support/fake_machine.h"
#include "tests/support/stateless_compiler.h"

namespace normjit::testing {
namespace {

constexpr int kChildren = 1000;
constexpr std::size_t kChildrenAtOnce = 4;
constexpr int kThreads = 8;

// As StatelessCompiler.
class StatelessDriver final : public Driver {
 public:
  Result<int> version() override { return 13000; }
  Result<int> device_count() override { return 1; }
  Result<int> current_device() override { return 0; }
  Current current() noexcept override { return {0, &profile_}; }
  Result<DeviceProfile> profile(int) override { return profile_; }
  Result<std::string> device_name(int) override { return std::string("none"); }
  Result<std::shared_ptr<LoadedKernel>> load(std::string_view, const std::string&, int,
                                             const LaunchShape&) override {
    return std::shared_ptr<LoadedKernel>(std::make_shared<Loaded>());
  }
  Result<Allocation> allocation(const void*) override { return Allocation{}; }
  int clear(void*, std::size_t, Stream) noexcept override { return 0; }
  std::string describe(int) override { return {}; }

 private:
  struct Loaded final : LoadedKernel {
    int launch(std::uint32_t, const LaunchShape&, Stream, void**) const noexcept override { return 0; }
    Result<int> resident_blocks(const LaunchShape&) const override { return 1 << 20; }
  };

  const DeviceProfile profile_ = profile_of(90);
};

NormSpec spec(int number) { return {.columns = 64 + number}; }

TEST(ServiceFork, EveryChildPreparesAndPrebuilds) {
  NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
  const TempDirectory directory;
  Options options;
  options.cache_directory = directory.path();
  Service service(options, {.compiler = std::make_shared<StatelessCompiler>(),
                            .driver = std::make_shared<StatelessDriver>(),
                            .files = {}});
  const DeviceProfile device = profile_of(90);
  const auto works = [&](int number) {
    const auto kernel = service.prepare(spec(number));
    return kernel.ok() && kernel->spec() == canonical(spec(number));
  };
  const auto builds = [&](int number, int jobs) {
    const NormSpec one = spec(number);
    const auto report =
        service.prebuild({&one, 1}, {&device, 1}, {.jobs = jobs, .dry_run = false, .progress = {}});
    return report.ok() && report->failed == 0;
  };
  ASSERT_TRUE(works(0));

  std::atomic<int> next = 1, failures = 0;
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      while (!stop) {
        const int number = next++;
        if (!(i % 4 == 0 ? builds(number, 2) : works(number))) ++failures;
        std::this_thread::sleep_for(std::chrono::milliseconds(15));  // a prebuild reads all there are
      }
    });

  const int done = done_children(kChildren, kChildrenAtOnce, [&](int i) {
    const int newest = next;  // in flight in the parent: some of the last ones
    for (int number = newest; number > 0 && number > newest - kThreads; --number)
      if (!works(number)) return false;
    return works(0) && works(/*cold*/ 1'000'000 + i) && (i % 16 != 0 || builds(newest - 1, 2));
  });
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, kChildren);
  EXPECT_EQ(failures, 0);
}

TEST(ServiceFork, EveryChildFindsAndAddsLayers) {
  NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
  constexpr int kFewChildren = 200;
  const std::string pack = FakeMachine::pack_of({spec(0)});
  const auto make = [] {
    Options options;
    options.mode = Mode::cached_only;
    return Service(options, {.compiler = std::make_shared<StatelessCompiler>(),
                             .driver = std::make_shared<StatelessDriver>(),
                             .files = {},
                             .embedded = ""});
  };
  Service service = make();
  ASSERT_TRUE(service.add_layer(pack).ok());
  std::atomic<int> failures = 0;
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      while (!stop) {
        Service other = make();
        if (!other.add_layer(pack) || !other.prepare(spec(0)) || !service.entries()) ++failures;
      }
    });
  const int done = done_children(kFewChildren, kChildrenAtOnce, [&](int i) {
    return service.prepare(spec(0)).ok() && service.add_layer(pack).ok() &&
           service.prepare(spec(1 + i)).code() == Code::NotCached && service.environment().layers.size() == 2;
  });
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, kFewChildren);
  EXPECT_EQ(failures, 0);
}

TEST(ServiceFork, AChildLaunchesOnlyWhatItHasPrepared) {
  FakeMachine machine;
  Service service = machine.service();
  const Kernel kernel = service.prepare(spec(0)).value();
  auto* const memory = reinterpret_cast<void*>(std::uintptr_t{1} << 20);
  const Tensors tensors{.x = memory, .y = memory, .rows = 5};
  EXPECT_EQ(outcome_in_child([&] {
              const std::size_t launched = machine.driver->launches().size();
              const bool refused = kernel.launch(tensors, nullptr).code == Code::ForkedAfterCudaInit &&
                                   kernel.check(tensors).code() == Code::ForkedAfterCudaInit &&
                                   machine.driver->launches().size() == launched;
              const auto own = service.prepare(spec(1));
              return refused && own.ok() && own->launch(tensors, nullptr).ok();
            }),
            "done");
  EXPECT_TRUE(kernel.launch(tensors, nullptr).ok());
}

// The child asks for what its parent is in the middle of, and has forgotten it then.
TEST(ServiceFork, AFlightOfTheParentIsForgotten) {
  SingleFlight<int, int> flights;
  const auto result = flights.run(1, [&] {
    const auto again = [&](int value) {
      return flights.run(1, [value] { return Result<int>(value); }).value() == value;
    };
    return Result<int>(outcome_in_child([&] { return again(2) && again(3); }) == "done");
  });
  EXPECT_EQ(result.value(), 1);
}

}  // namespace
}  // namespace normjit::testing
