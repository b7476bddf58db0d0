// SPDX-License-Identifier: Apache-2.0
// Prebuilds of the library itself that normjit-compile helps, in hosts of several kinds.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "normjit/base/stopwatch.h"
#include "normjit/service.h"
#include "tests/support/child.h"
#include "tests/support/nvrtc.h"
#include "tests/support/temp_directory.h"

namespace normjit::testing {
namespace {

// Of the children of this process, as a handler of the host sees them.
std::atomic<int> g_ended = 0;
void count_end(int) { ++g_ended; }

class HelpedPrebuildNvrtc : public NvrtcTest {
 protected:
  void SetUp() override {
    NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
    // Asked in a child, so that the others have no NVRTC from this process.
    if (outcome_in_child([this] { return compiler_->facts().ok(); }) != "done")
      GTEST_SKIP() << "There is no NVRTC on this machine.";
  }
  Service service() const {
    Options options = Options::from_environment();
    options.cache_directory = directory_.path();
    options.log = [](LogLevel level, std::string_view) {
      if (level >= LogLevel::warn) g_warned = true;
    };
    return Service(options);
  }
  // Whether all kernels were compiled, without a warning.
  static bool builds(Service& service, int jobs, int first = 1) {
    std::vector<NormSpec> specs;  // of two kernels each, which compile fast
    for (int i = first; i < first + 8; ++i) specs.push_back({.columns = 1, .epsilon = 1e-5 * i});
    const DeviceProfile device = DeviceProfile::of(Arch{90}).value();
    const auto report =
        service.prebuild(specs, {&device, 1}, {.jobs = jobs, .dry_run = false, .progress = {}});
    return report.ok() && report->compiled == report->requested && !g_warned;
  }

  inline static std::atomic<bool> g_warned = false;
  TempDirectory directory_;
};

TEST_F(HelpedPrebuildNvrtc, TheHostSeesProcessesFromTheThirdJobOn) {
  const auto ended = [&](int jobs) {
    return outcome_of(start_child(
        [&] {
          signal(SIGCHLD, count_end);
          Service service = this->service();
          return builds(service, jobs, 100 * jobs) && (g_ended > 0) == (jobs > 2);
        },
        Ending::immediate, /*seconds=*/120));
  };
  EXPECT_EQ(ended(1), "done");
  EXPECT_EQ(ended(6), "done");
}

TEST_F(HelpedPrebuildNvrtc, TheHostMayIgnoreTheEndOfItsChildren) {
  EXPECT_EQ(outcome_of(start_child(
                [&] {
                  signal(SIGCHLD, SIG_IGN);
                  Service service = this->service();
                  return builds(service, 6);
                },
                Ending::immediate, /*seconds=*/120)),
            "done");
}

TEST_F(HelpedPrebuildNvrtc, TheHostMayForkMeanwhile) {
  EXPECT_EQ(outcome_of(start_child(
                [&] {
                  Service service = this->service();
                  std::atomic<bool> built = false;
                  std::thread parent([&] { built = builds(service, 6); });
                  int done = 0;
                  for (int i = 1; i <= 4; ++i) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(100));
                    done += outcome_of(start_child([&] { return builds(service, 4, 100 * i); },
                                                   Ending::immediate, /*seconds=*/120)) == "done";
                  }
                  parent.join();
                  return built && done == 4;
                },
                Ending::immediate, /*seconds=*/300)),
            "done");
}

TEST_F(HelpedPrebuildNvrtc, TheHostMayExitMeanwhile) {
  for (int i = 0; i < 8; ++i) {
    const Stopwatch time;
    EXPECT_EQ(outcome_of(start_child(
                  [&] {
                    auto* const service = new Service(this->service());  // its threads outlive main
                    std::thread([=] { static_cast<void>(builds(*service, 6, 1000 * i)); }).detach();
                    std::this_thread::sleep_for(std::chrono::milliseconds(80 * i));
                    return true;
                  },
                  Ending::exit_handlers, /*seconds=*/60)),
              "done")
        << i;
    EXPECT_LT(time.seconds(), 15) << i;
  }
}

}  // namespace
}  // namespace normjit::testing
