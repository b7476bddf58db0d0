// SPDX-License-Identifier: Apache-2.0
// A Service with tuned plans in its cache: when it takes them, and when it goes on without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "normjit/service.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

using Kind = RecordingFileSystem::Kind;
using Outcome = KernelReport::Outcome;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr NormSpec kSpec{.columns = 4096};

// Legal with up to 1024 threads, and nothing that the rules choose: half of the threads' places are idle.
Plan resident(int threads) {
  return {.strategy = Strategy::block_row,
          .threads = threads,
          .threads_per_row = threads,
          .vector = 2,
          .per_thread = 4096 / threads};
}
// With so many blocks, it needs more workspace than what the rules choose.
const Plan kSplitRow{.strategy = Strategy::split_row,
                     .threads = 32,
                     .threads_per_row = 32,
                     .vector = 4,
                     .per_thread = 1,
                     .blocks_per_sm = 32};

void* memory(std::uintptr_t number) { return reinterpret_cast<void*>(number << 40); }

class ServiceTunedTest : public ::testing::Test {
 protected:
  ServiceTunedTest() {
    for (const Plan& plan : plans(kSpec, device_))
      for (const Plan& tuned : {kTuned, resident(256), kSplitRow})
        EXPECT_NE(to_text(plan), to_text(tuned)) << "or this file tests nothing";
  }

  TunedPlan tuned(const Plan& plan) const {
    return {.spec = kSpec, .device = device_, .plan = plan, .rows = 500, .fraction_of_copy = 0.9};
  }
  void remember(const TunedPlan& kept) {
    const auto stored = machine_.service().remember(kept);
    ASSERT_TRUE(stored.ok()) << stored.error().message;
  }
  // As a new process of this machine, but with a GPU of this profile.
  Service service_on(const DeviceProfile& device) {
    Seams seams = machine_.seams();
    seams.driver = std::make_shared<FakeDriver>(std::vector{device});
    return Service(machine_.options(), seams);
  }

  FakeMachine machine_;
  const DeviceProfile device_ = profile_of(90);
  const Plan kTuned = resident(512);
  const Plan rules_ = choose(kSpec, device_, RowsRegime::many, Alignment::eight);
  const Tensors tensors_{.x = memory(1), .y = memory(2), .rows = 100'000};
};

TEST_F(ServiceTunedTest, ATunedPlanIsTakenWhereItWasMeasured) {
  remember(tuned(kTuned));
  Service service = machine_.service();
  EXPECT_EQ(service.prepare(kSpec).value().plan(), kTuned);
  EXPECT_EQ(service.render(kSpec, device_, RowsRegime::many, Alignment::eight).value().plan, kTuned);
  EXPECT_EQ(service.tuned(kSpec, device_, RowsRegime::many, Alignment::eight).value(), kTuned);
  ASSERT_TRUE(service.layer_norm(kSpec, tensors_, nullptr).ok());
  EXPECT_EQ(machine_.driver->launches().at(0).shape.threads, kTuned.threads);
  EXPECT_EQ(machine_.loads(), 1) << "one kernel for both forms";

  EXPECT_EQ(service.prepare(kSpec, {.rows_hint = 50}).value().plan(),
            choose(kSpec, device_, RowsRegime::few, Alignment::eight));
  EXPECT_EQ(service.prepare(kSpec, {.pointer_alignment = 8}).value().plan(),
            choose(kSpec, device_, RowsRegime::many, Alignment::two));
  EXPECT_THAT(machine_.warnings(), IsEmpty());
}

TEST_F(ServiceTunedTest, ADeviceThatDiffersInAnyFactGoesByTheRules) {
  remember(tuned(kTuned));
  DeviceProfile smaller = device_;
  smaller.l2_bytes /= 2;
  EXPECT_EQ(service_on(smaller).prepare(kSpec).value().plan(), rules_);
  EXPECT_EQ(service_on(device_).prepare(kSpec).value().plan(), kTuned);
}

TEST_F(ServiceTunedTest, APinnedPlanBeatsIt) {
  remember(tuned(kTuned));
  EXPECT_EQ(machine_.service().prepare(kSpec, {.plan = resident(256)}).value().plan(), resident(256));
}

TEST_F(ServiceTunedTest, AWarmTunedKernelCostsSplitRow) {
  remember(tuned(kTuned));
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  Service service = machine_.service();
  machine_.files->forget();
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::disk);
  EXPECT_EQ(machine_.files->count(Kind::open), 2);
  EXPECT_EQ(machine_.files->count(Kind::list), 0);
  EXPECT_EQ(machine_.files->writes(), 0);
  machine_.files->forget();
  ASSERT_TRUE(service.prepare(kSpec).ok());
  EXPECT_THAT(machine_.files->calls(), IsEmpty());
  EXPECT_EQ(machine_.compiles(), 1);
}

// A caller who was never asked for a workspace goes on without one.
TEST_F(ServiceTunedTest, WithoutAWorkspaceNoTunedPlanThatNeedsOneIsTaken) {
  remember(tuned(kSplitRow));
  Service service = machine_.service();
  ASSERT_TRUE(service.layer_norm(kSpec, tensors_, nullptr).ok());
  EXPECT_EQ(machine_.driver->launches().at(0).shape.threads, rules_.threads);
  EXPECT_EQ(machine_.compiles(), 1);

  Tensors with_workspace = tensors_;
  with_workspace.workspace = memory(3);
  ASSERT_TRUE(service.layer_norm(kSpec, with_workspace, nullptr).ok());
  EXPECT_EQ(machine_.compiles(), 2);
  EXPECT_EQ(service.prepare(kSpec).value().plan(), kSplitRow) << "the handle says what it needs";
  EXPECT_EQ(machine_.compiles(), 2);
}

TEST_F(ServiceTunedTest, TheWorkspaceSufficesForTunedPlansToo) {
  EXPECT_LT(machine_.service().workspace_bytes(kSpec).value(), workspace_bytes(kSplitRow, kSpec, device_));
  remember(tuned(kSplitRow));
  Service service = machine_.service();
  EXPECT_EQ(service.workspace_bytes(kSpec).value(), workspace_bytes(kSplitRow, kSpec, device_));
  EXPECT_EQ(service.prepare(kSpec).value().workspace_bytes(), service.workspace_bytes(kSpec).value());
}

TEST_F(ServiceTunedTest, AServiceThatSaidHowMuchWorkspaceItNeedsKeepsToIt) {
  Service service = machine_.service();
  ASSERT_LT(service.workspace_bytes(kSpec).value(), workspace_bytes(kSplitRow, kSpec, device_));
  ASSERT_TRUE(service.remember(tuned(kSplitRow)).ok());
  EXPECT_EQ(service.prepare(kSpec).value().plan(), rules_);
  EXPECT_EQ(machine_.service().prepare(kSpec).value().plan(), kSplitRow);
}

TEST_F(ServiceTunedTest, ATunedKernelThatCannotBeLoadedGivesWayToTheRules) {
  remember(tuned(kTuned));
  machine_.driver->refuse_load(1);
  Service service = machine_.service();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(service.prepare(kSpec).value().plan(), rules_);
  EXPECT_EQ(machine_.loads(), 2) << "it is not tried again";
  EXPECT_THAT(machine_.warnings(), ElementsAre(HasSubstr("the planner's choice")));
}

TEST_F(ServiceTunedTest, WithoutACompilerAWarmKernelOfTheRulesServes) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  remember(tuned(kTuned));
  machine_.compiler->fail({Code::NoCompiler, "no libnvrtc"});
  const auto kernel = machine_.service().prepare(kSpec);
  ASSERT_TRUE(kernel.ok()) << kernel.error().message;
  EXPECT_EQ(kernel->plan(), rules_);
  EXPECT_EQ(kernel->origin(), Origin::disk);
}

TEST_F(ServiceTunedTest, RememberSaysWhatIsWrong) {
  Service service = machine_.service();
  TunedPlan wrong = tuned(kTuned);
  wrong.spec.columns = 0;
  EXPECT_EQ(service.remember(wrong).code(), Code::BadDimension);
  wrong = tuned(kTuned);
  wrong.plan.per_thread = 2;
  wrong.plan.threads = 32;
  EXPECT_EQ(service.remember(wrong).code(), Code::IllegalPlan);
  EXPECT_EQ(machine_.service_without_cache().remember(tuned(kTuned)).code(), Code::CacheIo);
  machine_.files->fail_creation(EROFS);
  EXPECT_EQ(service.remember(tuned(kTuned)).code(), Code::CacheIo);
  EXPECT_EQ(service.tuned({.columns = 0}, device_, RowsRegime::many, Alignment::one).code(),
            Code::BadDimension);
  EXPECT_EQ(machine_.service().tuned(kSpec, device_, RowsRegime::many, Alignment::eight).value(),
            std::nullopt);
}

TEST_F(ServiceTunedTest, PrebuildBuildsWhatIsTunedForAnyGpuOfTheArchitecture) {
  DeviceProfile slice = device_;
  slice.sm_count = 16;
  TunedPlan on_slice = tuned(resident(256));
  on_slice.device = slice;
  remember(tuned(kTuned));
  remember(on_slice);
  TunedPlan elsewhere = tuned(resident(128));
  elsewhere.device = profile_of(80);
  remember(elsewhere);

  Service service = machine_.service();
  const PrebuildReport report = service.prebuild({&kSpec, 1}, {&device_, 1}).value();
  const std::vector<Plan> by_rules = plans(kSpec, device_);
  std::vector<std::string> built, wanted;
  for (const Plan& plan : by_rules) wanted.push_back(to_text(plan));
  for (const Plan& plan : {kTuned, resident(256)}) wanted.push_back(to_text(plan));
  for (const KernelReport& kernel : report.results) {
    EXPECT_EQ(kernel.outcome, Outcome::compiled) << kernel.error;
    built.push_back(to_text(kernel.plan));
  }
  EXPECT_THAT(built, ::testing::UnorderedElementsAreArray(wanted));

  // Now no use can miss, on a GPU of either size.
  const int compiled = machine_.compiles();
  for (const DeviceProfile& device : {device_, slice}) {
    Service fresh = service_on(device);
    for (const std::int64_t rows : {1, 2, 15, 16, 131, 132, 1000000})
      for (const int alignment : {4, 8, 16})
        for (const std::int64_t stride : {4096, 4097, 4098}) {
          const auto kernel = fresh.prepare(
              kSpec, {.rows_hint = rows, .pointer_alignment = alignment, .x_row_stride = stride});
          ASSERT_TRUE(kernel.ok()) << kernel.error().message;
        }
    EXPECT_EQ(fresh.prepare(kSpec).value().plan(), device == slice ? resident(256) : kTuned);
  }
  EXPECT_EQ(machine_.compiles(), compiled);
  EXPECT_THAT(machine_.warnings(), IsEmpty());
}

TEST_F(ServiceTunedTest, EntriesTellTunedPlansFromKernels) {
  remember(tuned(kTuned));
  const auto entries = machine_.service().entries().value();
  ASSERT_THAT(entries, SizeIs(1));
  const EntryReport& entry = entries[0];
  EXPECT_FALSE(entry.damaged);
  EXPECT_EQ(entry.code, "plan");
  EXPECT_EQ(entry.spec, to_text(kSpec));
  EXPECT_EQ(entry.plan, to_text(kTuned));
  EXPECT_EQ(entry.arch, "sm_90");
  EXPECT_EQ(entry.device, device_.text());
  EXPECT_EQ(entry.regime, "many");
  EXPECT_EQ(entry.alignment, "8");
  EXPECT_EQ(entry.kernel, "");
  EXPECT_EQ(entry.toolchain, "");
  EXPECT_EQ(entry.registers, -1);
  EXPECT_EQ(entry.spill_bytes, -1);
}

}  // namespace
}  // namespace normjit::testing
