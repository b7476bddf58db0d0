// SPDX-License-Identifier: Apache-2.0
// Looking at the cache and the machine through a Service.
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
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr NormSpec kSpec{.columns = 4096, .input = DType::bf16};

TEST(Entries, TellWhatIsInTheCache) {
  FakeMachine machine;
  Service service = machine.service();
  EXPECT_THAT(service.entries().value(), IsEmpty());
  const Kernel kernel = service.prepare(kSpec).value();

  const auto entries = service.entries().value();
  ASSERT_THAT(entries, SizeIs(1));
  const EntryReport& entry = entries[0];
  EXPECT_THAT(entry.id, SizeIs(32));
  EXPECT_FALSE(entry.damaged);
  EXPECT_EQ(entry.spec, to_text(kSpec));
  EXPECT_EQ(entry.plan, to_text(kernel.plan()));
  EXPECT_EQ(entry.arch, "sm_90");
  EXPECT_EQ(entry.kernel, machine.driver->loads()[0].kernel);
  EXPECT_EQ(entry.toolchain, "nvrtc 13.0");
  EXPECT_EQ(entry.code, "cubin");
  EXPECT_EQ(entry.registers, 32);
  EXPECT_EQ(entry.spill_bytes, 0);
  EXPECT_EQ(entry.bytes, std::filesystem::file_size(machine.directory / (entry.id + ".njk")));
}

TEST(Entries, TellWhatIsDamaged) {
  FakeMachine machine;
  Service service = machine.service();
  ASSERT_TRUE(service.prepare(kSpec).ok());
  ASSERT_TRUE(service.prepare({.columns = 64}).ok());
  const std::string id = service.entries().value().at(1).id;
  std::filesystem::resize_file(machine.directory / (id + ".njk"), 100);

  const auto entries = service.entries().value();
  ASSERT_THAT(entries, SizeIs(2));
  EXPECT_FALSE(entries[0].damaged);
  EXPECT_TRUE(entries[1].damaged);
  EXPECT_EQ(entries[1].id, id);
  EXPECT_EQ(entries[1].bytes, 100);
  EXPECT_NE(entries[1].error, "");
  EXPECT_EQ(entries[1].spec, "");
}

TEST(Entries, OfADirectoryThatCannotBeReadAreAnError) {
  FakeMachine machine;
  machine.files->fail_always(Kind::list, EACCES);
  EXPECT_EQ(machine.service().entries().code(), Code::CacheIo);
  EXPECT_THAT(machine.service_without_cache().entries().value(), IsEmpty());
}

TEST(EnvironmentReport, TellsCompilerDriverAndDevices) {
  FakeMachine machine({80, 90});
  const Environment found = machine.service().environment();
  EXPECT_NE(found.version, "");
  EXPECT_EQ(found.cache_directory, machine.directory.path());
  EXPECT_EQ(found.cache_error, "");
  EXPECT_EQ(found.compiler_path, "/fake/libnvrtc.so.13");
  EXPECT_EQ(found.compiler_version, "13.0");
  EXPECT_EQ(found.compiler_error, "");
  EXPECT_THAT(found.compiler_archs, SizeIs(3));
  EXPECT_EQ(found.driver_version, "13.0");
  EXPECT_EQ(found.driver_error, "");
  ASSERT_THAT(found.devices, SizeIs(2));
  EXPECT_EQ(found.devices[1].ordinal, 1);
  EXPECT_EQ(found.devices[1].name, "Fake GPU 1");
  EXPECT_EQ(found.devices[1].profile, profile_of(90));
  EXPECT_EQ(machine.compiles(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(machine.directory.path())) << "what was tried out is gone";
}

TEST(EnvironmentReport, TellsWhatIsMissing) {
  FakeMachine machine;
  machine.driver->set_driver_missing(true);
  machine.compiler->fail({Code::NoCompiler, "no libnvrtc"});
  machine.files->fail_creation(EROFS);
  const Environment found = machine.service().environment();
  EXPECT_EQ(found.driver_version, "");
  EXPECT_NE(found.driver_error, "");
  EXPECT_THAT(found.devices, IsEmpty());
  EXPECT_EQ(found.compiler_path, "");
  EXPECT_EQ(found.compiler_error, "no libnvrtc");
  EXPECT_THAT(found.cache_error, HasSubstr(machine.directory.path()));
}

TEST(EnvironmentReport, ADriverMaySeeNoDevice) {
  FakeMachine machine(std::vector<int>{});
  const Environment found = machine.service().environment();
  EXPECT_EQ(found.driver_version, "13.0");
  EXPECT_NE(found.driver_error, "");
  EXPECT_THAT(found.devices, IsEmpty());
}

}  // namespace
}  // namespace normjit::testing
