// SPDX-License-Identifier: Apache-2.0
// From a spec to a kernel: what happens once, what never, and what is refused.
#include "normjit/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

using Kind = RecordingFileSystem::Kind;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr NormSpec kSpec{.columns = 4096, .affine = Affine::weight_bias};
constexpr NormSpec kOther{.columns = 64, .input = DType::f16};

struct BadSpec {
  NormSpec spec;
  Code code;
};
const BadSpec kBadSpecs[] = {
    {{.columns = 0}, Code::BadDimension},
    {{.columns = -5}, Code::BadDimension},
    {{.columns = std::int64_t{1} << 31}, Code::TooManyColumns},
    {{.columns = 8, .input = DType{9}}, Code::BadDType},
    {{.columns = 8, .epsilon = -1e-5}, Code::BadEpsilon},
    {{.columns = 8, .epsilon = std::nan("")}, Code::BadEpsilon},
    {{.columns = 8, .affine = Affine{7}}, Code::BadAffine},
    {{.columns = 8, .activation = Activation{200}}, Code::BadActivation},
    {{.columns = 8, .scale = std::numeric_limits<double>::infinity()}, Code::BadScale},
};

TEST(Service, ConstructionTouchesNothing) {
  FakeMachine machine;
  {
    Service service = machine.service();
    Service moved = std::move(service);
  }
  EXPECT_EQ(machine.driver->calls(), 0);
  EXPECT_EQ(machine.compiles(), 0);
  EXPECT_THAT(machine.files->calls(), IsEmpty());
}

TEST(Service, TheFirstPrepareDoesEverythingOnce) {
  FakeMachine machine;
  const Kernel kernel = machine.service().prepare(kSpec).value();

  ASSERT_THAT(machine.compiler->calls(), SizeIs(1));
  const FakeCompiler::Call compile = machine.compiler->calls()[0];
  EXPECT_EQ(compile.arch, Arch{90});
  ASSERT_THAT(machine.driver->loads(), SizeIs(1));
  const FakeDriver::Load load = machine.driver->loads()[0];
  EXPECT_EQ(load.device, 0);
  EXPECT_EQ(load.kernel, compile.kernel);
  EXPECT_THAT(load.code, HasSubstr(compile.text)) << "what was compiled is what is loaded";
  EXPECT_EQ(load.shape.threads, kernel.plan().threads);
  EXPECT_EQ(machine.files->count(Kind::link) + machine.files->count(Kind::rename), 1) << "one entry";
  EXPECT_EQ(machine.files->open_files(), 0);

  EXPECT_TRUE(kernel);
  EXPECT_EQ(kernel.origin(), Origin::compiled);
  EXPECT_EQ(kernel.spec(), canonical(kSpec));
  EXPECT_EQ(kernel.device(), profile_of(90));
  EXPECT_EQ(kernel.plan(), choose(canonical(kSpec), profile_of(90), RowsRegime::many, Alignment::eight));
  EXPECT_THAT(machine.warnings(), IsEmpty());
}

TEST(Service, TheSecondPrepareIsAMemoryHit) {
  FakeMachine machine;
  Service service = machine.service();
  ASSERT_TRUE(service.prepare(kSpec).ok());
  machine.files->forget();
  ASSERT_TRUE(service.prepare(kSpec).ok());
  EXPECT_THAT(machine.files->calls(), IsEmpty());
  EXPECT_EQ(machine.compiles(), 1);
  EXPECT_EQ(machine.loads(), 1);
}

TEST(Service, AWarmDiskCostsOneReadAndNoWrite) {
  FakeMachine machine;
  ASSERT_TRUE(machine.service().prepare(kSpec).ok());
  machine.files->forget();
  EXPECT_EQ(machine.service().prepare(kSpec).value().origin(), Origin::disk);
  EXPECT_EQ(machine.files->count(Kind::open), 2) << "the kernel, and a tuned plan that is not there";
  EXPECT_EQ(machine.files->count(Kind::fstat), 1);
  EXPECT_EQ(machine.files->count(Kind::list), 0);
  EXPECT_EQ(machine.files->writes(), 0);
  EXPECT_EQ(machine.compiles(), 1);
  ASSERT_THAT(machine.driver->loads(), SizeIs(2));
  EXPECT_EQ(machine.driver->loads()[0].code, machine.driver->loads()[1].code);
}

TEST(Service, WithoutADirectoryKernelsLiveInMemory) {
  FakeMachine machine;
  Service service = machine.service_without_cache();
  ASSERT_TRUE(service.prepare(kSpec).ok());
  ASSERT_TRUE(service.prepare(kSpec).ok());
  EXPECT_EQ(machine.compiles(), 1);
  EXPECT_THAT(machine.files->calls(), IsEmpty());
  EXPECT_THAT(machine.warnings(), IsEmpty());
}

TEST(Service, SpecsThatDifferInWhatHasNoMeaningAreOne) {
  FakeMachine machine;
  Service service = machine.service();
  ASSERT_TRUE(service.prepare({.columns = 64, .weight = DType::f16, .epsilon = 0.0}).ok());
  ASSERT_TRUE(service.prepare({.columns = 64, .weight = DType::f64, .epsilon = -0.0}).ok());
  EXPECT_EQ(machine.loads(), 1);
}

// Uses are many, plans are few: all row counts and alignments of a spec need what choose() returns and
// nothing more, on a device that has room for it.
TEST(Service, UsesThatShareAPlanShareTheKernel) {
  for (const std::int64_t columns : {1, 3, 64, 4096, 300000}) {
    SCOPED_TRACE(columns);
    FakeMachine machine;
    Service service = machine.service();
    const NormSpec spec{.columns = columns, .input = DType::f16};
    std::vector<std::int64_t> all_rows = {0};
    for (const RowsRegime regime : kRowsRegimes) all_rows.push_back(most_rows(regime, spec, profile_of(90)));
    for (const std::int64_t rows : all_rows)
      for (const int alignment : {2, 4, 8, 16, 256})
        for (const std::int64_t stride : {kContiguous, columns, columns + 1, columns + 2, columns + 8}) {
          const auto kernel = service.prepare(
              spec, {.rows_hint = rows, .pointer_alignment = alignment, .x_row_stride = stride});
          ASSERT_TRUE(kernel.ok()) << kernel.error().message;
          if (kernel->plan().unaligned) continue;  // rows may begin anywhere
          EXPECT_LE(kernel->plan().vector * 2, alignment);
          EXPECT_EQ((stride == kContiguous ? columns : stride) % kernel->plan().vector, 0);
        }
    std::set<std::string> chosen;
    for (const RowsRegime regime : kRowsRegimes)
      for (const Alignment aligned : kAlignments)
        chosen.insert(to_text(choose(spec, profile_of(90), regime, aligned)));
    const int all = static_cast<int>(chosen.size());
    EXPECT_EQ(machine.loads(), all);
    EXPECT_EQ(machine.compiles(), all);
  }
}

TEST(Service, DevicesOfDifferentArchitectureGetTheirOwnKernels) {
  FakeMachine machine({80, 90});
  Service service = machine.service();
  const Kernel first = service.prepare(kSpec, {.device = 0}).value();
  const Kernel second = service.prepare(kSpec, {.device = 1}).value();
  EXPECT_EQ(first.device(), profile_of(80));
  EXPECT_EQ(second.device(), profile_of(90));
  ASSERT_THAT(machine.compiler->calls(), SizeIs(2));
  EXPECT_EQ(machine.compiler->calls()[0].arch, Arch{80});
  EXPECT_EQ(machine.compiler->calls()[1].arch, Arch{90});
  ASSERT_THAT(machine.driver->loads(), SizeIs(2));
  EXPECT_EQ(machine.driver->loads()[0].device, 0);
  EXPECT_EQ(machine.driver->loads()[1].device, 1);
}

TEST(Service, TwinDevicesShareOneCompile) {
  FakeMachine machine({90, 90});
  Service service = machine.service();
  ASSERT_TRUE(service.prepare(kSpec, {.device = 0}).ok());
  ASSERT_TRUE(service.prepare(kSpec, {.device = 1}).ok());
  EXPECT_EQ(machine.compiles(), 1);
  EXPECT_EQ(machine.loads(), 2) << "each device is set up";
}

TEST(Service, TheDeviceIsTheCurrentOneUnlessNamed) {
  FakeMachine machine({80, 90});
  Service service = machine.service();
  machine.driver->set_current_device(1);
  EXPECT_EQ(service.prepare(kSpec).value().device(), profile_of(90));
  EXPECT_EQ(service.device().value(), profile_of(90));
  EXPECT_EQ(service.device(0).value(), profile_of(80));
}

TEST(Service, WithoutAContextADeviceMustBeNamed) {
  FakeMachine machine;
  machine.driver->set_current_device(std::nullopt);
  Service service = machine.service();
  EXPECT_EQ(service.prepare(kSpec).code(), Code::NoContext);
  EXPECT_EQ(service.device().code(), Code::NoContext);
  EXPECT_EQ(service.workspace_bytes(kSpec).code(), Code::NoContext);
  EXPECT_EQ(machine.compiles(), 0);
  EXPECT_TRUE(service.prepare(kSpec, {.device = 0}).ok());
}

TEST(Service, WithoutADriverOrDeviceNothingIsCompiled) {
  FakeMachine machine;
  Service service = machine.service();
  EXPECT_EQ(service.prepare(kSpec, {.device = 7}).code(), Code::NoDevice);
  machine.driver->set_driver_missing(true);
  EXPECT_EQ(service.prepare(kSpec).code(), Code::NoDriver);
  EXPECT_EQ(service.prepare(kSpec, {.device = 0}).code(), Code::NoDriver);
  EXPECT_EQ(service.device(0).code(), Code::NoDriver);
  EXPECT_EQ(machine.compiles(), 0);
  EXPECT_THAT(machine.files->calls(), IsEmpty());
}

TEST(Service, ABadSpecIsAnsweredBeforeAnythingHappens) {
  FakeMachine machine;
  Service service = machine.service();
  const DeviceProfile device = profile_of(90);
  for (const auto& [spec, code] : kBadSpecs) {
    SCOPED_TRACE(code_name(code));
    EXPECT_EQ(service.prepare(spec).code(), code);
    EXPECT_EQ(service.layer_norm(spec, {}, nullptr).code(), code);
    EXPECT_EQ(service.workspace_bytes(spec).code(), code);
    EXPECT_EQ(service.render(spec, device, RowsRegime::many, Alignment::one).code(), code);
    const NormSpec both[] = {kSpec, spec};
    EXPECT_EQ(service.prebuild(both, {&device, 1}).code(), code);
  }
  EXPECT_EQ(machine.driver->calls(), 0);
  EXPECT_EQ(machine.compiles(), 0);
  EXPECT_THAT(machine.files->calls(), IsEmpty());
}

TEST(Service, BadPrepareOptionsAreAnsweredBeforeAnythingHappens) {
  FakeMachine machine;
  Service service = machine.service();
  for (const int alignment : {0, -16, 3, 24, std::numeric_limits<int>::min()})
    EXPECT_EQ(service.prepare(kSpec, {.pointer_alignment = alignment}).code(), Code::BadArgument);
  EXPECT_EQ(service.prepare(kSpec, {.rows_hint = -1}).code(), Code::BadArgument);
  EXPECT_EQ(machine.driver->calls(), 0);
}

TEST(Service, AUseThatNoLaunchCanHaveIsRefused) {
  FakeMachine machine;
  Service service = machine.service();
  EXPECT_EQ(service.prepare(kSpec, {.pointer_alignment = 2}).code(), Code::Misaligned);
  EXPECT_EQ(service.prepare(kSpec, {.x_row_stride = -2}).code(), Code::BadStride);
  EXPECT_EQ(service.prepare(kSpec, {.y_row_stride = 4095}).code(), Code::BadStride);
  EXPECT_EQ(service.prepare(kSpec, {.x_row_stride = std::int64_t{1} << 62}).code(), Code::BadStride);
  const auto refused = service.prepare(kSpec, {.y_row_stride = 0});
  ASSERT_EQ(refused.code(), Code::BadStride);
  EXPECT_THAT(refused.error().message, HasSubstr(to_text(kSpec)));
  EXPECT_EQ(machine.compiles(), 0);
  EXPECT_EQ(machine.loads(), 0);
}

TEST(Service, WorkspaceSufficesForEveryKernelOfTheSpec) {
  FakeMachine machine;
  Service service = machine.service();
  EXPECT_EQ(service.workspace_bytes(kOther).value(), 0U);
  const NormSpec gigantic{.columns = 4194304};
  const std::size_t enough = service.workspace_bytes(gigantic).value();
  EXPECT_GT(enough, 0U);
  for (const std::int64_t rows : {1, 1000})
    for (const int alignment : {4, 8, 16})
      EXPECT_LE(service.prepare(gigantic, {.rows_hint = rows, .pointer_alignment = alignment})
                    .value()
                    .workspace_bytes(),
                enough);
}

TEST(Service, RendersTheSourceThatPrepareCompiles) {
  FakeMachine machine;
  Service service = machine.service();
  const auto rendered = service.render(kSpec, profile_of(90), RowsRegime::many, Alignment::eight).value();
  EXPECT_EQ(machine.compiles(), 0);
  EXPECT_EQ(machine.driver->calls(), 0);
  EXPECT_EQ(service.prepare(kSpec).value().plan(), rendered.plan);
  ASSERT_THAT(machine.compiler->calls(), SizeIs(1));
  EXPECT_EQ(machine.compiler->calls()[0].text, rendered.text);
  EXPECT_EQ(machine.compiler->calls()[0].kernel, rendered.kernel);
}

TEST(Service, MovesWithItsKernels) {
  FakeMachine machine;
  Service first = machine.service();
  ASSERT_TRUE(first.prepare(kSpec).ok());
  Service second = std::move(first);
  ASSERT_TRUE(second.prepare(kSpec).ok());
  Service third = machine.service_without_cache();
  third = std::move(second);
  ASSERT_TRUE(third.prepare(kSpec).ok());
  EXPECT_EQ(machine.compiles(), 1);
  EXPECT_EQ(machine.loads(), 1);
}

TEST(Service, KernelsAreUnloadedWithTheirLastOwner) {
  FakeMachine machine;
  Kernel kernel;
  {
    Service service = machine.service();
    kernel = service.prepare(kSpec).value();
    ASSERT_TRUE(service.prepare(kOther).ok());
    EXPECT_EQ(machine.driver->live_kernels(), 2);
  }
  EXPECT_EQ(machine.driver->live_kernels(), 1);
  kernel = Kernel();
  EXPECT_EQ(machine.driver->live_kernels(), 0);
}

}  // namespace
}  // namespace normjit::testing
