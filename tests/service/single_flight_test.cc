// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/single_flight.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace normjit {
namespace {

constexpr int kThreads = 32;

// Which threads have found a key already in flight. The first one compares its key with nothing.
class Arrivals {
 public:
  void note() {
    const std::lock_guard<std::mutex> lock(mutex_);
    threads_.insert(std::this_thread::get_id());
  }
  void wait_for(std::size_t count) {
    for (;;) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (threads_.size() >= count) return;
      }
      std::this_thread::yield();
    }
  }

 private:
  std::mutex mutex_;
  std::set<std::thread::id> threads_;
};

// A key that tells who looks it up, so that a function can go on exactly when all others are waiting for it.
struct ObservedKey {
  int number;
  Arrivals* arrivals;
  friend bool operator<(const ObservedKey& a, const ObservedKey& b) {
    a.arrivals->note();
    return a.number < b.number;
  }
};

template <class Body>
void in_threads(int count, const Body& body) {
  std::barrier start(count);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      body(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SingleFlight, ReturnsTheValueOfTheFunction) {
  SingleFlight<std::string, int> flights;
  const Result<int> result = flights.run("key", [] { return Result<int>(7); });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(*result, 7);
}

// A value that counts its copies.
struct Copied {
  explicit Copied(int& copies) : copies(&copies) {}
  Copied(const Copied& other) : copies(other.copies) { ++*copies; }
  Copied(Copied&&) = default;
  Copied& operator=(const Copied&) = delete;
  int* copies;
};

TEST(SingleFlight, WhoCallsAloneGetsTheValueItselfAndNoCopy) {
  SingleFlight<int, Copied> flights;
  int copies = 0;
  EXPECT_TRUE(flights.run(1, [&] { return Result<Copied>(Copied(copies)); }).ok());
  EXPECT_EQ(copies, 0);
}

TEST(SingleFlight, ServesResultsWithoutAValue) {
  SingleFlight<int, void> flights;
  EXPECT_TRUE(flights.run(1, [] { return Result<void>(); }).ok());
  EXPECT_EQ(flights.run(1, [] { return Result<void>(Error{Code::CacheIo, "x"}); }).code(), Code::CacheIo);
}

TEST(SingleFlight, ConcurrentCallersShareOneExecution) {
  SingleFlight<ObservedKey, std::string> flights;
  Arrivals waiting;
  std::atomic<int> executions{0}, right{0};
  in_threads(kThreads, [&](int) {
    const Result<std::string> result = flights.run({1, &waiting}, [&] {
      ++executions;
      waiting.wait_for(kThreads - 1);
      return Result<std::string>("made once");
    });
    if (result.ok() && *result == "made once") ++right;
  });
  EXPECT_EQ(executions, 1);
  EXPECT_EQ(right, kThreads);
}

TEST(SingleFlight, ConcurrentCallersShareAnErrorThatIsNotRemembered) {
  SingleFlight<ObservedKey, int> flights;
  Arrivals waiting;
  std::atomic<int> executions{0}, failures{0};
  in_threads(kThreads, [&](int) {
    const Result<int> result = flights.run({1, &waiting}, [&] {
      ++executions;
      waiting.wait_for(kThreads - 1);
      return Result<int>(Error{Code::CompileFailed, "no luck"});
    });
    if (result.code() == Code::CompileFailed && result.error().message == "no luck") ++failures;
  });
  EXPECT_EQ(executions, 1);
  EXPECT_EQ(failures, kThreads);

  const Result<int> again = flights.run({1, &waiting}, [] { return Result<int>(5); });
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, 5);
}

TEST(SingleFlight, AValueIsNotRemembered) {
  SingleFlight<int, int> flights;
  int executions = 0;
  const auto count = [&] { return Result<int>(++executions); };
  EXPECT_EQ(*flights.run(1, count), 1);
  EXPECT_EQ(*flights.run(1, count), 2);
}

// Whoever has been told a result and calls again executes anew, however close behind.
TEST(SingleFlight, AWaiterThatCallsAgainStartsAnew) {
  SingleFlight<ObservedKey, int> flights;
  Arrivals waiting;
  std::atomic<int> stale{0};
  in_threads(kThreads, [&](int) {
    const Result<int> first = flights.run({1, &waiting}, [&] {
      waiting.wait_for(kThreads - 1);
      return Result<int>(1);
    });
    const Result<int> second = flights.run({1, &waiting}, [] { return Result<int>(2); });
    if (*first != 1 || *second != 2) ++stale;
  });
  EXPECT_EQ(stale, 0);
}

TEST(SingleFlight, KeysDoNotWaitForEachOther) {
  SingleFlight<int, int> flights;
  std::atomic<bool> second_done{false};
  // Would hang if the second key waited for the first.
  std::thread first([&] {
    static_cast<void>(flights.run(1, [&] {
      while (!second_done) std::this_thread::yield();
      return Result<int>(1);
    }));
  });
  EXPECT_EQ(*flights.run(2, [] { return Result<int>(2); }), 2);
  second_done = true;
  first.join();
}

TEST(SingleFlight, AFunctionMayAskForAnotherKey) {
  SingleFlight<int, int> flights;
  const Result<int> result = flights.run(1, [&] { return flights.run(2, [] { return Result<int>(3); }); });
  EXPECT_EQ(*result, 3);
}

TEST(SingleFlight, AnExceptionReachesEveryCallerAndIsNotRemembered) {
  SingleFlight<ObservedKey, int> flights;
  Arrivals waiting;
  std::atomic<int> executions{0}, caught{0};
  in_threads(kThreads, [&](int) {
    try {
      static_cast<void>(flights.run({1, &waiting}, [&]() -> Result<int> {
        ++executions;
        waiting.wait_for(kThreads - 1);
        throw std::runtime_error("thrown");
      }));
    } catch (const std::runtime_error&) {
      ++caught;
    }
  });
  EXPECT_EQ(executions, 1);
  EXPECT_EQ(caught, kThreads);
  EXPECT_EQ(*flights.run({1, &waiting}, [] { return Result<int>(1); }), 1);
}

TEST(SingleFlight, ManyThreadsOnManyKeys) {
  SingleFlight<int, int> flights;
  std::atomic<int> wrong{0};
  in_threads(kThreads, [&](int thread) {
    for (int i = 0; i < 200; ++i) {
      const int key = (i + thread) % 7;
      const Result<int> result = flights.run(key, [&] { return Result<int>(key * 10); });
      if (*result != key * 10) ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace normjit
