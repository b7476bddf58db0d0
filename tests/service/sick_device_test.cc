// SPDX-License-Identifier: Apache-2.0
// A device that is sick: what it answers reaches the caller as it is. Nothing is tried again, nothing else
// serves in its place, and the cache is not blamed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "normjit/service.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr NormSpec kSpec{.columns = 4096}, kOther{.columns = 1000};
// Blocks share its rows, so that there is another plan to fall back to.
constexpr NormSpec kShared{.columns = 1048576};

void* memory(std::uintptr_t number) { return reinterpret_cast<void*>(number << 40); }
Tensors tensors() { return {.x = memory(1), .y = memory(2), .rows = 100'000, .workspace = memory(3)}; }

// How a device may be sick.
struct Illness {
  int result;
  Code code;
};
constexpr Illness kIllnesses[] = {{700, Code::DriverError},  // CUDA_ERROR_ILLEGAL_ADDRESS
                                  {719, Code::DriverError},  // CUDA_ERROR_LAUNCH_FAILED
                                  {999, Code::DriverError},  // CUDA_ERROR_UNKNOWN
                                  {2, Code::OutOfMemory}};   // CUDA_ERROR_OUT_OF_MEMORY

class SickDevice : public ::testing::TestWithParam<Illness> {
 protected:
  // Puts the kernels of these specs into the cache, as an earlier process would.
  void prebuild() {
    for (const NormSpec& spec : {kSpec, kOther, kShared}) ASSERT_TRUE(machine_.service().prepare(spec).ok());
    compiles_ = machine_.compiles();
    loads_ = machine_.loads();
    machine_.files->forget();
  }
  // Nothing was compiled, written or complained of, and so many loads were tried.
  void expect_left_alone(Service& service, int loads) {
    EXPECT_EQ(machine_.compiles(), compiles_);
    EXPECT_EQ(machine_.loads(), loads_ + loads);
    EXPECT_EQ(machine_.files->writes(), 0);
    EXPECT_THAT(machine_.warnings(), IsEmpty());
    const VerifyReport report = service.verify().value();
    EXPECT_EQ(report.flaws.size(), 0U);
    EXPECT_EQ(service.counters().damaged_entries, 0U);
    EXPECT_EQ(service.counters().fallback_launches, 0U);
  }

  FakeMachine machine_;
  int compiles_ = 0, loads_ = 0;
};

TEST_P(SickDevice, ALoadThatFailsIsNotTheFaultOfTheEntry) {
  prebuild();
  Service service = machine_.service();
  machine_.driver->set_sick(GetParam().result);
  EXPECT_EQ(service.prepare(kSpec).code(), GetParam().code);
  EXPECT_EQ(service.prepare(kShared).code(), GetParam().code);
  EXPECT_EQ(service.layer_norm(kOther, tensors(), nullptr).code(), GetParam().code);
  expect_left_alone(service, 3);
  machine_.driver->set_sick(0);
  EXPECT_EQ(service.prepare(kSpec).value().origin(), Origin::disk) << "as soon as it is well";
}

TEST_P(SickDevice, ALaunchThatFailsIsNamedAndNotTriedAgain) {
  prebuild();
  Service service = machine_.service();
  for (const NormSpec& spec : {kSpec, kShared})
    ASSERT_TRUE(service.layer_norm(spec, tensors(), nullptr).ok());
  const Kernel kernel = service.prepare(kShared).value();
  const std::size_t launches = machine_.driver->launches().size();
  const int loads = machine_.loads() - loads_;

  machine_.driver->set_sick(GetParam().result);
  for (const NormSpec& spec : {kSpec, kShared}) {
    const auto failed = service.layer_norm(spec, tensors(), nullptr);
    ASSERT_EQ(failed.code(), GetParam().code);
    EXPECT_THAT(failed.error().message, HasSubstr(machine_.driver->describe(GetParam().result)));
  }
  const Status status = kernel.launch(tensors(), nullptr);
  EXPECT_EQ(status.code, GetParam().code);
  EXPECT_EQ(status.driver_result, GetParam().result);
  EXPECT_THAT(machine_.driver->launches(), SizeIs(launches + 3)) << "each once";
  expect_left_alone(service, loads);
}

TEST_P(SickDevice, ATunedPlanDoesNotGiveWay) {
  const DeviceProfile device = profile_of(90);
  const Plan plan = fallback(kShared, device, RowsRegime::many, Alignment::eight);
  ASSERT_TRUE(machine_.service().remember({.spec = kShared, .device = device, .plan = plan}).ok());
  prebuild();
  Service service = machine_.service();
  machine_.driver->set_sick(GetParam().result);
  EXPECT_EQ(service.prepare(kShared).code(), GetParam().code);
  expect_left_alone(service, 1);
}

TEST_P(SickDevice, TheGenericKernelsErrorIsNotHiddenBehindTheCompilers) {
  Seams seams = machine_.seams();
  seams.embedded.reset();  // what the library has
  Service service(machine_.options(), seams);
  if (service.environment().embedded_archs.empty())
    GTEST_SKIP() << "This library was built without generic kernels.";
  machine_.compiler->fail({Code::NoCompiler, "no libnvrtc"});
  machine_.driver->set_sick(GetParam().result);
  EXPECT_EQ(service.prepare(kSpec).code(), GetParam().code);
  EXPECT_THAT(machine_.warnings(), Not(Contains(HasSubstr("is served by"))));
}

// Whose blocks must run together are counted once they are loaded.
TEST_P(SickDevice, ACountOfBlocksThatFailsIsNoLackOfRoom) {
  machine_.driver->sicken_after_loads(1, GetParam().result);
  Service service = machine_.service();
  EXPECT_EQ(service.prepare(kShared).code(), GetParam().code);
  EXPECT_EQ(machine_.loads(), 1);
}

TEST_P(SickDevice, TheCheckOfPointersSaysIt) {
  const Kernel kernel = machine_.service().prepare(kSpec).value();
  machine_.driver->set_sick(GetParam().result);
  EXPECT_EQ(kernel.check(tensors()).code(), GetParam().code);
}

INSTANTIATE_TEST_SUITE_P(Illness, SickDevice, ::testing::ValuesIn(kIllnesses),
                         [](const auto& info) { return std::to_string(info.param.result); });

TEST(SickContext, AKernelThatHasFailedIsSaidToHaveFailed) {
  FakeMachine machine;
  Service service = machine.service();
  machine.driver->set_launch_result(700);
  EXPECT_THAT(service.layer_norm(kSpec, tensors(), nullptr).error().message,
              HasSubstr("the context is lost"));
  machine.driver->set_launch_result(400);
  EXPECT_THAT(service.layer_norm(kSpec, tensors(), nullptr).error().message, Not(HasSubstr("is lost")));
}

}  // namespace
}  // namespace normjit::testing
