// SPDX-License-Identifier: Apache-2.0
// What happens to the cache is told with the kernel that it happened to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "normjit/cache/key_lock.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

constexpr NormSpec kSpec{.columns = 4096};

struct Told {
  Event::Kind kind;
  std::string spec, plan, arch;
  double milliseconds;
  std::string detail;
};

class Events : public ::testing::Test {
 protected:
  Options options() {
    Options options = machine_.options();
    options.on_event = [this](const Event& event) {
      const std::lock_guard lock(mutex_);
      told_.push_back({event.kind, std::string(event.spec), std::string(event.plan), std::string(event.arch),
                       event.milliseconds, std::string(event.detail)});
    };
    return options;
  }
  // Cuts every entry of a directory short.
  static void damage(const std::string& directory) {
    for (const auto& file : fs::directory_iterator(directory))
      if (file.path().extension() == ".njk") fs::resize_file(file.path(), file.file_size() - 1);
  }
  // Of this kind, so far.
  std::vector<Told> told(Event::Kind kind) const {
    const std::lock_guard lock(mutex_);
    std::vector<Told> found;
    for (const Told& event : told_)
      if (event.kind == kind) found.push_back(event);
    return found;
  }
  static auto of_the_kernel(const Kernel& kernel) {
    return AllOf(Field(&Told::spec, to_text(kernel.spec())), Field(&Told::plan, to_text(kernel.plan())),
                 Field(&Told::arch, "sm_90"));
  }

  FakeMachine machine_;
  mutable std::mutex mutex_;
  std::vector<Told> told_;
};

TEST_F(Events, TellOfADamagedEntry) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  damage(machine_.directory.path());
  Service service(options(), machine_.seams());
  const auto kernel = service.prepare(kSpec);
  ASSERT_TRUE(kernel.ok()) << kernel.error().message;
  EXPECT_THAT(told(Event::Kind::damaged),
              ElementsAre(AllOf(
                  of_the_kernel(*kernel),
                  Field(&Told::detail, AllOf(HasSubstr(machine_.directory.path()), HasSubstr("checksum"))))));
  EXPECT_EQ(service.counters().damaged_entries, 1U);
}

TEST_F(Events, TellOfADamagedEntryOfALayer) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  damage(machine_.directory.path());
  const TempDirectory other;
  Options with_layer = options();
  with_layer.layers = {machine_.directory.path()};
  with_layer.cache_directory = other.path();
  Service service(with_layer, machine_.seams());
  ASSERT_TRUE(service.prepare(kSpec).ok());
  EXPECT_EQ(told(Event::Kind::damaged).size(), service.counters().damaged_entries);
  EXPECT_GE(service.counters().damaged_entries, 1U);
}

TEST_F(Events, TellOfADamagedTunedPlan) {
  const DeviceProfile device = profile_of(90);
  TunedPlan tuned{.spec = kSpec, .device = device, .plan = {}};
  tuned.plan = choose(kSpec, device, tuned.regime, tuned.alignment);
  ASSERT_TRUE(machine_.service().remember(tuned).ok());
  damage(machine_.directory.path());
  Service service(options(), machine_.seams());
  EXPECT_FALSE(service.tuned(kSpec, device, tuned.regime, tuned.alignment).value());
  EXPECT_THAT(told(Event::Kind::damaged),
              ElementsAre(AllOf(Field(&Told::spec, to_text(kSpec)), Field(&Told::plan, ""))));
}

TEST_F(Events, TellOfAKernelThatTheDirectoryDidNotTake) {
  machine_.files->fail_creation(ENOSPC);
  Service service(options(), machine_.seams());
  const auto kernel = service.prepare(kSpec);
  ASSERT_TRUE(kernel.ok()) << kernel.error().message;
  EXPECT_THAT(
      told(Event::Kind::unstored),
      ElementsAre(AllOf(of_the_kernel(*kernel), Field(&Told::detail, HasSubstr("No space left on device")))));
}

TEST_F(Events, WithoutADirectoryNothingIsUnstored) {
  Options memory_only = options();
  memory_only.cache_directory.clear();
  ASSERT_TRUE(Service(memory_only, machine_.seams()).prepare(kSpec).ok());
  EXPECT_TRUE(told(Event::Kind::unstored).empty());
}

TEST_F(Events, TellOfAWaitForAnotherProcess) {
  Service service(options(), machine_.seams());
  const Plan plan = choose(kSpec, profile_of(90), RowsRegime::many, Alignment::four);
  const std::string id = service.why(kSpec, profile_of(90), plan).value().id;
  const auto files = make_posix_file_system();
  auto other = std::make_unique<KeyLock>(
      KeyLock::of_id(*files, machine_.directory.path(), id, false, std::chrono::milliseconds(0)));
  ASSERT_EQ(other->state(), KeyLock::State::held);
  machine_.files->forget();
  std::thread ends([&] {  // once the service has tried in vain
    for (int i = 0; i < 10000 && machine_.files->count(RecordingFileSystem::Kind::lock) < 2; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    other.reset();
  });
  const auto kernel = service.prepare(kSpec, {.plan = plan});
  ends.join();
  ASSERT_TRUE(kernel.ok()) << kernel.error().message;
  EXPECT_THAT(told(Event::Kind::waited),
              ElementsAre(AllOf(of_the_kernel(*kernel), Field(&Told::milliseconds, ::testing::Gt(0)))));
  EXPECT_EQ(service.counters().lock_waits, 1U);
  EXPECT_EQ(name(Event::Kind::offered), "offered") << "the last name";
}

}  // namespace
}  // namespace normjit::testing
