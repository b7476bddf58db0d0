// SPDX-License-Identifier: Apache-2.0
// Services of several machines on one remote store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "normjit/base/embedded_file.h"
#include "normjit/cache/entry.h"
#include "normjit/remote/value.h"
#include "tests/support/child.h"
#include "tests/support/fake_machine.h"
#include "tests/support/fake_store.h"

namespace normjit::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr NormSpec kSpec{.columns = 4096};
constexpr NormSpec kOther{.columns = 100};

// A machine with a cache directory of its own.
class Machine : public FakeMachine {
 public:
  explicit Machine(FakeStore& store, int arch = 90) : FakeMachine({arch}), store_(store) {}

  Service service(const std::function<void(Options&)>& change = {}) {
    Options options = this->options();
    options.remote_store = store_.remote();
    options.remote_unsigned = true;
    options.on_event = [events = events_](const Event& event) {
      const std::lock_guard lock(events->mutex);
      events->names.emplace_back(name(event.kind));
    };
    if (change) change(options);
    Seams seams = this->seams();
    seams.embedded = embedded_pack();
    return Service(options, seams);
  }
  std::vector<std::string> events() const {
    const std::lock_guard lock(events_->mutex);
    return events_->names;
  }

 private:
  struct Events {
    std::mutex mutex;
    std::vector<std::string> names;
  };
  FakeStore& store_;
  const std::shared_ptr<Events> events_ = std::make_shared<Events>();
};

std::string text_of(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(SharedStore, WhatOneMachineCompilesServesAll) {
  FakeStore store;
  Machine first(store), second(store);
  EXPECT_EQ(first.service().prepare(kSpec).value().origin(), Origin::compiled);
  EXPECT_EQ(store.values().size(), 1U);
  {
    Service service = second.service();
    EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::remote);
    const Counters counters = service.counters();
    EXPECT_EQ(counters.remote_hits, 1U);
    EXPECT_EQ(counters.remote_bytes, store.values().begin()->second.size());
    EXPECT_EQ(counters.misses, 1U);
    EXPECT_EQ(counters.compiles, 0U);
  }
  EXPECT_EQ(second.compiles(), 0);
  EXPECT_THAT(second.events(), ElementsAre("missed", "asking", "fetched", "loading", "loaded"));
  EXPECT_THAT(first.events(), UnorderedElementsAre("missed", "asking", "absent", "compiling", "compiled",
                                                   "loading", "loaded", "offered"));
  EXPECT_EQ(first.service().counters().remote_stored, 0U);  // of another Service

  // From then on it is in the directory.
  const int calls = store.calls().all();
  EXPECT_EQ(second.service().prepare(kSpec).value().origin(), Origin::disk);
  EXPECT_EQ(store.calls().all(), calls);
}

TEST(SharedStore, HitsAskNothing) {
  FakeStore store;
  Machine machine(store);
  {
    Service plain(machine.options(), machine.seams());
    ASSERT_TRUE(plain.prepare(kSpec).ok());
    ASSERT_TRUE(plain.export_pack(machine.directory.path() + "/pack.njp").ok());
  }
  Service service = machine.service();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(service.prepare(kSpec).ok());
  Machine layered(store);
  ASSERT_EQ(
      layered.service([&](Options& options) { options.layers = {machine.directory.path() + "/pack.njp"}; })
          .prepare(kSpec)
          .value()
          .origin(),
      Origin::layer);
  EXPECT_EQ(store.calls().all(), 0);
}

TEST(SharedStore, AMachineWithoutADirectoryKeepsWhatItFound) {
  FakeStore store;
  Machine first(store), second(store);
  ASSERT_TRUE(first.service().prepare(kSpec).ok());
  Service service = second.service([](Options& options) { options.cache_directory.clear(); });
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::remote);
  const int calls = store.calls().all();
  EXPECT_EQ(service.prepare(kSpec, {.rows_hint = 100'000}).value().origin(), Origin::remote);
  EXPECT_EQ(store.calls().all(), calls);
}

TEST(SharedStore, OtherArchitecturesAreOtherKernels) {
  FakeStore store;
  Machine hopper(store, 90), ampere(store, 80);
  ASSERT_TRUE(hopper.service().prepare(kSpec).ok());
  EXPECT_EQ(ampere.service().prepare(kSpec).value().origin(), Origin::compiled);
  EXPECT_EQ(store.values().size(), 2U);
}

// A value under the key of another kernel: replayed by somebody, or copied.
TEST(SharedStore, AnotherKernelsValueIsNotBelieved) {
  FakeStore store;
  Machine hopper(store, 90), ampere(store, 80);
  ASSERT_TRUE(hopper.service().prepare(kSpec).ok());
  const std::string hopper_value = store.values().begin()->second;
  ASSERT_TRUE(ampere.service().prepare(kSpec).ok());
  for (const auto& [key, value] : store.values()) store.set(key, hopper_value);
  Machine poisoned(store, 80);
  {
    Service service = poisoned.service();
    EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::compiled);
    EXPECT_EQ(service.counters().remote_untrusted, 1U);
  }
  EXPECT_THAT(poisoned.events(), Contains("untrusted"));
  EXPECT_THAT(poisoned.warnings(), ElementsAre(HasSubstr("another entry than its key says")));
}

TEST(SharedStore, ADownStoreCostsTimeAndNeverTheResult) {
  FakeStore store;
  store.fail("connection refused");
  Machine machine(store);
  Service service = machine.service();
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::compiled);
  EXPECT_EQ(service.prepare(kOther).value().origin(), Origin::compiled);
  EXPECT_EQ(store.calls().all(), 1);
  EXPECT_EQ(service.counters().remote_errors, 1U);
  EXPECT_THAT(machine.warnings(), ElementsAre(HasSubstr("connection refused")));
}

TEST(SharedStore, CachedOnlyTakesWhatTheStoreHasAndNothingAfterAFreeze) {
  FakeStore store;
  Machine builder(store), reader(store);
  ASSERT_TRUE(builder.service().prepare(kSpec).ok());
  ASSERT_TRUE(builder.service().prepare(kOther).ok());
  const std::string log = reader.directory.path() + "/misses";
  Service service = reader.service([&](Options& options) {
    options.mode = Mode::cached_only;
    options.miss_log = log;
  });
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::remote);
  service.freeze();
  const int calls = store.calls().all();
  EXPECT_EQ(service.prepare(kOther).code(), Code::NotCached);
  EXPECT_EQ(store.calls().all(), calls);
  service.freeze(Frozen::no);
  EXPECT_EQ(service.prepare(kOther).value().origin(), Origin::remote);
  EXPECT_EQ(service.prepare({.columns = 77}).code(), Code::NotCached);
  EXPECT_EQ(reader.compiles(), 0);
  EXPECT_THAT(text_of(log), HasSubstr("cols=77"));
  EXPECT_THAT(text_of(log), Not(HasSubstr("cols=4096")));
}

TEST(SharedStore, TheMissLogHasWhatNobodyHad) {
  FakeStore store;
  Machine builder(store), machine(store);
  ASSERT_TRUE(builder.service().prepare(kSpec).ok());
  const std::string log = machine.directory.path() + "/misses";
  Service service = machine.service([&](Options& options) { options.miss_log = log; });
  ASSERT_TRUE(service.prepare(kSpec).ok());
  ASSERT_TRUE(service.prepare(kOther).ok());
  EXPECT_THAT(text_of(log), HasSubstr("cols=100"));
  EXPECT_THAT(text_of(log), Not(HasSubstr("cols=4096")));
}

TEST(SharedStore, LazyServicesFetchInTheBackground) {
  if (embedded_pack().empty()) GTEST_SKIP() << "This library was built without its generic kernels.";
  FakeStore store;
  Machine builder(store), machine(store);
  ASSERT_TRUE(builder.service().prepare(kSpec).ok());
  store.delay(50ms);
  Service service = machine.service([](Options& options) { options.mode = Mode::lazy; });
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::embedded);
  service.wait_for_compiles();
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::disk);
  EXPECT_EQ(machine.compiles(), 0);
  EXPECT_EQ(service.counters().remote_hits, 1U);
}

TEST(SharedStore, ACompileThatFailsGivesItsLeaseBack) {
  FakeStore store;
  Machine broken(store), sound(store);
  broken.compiler->fail({Code::CompileFailed, "no"});
  {
    Service service = broken.service();
    EXPECT_EQ(service.prepare(kSpec).code(), Code::CompileFailed);
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(sound.service().prepare(kSpec).value().origin(), Origin::compiled);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1500ms) << "It waited for a lease that nobody uses.";
}

TEST(SharedStore, CodeThatTheDriverRefusesIsCompiledHereAndNotOffered) {
  FakeStore store;
  Machine first(store), second(store);
  ASSERT_TRUE(first.service().prepare(kSpec).ok());
  second.driver->refuse_load(1);
  Service service = second.service();
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::compiled);
  EXPECT_EQ(second.compiles(), 1);
  EXPECT_EQ(service.counters().remote_stored, 0U);
}

TEST(SharedStore, APrebuildFillsTheStore) {
  FakeStore store;
  Machine machine(store);
  const std::vector<NormSpec> specs{kSpec, kOther, {.columns = 768}, {.columns = 1024}};
  const std::vector<DeviceProfile> devices{profile_of(80), profile_of(90)};
  int kernels = 0;
  {  // without the store
    Service service(machine.options(), machine.seams());
    kernels = service.prebuild(specs, devices).value().compiled;
  }
  ASSERT_GT(kernels, 16);
  {
    Service service = machine.service();
    const PrebuildReport report = service.prebuild(specs, devices).value();
    EXPECT_EQ(report.cached, kernels);
  }
  EXPECT_EQ(store.values().size(), static_cast<std::size_t>(kernels));
  Machine other(store);
  const PrebuildReport report = other.service().prebuild(specs, devices).value();
  EXPECT_EQ(report.cached, kernels);
  EXPECT_EQ(other.compiles(), 0);
}

TEST(SharedStore, KernelsAreCopiedInBothDirections) {
  using Outcome = RemoteReport::Outcome;
  FakeStore store;
  Machine here(store), there(store);
  const std::vector<NormSpec> specs{kSpec};
  const std::vector<DeviceProfile> devices{profile_of(90)};
  const auto count = [](const RemoteReport& report, Outcome outcome) {
    return std::ranges::count(report.kernels, outcome, &RemoteReport::Kernel::outcome);
  };
  std::ptrdiff_t kernels = 0;
  {
    Service plain(here.options(), here.seams());
    kernels = plain.prebuild(specs, devices).value().compiled;
    EXPECT_EQ(plain.remote(RemoteTask::put).code(), Code::BadArgument);
  }
  Service ours = here.service(), theirs = there.service();
  EXPECT_EQ(count(*theirs.remote(RemoteTask::get, specs, devices), Outcome::absent), kernels);
  EXPECT_EQ(count(*ours.remote(RemoteTask::put), Outcome::copied), kernels);
  EXPECT_EQ(count(*ours.remote(RemoteTask::put, specs, devices), Outcome::present), kernels);
  EXPECT_EQ(count(*ours.remote(RemoteTask::verify), Outcome::present), kernels);
  EXPECT_EQ(count(*theirs.remote(RemoteTask::get, specs, devices), Outcome::copied), kernels);
  EXPECT_EQ(count(*theirs.remote(RemoteTask::get, specs, devices), Outcome::present), kernels);
  EXPECT_EQ(there.compiles(), 0);

  store.set(store.values().begin()->first, "poison");
  const RemoteReport poisoned = *ours.remote(RemoteTask::verify);
  EXPECT_EQ(count(poisoned, Outcome::untrusted), 1);
  EXPECT_EQ(count(poisoned, Outcome::present), kernels - 1);

  EXPECT_EQ(ours.remote(RemoteTask::get).code(), Code::BadArgument);
  EXPECT_EQ(ours.remote(RemoteTask::put, specs).code(), Code::BadArgument);
  store.fail("down");
  EXPECT_EQ(ours.remote(RemoteTask::put).code(), Code::CacheIo);
}

TEST(SharedStore, TheEnvironmentSaysWhatIsBelieved) {
  FakeStore store;
  Machine machine(store);
  const Environment::Remote sound = machine.service().environment().remote;
  EXPECT_EQ(sound.url, "the host's store");
  EXPECT_EQ(sound.error, "");
  EXPECT_TRUE(sound.unsigned_values);
  store.fail("the server has moved");
  EXPECT_THAT(machine.service().environment().remote.error, HasSubstr("the server has moved"));
  Service untrusting = machine.service([](Options& options) { options.remote_unsigned = false; });
  EXPECT_THAT(untrusting.environment().remote.error, HasSubstr("no key is trusted"));
}

// Machines with several threads each, which miss the same kernels at the same time.
TEST(SharedStore, AFleetCompilesEachKernelOnce) {
  constexpr int kMachines = 6, kKernels = 12;
  FakeStore store;
  std::vector<std::unique_ptr<Machine>> machines;
  std::vector<std::thread> threads;
  for (int i = 0; i < kMachines; ++i) machines.push_back(std::make_unique<Machine>(store));
  for (const auto& machine : machines)
    threads.emplace_back([&machine] {
      Service service = machine->service();
      std::vector<std::thread> callers;
      for (int caller = 0; caller < 3; ++caller)
        callers.emplace_back([&service] {
          for (int k = 1; k <= kKernels; ++k) EXPECT_TRUE(service.prepare({.columns = 64 * k}).ok());
        });
      for (std::thread& caller : callers) caller.join();
    });
  for (std::thread& thread : threads) thread.join();
  int compiles = 0;
  for (const auto& machine : machines) compiles += machine->compiles();
  EXPECT_EQ(compiles, static_cast<int>(store.values().size()));
  EXPECT_GE(compiles, kKernels);
}

TEST(SharedStore, AServiceThatForksWhileItOffers) {
  NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
  FakeStore store;
  Machine machine(store);
  Service service = machine.service();
  store.hold_puts();
  ASSERT_TRUE(service.prepare(kSpec).ok());
  EXPECT_EQ(outcome_in_child([&] { return service.prepare(kSpec).ok(); }), "done");
  store.release_puts();
}

}  // namespace
}  // namespace normjit::testing
