// SPDX-License-Identifier: Apache-2.0
#include "normjit/base/fork.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "tests/support/child.h"

namespace normjit::testing {
namespace {

using namespace std::chrono_literals;

class Fork : public ::testing::Test {
 protected:
  void SetUp() override { NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED(); }
};

// Runs work() over and over on so many threads, for as long as it lives.
class Busy {
 public:
  template <class Work>
  Busy(int threads, const Work& work) {
    for (int i = 0; i < threads; ++i)
      threads_.emplace_back([work](const std::stop_token& stop) {
        while (!stop.stop_requested()) work();
      });
  }

 private:
  std::vector<std::jthread> threads_;
};

TEST_F(Fork, EachGenerationCountsOn) {
  const std::uint64_t mine = fork_generation();
  EXPECT_GE(mine, 1u);
  EXPECT_EQ(outcome_in_child([mine] {
              return fork_generation() == mine + 1 &&
                     outcome_in_child([mine] { return fork_generation() == mine + 2; }) == "done" &&
                     fork_generation() == mine + 1;
            }),
            "done");
  EXPECT_EQ(fork_generation(), mine);
}

TEST_F(Fork, WaitsForTheHolderOfALock) {
  ForkMutex mutex;
  std::atomic<bool> held = false;
  std::thread holder([&] {
    const std::lock_guard lock(mutex);
    held = true;
    std::this_thread::sleep_for(50ms);
    held = false;
  });
  while (!held) std::this_thread::yield();
  EXPECT_EQ(outcome_in_child([&] { return !held && mutex.try_lock(); }), "done");
  holder.join();
}

TEST_F(Fork, LocksAreFreeInTheChildAndWhatTheyGuardIsWhole) {
  struct {
    ForkMutex mutex;
    int a = 0, b = 0;
  } plain;
  struct {
    ForkSharedMutex mutex;
    int a = 0, b = 0;
  } shared;
  const Busy plainly(2, [&] {
    const std::lock_guard lock(plain.mutex);
    ++plain.a;
    ++plain.b;
  });
  const Busy sharing(2, [&] {
    const std::unique_lock lock(shared.mutex);
    ++shared.a;
    ++shared.b;
  });
  std::atomic<int> torn = 0;
  const Busy reading(2, [&] {
    const std::shared_lock lock(shared.mutex);
    if (shared.a != shared.b) ++torn;
  });
  for (int i = 0; i < 100; ++i)
    ASSERT_EQ(outcome_in_child([&] {
                const std::lock_guard first(plain.mutex);
                { const std::shared_lock first(shared.mutex), second(shared.mutex); }
                const std::unique_lock alone(shared.mutex);
                return plain.a == plain.b && shared.a == shared.b;
              }),
              "done")
        << "child " << i;
  EXPECT_EQ(torn, 0);
}

TEST_F(Fork, LocksComeAndGoWhileOthersFork) {
  const Busy making(2, [] {
    ForkMutex first, second;
    std::optional<ForkMutex> third(std::in_place);
    const std::lock_guard lock(second);
  });
  for (int i = 0; i < 100; ++i)
    ASSERT_EQ(outcome_in_child([] {
                ForkSharedMutex mutex;
                const std::unique_lock lock(mutex);
                return true;
              }),
              "done");
}

TEST_F(Fork, ThreadsForkAtTheSameTime) {
  ForkMutex mutex;
  const Busy locking(1, [&] { const std::lock_guard lock(mutex); });
  const Busy passing(1, [] { const ForkGate gate; });
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < 20; ++j)
        if (outcome_in_child([&] {
              const std::lock_guard lock(mutex);
              return static_cast<bool>(ForkGate());
            }) != "done")
          ++wrong;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Fork, WaitsUntilAllAreBackFromBehindTheGate) {
  std::atomic<int> inside = 0;
  const Busy overlapping(4, [&] {  // overlap, so that there is hardly a moment without one
    const ForkGate gate;
    ++inside;
    std::this_thread::sleep_for(2ms);
    --inside;
  });
  for (int i = 0; i < 50; ++i) ASSERT_EQ(outcome_in_child([&] { return inside == 0 && ForkGate(); }), "done");
}

// The fork is waiting already when the second pass is asked for.
TEST_F(Fork, WhoIsBehindTheGateGetsMorePasses) {
  std::atomic<bool> inside = false, again = false;
  std::thread thread([&] {
    const ForkGate gate;
    inside = true;
    std::this_thread::sleep_for(50ms);
    const ForkGate more;
    again = static_cast<bool>(more);
  });
  while (!inside) std::this_thread::yield();
  EXPECT_EQ(outcome_in_child([&] { return again.load(); }), "done");
  thread.join();
}

TEST_F(Fork, CodeBehindTheGateMayFork) {
  {
    const ForkGate gate;
    EXPECT_EQ(outcome_in_child([] { return ForkGate() && outcome_in_child([] { return true; }) == "done"; }),
              "done");
  }
  EXPECT_EQ(outcome_in_child([] { return static_cast<bool>(ForkGate()); }), "done");
}

// What the child of the exit tests tells.
struct Told {
  std::atomic<bool> left = false, left_in_time = false, closed = false;
};
Told* g_told = nullptr;

TEST_F(Fork, TheEndOfTheProcessWaitsAndClosesTheGate) {
  const Shared<Told> told;
  g_told = &*told;
  EXPECT_EQ(outcome_in_child(
                [] {
                  std::atexit([] {  // runs after the gate has closed
                    g_told->left_in_time = g_told->left.load();
                    std::thread([] { g_told->closed = !ForkGate(); }).join();
                  });
                  std::atomic<bool> inside = false;
                  std::thread([&inside] {
                    const ForkGate gate;
                    ForkGate::close_at_exit();
                    inside = true;
                    std::this_thread::sleep_for(100ms);
                    g_told->left = static_cast<bool>(ForkGate());
                  }).detach();
                  while (!inside) std::this_thread::yield();
                  return true;
                },
                Ending::exit_handlers),
            "done");
  EXPECT_TRUE(told->left) << "a pass within a pass was refused";
  EXPECT_TRUE(told->left_in_time);
  EXPECT_TRUE(told->closed);
}

TEST_F(Fork, ExitBehindTheGateDoesNotWaitForItself) {
  EXPECT_EQ(outcome_in_child(
                [] {
                  const ForkGate gate;
                  ForkGate::close_at_exit();
                  std::exit(0);
                  return false;
                },
                Ending::exit_handlers),
            "done");
}

}  // namespace
}  // namespace normjit::testing
