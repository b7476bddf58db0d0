// SPDX-License-Identifier: Apache-2.0
// Machines, as processes with a cache directory each, that share a real Redis.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/compiler/compiler.h"
#include "normjit/remote/signature.h"
#include "normjit/service.h"
#include "tests/support/child.h"
#include "tests/support/servers.h"
#include "tests/support/temp_directory.h"

namespace normjit::testing {
namespace {

using namespace std::chrono_literals;

// Takes a fixed time, and counts for all processes.
class CountingCompiler final : public Compiler {
 public:
  CountingCompiler(std::atomic<int>& compiles, std::chrono::milliseconds time)
      : compiles_(compiles), time_(time) {}
  Result<Binary> compile(const Source& source, Arch arch) override {
    ++compiles_;
    std::this_thread::sleep_for(time_);
    Binary binary;
    binary.code = source.description + std::string(20'000, 'x');
    binary.target = arch.name();
    binary.toolchain = "none";
    return binary;
  }
  Result<Facts> facts() override { return Facts{.path = "/fake/libnvrtc.so.13", .archs = {}}; }

 private:
  std::atomic<int>& compiles_;
  const std::chrono::milliseconds time_;
};

class Fleet : public ::testing::Test {
 protected:
  void SetUp() override {
    NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
    if (const std::string error = sodium_error(); !error.empty()) GTEST_SKIP() << "Skipped: " << error;
    redis_ = redis_server();
    if (!redis_) GTEST_SKIP() << "Skipped: there is no redis-server";
    const SecretKey key = SecretKey::generate().value();
    sign_key_ = directory_.path() + "/fleet.key";
    std::ofstream(sign_key_) << key.file_text();
    ::chmod(sign_key_.c_str(), 0600);
    trust_ = key.public_key().text();
  }

  Options options(const std::string& cache) const {
    Options options;
    options.cache_directory = cache;
    options.remote = "redis://" + redis_->address() + "/0";
    options.sign_key = sign_key_;
    return options;
  }
  Service machine(const std::string& cache, std::chrono::milliseconds compile = 50ms) {
    return Service(options(cache), {.compiler = std::make_shared<CountingCompiler>(*compiles_, compile),
                                    .driver = nullptr,
                                    .files = nullptr,
                                    .embedded = ""});
  }

  const TempDirectory directory_;
  std::unique_ptr<Server> redis_;
  std::string sign_key_, trust_;
  const Shared<std::atomic<int>> compiles_;
  const std::vector<DeviceProfile> hopper_{DeviceProfile::of(Arch{90}).value()};
};

TEST_F(Fleet, SixtyFourMachinesCompileEachKernelOnce) {
  constexpr int kMachines = 64;
  std::vector<NormSpec> specs;
  for (int i = 1; i <= 8; ++i) specs.push_back({.columns = 512 * i});
  const Shared<std::atomic<int>> kernels, fetched, errors;
  EXPECT_EQ(done_children(kMachines, kMachines,
                          [&](int i) {
                            Service service = machine(concat({directory_.path(), "/", shortest(i)}));
                            const auto report = service.prebuild(specs, hopper_, {.jobs = 1});
                            if (!report || report->failed > 0) return false;
                            *kernels = report->requested;
                            const Counters counters = service.counters();
                            *fetched += static_cast<int>(counters.remote_hits);
                            *errors += static_cast<int>(counters.remote_errors);
                            return true;
                          }),
            kMachines);
  EXPECT_GE(*kernels, 40);
  EXPECT_EQ(*compiles_, *kernels) << *errors << " calls failed";
  EXPECT_EQ(*fetched, kMachines * *kernels - *kernels);
}

TEST_F(Fleet, AMachineThatDiesWhileItCompilesHoldsNobodyUpForLong) {
  const pid_t holder = start_child(
      [&] {
        return machine(directory_.path() + "/holder", 60s)
            .prebuild(std::vector<NormSpec>{{.columns = 64}}, hopper_)
            .ok();
      },
      Ending::immediate, 60);
  while (*compiles_ == 0) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(700ms);  // it has renewed its lease
  ::kill(holder, SIGKILL);
  EXPECT_EQ(outcome_of(holder), "signal 9");
  const auto begin = std::chrono::steady_clock::now();
  const auto report = machine(directory_.path() + "/next")
                          .prebuild(std::vector<NormSpec>{{.columns = 64}}, hopper_, {.jobs = 1});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->compiled, report->requested);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s + report->requested * 50ms + 1s);
}

TEST_F(Fleet, AForkedProcessGoesOnWithAConnectionOfItsOwn) {
  Service service = machine(directory_.path() + "/parent");
  ASSERT_TRUE(service.prebuild(std::vector<NormSpec>{{.columns = 64}}, hopper_, {.jobs = 1}).ok());
  EXPECT_EQ(done_children(8, 8,
                          [&](int i) {
                            return service
                                .prebuild(std::vector<NormSpec>{{.columns = 128 + 64 * i}}, hopper_,
                                          {.jobs = 1})
                                .ok();
                          }),
            8);
  ASSERT_TRUE(service.prebuild(std::vector<NormSpec>{{.columns = 96}}, hopper_, {.jobs = 1}).ok());
  EXPECT_EQ(service.counters().remote_errors, 0U);
}

TEST_F(Fleet, AProcessMayEndWhileItOffers) {
  EXPECT_EQ(outcome_in_child(
                [&] {
                  static Service service = machine(directory_.path() + "/child", 0ms);
                  return service.prebuild(std::vector<NormSpec>{{.columns = 64}}, hopper_, {.jobs = 1}).ok();
                },
                Ending::exit_handlers),
            "done");
}

TEST_F(Fleet, AReaderTakesWhatItTrustsAndNothingElse) {
  const std::vector<NormSpec> specs{{.columns = 64}};
  const int kernels =
      machine(directory_.path() + "/writer").prebuild(specs, hopper_, {.jobs = 1}).value().compiled;
  Options reader = options(directory_.path() + "/reader");
  reader.sign_key.clear();
  reader.trust = {trust_};
  const auto seams = [&] {
    return Seams{.compiler = std::make_shared<CountingCompiler>(*compiles_, 0ms),
                 .driver = nullptr,
                 .files = nullptr,
                 .embedded = ""};
  };
  EXPECT_EQ(Service(reader, seams()).prebuild(specs, hopper_, {.jobs = 1})->cached, kernels);
  reader.cache_directory += "2";
  reader.trust = {SecretKey::generate().value().public_key().text()};
  Service stranger(reader, seams());
  EXPECT_EQ(stranger.prebuild(specs, hopper_, {.jobs = 1})->compiled, kernels);
  EXPECT_EQ(stranger.counters().remote_untrusted, static_cast<std::uint64_t>(kernels));
}

}  // namespace
}  // namespace normjit::testing
