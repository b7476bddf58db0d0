// SPDX-License-Identifier: Apache-2.0
// Backward specs in a service.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "normjit/base/embedded_file.h"
#include "normjit/spec/operands.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr NormSpec kGradients{.backward = true, .columns = 4096, .dsum = true, .affine = Affine::weight_bias};
// Without sums over rows there is nothing to exchange, and no workspace.
constexpr NormSpec kOfRows{.backward = true, .columns = 4096};

void* memory(std::uintptr_t number) { return reinterpret_cast<void*>(number << 30); }

Tensors tensors_of(const NormSpec& spec, std::int64_t rows = 500) {
  Tensors tensors{.x = memory(1), .rows = rows, .workspace = memory(9)};
  tensors.dy = memory(2);
  tensors.dx = memory(3);
  if (spec.dsum) tensors.dsum = memory(4);
  if (spec.affine != Affine::none) tensors.weight = memory(5), tensors.dweight = memory(6);
  if (spec.affine == Affine::weight_bias) tensors.dbias = memory(7);
  if (spec.gate != Gate::none) tensors.gate = memory(8), tensors.dgate = memory(10);
  if (!writes_dx(spec)) tensors.dx = tensors.dgate = nullptr;
  if (!writes_dweight(spec)) tensors.dweight = nullptr;
  if (!writes_dbias(spec)) tensors.dbias = nullptr;
  return tensors;
}

bool is_of_gradients(const Plan& plan) {
  return plan.strategy == Strategy::gradient_rows || plan.strategy == Strategy::gradient_ring ||
         plan.strategy == Strategy::gradient_columns;
}

class Gradients : public ::testing::Test {
 protected:
  // With the generic kernels, where this library has them.
  Service service(Mode mode, std::string_view embedded = embedded_pack()) {
    Options options = machine_.options();
    options.mode = mode;
    Seams seams = machine_.seams();
    seams.embedded = embedded;
    return Service(options, seams);
  }
  std::vector<std::string> launched() const {
    std::vector<std::string> all;
    for (const FakeDriver::Launch& launch : machine_.driver->launches()) all.push_back(launch.kernel);
    return all;
  }

  FakeMachine machine_;
};

TEST_F(Gradients, AreLaunchedByTheirOwnKernel) {
  Service eager = service(Mode::eager);
  ASSERT_TRUE(eager.norm(kGradients, tensors_of(kGradients), nullptr).ok());
  EXPECT_THAT(launched(), Each(HasSubstr("gradient_")));
  const Kernel kernel = eager.prepare(kGradients).value();
  EXPECT_TRUE(is_of_gradients(kernel.plan())) << to_text(kernel.plan());
  EXPECT_FALSE(kernel.is_fallback());
  EXPECT_GT(kernel.workspace_bytes(), 0u);
  EXPECT_GE(eager.workspace_bytes(kOfRows).value(), eager.prepare(kOfRows).value().workspace_bytes());
  Tensors without = tensors_of(kGradients);
  without.workspace = nullptr;
  EXPECT_EQ(eager.norm(kGradients, without, nullptr).code(), Code::WorkspaceRequired);
}

// Of each spec its own, in any order, also after a plan was remembered that needs more.
TEST_F(Gradients, TheSizeOfTheirWorkspaceIsKept) {
  NormSpec wide = kGradients;
  wide.columns = 65'536;
  Service eager = service(Mode::eager);
  const std::size_t of_rows = eager.workspace_bytes(kOfRows).value(),
                    of_all = eager.workspace_bytes(wide).value();
  EXPECT_NE(of_rows, of_all);
  EXPECT_EQ(service(Mode::eager).workspace_bytes(wide).value(), of_all);
  const DeviceProfile device = eager.device().value();
  Plan larger = choose(wide, device, RowsRegime::many, Alignment::eight);
  larger.strategy = Strategy::gradient_columns;
  larger.blocks_per_row = 1, larger.stages = 0, larger.group_rows = 512, larger.exchange = Exchange::grid;
  larger.threads = larger.threads_per_row = 32, larger.vector = larger.per_thread = 1;
  ASSERT_TRUE(check(larger, wide, device)) << to_text(larger);
  ASSERT_GT(workspace_bytes(larger, wide, device), of_all);
  ASSERT_TRUE(eager.remember({wide, device, RowsRegime::many, Alignment::eight, larger}));
  EXPECT_EQ(eager.workspace_bytes(wide).value(), of_all) << "its kernels were looked for before";
  EXPECT_EQ(eager.workspace_bytes(kOfRows).value(), of_rows);
  EXPECT_GT(service(Mode::eager).workspace_bytes(wide).value(), of_all);
}

// dx may be dy, and no output may be anything else.
TEST_F(Gradients, OverlapWithTheirOwnAlone) {
  const Kernel kernel = service(Mode::eager).prepare(kGradients).value();
  const auto checked = [&](const auto& change) {
    Tensors tensors = tensors_of(kGradients);
    change(tensors);
    return kernel.check(tensors).code();
  };
  EXPECT_EQ(checked([](Tensors&) {}), Code::Ok);
  EXPECT_EQ(checked([](Tensors& t) { t.dx = const_cast<void*>(t.dy.pointer); }), Code::Ok);
  EXPECT_EQ(checked([](Tensors& t) { t.dx = const_cast<void*>(t.x.pointer); }), Code::Overlap);
  EXPECT_EQ(checked([](Tensors& t) { t.dx = const_cast<void*>(t.dsum.pointer); }), Code::Overlap);
  EXPECT_EQ(checked([](Tensors& t) { t.dbias = t.dweight; }), Code::Overlap);
  EXPECT_EQ(checked([](Tensors& t) { t.dweight = const_cast<void*>(t.weight.pointer); }), Code::Overlap);
}

TEST_F(Gradients, GivenStatisticsAreOperands) {
  NormSpec spec = kGradients;
  spec.statistics = true;
  const Kernel kernel = service(Mode::eager).prepare(spec).value();
  Tensors tensors = tensors_of(spec);
  EXPECT_EQ(kernel.check(tensors).code(), Code::NullPointer);
  tensors.saved_mean = memory(11), tensors.saved_rstd = memory(12);
  EXPECT_TRUE(kernel.check(tensors).ok());
  tensors.dx = memory(12);
  EXPECT_EQ(kernel.check(tensors).code(), Code::Overlap);
  tensors = tensors_of(kGradients);
  tensors.saved_rstd = memory(12);
  EXPECT_EQ(service(Mode::eager).prepare(kGradients).value().check(tensors).code(), Code::UnexpectedPointer);
}

TEST_F(Gradients, DgateMayBeTheGate) {
  NormSpec spec = kGradients;
  spec.gate = Gate::before;
  const Kernel kernel = service(Mode::eager).prepare(spec).value();
  Tensors tensors = tensors_of(spec);
  EXPECT_TRUE(kernel.check(tensors).ok());
  tensors.dgate = const_cast<void*>(tensors.gate.pointer);
  EXPECT_TRUE(kernel.check(tensors).ok());
  tensors.dgate = tensors.dx;
  EXPECT_EQ(kernel.check(tensors).code(), Code::Overlap);
  tensors.dgate = nullptr;
  EXPECT_EQ(kernel.check(tensors).code(), Code::NullPointer);
}

// Frozen weights: the kernel needs no workspace, and its blocks do not meet.
TEST_F(Gradients, OfFrozenWeightsNeedNoWorkspace) {
  NormSpec spec = kGradients;
  spec.need = Need::dx;
  Service eager = service(Mode::eager);
  const Kernel kernel = eager.prepare(spec).value();
  EXPECT_EQ(kernel.workspace_bytes(), 0u);
  EXPECT_NE(kernel.plan().exchange, Exchange::grid) << to_text(kernel.plan());
  Tensors tensors = tensors_of(spec);
  tensors.workspace = nullptr;
  EXPECT_TRUE(eager.norm(spec, tensors, nullptr).ok());
  tensors.dweight = memory(6);
  EXPECT_EQ(eager.norm(spec, tensors, nullptr).code(), Code::UnexpectedPointer);
}

TEST_F(Gradients, OfAWeightAlone) {
  NormSpec spec = kGradients;
  spec.dsum = false;
  spec.need = Need::dweight;
  Service eager = service(Mode::eager);
  EXPECT_TRUE(eager.norm(spec, tensors_of(spec), nullptr).ok());
  EXPECT_TRUE(eager.norm(spec, tensors_of(spec, 0), nullptr).ok());
  ASSERT_EQ(machine_.driver->clears().size(), 1u) << "of no rows dweight alone is set to 0";
  Tensors tensors = tensors_of(spec);
  tensors.dx = memory(3);
  EXPECT_EQ(eager.norm(spec, tensors, nullptr).code(), Code::UnexpectedPointer);
}

// A sum over no rows is 0. Nothing is compiled for that.
TEST_F(Gradients, WithoutRowsSetTheSumsToZero) {
  using Clear = testing::FakeDriver::Clear;
  Service eager = service(Mode::eager);
  Tensors none = tensors_of(kGradients, 0);
  const Stream stream = reinterpret_cast<Stream>(0x70);
  const std::vector<Clear> zeroed = {{none.dweight, 4096 * 4, stream}, {none.dbias, 4096 * 4, stream}};
  EXPECT_TRUE(eager.norm(kGradients, none, stream).ok());
  EXPECT_EQ(machine_.driver->clears(), zeroed);
  EXPECT_EQ(machine_.driver->loads().size(), 0u);
  EXPECT_TRUE(eager.norm(kOfRows, tensors_of(kOfRows, 0), stream).ok());
  EXPECT_EQ(machine_.driver->clears(), zeroed) << "without a weight there is no sum";

  const Kernel kernel = eager.prepare(kGradients).value();
  EXPECT_TRUE(kernel.check(none).ok());
  EXPECT_TRUE(kernel.launch(none, stream));
  EXPECT_EQ(machine_.driver->clears().size(), 4u);
  EXPECT_THAT(launched(), IsEmpty());

  machine_.driver->set_launch_result(700);
  EXPECT_EQ(kernel.launch(none, stream).driver_result, 700);
  EXPECT_FALSE(eager.norm(kGradients, none, stream).ok());
  none.dbias = nullptr;
  EXPECT_EQ(kernel.launch(none, stream).code, Code::NullPointer);
  EXPECT_EQ(kernel.check(none).code(), Code::NullPointer);
  EXPECT_EQ(eager.norm(kGradients, none, stream).code(), Code::NullPointer);
}

TEST_F(Gradients, WithoutAGenericKernelALazyServiceWaits) {
  Service lazy = service(Mode::lazy, {});
  machine_.compiler->hold();
  bool launched_well = false;
  std::thread caller([&] { launched_well = lazy.norm(kGradients, tensors_of(kGradients), nullptr).ok(); });
  machine_.compiler->wait_for_calls(1);
  EXPECT_THAT(launched(), IsEmpty());
  machine_.compiler->release();
  caller.join();
  EXPECT_TRUE(launched_well);
  ASSERT_THAT(launched(), Not(IsEmpty()));
  EXPECT_THAT(launched(), Each(HasSubstr("gradient_")));
  const Counters counters = lazy.counters();
  EXPECT_EQ(counters.compiles, 1u);
  EXPECT_EQ(counters.misses, 1u);
  EXPECT_EQ(counters.fallback_launches, 0u);
  EXPECT_FALSE(lazy.prepare(kGradients).value().is_fallback());
}

TEST_F(Gradients, WithoutACompilerAreOfTheGenericKernel) {
  machine_.compiler->fail({Code::NoCompiler, "libnvrtc was not found"});
  for (const Mode mode : {Mode::eager, Mode::lazy}) {
    EXPECT_EQ(service(mode, {}).norm(kGradients, tensors_of(kGradients), nullptr).code(), Code::NoCompiler)
        << name(mode);
    EXPECT_EQ(service(mode).norm(kGradients, tensors_of(kGradients), nullptr).code(),
              embedded_pack().empty() ? Code::NoCompiler : Code::Ok)
        << name(mode);
  }
  EXPECT_THAT(launched(), Each(HasSubstr("_generic_")));
}

// They have as many blocks as run together, and whole clusters.
TEST_F(Gradients, OfADeviceWithLittleRoomHaveFewerBlocks) {
  NormSpec in_cluster = kGradients;
  in_cluster.columns = 32'768;
  ASSERT_EQ(choose(in_cluster, profile_of(90), RowsRegime::many, Alignment::eight).exchange,
            Exchange::cluster);
  for (const NormSpec& spec : {kGradients, in_cluster}) {
    const Plan chosen = choose(spec, profile_of(90), RowsRegime::many, Alignment::eight);
    for (const int room : {chosen.blocks_per_row, 3 * chosen.blocks_per_row + 1}) {
      machine_.driver->set_resident_blocks(room);
      Service eager = service(Mode::eager);
      const Kernel kernel = eager.prepare(spec).value();
      EXPECT_EQ(kernel.plan(), chosen) << to_text(kernel.plan());
      ASSERT_TRUE(kernel.launch(tensors_of(spec, 1000), nullptr).ok());
      EXPECT_EQ(machine_.driver->launches().back().blocks,
                static_cast<std::uint32_t>(room / chosen.blocks_per_row * chosen.blocks_per_row));
    }
  }
}

// Where not even those of one row can run together, the last one adds the sums.
TEST_F(Gradients, OfADeviceWithoutRoomHaveNoExchange) {
  machine_.driver->set_resident_blocks(0);
  Service eager = service(Mode::eager);
  const Kernel kernel = eager.prepare(kGradients).value();
  EXPECT_TRUE(is_of_gradients(kernel.plan()));
  EXPECT_EQ(kernel.plan().exchange, Exchange::none) << to_text(kernel.plan());
  EXPECT_EQ(kernel.plan(), fallback(kGradients, profile_of(90), RowsRegime::many, Alignment::eight));
}

// What the service says of the workspace is enough for the generic kernel, too.
TEST_F(Gradients, OfTheGenericPlanAreServed) {
  NormSpec modulated = kGradients;
  modulated.modulation = Modulation::scale_shift;
  NormSpec wide = kGradients;
  wide.columns = 300'000;
  Service eager = service(Mode::eager);
  for (const NormSpec& spec : {kGradients, kOfRows, modulated, wide}) {
    const Kernel kernel = eager.prepare(spec, {.plan = generic_plan()}).value();
    EXPECT_EQ(kernel.plan(), generic_plan());
    EXPECT_EQ(kernel.workspace_bytes() == 0, spec == kOfRows);
    EXPECT_GE(eager.workspace_bytes(spec).value(), kernel.workspace_bytes()) << to_text(spec);
  }
  ASSERT_TRUE(
      eager.prepare(kGradients, {.plan = generic_plan()}).value().launch(tensors_of(kGradients), nullptr));
  EXPECT_THAT(launched(), Each(HasSubstr("_generic_layernorm_bwd")));
}

TEST_F(Gradients, OfTheGenericKernelServeWhileTheirOwnIsCompiled) {
  if (embedded_pack().empty()) GTEST_SKIP() << "This library was built without its generic kernels.";
  Service lazy = service(Mode::lazy);
  machine_.compiler->hold();
  ASSERT_TRUE(lazy.norm(kGradients, tensors_of(kGradients), nullptr).ok());
  Tensors without = tensors_of(kGradients);
  without.workspace = nullptr;
  EXPECT_EQ(lazy.norm(kGradients, without, nullptr).code(), Code::WorkspaceRequired);
  EXPECT_THAT(launched(), Each(HasSubstr("_generic_")));
  machine_.compiler->release();
  lazy.wait_for_compiles();
  ASSERT_TRUE(lazy.norm(kGradients, tensors_of(kGradients), nullptr).ok());
  EXPECT_THAT(launched().back(), HasSubstr("gradient_"));
}

// A launch without a workspace waits for a kernel that needs none, and sums over the longest rows for one
// that has them soon.
TEST_F(Gradients, WhatTheGenericKernelServesBadlyWaits) {
  NormSpec modulated = kOfRows;
  modulated.modulation = Modulation::scale;
  Tensors tensors = tensors_of(modulated);
  tensors.workspace = nullptr;
  tensors.mod_scale = memory(11), tensors.dmod_scale = memory(12);
  const DeviceProfile device = profile_of(90);
  ASSERT_GT(workspace_bytes(generic_plan(), modulated, device), 0u);
  ASSERT_EQ(workspace_bytes(choose(modulated, device, RowsRegime::many, Alignment::eight), modulated, device),
            0u);
  NormSpec wide = kGradients;
  wide.columns = 300'000;
  Service lazy = service(Mode::lazy);
  ASSERT_TRUE(lazy.norm(modulated, tensors, nullptr).ok());
  ASSERT_TRUE(lazy.norm(wide, tensors_of(wide), nullptr).ok());
  EXPECT_THAT(launched(), Each(HasSubstr("gradient_")));
  EXPECT_FALSE(lazy.prepare(kGradients, {.batch_invariant = true}).value().is_fallback());
  machine_.compiler->fail({Code::NoCompiler, "libnvrtc was not found"});
  wide.epsilon = 1;
  EXPECT_EQ(service(Mode::lazy).norm(wide, tensors_of(wide), nullptr).ok(), !embedded_pack().empty());
}

TEST_F(Gradients, ArePrebuiltWithAllTheyCanAskFor) {
  const DeviceProfile device = profile_of(90);
  Service eager = service(Mode::eager);
  const PrebuildReport report = eager.prebuild({&kGradients, 1}, {&device, 1}).value();
  EXPECT_EQ(report.failed, 0);
  for (const KernelReport& kernel : report.results) EXPECT_TRUE(is_of_gradients(kernel.plan));
  const int compiles = machine_.compiles();
  for (const std::int64_t rows : {1, 100, 5000})
    ASSERT_TRUE(eager.norm(kGradients, tensors_of(kGradients, rows), nullptr).ok()) << rows;
  EXPECT_EQ(machine_.compiles(), compiles);
}

TEST_F(Gradients, WhyKnowsTheirKernels) {
  Service eager = service(Mode::eager);
  const auto reports = eager.why(kGradients, profile_of(90)).value();
  ASSERT_FALSE(reports.empty());
  for (const WhyReport& report : reports) EXPECT_TRUE(is_of_gradients(report.plan)) << to_text(report.plan);
  const WhyReport generic = eager.why(kGradients, profile_of(90), generic_plan()).value();
  EXPECT_NE(generic.id, "");
  EXPECT_EQ(generic.tier, embedded_pack().empty() ? "" : "embedded");
}

}  // namespace
}  // namespace normjit::testing
