// SPDX-License-Identifier: Apache-2.0
// Eager, lazy and cached-only services, frozen ones, and what they count, tell and write down.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/manifest.h"
#include "normjit/base/embedded_file.h"
#include "tests/support/child.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr NormSpec kSpec{.columns = 4096};
constexpr NormSpec kOther{.columns = 100};

class Modes : public ::testing::Test {
 protected:
  // With the generic kernels, where this library has them.
  Service service(Mode mode, const std::function<void(Options&)>& change = {}) {
    Options options = machine_.options();
    options.mode = mode;
    options.on_event = [this](const Event& event) {
      const std::lock_guard lock(mutex_);
      if (event.phase != Event::Phase::begin) events_.emplace_back(name(event.kind));
    };
    if (change) change(options);
    Seams seams = machine_.seams();
    seams.embedded = embedded_pack();
    return Service(options, seams);
  }
  static bool has_generic() { return !embedded_pack().empty(); }

  static Tensors tensors() {
    auto* const memory = reinterpret_cast<void*>(std::uintptr_t{1} << 20);
    return {.x = memory, .y = memory, .rows = 100'000};
  }
  std::string launched() const { return machine_.driver->launches().back().kernel; }
  std::vector<std::string> events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }

  FakeMachine machine_;
  mutable std::mutex mutex_;
  std::vector<std::string> events_;
};

class LazyModes : public Modes {
  void SetUp() override {
    if (!has_generic()) GTEST_SKIP() << "This library was built without generic kernels.";
  }
};

TEST_F(Modes, CachedOnlyNamesWhatIsMissingAndNeverCompiles) {
  Service cached = service(Mode::cached_only);
  const auto missing = cached.layer_norm(kSpec, tensors(), nullptr);
  ASSERT_EQ(missing.code(), Code::NotCached);
  EXPECT_THAT(missing.error().message,
              HasSubstr("normjit prebuild layernorm/cols=4096/f32/eps=1e-05 --arch"));
  EXPECT_EQ(cached.prepare(kSpec).code(), Code::NotCached);
  EXPECT_EQ(machine_.compiles(), 0);
  const DeviceProfile device = profile_of(90);
  ASSERT_EQ(cached.prebuild({&kSpec, 1}, {&device, 1}).value().failed, 0) << "which is asked for";
  const int compiles = machine_.compiles();
  EXPECT_TRUE(cached.layer_norm(kSpec, tensors(), nullptr).ok());
  EXPECT_EQ(machine_.compiles(), compiles);
}

TEST_F(Modes, AFrozenServiceWarnsOrRefuses) {
  Service eager = service(Mode::eager);
  ASSERT_TRUE(eager.prepare(kSpec).ok());
  eager.freeze(Frozen::warn);
  EXPECT_TRUE(eager.prepare(kOther).ok());
  EXPECT_THAT(machine_.warnings(), ElementsAre(HasSubstr("after the service was frozen")));
  eager.freeze();
  EXPECT_EQ(eager.prepare({.columns = 101}).code(), Code::NotCached);
  EXPECT_TRUE(eager.prepare(kSpec).ok());
  eager.freeze(Frozen::no);
  EXPECT_TRUE(eager.prepare({.columns = 101}).ok());
}

TEST_F(LazyModes, TheGenericKernelServesUntilTheCompileIsDone) {
  Service lazy = service(Mode::lazy);
  machine_.compiler->hold();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(lazy.layer_norm(kSpec, tensors(), nullptr).ok());
    EXPECT_THAT(launched(), HasSubstr("_generic_"));
  }
  machine_.compiler->wait_for_calls(1);
  const Kernel before = lazy.prepare(kSpec).value();
  EXPECT_TRUE(before.is_fallback());
  EXPECT_EQ(before.workspace_bytes(), 0U);
  machine_.compiler->release();
  lazy.wait_for_compiles();
  ASSERT_TRUE(lazy.layer_norm(kSpec, tensors(), nullptr).ok());
  EXPECT_THAT(launched(), Not(HasSubstr("_generic_")));
  EXPECT_FALSE(lazy.prepare(kSpec).value().is_fallback());
  EXPECT_TRUE(before.launch(tensors(), nullptr).ok()) << "a handle stays what it is";
  EXPECT_EQ(machine_.compiles(), 1);
  const Counters counters = lazy.counters();
  EXPECT_EQ(counters.fallback_launches, 4U);
  EXPECT_EQ(counters.misses, 1U);
  EXPECT_EQ(counters.compiles, 1U);
  EXPECT_EQ(counters.embedded_hits, 1U);
  EXPECT_EQ(counters.loads, 2U);
  // Two uses: in place, and as prepare() assumes.
  EXPECT_THAT(events(), ElementsAre("missed", "loaded", "substituted", "substituted", "compiled", "loaded",
                                    "specialised", "specialised"));
}

// In the background there is no look of its own before the lock: the caller's miss is the reason for the job.
TEST_F(LazyModes, AColdKernelIsLookedForOnceBeforeItsLockAndOnceBehindIt) {
  for (const Mode mode : {Mode::eager, Mode::lazy}) {
    const NormSpec spec{.columns = mode == Mode::eager ? 4096 : 100};
    Service service = this->service(mode);
    const Plan plan = choose(spec, profile_of(90), RowsRegime::many, Alignment::four);
    const std::string id = service.why(spec, profile_of(90), plan).value().id;
    machine_.files->forget();
    ASSERT_TRUE(service.prepare(spec).ok());
    service.wait_for_compiles();
    EXPECT_EQ(machine_.files->count(RecordingFileSystem::Kind::open, machine_.directory / (id + ".njk")), 2)
        << name(mode);
    EXPECT_EQ(service.prepare(spec).value().plan(), plan);
    EXPECT_EQ(service.counters().compiles, 1U);
  }
}

TEST_F(LazyModes, WhatACacheHasIsServedAtOnce) {
  ASSERT_TRUE(service(Mode::eager).prepare(kSpec).ok());
  const Kernel kernel = service(Mode::lazy).prepare(kSpec).value();
  EXPECT_FALSE(kernel.is_fallback());
  EXPECT_EQ(kernel.origin(), Origin::disk);
}

TEST_F(LazyModes, ACompileThatFailsLeavesTheGenericKernel) {
  Service lazy = service(Mode::lazy);
  machine_.compiler->fail({Code::CompileFailed, "no"});
  ASSERT_TRUE(lazy.layer_norm(kSpec, tensors(), nullptr).ok());
  lazy.wait_for_compiles();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(lazy.layer_norm(kSpec, tensors(), nullptr).ok());
  EXPECT_THAT(launched(), HasSubstr("_generic_"));
  lazy.wait_for_compiles();
  EXPECT_EQ(machine_.compiles(), 1) << "and is not tried at every launch";
  EXPECT_EQ(lazy.counters().failed_compiles, 1U);
}

TEST_F(LazyModes, TheGenericKernelServesWhereThereIsNoCompiler) {
  Service eager = service(Mode::eager);
  machine_.compiler->fail({Code::NoCompiler, "libnvrtc was not found"});
  ASSERT_TRUE(eager.layer_norm(kSpec, tensors(), nullptr).ok());
  EXPECT_THAT(launched(), HasSubstr("_generic_"));
  EXPECT_THAT(machine_.warnings(), ElementsAre(HasSubstr("the generic kernel")));
}

TEST_F(LazyModes, APinnedPlanIsWaitedFor) {
  const Plan plan = choose(kSpec, profile_of(90), RowsRegime::many, Alignment::four);
  const Kernel kernel = service(Mode::lazy).prepare(kSpec, {.plan = plan}).value();
  EXPECT_EQ(kernel.plan(), plan);
  EXPECT_FALSE(kernel.is_fallback());
}

TEST_F(Modes, WithoutAGenericKernelLazyWaits) {
  Options options = machine_.options();
  options.mode = Mode::lazy;
  Service lazy(options, machine_.seams());  // nothing is embedded
  EXPECT_FALSE(lazy.prepare(kSpec).value().is_fallback());
  EXPECT_EQ(lazy.counters().misses, 1U);
}

// The bits of a row may not change when the kernel of its own is there: the first call waits for it.
TEST_F(LazyModes, BatchInvariantKernelsAreWaitedFor) {
  const NormSpec spec{.norm = Norm::rms, .columns = 4096};
  const auto kernel = service(Mode::lazy).prepare(spec, {.batch_invariant = true});
  ASSERT_TRUE(kernel.ok()) << kernel.error().message;
  EXPECT_FALSE(kernel->is_fallback());
  EXPECT_EQ(kernel->plan().strategy, Strategy::block_row);
  EXPECT_EQ(kernel->origin(), Origin::compiled);
}

// Without the promise the number of rows decides.
TEST_F(Modes, BatchInvariantKernelsAreOneForAnyNumberOfRows) {
  Service eager = service(Mode::eager);
  std::set<std::string> invariant, others;
  for (const std::int64_t rows : {1, 2, 7, 8, 33, 132, 133, 264, 1000, 4096, 9999, 10'000}) {
    const NormSpec spec{.norm = Norm::rms, .columns = 4096, .input = DType::bf16};
    invariant.insert(to_text(eager.prepare(spec, {.rows_hint = rows, .batch_invariant = true})->plan()));
    others.insert(to_text(eager.prepare(spec, {.rows_hint = rows})->plan()));
  }
  EXPECT_EQ(invariant.size(), 1U);
  EXPECT_GT(others.size(), 1U);
}

// Unaligned rows are fast for many rows, and their sums depend on where in memory a row begins.
TEST_F(Modes, BatchInvariantKernelsHavePlansOfTheirOwn) {
  NormSpec spec = parse_spec("rmsnorm/cols=49001/f16").value();
  const auto plan_of = [&](bool batch_invariant) {
    return choose(spec, profile_of(90), RowsRegime::many, Alignment::one, batch_invariant);
  };
  while (plan_of(false) == plan_of(true) && spec.columns < 60'000) spec.columns += 2;
  const Plan usual = plan_of(false), invariant = plan_of(true);
  ASSERT_TRUE(usual.unaligned);
  ASSERT_NE(usual, invariant);
  Service eager = service(Mode::eager);
  EXPECT_EQ(eager.prepare(spec, {.rows_hint = 100'000})->plan(), usual);
  EXPECT_EQ(eager.prepare(spec, {.rows_hint = 100'000, .batch_invariant = true})->plan(), invariant);
  EXPECT_EQ(eager.prepare(spec, {.rows_hint = 1, .batch_invariant = true})->plan(), invariant);

  Options options = machine_.options();
  options.batch_invariant = true;
  Service always(options, machine_.seams());
  EXPECT_EQ(always.prepare(spec, {.rows_hint = 100'000})->plan(), invariant);
  const auto rendered = always.render(spec, profile_of(90), RowsRegime::few, Alignment::one);
  ASSERT_TRUE(rendered.ok());
  EXPECT_EQ(rendered->plan, invariant);
  for (const auto& [service, uses] : {std::pair(&eager, Uses{.batch_invariant = true}), {&always, Uses{}}}) {
    const auto reports = service->why(spec, profile_of(90), uses).value();
    EXPECT_EQ(std::ranges::count(reports, usual, &WhyReport::plan), 0);
    EXPECT_EQ(std::ranges::count(reports, invariant, &WhyReport::plan), 1);
  }
}

TEST_F(Modes, AMissInACaptureIsNotReady) {
  Service eager = service(Mode::eager);
  machine_.driver->set_capturing(true);
  EXPECT_EQ(eager.layer_norm(kSpec, tensors(), nullptr).code(), Code::NotReady);
  EXPECT_EQ(machine_.compiles() + machine_.loads(), 0);
  EXPECT_TRUE(eager.layer_norm(kSpec, tensors(), nullptr, {.miss_in_capture = true}).ok());
  EXPECT_TRUE(eager.layer_norm(kSpec, tensors(), nullptr).ok()) << "ready now";
  ASSERT_TRUE(eager.prepare(kOther).ok());
  EXPECT_EQ(eager.layer_norm({.columns = -1}, tensors(), nullptr).code(), Code::BadDimension);
}

// Regimes may share a plan, and with it the kernel.
TEST_F(Modes, ACaptureTakesTheKernelThatLaunchesOfAnotherRegimeHaveMadeReady) {
  const DeviceProfile device = profile_of(90);
  const auto plan_of = [&](RowsRegime regime) {
    return choose(canonical(kSpec), device, regime, Alignment::eight);
  };
  Service eager = service(Mode::eager);
  ASSERT_TRUE(eager.layer_norm(kSpec, tensors(), nullptr).ok());
  machine_.driver->set_capturing(true);
  int ready = 0;
  for (const RowsRegime regime : kRowsRegimes) {
    if (regime == RowsRegime::many) continue;
    const bool same = plan_of(regime) == plan_of(RowsRegime::many);
    Tensors others = tensors();
    others.rows = most_rows(regime, kSpec, device);
    EXPECT_EQ(eager.layer_norm(kSpec, others, nullptr).code(), same ? Code::Ok : Code::NotReady)
        << name(regime);
    ready += same;
  }
  EXPECT_EQ(machine_.compiles(), 1);
  EXPECT_GT(ready, 0) << "this spec shows nothing";
  EXPECT_LT(ready, std::ssize(kRowsRegimes) - 1) << "this spec shows nothing";
}

TEST_F(LazyModes, TheGenericKernelIsCapturedOnlyWhereThatIsAllowed) {
  Service lazy = service(Mode::lazy);
  machine_.compiler->hold();
  ASSERT_TRUE(lazy.layer_norm(kSpec, tensors(), nullptr).ok());
  const Kernel kernel = lazy.prepare(kSpec).value();
  const std::size_t launches = machine_.driver->launches().size();
  machine_.driver->set_capturing(true);
  EXPECT_EQ(lazy.layer_norm(kSpec, tensors(), nullptr).code(), Code::NotReady);
  EXPECT_EQ(kernel.launch(tensors(), nullptr).code, Code::NotReady);
  EXPECT_EQ(machine_.driver->launches().size(), launches);
  EXPECT_TRUE(lazy.layer_norm(kSpec, tensors(), nullptr, {.miss_in_capture = true}).ok());
  EXPECT_TRUE(kernel.launch(tensors(), nullptr, {.miss_in_capture = true}).ok());
  machine_.compiler->release();
  lazy.wait_for_compiles();
  EXPECT_TRUE(lazy.layer_norm(kSpec, tensors(), nullptr).ok());
  EXPECT_THAT(launched(), Not(HasSubstr("_generic_")));
}

TEST_F(LazyModes, TheEndOfAServiceWaitsForWhatItsThreadsAreDoing) {
  std::thread releases;
  {
    Service lazy = service(Mode::lazy);
    machine_.compiler->hold();
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(lazy.prepare({.columns = 64 + i}).ok());
    machine_.compiler->wait_for_calls(1);
    releases = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      machine_.compiler->release();
    });
  }
  releases.join();
  EXPECT_LT(machine_.compiles(), 20) << "what had not begun is dropped";
}

TEST_F(LazyModes, AForkedChildCompilesForItself) {
  NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
  Service lazy = service(Mode::lazy);
  machine_.compiler->hold();
  ASSERT_TRUE(lazy.prepare(kSpec).ok());
  machine_.compiler->wait_for_calls(1);
  EXPECT_EQ(outcome_in_child([&] {
              machine_.compiler->release();
              if (!lazy.prepare(kOther).ok()) return false;
              lazy.wait_for_compiles();
              return !lazy.prepare(kOther).value().is_fallback();
            }),
            "done");
  machine_.compiler->release();
}

TEST_F(Modes, MissesMakeAManifest) {
  const std::string path = machine_.directory / "misses.jsonl";
  const auto with_log = [&](Options& options) { options.miss_log = path; };
  {
    Service eager = service(Mode::eager, with_log);
    for (const std::int64_t rows : {1, 500})
      ASSERT_TRUE(eager.prepare(kSpec, {.rows_hint = rows}).ok());  // two kernels of one spec
    ASSERT_TRUE(eager.prepare(kOther).ok());
  }
  EXPECT_EQ(service(Mode::cached_only, with_log).prepare({.columns = 7}).code(), Code::NotCached);
  const auto specs = cli::read_manifest(path);
  ASSERT_TRUE(specs.ok()) << specs.error().message;
  EXPECT_THAT(*specs, ElementsAre(canonical(kSpec), canonical(kOther), canonical({.columns = 7})));
}

TEST_F(Modes, AMissLogThatCannotBeWrittenIsWarnedOfOnce) {
  Service eager = service(Mode::eager, [](Options& options) { options.miss_log = "/no/such/folder/log"; });
  ASSERT_TRUE(eager.prepare(kSpec).ok());
  ASSERT_TRUE(eager.prepare(kOther).ok());
  EXPECT_THAT(machine_.warnings(), ElementsAre(HasSubstr("/no/such/folder/log")));
}

TEST_F(Modes, CountersCountAndAreJson) {
  Service eager = service(Mode::eager);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(eager.layer_norm(kSpec, tensors(), nullptr).ok());
  Counters counters = eager.counters();
  EXPECT_EQ(counters.memory_hits, 9U);
  EXPECT_EQ(counters.misses, 1U);
  EXPECT_EQ(counters.compiles, 1U);
  Service next = service(Mode::eager);
  ASSERT_TRUE(next.prepare(kSpec).ok());
  EXPECT_EQ(next.counters().disk_hits, 1U);
  EXPECT_EQ(next.counters().misses, 0U);
  counters = {};
  counters.memory_hits = 12;
  counters.remote_wait_ms = 0.5;
  const std::string json = to_json(counters);
  EXPECT_THAT(json, ::testing::StartsWith("{\"memory_hits\": 12, \"disk_hits\": 0"));
  EXPECT_THAT(json, ::testing::HasSubstr("\"remote_wait_ms\": 0.5, \"remote_wait_durations\": [0, 0, "));
}

}  // namespace
}  // namespace normjit::testing
