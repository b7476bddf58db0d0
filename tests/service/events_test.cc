// SPDX-License-Identifier: Apache-2.0
// What happens to the cache is told with the kernel that it happened to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "normjit/cache/key_lock.h"
#include "tests/support/fake_machine.h"
#include "tests/support/fake_store.h"

namespace normjit::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr NormSpec kSpec{.columns = 4096};

struct Told {
  Event::Kind kind;
  std::string spec, plan, arch;
  double milliseconds;
  std::string detail;
  Event::Phase phase;
  std::thread::id thread;
};

// The kinds that may end one that begins.
const std::map<Event::Kind, std::vector<Event::Kind>> kEnds = {
    {Event::Kind::waiting, {Event::Kind::waited}},
    {Event::Kind::asking,
     {Event::Kind::fetched, Event::Kind::absent, Event::Kind::untrusted, Event::Kind::remote_failed}},
    {Event::Kind::compiling, {Event::Kind::compiled, Event::Kind::compile_failed}},
    {Event::Kind::loading, {Event::Kind::loaded, Event::Kind::load_failed}},
};

class Events : public ::testing::Test {
 protected:
  Options options() {
    Options options = machine_.options();
    options.on_event = [this](const Event& event) {
      const std::lock_guard lock(mutex_);
      told_.push_back({event.kind, std::string(event.spec), std::string(event.plan), std::string(event.arch),
                       event.milliseconds, std::string(event.detail), event.phase,
                       std::this_thread::get_id()});
    };
    return options;
  }
  // Cuts every entry of a directory short.
  static void damage(const std::string& directory) {
    for (const auto& file : fs::directory_iterator(directory))
      if (file.path().extension() == ".njk") fs::resize_file(file.path(), file.file_size() - 1);
  }
  // Of this kind, so far.
  std::vector<Told> told(Event::Kind kind) const {
    const std::lock_guard lock(mutex_);
    std::vector<Told> found;
    for (const Told& event : told_)
      if (event.kind == kind) found.push_back(event);
    return found;
  }
  // Expects that of each thread every begin is followed by its end, and nothing else ends; so many begins.
  int expect_pairs() const {
    const std::lock_guard lock(mutex_);
    std::map<std::thread::id, const Told*> open;
    int begins = 0;
    for (const Told& event : told_) {
      const Told*& begun = open[event.thread];
      const auto ends = kEnds.find(event.kind);
      EXPECT_EQ(ends != kEnds.end(), event.phase == Event::Phase::begin) << name(event.kind);
      if (event.phase == Event::Phase::begin) {
        EXPECT_EQ(begun, nullptr) << name(event.kind) << " within " << name(begun->kind);
        EXPECT_EQ(event.milliseconds, 0);
        begun = &event;
        ++begins;
      } else if (event.phase == Event::Phase::end) {
        if (begun == nullptr) {
          ADD_FAILURE() << name(event.kind) << " ends what has not begun";
          continue;
        }
        EXPECT_THAT(kEnds.at(begun->kind), ::testing::Contains(event.kind)) << name(begun->kind);
        EXPECT_EQ(event.spec, begun->spec);
        EXPECT_EQ(event.plan, begun->plan);
        EXPECT_EQ(event.arch, begun->arch);
        begun = nullptr;
      }
    }
    for (const auto& [thread, begun] : open) EXPECT_EQ(begun, nullptr) << name(begun->kind) << " has no end";
    return begins;
  }
  // In the order in which they were told.
  std::vector<std::string> kinds() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const Told& event : told_) names.emplace_back(name(event.kind));
    return names;
  }
  static auto of_the_kernel(const Kernel& kernel) {
    return AllOf(Field(&Told::spec, to_text(kernel.spec())), Field(&Told::plan, to_text(kernel.plan())),
                 Field(&Told::arch, "sm_90"));
  }

  FakeMachine machine_;
  mutable std::mutex mutex_;
  std::vector<Told> told_;
};

std::uint64_t total(const Durations& durations) {
  return std::accumulate(durations.buckets.begin(), durations.buckets.end(), std::uint64_t{0});
}

TEST_F(Events, TellOfADamagedEntry) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  damage(machine_.directory.path());
  Service service(options(), machine_.seams());
  const auto kernel = service.prepare(kSpec);
  ASSERT_TRUE(kernel.ok()) << kernel.error().message;
  EXPECT_THAT(told(Event::Kind::damaged),
              ElementsAre(AllOf(
                  of_the_kernel(*kernel),
                  Field(&Told::detail, AllOf(HasSubstr(machine_.directory.path()), HasSubstr("checksum"))))));
  EXPECT_EQ(service.counters().damaged_entries, 1U);
}

TEST_F(Events, TellOfADamagedEntryOfALayer) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  damage(machine_.directory.path());
  const TempDirectory other;
  Options with_layer = options();
  with_layer.layers = {machine_.directory.path()};
  with_layer.cache_directory = other.path();
  Service service(with_layer, machine_.seams());
  ASSERT_TRUE(service.prepare(kSpec).ok());
  EXPECT_EQ(told(Event::Kind::damaged).size(), service.counters().damaged_entries);
  EXPECT_GE(service.counters().damaged_entries, 1U);
}

TEST_F(Events, TellOfADamagedTunedPlan) {
  const DeviceProfile device = profile_of(90);
  TunedPlan tuned{.spec = kSpec, .device = device, .plan = {}};
  tuned.plan = choose(kSpec, device, tuned.regime, tuned.alignment);
  ASSERT_TRUE(machine_.service().remember(tuned).ok());
  damage(machine_.directory.path());
  Service service(options(), machine_.seams());
  EXPECT_FALSE(service.tuned(kSpec, device, tuned.regime, tuned.alignment).value());
  EXPECT_THAT(told(Event::Kind::damaged),
              ElementsAre(AllOf(Field(&Told::spec, to_text(kSpec)), Field(&Told::plan, ""))));
}

TEST_F(Events, TellOfAKernelThatTheDirectoryDidNotTake) {
  machine_.files->fail_creation(ENOSPC);
  Service service(options(), machine_.seams());
  const auto kernel = service.prepare(kSpec);
  ASSERT_TRUE(kernel.ok()) << kernel.error().message;
  EXPECT_THAT(
      told(Event::Kind::unstored),
      ElementsAre(AllOf(of_the_kernel(*kernel), Field(&Told::detail, HasSubstr("No space left on device")))));
}

TEST_F(Events, WithoutADirectoryNothingIsUnstored) {
  Options memory_only = options();
  memory_only.cache_directory.clear();
  ASSERT_TRUE(Service(memory_only, machine_.seams()).prepare(kSpec).ok());
  EXPECT_TRUE(told(Event::Kind::unstored).empty());
}

TEST_F(Events, TellOfAWaitForAnotherProcess) {
  Service service(options(), machine_.seams());
  const Plan plan = choose(kSpec, profile_of(90), RowsRegime::many, Alignment::four);
  const std::string id = service.why(kSpec, profile_of(90), plan).value().id;
  const auto files = make_posix_file_system();
  auto other = std::make_unique<KeyLock>(
      KeyLock::of_id(*files, machine_.directory.path(), id, false, std::chrono::milliseconds(0)));
  ASSERT_EQ(other->state(), KeyLock::State::held);
  machine_.files->forget();
  std::thread ends([&] {  // once the service has tried in vain
    for (int i = 0; i < 10000 && machine_.files->count(RecordingFileSystem::Kind::lock) < 2; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    other.reset();
  });
  const auto kernel = service.prepare(kSpec, {.plan = plan});
  ends.join();
  ASSERT_TRUE(kernel.ok()) << kernel.error().message;
  EXPECT_THAT(told(Event::Kind::waited),
              ElementsAre(AllOf(of_the_kernel(*kernel), Field(&Told::milliseconds, ::testing::Gt(0)))));
  EXPECT_THAT(kinds(),
              ElementsAre("missed", "waiting", "waited", "compiling", "compiled", "loading", "loaded"));
  EXPECT_EQ(expect_pairs(), 3);
  const Counters counters = service.counters();
  EXPECT_EQ(counters.lock_waits, 1U);
  EXPECT_EQ(total(counters.lock_wait_durations), 1U);
  EXPECT_GT(counters.lock_wait_ms, 0);
  EXPECT_EQ(name(Event::Kind::damaged), "damaged") << "the last name";
  EXPECT_EQ(name(Event::Phase::end), "end") << "likewise";
}

TEST_F(Events, EachBeginHasItsEndOnItsThread) {
  FakeStore store;
  Options with_store = options();
  with_store.remote_store = store.remote();
  with_store.remote_unsigned = true;
  machine_.driver->refuse_load(3);
  Service service(with_store, machine_.seams());
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread)
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 10; ++i) service.prepare({.columns = 64 + (thread + i) % 10});
    });
  for (std::thread& thread : threads) thread.join();
  // An asking, a compile and a load of each of ten kernels; two of them may share none of these.
  EXPECT_GE(expect_pairs(), 30);
  EXPECT_EQ(told(Event::Kind::load_failed).size(), 1U);
  const Counters counters = service.counters();
  EXPECT_EQ(total(counters.compile_durations), counters.compiles);
  EXPECT_EQ(total(counters.load_durations), counters.loads);
  EXPECT_EQ(counters.loads, told(Event::Kind::loaded).size());
}

TEST_F(Events, ThatEndInFailuresEndAllTheSame) {
  FakeStore store;
  store.fail("it burns");
  Options with_store = options();
  with_store.remote_store = store.remote();
  with_store.remote_unsigned = true;
  machine_.compiler->fail({Code::CompileFailed, "line 3: no"});
  Service service(with_store, machine_.seams());
  EXPECT_EQ(service.prepare(kSpec).code(), Code::CompileFailed);
  EXPECT_THAT(kinds(), ElementsAre("missed", "asking", "remote_failed", "compiling", "compile_failed"));
  EXPECT_EQ(expect_pairs(), 2);
  const Counters counters = service.counters();
  EXPECT_EQ(counters.failed_compiles, 1U);
  EXPECT_EQ(total(counters.compile_durations), 1U);

  // The store is down now, and is not asked: nothing begins.
  EXPECT_EQ(service.prepare({.columns = 100}).code(), Code::CompileFailed);
  EXPECT_EQ(told(Event::Kind::asking).size(), 1U);
  machine_.compiler->succeed();
  machine_.driver->refuse_load(1);
  EXPECT_EQ(service.prepare(kSpec).code(), Code::LoadFailed);
  EXPECT_THAT(told(Event::Kind::load_failed),
              ElementsAre(AllOf(Field(&Told::phase, Event::Phase::end), Field(&Told::detail, Not("")))));
  EXPECT_EQ(expect_pairs(), 5);
}

// While a callback runs, other threads prepare other kernels.
TEST_F(Events, AreToldWithoutAMutex) {
  FakeStore store;
  Service* service = nullptr;
  std::atomic<int> columns = 64;
  Options nested = options();
  nested.remote_store = store.remote();
  nested.remote_unsigned = true;
  nested.on_event = [&, record = nested.on_event, main = std::this_thread::get_id()](const Event& event) {
    if (std::this_thread::get_id() != main) return;
    record(event);
    auto other =
        std::async(std::launch::async, [&] { return service->prepare({.columns = ++columns}).ok(); });
    EXPECT_EQ(other.wait_for(std::chrono::seconds(60)), std::future_status::ready) << name(event.kind);
    EXPECT_TRUE(other.get());
  };
  Service made(nested, machine_.seams());
  service = &made;
  ASSERT_TRUE(made.prepare(kSpec).ok());
  EXPECT_THAT(kinds(),
              ElementsAre("missed", "asking", "absent", "compiling", "compiled", "loading", "loaded"));
}

}  // namespace
}  // namespace normjit::testing
