// SPDX-License-Identifier: Apache-2.0
// What a Service makes of compilers that fail, drivers that refuse and directories that are no good.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "normjit/service.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

using Kind = RecordingFileSystem::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr NormSpec kSpec{.columns = 4096};

// The one cache entry of a machine.
std::string entry_path(const FakeMachine& machine) {
  std::vector<std::string> found;
  for (const auto& file : std::filesystem::directory_iterator(machine.directory.path()))
    if (file.path().extension() == ".njk") found.push_back(file.path());
  EXPECT_THAT(found, SizeIs(1));
  return found.empty() ? "" : found[0];
}

TEST(ServiceTrouble, AnEntryThatTheDriverRefusesIsCompiledAgainAndReplaced) {
  FakeMachine machine;
  ASSERT_TRUE(machine.service().prepare(kSpec).ok());
  machine.files->forget();
  machine.driver->refuse_load(2);

  const auto kernel = machine.service().prepare(kSpec);
  ASSERT_TRUE(kernel.ok()) << kernel.error().message;
  EXPECT_EQ(kernel->origin(), Origin::compiled);
  EXPECT_EQ(machine.compiles(), 2);
  EXPECT_EQ(machine.loads(), 3);
  EXPECT_EQ(machine.files->count(Kind::rename, entry_path(machine)), 1);
  EXPECT_THAT(machine.warnings(), ElementsAre(HasSubstr("compiled again")));

  ASSERT_TRUE(machine.service().prepare(kSpec).ok());
  EXPECT_EQ(machine.compiles(), 2);
}

TEST(ServiceTrouble, AnEntryThatTheDriverRefusesTwiceIsAnError) {
  FakeMachine machine;
  ASSERT_TRUE(machine.service().prepare(kSpec).ok());
  machine.driver->refuse_load(2);
  machine.driver->refuse_load(3);
  EXPECT_EQ(machine.service().prepare(kSpec).code(), Code::LoadFailed);
  EXPECT_EQ(machine.compiles(), 2);
  EXPECT_EQ(machine.loads(), 3);
}

TEST(ServiceTrouble, AFreshKernelThatTheDriverRefusesIsAnError) {
  FakeMachine machine;
  machine.driver->refuse_load(1);
  Service service = machine.service();
  EXPECT_EQ(service.prepare(kSpec).code(), Code::LoadFailed);
  EXPECT_EQ(machine.compiles(), 1) << "the same source would give the same code";
  EXPECT_EQ(machine.driver->live_kernels(), 0);
  EXPECT_TRUE(service.prepare(kSpec).ok()) << "not remembered";
}

TEST(ServiceTrouble, ADamagedEntryIsCompiledAgain) {
  FakeMachine machine;
  ASSERT_TRUE(machine.service().prepare(kSpec).ok());
  const std::string path = entry_path(machine);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);

  ASSERT_TRUE(machine.service().prepare(kSpec).ok());
  EXPECT_EQ(machine.compiles(), 2);
  EXPECT_THAT(machine.warnings(), ElementsAre(HasSubstr(path)));
  EXPECT_EQ(machine.driver->loads()[0].code, machine.driver->loads()[1].code);

  ASSERT_TRUE(machine.service().prepare(kSpec).ok());
  EXPECT_EQ(machine.compiles(), 2);
}

TEST(ServiceTrouble, AnUnwritableDirectoryIsServedFromMemoryWithOneWarning) {
  FakeMachine machine({90, 90});
  machine.files->fail_creation(EACCES);
  Service service = machine.service();
  for (const std::int64_t columns : {64, 4096, 8192}) {
    const NormSpec spec{.columns = columns};
    EXPECT_EQ(service.prepare(spec, {.device = 0}).value().origin(), Origin::compiled);
    EXPECT_EQ(service.prepare(spec, {.device = 1}).value().origin(), Origin::memory);
  }
  EXPECT_EQ(machine.compiles(), 3) << "the second device takes the code from memory";
  EXPECT_EQ(machine.loads(), 6);
  EXPECT_THAT(machine.warnings(), SizeIs(1));
}

TEST(ServiceTrouble, AnUnwritableDirectoryKeepsAPrebuildInMemory) {
  FakeMachine machine;
  machine.files->fail_creation(ENOSPC);
  Service service = machine.service();
  const DeviceProfile device = profile_of(90);
  const PrebuildReport report = service.prebuild({&kSpec, 1}, {&device, 1}).value();
  EXPECT_EQ(report.compiled, report.requested);
  EXPECT_EQ(report.unstored, report.requested);
  ASSERT_TRUE(service.prepare(kSpec).ok());
  EXPECT_EQ(machine.compiles(), report.requested);
  EXPECT_THAT(machine.warnings(), SizeIs(1));
}

TEST(ServiceTrouble, ACompileErrorIsReturnedAndNotRemembered) {
  FakeMachine machine;
  machine.compiler->fail({Code::CompileFailed, "epilogue.cuh(8): error"});
  Service service = machine.service();
  const auto failed = service.prepare(kSpec);
  ASSERT_EQ(failed.code(), Code::CompileFailed);
  EXPECT_EQ(failed.error().message, "epilogue.cuh(8): error");
  EXPECT_EQ(machine.files->count(Kind::write), 0);
  EXPECT_EQ(machine.files->count(Kind::link), 0);
  EXPECT_EQ(machine.loads(), 0);

  machine.compiler->succeed();
  EXPECT_TRUE(service.prepare(kSpec).ok());
  EXPECT_EQ(machine.compiles(), 2);
}

TEST(ServiceTrouble, AnIllegibleTemplateDirectoryIsAnError) {
  FakeMachine machine;
  Options options = machine.options();
  options.template_directory = machine.directory / "nothing";
  Service service(options, machine.seams());
  const auto failed = service.prepare(kSpec);
  ASSERT_EQ(failed.code(), Code::BadTemplate);
  EXPECT_THAT(failed.error().message, HasSubstr("nothing"));
  EXPECT_EQ(machine.compiles(), 0);
}

}  // namespace
}  // namespace normjit::testing
