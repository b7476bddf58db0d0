// SPDX-License-Identifier: Apache-2.0
// Prebuilds that have the help of processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "normjit/service/default_compiler.h"
#include "tests/support/child.h"
#include "tests/support/fake_machine.h"
#include "tests/support/program.h"
#include "tests/support/stateless_compiler.h"

namespace normjit::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class HelpedPrebuild : public ::testing::Test {
 protected:
  // Of a Service whose own compiler is the fake one, and whose library lies in the directory of `program_`.
  Service service() {
    Options options = machine_.options();
    options.log = [this](LogLevel level, std::string_view text) {
      const std::lock_guard lock(mutex_);
      (level >= LogLevel::warn ? warnings_ : infos_).emplace_back(text);
    };
    Seams seams = machine_.seams();
    std::ofstream(program_ / "libnormjit.so");
    seams.compiler = make_helped_compiler(machine_.compiler, program_ / "libnormjit.so", options.log);
    return Service(options, seams);
  }
  void TearDown() override { expect_no_child(); }
  static void expect_no_child() {
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    EXPECT_EQ(errno, ECHILD);
  }
  PrebuildReport prebuild(Service& service, int jobs, bool dry_run = false) const {
    return service.prebuild(specs_, {&device_, 1}, {.jobs = jobs, .dry_run = dry_run, .progress = {}})
        .value();
  }
  // With two compiles that the Service's own process has in hand until all others are done.
  PrebuildReport prebuild_beside_two(Service& service, int jobs) {
    machine_.compiler->hold();
    const auto progress = [&](const KernelReport&, int done, int total) {
      if (done == total - 2) machine_.compiler->release();
    };
    return service.prebuild(specs_, {&device_, 1}, {.jobs = jobs, .dry_run = false, .progress = progress})
        .value();
  }
  // Two prebuilds of one Service, without help: as many compiles at once as there are jobs.
  void prebuild_on_threads(int jobs) {
    Service service = this->service();
    for (const double epsilon : {1e-5, 2e-5}) {
      for (NormSpec& spec : specs_) spec.epsilon = epsilon;
      const std::size_t before = machine_.compiler->calls().size();
      machine_.compiler->hold();
      std::thread prebuild([&] { EXPECT_EQ(this->prebuild(service, jobs).failed, 0); });
      machine_.compiler->wait_for_calls(before + static_cast<std::size_t>(jobs));
      machine_.compiler->release();
      prebuild.join();
    }
    EXPECT_EQ(machine_.compiles(), 2 * all());
  }
  int all() const {
    std::size_t kernels = 0;
    for (const NormSpec& spec : specs_) kernels += plans(spec, device_).size();
    return static_cast<int>(kernels);
  }

  const DeviceProfile device_ = profile_of(90);
  std::vector<NormSpec> specs_ = {{.columns = 64}, {.columns = 4096, .input = DType::f16}};
  FakeMachine machine_;
  Program program_;
  std::mutex mutex_;
  std::vector<std::string> infos_, warnings_;
};

TEST_F(HelpedPrebuild, AProcessCompilesWhatTheThirdJobHas) {
  program_.serving();
  Service service = this->service();
  const PrebuildReport report = prebuild_beside_two(service, 3);
  EXPECT_EQ(report.compiled, all());
  EXPECT_EQ(machine_.compiles(), 2);
  EXPECT_EQ(program_.starts(), 1);
  EXPECT_EQ(prebuild(service, 3).cached, all());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(HelpedPrebuild, NothingElseStartsAProcess) {
  program_.serving();
  Service service = this->service();
  prebuild(service, 8, /*dry_run=*/true);
  prebuild(service, 1);
  EXPECT_EQ(machine_.compiles(), all());
  machine_.compiler->hold();
  std::vector<std::thread> threads;
  for (int i = 0; i < 5; ++i)
    threads.emplace_back([&, i] { EXPECT_TRUE(service.prepare({.columns = 65 + i}).ok()); });
  machine_.compiler->wait_for_calls(static_cast<std::size_t>(all()) + 5);
  machine_.compiler->release();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(program_.starts(), 0);
}

TEST_F(HelpedPrebuild, ItsProcessesHaveEndedWhenItReturns) {
  program_.serving();
  Service service = this->service();
  prebuild_beside_two(service, 4);
  EXPECT_GE(program_.starts(), 1);
  expect_no_child();
}

TEST_F(HelpedPrebuild, WithoutTheProgramItsThreadsCompile) {
  prebuild_on_threads(5);
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_EQ(
      std::ranges::count_if(
          infos_, [](const std::string& text) { return text.starts_with("there is no normjit-compile"); }),
      1);
}

TEST_F(HelpedPrebuild, AProgramThatOthersCanWriteIsNotStarted) {
  const std::string path = program_.serving();
  std::filesystem::permissions(path, std::filesystem::perms::group_write, std::filesystem::perm_options::add);
  prebuild_on_threads(4);
  EXPECT_EQ(program_.starts(), 0);
  EXPECT_THAT(warnings_, ElementsAre(std::filesystem::canonical(path).string() +
                                     " does not help, so a prebuild compiles in one process and takes "
                                     "longer: can be written by other users"));
}

TEST_F(HelpedPrebuild, AProgramOfAnotherVersionIsNotUsed) {
  program_.serving("older");
  prebuild_on_threads(3);
  EXPECT_EQ(program_.starts(), 2) << "once in each prebuild";
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("it is of another version")));
}

// A prebuild of its own while its parent is in the middle of one, with processes of its own.
TEST_F(HelpedPrebuild, EveryForkedChildHasItsOwn) {
  NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
  program_.serving();
  std::ofstream(program_ / "libnormjit.so");
  Options options;
  options.cache_directory = machine_.directory.path();
  Service service(options, {.compiler = make_helped_compiler(std::make_shared<StatelessCompiler>(),
                                                             program_ / "libnormjit.so", {}),
                            .driver = machine_.driver,
                            .files = {}});
  std::atomic<bool> stop = false;
  std::atomic<int> failures = 0, kernels = 0;
  std::thread parent([&] {
    for (int i = 0; !stop; ++i) {
      std::vector<NormSpec> specs;
      for (int j = 0; j < 20; ++j) specs.push_back({.columns = 100 + 20 * i + j});
      const auto report =
          service.prebuild(specs, {&device_, 1}, {.jobs = 6, .dry_run = false, .progress = {}});
      failures += report.value().failed;
      kernels += report.value().requested;
    }
  });
  const int done = done_children(30, 2, [&](int i) {
    const NormSpec own{.columns = 1'000'000 + i};
    const auto report =
        service.prebuild({&own, 1}, {&device_, 1}, {.jobs = 4, .dry_run = false, .progress = {}});
    return report.ok() && report->compiled == report->requested;
  });
  stop = true;
  parent.join();
  EXPECT_EQ(done, 30);
  EXPECT_EQ(failures, 0);
  EXPECT_GT(kernels, 0);
}

// Compiles nothing, and in one process for good.
class StuckCompiler final : public Compiler {
 public:
  Result<Binary> compile(const Source&, Arch) override {
    ++calls_;
    while (getpid() == stuck_in_ && !free_) std::this_thread::yield();
    Binary binary;
    binary.code = "here";
    return binary;
  }
  Result<Facts> facts() override { return Facts{.path = "/fake/libnvrtc.so.13", .archs = {}}; }
  void wait_for_calls(int count) const {
    while (calls_ < count) std::this_thread::yield();
  }
  void release() { free_ = true; }

 private:
  const pid_t stuck_in_ = getpid();
  std::atomic<int> calls_ = 0;
  std::atomic<bool> free_ = false;
};

TEST(HelpedCompiler, TheHelpersOfAProcessAreNotThoseOfItsFork) {
  NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
  const Program program;
  program.serving();
  std::ofstream(program / "libnormjit.so");
  const auto here = std::make_shared<StuckCompiler>();
  const auto compiler = make_helped_compiler(here, program / "libnormjit.so", {});
  const Source source{.text = "text", .kernel = "kernel", .description = "spec as plan"};
  const auto code = [&] { return compiler->compile(source, Arch{90}).value().code; };

  const std::shared_ptr<void> helpers = compiler->helpers();
  EXPECT_EQ(compiler->helpers(), helpers);
  std::thread stuck[2];
  for (std::thread& thread : stuck) thread = std::thread([&] { EXPECT_EQ(code(), "here"); });
  here->wait_for_calls(2);
  EXPECT_THAT(code(), HasSubstr("fake code")) << "of a helper";
  EXPECT_EQ(outcome_in_child([&] { return code() == "here" && compiler->helpers() != helpers; }), "done");
  here->release();
  for (std::thread& thread : stuck) thread.join();
}

class CompileProgram : public ::testing::Test {
 protected:
  CompileProgram() {
    for (const char* folder : {"bin", "lib/x86_64-linux-gnu", "libexec/normjit", "elsewhere"})
      std::filesystem::create_directories(prefix_ / folder);
    for (const char* file : {"bin/host", "lib/libnormjit.so", "lib/x86_64-linux-gnu/libnormjit.so"})
      make(file);
  }
  std::string make(const std::string& file) const {
    std::ofstream(prefix_ / file);
    EXPECT_EQ(::chmod((prefix_ / file).c_str(), 0755), 0);
    return std::filesystem::canonical(prefix_ / file);
  }

  TempDirectory prefix_;
};

TEST_F(CompileProgram, IsBesideTheLibraryOrInLibexec) {
  const char* const kOwn[] = {"bin/host", "lib/libnormjit.so", "lib/x86_64-linux-gnu/libnormjit.so"};
  for (const char* own : kOwn) EXPECT_EQ(find_compile_program(prefix_ / own).path, "") << own;
  const std::string installed = make("libexec/normjit/normjit-compile");
  for (const char* own : kOwn) {
    const FoundProgram found = find_compile_program(prefix_ / own);
    EXPECT_EQ(found.path, installed) << own;
    EXPECT_EQ(found.refusal, "") << own;
  }
  const std::string beside = make("lib/normjit-compile");
  EXPECT_EQ(find_compile_program(prefix_ / "lib/libnormjit.so").path, beside);
}

TEST_F(CompileProgram, IsLookedForWhereALinkLeads) {
  std::filesystem::create_symlink(prefix_ / "lib/libnormjit.so", prefix_ / "elsewhere/libnormjit.so");
  const std::string installed = make("libexec/normjit/normjit-compile");
  EXPECT_EQ(find_compile_program(prefix_ / "elsewhere/libnormjit.so").path, installed);
  EXPECT_EQ(find_compile_program(prefix_ / "no/such/file").path, "");
  EXPECT_EQ(find_compile_program("").path, "");
}

TEST_F(CompileProgram, IsARegularFileThatNobodyElseCanWrite) {
  const std::string path = make("lib/normjit-compile");
  const auto refusal = [&] { return find_compile_program(prefix_ / "lib/libnormjit.so").refusal; };
  for (const unsigned mode : {0775u, 0757u}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    EXPECT_EQ(refusal(), "can be written by other users");
  }
  ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  EXPECT_EQ(refusal(), "");
  if (::chown(path.c_str(), 12345, static_cast<gid_t>(-1)) == 0) {  // as root only
    EXPECT_EQ(refusal(), "belongs to the user with the id 12345");
  }
  std::filesystem::remove(path);
  std::filesystem::create_symlink(make("elsewhere/normjit-compile"), path);
  EXPECT_EQ(refusal(), "is not a regular file");
}

}  // namespace
}  // namespace normjit::testing
