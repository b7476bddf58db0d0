// SPDX-License-Identifier: Apache-2.0
// Blocks that share a row must run together. Where a device, or the share of it that a process has, has no
// room for them, another plan serves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "normjit/plan/footprint.h"
#include "normjit/service.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kTooLarge = 720, kInvalidCluster = 912, kIllegalAddress = 700;
constexpr std::int64_t kColumns[] = {16384, 32768, 65536, 131072, 262144, 1048576, 4194304};

void* memory(std::uintptr_t number) { return reinterpret_cast<void*>(number << 44); }

Tensors tensors_of(std::int64_t rows) {
  return {.x = memory(1), .y = memory(2), .rows = rows, .workspace = memory(7)};
}

// A use of a spec.
struct Case {
  NormSpec spec;
  std::int64_t rows;
  RowsRegime regime;
  Plan chosen, fallback;
};

// As few rows as this regime has; 0 if no number makes it.
std::int64_t rows_of(RowsRegime regime, const DeviceProfile& device) {
  const std::int64_t rows = rows_below(regime, {.columns = 1}, device) + 1;
  return regime_of(rows, device) == regime ? rows : 0;
}

// The uses for which the planner lets blocks exchange in this way, on this device.
std::vector<Case> cases_of(Exchange exchange, const DeviceProfile& device) {
  std::vector<Case> all;
  for (const std::int64_t columns : kColumns)
    for (const DType input : {DType::f32, DType::f16})
      for (const RowsRegime regime : kRowsRegimes) {
        if (rows_of(regime, device) == 0) continue;
        const NormSpec spec = canonical({.columns = columns, .input = input, .output = input});
        const Plan plan = choose(spec, device, regime, Alignment::eight);
        if (plan.exchange == exchange)
          all.push_back({spec, rows_of(regime, device), regime, plan,
                         fallback(spec, device, regime, Alignment::eight)});
      }
  return all;
}
std::vector<Case> cases() {
  std::vector<Case> all = cases_of(Exchange::cluster, profile_of(90));
  for (Case& one : cases_of(Exchange::grid, profile_of(90))) all.push_back(std::move(one));
  return all;
}

// The blocks of a launch of this plan that must run together at most.
int together(const Case& one) {
  if (one.chosen.exchange == Exchange::cluster) return one.chosen.blocks_per_row;
  return static_cast<int>(
      grid_blocks(one.chosen, one.spec, profile_of(90), std::numeric_limits<std::int32_t>::max()));
}

// A slice of an H200, as small as none is: few multiprocessors, all else as it was.
DeviceProfile slice_of_gpu() {
  DeviceProfile profile = profile_of(90);
  profile.sm_count = 2;
  return profile;
}

TEST(Residency, ThePlannerSharesRowsOfSomeUses) {
  EXPECT_FALSE(cases().empty()) << "or the tests below see nothing";
  for (const Case& one : cases()) {
    EXPECT_EQ(one.fallback.strategy, Strategy::split_row) << to_text(one.spec);
    EXPECT_EQ(one.fallback.exchange, Exchange::none);
    EXPECT_THAT(plans(one.spec, profile_of(90)), Contains(one.fallback)) << "so that a prebuild makes it";
  }
}

TEST(Residency, ASmallDeviceFallsBackWithoutCompilingWhatItCannotRun) {
  const DeviceProfile small = slice_of_gpu();
  int seen = 0;
  for (const Case& one : cases_of(Exchange::grid, small)) {
    if (check(one.chosen, one.spec, small)) continue;
    SCOPED_TRACE(to_text(one.spec));
    FakeMachine machine(std::make_shared<FakeDriver>(std::vector{small}));
    Options options = machine.options();
    std::vector<std::string> infos;
    options.log = [&infos](LogLevel level, std::string_view text) {
      EXPECT_LT(level, LogLevel::warn) << text;
      if (level == LogLevel::info) infos.emplace_back(text);
    };
    Service service(options, machine.seams());
    const auto kernel = service.prepare(one.spec, {.rows_hint = one.rows});
    ASSERT_TRUE(kernel.ok()) << kernel.error().message;
    EXPECT_EQ(to_text(kernel->plan()), to_text(one.fallback));
    EXPECT_EQ(machine.compiles(), 1);
    EXPECT_THAT(infos, Contains(HasSubstr("a plan whose blocks share no rows")));
    const auto rendered = service.render(one.spec, small, one.regime, Alignment::eight);
    ASSERT_TRUE(rendered.ok()) << rendered.error().message;
    EXPECT_EQ(rendered->text, machine.compiler->calls()[0].text);
    EXPECT_EQ(service.prepare(one.spec, {.plan = one.chosen}).code(), Code::IllegalPlan);
    ++seen;
  }
  EXPECT_TRUE(seen > 0 || cases_of(Exchange::grid, small).empty());
}

TEST(Residency, TheDriverHasTheLastWordOnHowManyBlocksRunTogether) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(to_text(one.spec) + " " + to_text(one.chosen));
    for (const int room : {0, together(one) - 1, together(one)}) {
      FakeMachine machine;
      machine.driver->set_resident_blocks(room);
      Service service = machine.service();
      const auto kernel = service.prepare(one.spec, {.rows_hint = one.rows});
      ASSERT_TRUE(kernel.ok()) << kernel.error().message;
      const bool fits = room == together(one);
      EXPECT_EQ(to_text(kernel->plan()), to_text(fits ? one.chosen : one.fallback)) << room;
      const int loads = machine.loads();
      EXPECT_EQ(loads, fits ? 1 : 2);
      ASSERT_TRUE(service.layer_norm(one.spec, tensors_of(one.rows), nullptr).ok());
      EXPECT_EQ(machine.loads(), loads) << "decided once";
    }
  }
}

TEST(Residency, WithoutAContextNobodyIsAskedBeforeTheLaunch) {
  for (const Case& one : cases()) {
    FakeMachine machine;
    machine.driver->set_current_device(std::nullopt);
    machine.driver->set_resident_blocks(0);
    Service service = machine.service();
    const Kernel kernel = service.prepare(one.spec, {.device = 0, .rows_hint = one.rows}).value();
    EXPECT_EQ(to_text(kernel.plan()), to_text(one.chosen));
    machine.driver->set_current_device(0);
    machine.driver->set_together_result(kTooLarge);
    ASSERT_TRUE(service.layer_norm(one.spec, tensors_of(one.rows), nullptr).ok());
    EXPECT_EQ(machine.driver->launches().back().shape.threads, one.fallback.threads);
  }
}

TEST(Residency, APinnedPlanThatHasNoRoomIsAnErrorThatSaysHowMuchThereIs) {
  for (const Case& one : cases()) {
    FakeMachine machine;
    machine.driver->set_resident_blocks(1);
    const auto kernel = machine.service().prepare(one.spec, {.plan = one.chosen});
    ASSERT_EQ(kernel.code(), Code::NotResident);
    EXPECT_THAT(kernel.error().message, HasSubstr(to_text(one.chosen)));
    EXPECT_THAT(kernel.error().message,
                HasSubstr(std::to_string(together(one)) + " blocks must run together"));
    EXPECT_THAT(kernel.error().message, HasSubstr("has room for 1;"));
    EXPECT_EQ(machine.driver->live_kernels(), 0);
    EXPECT_TRUE(machine.service().prepare(one.spec, {.plan = one.fallback}).ok());
  }
}

TEST(Residency, ARefusedLaunchIsDoneByAnotherKernelFromThenOn) {
  for (const Case& one : cases())
    for (const int refusal : {kTooLarge, kInvalidCluster}) {
      SCOPED_TRACE(to_text(one.spec) + " " + to_text(one.chosen));
      FakeMachine machine;
      machine.driver->set_together_result(refusal);
      Service service = machine.service();
      for (int i = 0; i < 3; ++i) {
        const auto done = service.layer_norm(one.spec, tensors_of(one.rows), nullptr);
        ASSERT_TRUE(done.ok()) << done.error().message;
      }
      EXPECT_EQ(machine.loads(), 2);
      const auto launches = machine.driver->launches();
      ASSERT_THAT(launches, SizeIs(4)) << "one was refused";
      EXPECT_TRUE(launches[0].shape.cooperative || launches[0].shape.cluster_blocks > 1);
      for (int i = 1; i < 4; ++i) {
        EXPECT_FALSE(launches[i].shape.cooperative || launches[i].shape.cluster_blocks > 1);
        EXPECT_EQ(launches[i].blocks, grid_blocks(one.fallback, one.spec, profile_of(90), one.rows));
      }
      EXPECT_EQ(to_text(service.prepare(one.spec, {.rows_hint = one.rows}).value().plan()),
                to_text(one.fallback));
    }
}

TEST(Residency, AHandleSaysThatItsLaunchWasRefused) {
  for (const Case& one : cases()) {
    FakeMachine machine;
    const Kernel kernel = machine.service().prepare(one.spec, {.rows_hint = one.rows}).value();
    for (const int refusal : {kTooLarge, kInvalidCluster}) {
      machine.driver->set_together_result(refusal);
      const Status status = kernel.launch(tensors_of(one.rows), nullptr);
      EXPECT_EQ(code_name(status.code), code_name(Code::NotResident));
      EXPECT_EQ(status.driver_result, refusal);
      EXPECT_THAT(status.message(), HasSubstr("without an exchange"));
    }
    machine.driver->set_together_result(kIllegalAddress);
    EXPECT_EQ(kernel.launch(tensors_of(one.rows), nullptr).code, Code::DriverError);
  }
}

TEST(Residency, OtherErrorsAndOtherKernelsDoNotFallBack) {
  const Case one = cases().at(0);
  FakeMachine machine;
  machine.driver->set_together_result(kIllegalAddress);
  Service service = machine.service();
  EXPECT_EQ(service.layer_norm(one.spec, tensors_of(one.rows), nullptr).code(), Code::DriverError);
  EXPECT_EQ(machine.loads(), 1);

  machine.driver->set_launch_result(kTooLarge);  // to a launch that asks for nothing of that kind
  EXPECT_EQ(service.layer_norm({.columns = 64}, tensors_of(1), nullptr).code(), Code::DriverError);
  EXPECT_EQ(machine.loads(), 2);
}

TEST(Residency, TheWorkspaceSufficesForTheFallback) {
  for (const Case& one : cases()) {
    FakeMachine machine;
    machine.driver->set_together_result(kTooLarge);
    Service service = machine.service();
    EXPECT_GE(service.workspace_bytes(one.spec).value(),
              workspace_bytes(one.fallback, one.spec, profile_of(90)));
    Tensors tensors = tensors_of(one.rows);
    tensors.workspace = nullptr;
    EXPECT_EQ(service.layer_norm(one.spec, tensors, nullptr).code(), Code::WorkspaceRequired);
  }
}

// Whatever the device turns out to be, a cache that was filled for its architecture has all that it needs.
TEST(Residency, APrebuiltCacheServesDevicesOfEverySize) {
  std::vector<NormSpec> specs;
  for (const Case& one : cases()) specs.push_back(one.spec);
  for (const bool small : {false, true})
    for (const int room : {0, 1 << 20})
      for (const int refusal : {0, kTooLarge}) {
        const auto profile = small ? slice_of_gpu() : profile_of(90);
        FakeMachine machine(std::make_shared<FakeDriver>(std::vector{profile}));
        const DeviceProfile named = profile_of(90);
        ASSERT_EQ(machine.service().prebuild(specs, {&named, 1}).value().failed, 0);
        const int compiles = machine.compiles();
        machine.driver->set_resident_blocks(room);
        machine.driver->set_together_result(refusal);
        Service warm = machine.service();
        for (const Case& one : cases())
          for (const RowsRegime regime : kRowsRegimes) {
            const std::int64_t rows = std::max<std::int64_t>(1, rows_of(regime, profile));
            const auto done = warm.layer_norm(one.spec, tensors_of(rows), nullptr);
            ASSERT_TRUE(done.ok()) << done.error().message;
          }
        EXPECT_EQ(machine.compiles(), compiles) << small << room << refusal;
      }
}

}  // namespace
}  // namespace normjit::testing
