// SPDX-License-Identifier: Apache-2.0
// Jobs that nobody waits for, from many threads.
#include "normjit/service/background.h"

#include <gtest/gtest.h>

#include <signal.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace normjit {
namespace {

TEST(Background, OneJobForAKeyUntilItIsDone) {
  std::atomic<bool> go = false;
  std::atomic<int> runs = 0;
  Background background(2);
  EXPECT_EQ(background.find("a"), nullptr);
  const auto work = [&] {
    while (!go) std::this_thread::yield();
    ++runs;
    return true;
  };
  const Job* const job = background.start("a", work);
  ASSERT_NE(job, nullptr);
  EXPECT_EQ(background.start("a", work), job);
  EXPECT_EQ(background.find("a"), job);
  EXPECT_EQ(job->state, Job::State::waiting);
  go = true;
  background.wait();
  EXPECT_EQ(job->state, Job::State::done);
  EXPECT_EQ(runs, 1);
  EXPECT_NE(background.start("a", work), job) << "what is done can be asked for again";
  background.wait();
  EXPECT_EQ(runs, 2);
}

TEST(Background, AFailureIsRemembered) {
  Background background(1);
  int runs = 0;
  const Job* const job = background.start("a", [&] { return ++runs, false; });
  background.wait();
  EXPECT_EQ(job->state, Job::State::failed);
  EXPECT_EQ(background.start("a", [&] { return ++runs, true; }), job);
  background.wait();
  EXPECT_EQ(runs, 1);
}

TEST(Background, NeverMoreThreadsThanAllowedAndNoneWhenIdle) {
  std::atomic<int> now = 0, most = 0, runs = 0, signals = 0;
  Background background(3);
  std::vector<std::thread> askers;
  for (int asker = 0; asker < 4; ++asker)
    askers.emplace_back([&, asker] {
      for (int i = 0; i < 100; ++i)
        background.start(std::to_string(asker * 50 + i), [&] {
          const int running = ++now;
          for (int seen = most; running > seen && !most.compare_exchange_weak(seen, running);) {
          }
          sigset_t blocked;
          pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
          signals += !sigismember(&blocked, SIGINT) || !sigismember(&blocked, SIGTERM);
          ++runs;
          --now;
          return true;
        });
    });
  for (std::thread& asker : askers) asker.join();
  background.wait();
  EXPECT_LE(most, 3);
  EXPECT_GE(runs, 250);  // so many keys
  EXPECT_EQ(signals, 0) << "the host's signals are for its own threads";
}

TEST(Background, TheEndDropsWhatHasNotBegun) {
  std::atomic<int> runs = 0;
  {
    Background background(1);
    for (int i = 0; i < 1000; ++i)
      background.start(std::to_string(i), [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return ++runs, true;
      });
  }
  const int at_the_end = runs;
  EXPECT_LT(at_the_end, 1000);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(runs, at_the_end);
}

}  // namespace
}  // namespace normjit
