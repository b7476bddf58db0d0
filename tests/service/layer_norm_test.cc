// SPDX-License-Identifier: Apache-2.0
// The one-call form: which kernel serves which tensors, and when pointers are looked up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "normjit/service.h"
#include "normjit/service/packed_tensors.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr NormSpec kSpec{.columns = 4096, .affine = Affine::weight_bias};
constexpr NormSpec kGigantic{.columns = 4194304};

void* memory(std::uintptr_t number, std::uintptr_t offset = 0) {
  return reinterpret_cast<void*>((number << 40) + offset);
}

Tensors tensors_of(std::int64_t rows) {
  return {.x = memory(1), .y = memory(2), .weight = memory(3), .bias = memory(4), .rows = rows};
}

class LayerNormTest : public ::testing::Test {
 protected:
  LayerNormTest() { machine_.driver->set_argument_sizes({sizeof(OperandBlock)}); }

  // The plan of the kernel that serves these tensors, told by the source that was compiled for it.
  void expect_plan(const NormSpec& spec, const Tensors& tensors, Alignment alignment) {
    FakeMachine machine;
    const auto done = machine.service().layer_norm(spec, tensors, nullptr);
    ASSERT_TRUE(done.ok()) << done.error().message;
    ASSERT_THAT(machine.compiler->calls(), SizeIs(1));
    const RowsRegime regime = regime_of(tensors.rows, profile_of(90));
    const auto expected = service_.render(spec, profile_of(90), regime, alignment).value();
    EXPECT_EQ(machine.compiler->calls()[0].text, expected.text) << to_text(expected.plan);
    EXPECT_EQ(machine.driver->launches().at(0).shape.threads, expected.plan.threads);
  }

  FakeMachine machine_;
  Service service_ = machine_.service();
};

TEST_F(LayerNormTest, PreparesOnceAndLaunchesEachTime) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(service_.layer_norm(kSpec, tensors_of(200), nullptr).ok());
  EXPECT_EQ(machine_.compiles(), 1);
  EXPECT_EQ(machine_.loads(), 1);
  ASSERT_THAT(machine_.driver->launches(), SizeIs(3));
  const FakeDriver::Launch launch = machine_.driver->launches()[2];
  const auto block = launch.argument<std::array<std::uint64_t, sizeof(OperandBlock) / 8>>(0);
  const auto word = [&](Operand operand) {
    return reinterpret_cast<void*>(block[OperandBlock::offset_of(operand, kernel_layout({}, kSpec)) / 8]);
  };
  EXPECT_EQ(block[0], 200u);
  EXPECT_EQ(word(Operand::x), memory(1));
  EXPECT_EQ(word(Operand::y), memory(2));
}

TEST_F(LayerNormTest, PassesTheLaunchOptionsOn) {
  ASSERT_TRUE(service_.layer_norm(kSpec, tensors_of(200), nullptr, {.overlap_previous = true}).ok());
  ASSERT_TRUE(service_.layer_norm(kSpec, tensors_of(200), nullptr).ok());
  ASSERT_THAT(machine_.driver->launches(), SizeIs(2));
  EXPECT_TRUE(machine_.driver->launches()[0].shape.overlap_previous);
  EXPECT_FALSE(machine_.driver->launches()[1].shape.overlap_previous);
  EXPECT_EQ(machine_.loads(), 1);
}

TEST_F(LayerNormTest, SharesKernelsWithPrepare) {
  ASSERT_TRUE(service_.prepare(kSpec, {.rows_hint = 200}).ok());
  ASSERT_TRUE(service_.layer_norm(kSpec, tensors_of(201), nullptr).ok());
  EXPECT_EQ(machine_.loads(), 1);
}

TEST_F(LayerNormTest, TakesTheKernelForItsRows) {
  const int sms = profile_of(90).sm_count;
  expect_plan(kSpec, tensors_of(1), Alignment::eight);
  expect_plan(kSpec, tensors_of(sms / 8), Alignment::eight);
  expect_plan(kSpec, tensors_of(sms / 8 + 1), Alignment::eight);
  expect_plan(kSpec, tensors_of(sms), Alignment::eight);
  expect_plan(kSpec, tensors_of(sms + 1), Alignment::eight);
  expect_plan(kSpec, tensors_of(1000000), Alignment::eight);
}

TEST_F(LayerNormTest, TakesTheKernelForItsAlignment) {
  Tensors tensors = tensors_of(200);
  tensors.x = memory(1, 4);
  expect_plan(kSpec, tensors, Alignment::one);
  tensors = tensors_of(200);
  tensors.y = memory(2, 8);
  expect_plan(kSpec, tensors, Alignment::two);
  tensors = tensors_of(200);
  tensors.weight = memory(3, 12);
  expect_plan(kSpec, tensors, Alignment::one);
  tensors = tensors_of(200);
  tensors.y.outer = 4098;
  expect_plan(kSpec, tensors, Alignment::two);
  tensors.rows = 1;  // then strides have no meaning
  expect_plan(kSpec, tensors, Alignment::eight);
}

TEST_F(LayerNormTest, RunsOnTheCurrentDevice) {
  FakeMachine machine({80, 90});
  Service service = machine.service();
  ASSERT_TRUE(service.layer_norm(kSpec, tensors_of(9), nullptr).ok());
  machine.driver->set_current_device(1);
  for (int i = 1; i <= 4; ++i) machine.driver->set_allocation(memory(i), {true, 1, UINT64_MAX});
  ASSERT_TRUE(service.layer_norm(kSpec, tensors_of(9), nullptr).ok());
  ASSERT_THAT(machine.driver->launches(), SizeIs(2));
  EXPECT_EQ(machine.driver->launches()[0].device, 0);
  EXPECT_EQ(machine.driver->launches()[1].device, 1);
}

TEST_F(LayerNormTest, LooksPointersUpUntilALaunchWasSound) {
  machine_.driver->set_allocation(memory(1), {.device_accessible = false});
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(service_.layer_norm(kSpec, tensors_of(200), nullptr).code(), Code::WrongDevice);
  machine_.driver->set_allocation(memory(1), {true, 1, UINT64_MAX});
  EXPECT_EQ(service_.layer_norm(kSpec, tensors_of(200), nullptr).code(), Code::WrongDevice);
  machine_.driver->set_allocation(memory(1), {true, 0, 200 * 4096 * 4 - 1});
  EXPECT_EQ(service_.layer_norm(kSpec, tensors_of(200), nullptr).code(), Code::OutOfBounds);
  EXPECT_THAT(machine_.driver->launches(), IsEmpty());

  machine_.driver->set_allocation(memory(1), {true, 0, 200 * 4096 * 4});
  ASSERT_TRUE(service_.layer_norm(kSpec, tensors_of(200), nullptr).ok());
  const int before = machine_.driver->calls();
  ASSERT_TRUE(service_.layer_norm(kSpec, tensors_of(200), nullptr).ok());
  EXPECT_EQ(machine_.driver->calls() - before, 1) << "which device is current, and no pointer";

  // Another kernel of the same spec starts anew.
  machine_.driver->set_allocation(memory(2), {.device_accessible = false});
  EXPECT_TRUE(service_.layer_norm(kSpec, tensors_of(201), nullptr).ok());
  EXPECT_EQ(service_.layer_norm({.columns = 64}, {.x = memory(1), .y = memory(2), .rows = 1}, nullptr).code(),
            Code::WrongDevice);
}

TEST_F(LayerNormTest, RefusesBadTensorsBeforeItCompiles) {
  Tensors tensors = tensors_of(5);
  tensors.bias = nullptr;
  const auto refused = service_.layer_norm(kSpec, tensors, nullptr);
  ASSERT_EQ(refused.code(), Code::NullPointer);
  EXPECT_THAT(refused.error().message, HasSubstr(to_text(kSpec)));
  tensors = tensors_of(-1);
  EXPECT_EQ(service_.layer_norm(kSpec, tensors, nullptr).code(), Code::BadRows);
  tensors = tensors_of(5);
  tensors.y = memory(2, 2);
  EXPECT_EQ(service_.layer_norm(kSpec, tensors, nullptr).code(), Code::Misaligned);
  tensors = tensors_of(5);
  tensors.y.outer = 4;
  EXPECT_EQ(service_.layer_norm(kSpec, tensors, nullptr).code(), Code::BadStride);
  EXPECT_EQ(service_.layer_norm({.columns = 4096}, tensors_of(5), nullptr).code(), Code::UnexpectedPointer);
  EXPECT_EQ(machine_.compiles(), 0);
}

TEST_F(LayerNormTest, NoRowsNeedNoGpu) {
  machine_.driver->set_driver_missing(true);
  EXPECT_TRUE(service_.layer_norm(kSpec, {}, nullptr).ok());
  EXPECT_EQ(machine_.driver->calls(), 0);
}

TEST_F(LayerNormTest, NeedsDriverAndContext) {
  machine_.driver->set_current_device(std::nullopt);
  EXPECT_EQ(service_.layer_norm(kSpec, tensors_of(5), nullptr).code(), Code::NoContext);
  machine_.driver->set_driver_missing(true);
  EXPECT_EQ(service_.layer_norm(kSpec, tensors_of(5), nullptr).code(), Code::NoDriver);
}

TEST_F(LayerNormTest, SaysWhenItNeedsAWorkspace) {
  Tensors tensors{.x = memory(1), .y = memory(2), .rows = 3};
  EXPECT_EQ(service_.layer_norm(kGigantic, tensors, nullptr).code(), Code::WorkspaceRequired);
  tensors.workspace = memory(7);
  EXPECT_TRUE(service_.layer_norm(kGigantic, tensors, nullptr).ok());
  tensors.workspace = nullptr;
  EXPECT_EQ(service_.layer_norm(kGigantic, tensors, nullptr).code(), Code::WorkspaceRequired) << "ever after";
  EXPECT_THAT(machine_.driver->launches(), SizeIs(1));
}

TEST_F(LayerNormTest, TellsTheDriversError) {
  machine_.driver->set_launch_result(700);
  const auto failed = service_.layer_norm(kSpec, tensors_of(5), nullptr);
  ASSERT_EQ(failed.code(), Code::DriverError);
  EXPECT_THAT(failed.error().message, HasSubstr("fake CUresult 700"));
}

}  // namespace
}  // namespace normjit::testing
