// SPDX-License-Identifier: Apache-2.0
// What the executor must find, with file, line, block and thread, and what it must not complain of. Each
// kernel here is a few lines; what the primitives compute is the conformance tests' matter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <numeric>
#include <set>
#include <thread>
#include <tuple>

#include "simt/launch.h"
#include "tests/support/guarded_memory.h"

namespace normjit::simt {
namespace {

using normjit::testing::GuardedMemory;
using ::testing::AllOf;
using ::testing::HasSubstr;

// x: 64 ints 0, 1, 2 ... as input; y: 1024 ints as output; workspace: 64 counters, zero. rows says whatever a
// test wants. Line 1 is that of NJ_KERNEL.
struct Tiny {
  const char* name;
  const char* body;
};
const Tiny kTiny[] = {
    {"fine", R"(
  NJ_SHARED(int, s, 64);
  s[threadIdx.x] = on.x[threadIdx.x];
  hw::block_barrier();
  on.y[blockIdx.x * 64 + threadIdx.x] = s[63 - threadIdx.x];)"},
    {"missing_barrier", R"(
  NJ_SHARED(int, s, 64);
  s[threadIdx.x] = on.x[threadIdx.x];

  on.y[threadIdx.x] = s[63 - threadIdx.x];)"},
    {"missing_second_barrier", R"(
  NJ_SHARED(int, s, 64);
  for (int i = 0; i < 2; ++i) {
    s[threadIdx.x] = i;
    hw::block_barrier();
    on.y[threadIdx.x] = s[63 - threadIdx.x];
  })"},
    {"shuffle_orders_nothing", R"(
  NJ_SHARED(int, s, 64);
  s[threadIdx.x] = 1;
  hw::shuffle_xor(1, 1);
  on.y[threadIdx.x] = s[threadIdx.x ^ 1];)"},
    {"warp_barrier_orders", R"(
  NJ_SHARED(int, s, 64);
  s[threadIdx.x] = 1;
  hw::warp_barrier();
  on.y[threadIdx.x] = s[threadIdx.x ^ 1];)"},
    {"uninitialised", R"(
  NJ_SHARED(int, s, 64);
  if (threadIdx.x != 5) s[threadIdx.x] = 1;
  hw::block_barrier();
  on.y[threadIdx.x] = s[threadIdx.x];)"},
    {"reads_output", R"(
  on.y[512 + threadIdx.x] = on.y[threadIdx.x];)"},
    {"behind_x", R"(
  on.y[threadIdx.x] = on.x[threadIdx.x + on.rows];)"},
    {"writes_input", R"(
  const_cast<int*>(on.x)[threadIdx.x] = 1;)"},
    {"behind_shared", R"(
  NJ_SHARED(int, s, 64);
  NJ_SHARED(int, t, 64);
  s[threadIdx.x + on.rows] = 1;
  if (threadIdx.x == 0) t[0] = 1;)"},
    {"behind_member", R"(
  struct Two { int at[2]; } two = {{1, 2}};
  const auto read = [](const Two& from, long long i) { return from.at[i]; };
  on.y[threadIdx.x] = read(two, on.rows);)"},
    {"misaligned_vector", R"(
  struct alignas(16) Four { int at[4]; };
  hw::store(on.y, hw::load<hw::Cache::evict_first, Four>(on.x + 1));)"},
    {"half_waits", R"(
  if (threadIdx.x < 32)
    hw::block_barrier();
  else
    return;)"},
    {"two_barriers", R"(
  if (threadIdx.x < 32)
    hw::block_barrier();
  else
    hw::block_barrier();)"},
    {"lane_left_out", R"(
  hw::warp_barrier(0xfffffffeu);)"},
    {"from_outside_the_mask", R"(
  if (threadIdx.x < 16) on.y[threadIdx.x] = hw::shuffle(1, 20, 0xffffu);)"},
    {"waits_for_ever", R"(
  if (threadIdx.x == 7) hw::wait_until(reinterpret_cast<unsigned long long*>(on.workspace), 1);
  hw::block_barrier();)"},
    // Block 0 slots for block 1. rows: 0 right, 1 with another tag, 2 and what it published before counts too
    {"slots", R"(
  auto* at = reinterpret_cast<unsigned long long*>(on.workspace);
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    on.y[0] = 1;
    hw::publish(at, 5, on.rows == 1 ? 8 : 7);
  } else {
    int got; hw::gather<1>(at, 1, 1, 7, &got); on.y[1] = got;
    if (on.rows == 2) on.y[2] = on.y[0];
  })"},
    {"runs_for_ever", R"(
  for (volatile int i = 0; on.rows > 0; i = i + 1) {
  })"},
    {"null", R"(
  on.y[0] = *reinterpret_cast<const int*>(on.rows);)"},
    // Block 0 hands y[0] over to block 1.
    {"hands_over", R"(
  auto* counter = reinterpret_cast<unsigned long long*>(on.workspace);
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    on.y[0] = 1;
    on.rows != 0 ? hw::take_ticket(counter) : hw::arrive(counter);
  } else {
    hw::wait_until(counter, 1);
    on.y[1] = on.y[0];
  })"},
    {"same_output", R"(
  on.y[threadIdx.x / 2] = 1;)"},
    {"copies", R"(
  NJ_SHARED(int, s, 128);
  hw::copy_async<4>(s + threadIdx.x, on.x + threadIdx.x);
  hw::copies_commit();
  if (on.rows > 0) hw::copies_wait<0>();
  on.y[threadIdx.x] = s[threadIdx.x];)"},
    {"copies_of_others", R"(
  NJ_SHARED(int, s, 128);
  hw::copy_async<4>(s + threadIdx.x, on.x + threadIdx.x);
  hw::copies_commit();
  hw::copies_wait<0>();
  on.y[threadIdx.x] = s[threadIdx.x ^ 1];)"},
    // rows: 0 right, 1 without the wait, 2 without barriers_ready, 3 never initialised
    {"bulk", R"(
  NJ_SHARED(int4_, s, 16);
  NJ_SHARED(hw::MemoryBarrier, full, 1);
  if (threadIdx.x == 0 && on.rows != 3) hw::barrier_init(full, 1);
  if (threadIdx.x == 0 && on.rows < 2) hw::barriers_ready();
  hw::block_barrier();
  if (threadIdx.x == 0) {
    hw::barrier_arrive_expect(full, 256);
    hw::bulk_load(s, on.x, 256, full);
  }
  if (on.rows != 1) hw::barrier_wait(full, 0);
  on.y[threadIdx.x] = s[threadIdx.x / 4].at[threadIdx.x % 4];)"},
    // A second load overwrites what the other threads may still read; rows 0: they say when they are done.
    {"refill", R"(
  NJ_SHARED(int4_, s, 16);
  NJ_SHARED(hw::MemoryBarrier, full, 2);
  if (threadIdx.x == 0) {
    hw::barrier_init(full, 1);
    hw::barrier_init(full + 1, 64);
    hw::barriers_ready();
  }
  hw::block_barrier();
  for (int i = 0; i < 2; ++i) {
    if (threadIdx.x == 0) {
      if (i > 0 && on.rows == 0) hw::barrier_wait(full + 1, 0);
      hw::barrier_arrive_expect(full, 256);
      hw::bulk_load(s, on.x, 256, full);
    }
    hw::barrier_wait(full, i);
    on.y[threadIdx.x] = s[threadIdx.x / 4].at[threadIdx.x % 4];
    if (threadIdx.x > 0 || i > 0 || on.rows == 0) hw::barrier_arrive(full + 1);
  })"},
    // rows 1: the last block leaves when it has sent, whether or not the first one has sent to it
    {"cluster", R"(
  NJ_SHARED(int4_, s, 1);
  NJ_SHARED(hw::MemoryBarrier, full, 1);
  if (threadIdx.x == 0) {
    hw::barrier_init(full, 1);
    hw::barriers_ready();
    hw::barrier_arrive_expect(full, 16);
  }
  hw::cluster_enter();
  hw::cluster_entered();
  const int rank = blockIdx.x % 4;
  if (threadIdx.x == 0) hw::send(int4_{{rank, rank, rank, rank}}, s, full, 3 - rank);
  if (on.rows == 1 && rank == 3) return;
  hw::barrier_wait(full, 0);
  on.y[blockIdx.x * 64 + threadIdx.x] = s[0].at[threadIdx.x % 4];)"},
    // rows: 1 sends without the wait, 2 enters twice
    {"enters", R"(
  NJ_SHARED(int4_, s, 1);
  NJ_SHARED(hw::MemoryBarrier, full, 1);
  hw::cluster_enter();
  if (on.rows == 2) hw::cluster_enter();
  hw::send(int4_{}, s, full, 0);)"},
    {"never_enters", R"(
  hw::cluster_entered();)"},
    {"entering_orders_nothing", R"(
  NJ_SHARED(int4_, s, 1);
  NJ_SHARED(hw::MemoryBarrier, full, 1);
  if (threadIdx.x == 0) {
    hw::barrier_init(full, 1);
    hw::barriers_ready();
    s[0].at[0] = 1;
  }
  hw::cluster_enter();
  hw::cluster_entered();
  if (threadIdx.x == 0) hw::send(int4_{}, s, full, 3 - blockIdx.x % 4);)"},
    // rows: 0 right, 1 reads too early, 2 writes too early, 3 takes a ticket too early
    {"overlaps", R"(
  if (on.rows == 2) on.y[threadIdx.x] = 7;
  const int value = on.rows == 1 ? on.x[threadIdx.x] : 0;
  if (on.rows == 3) hw::take_ticket(reinterpret_cast<unsigned long long*>(on.workspace));
  hw::wait_for_previous_launch();
  on.y[64 + threadIdx.x] = value + on.x[threadIdx.x];)"},
    {"outside_the_cluster", R"(
  NJ_SHARED(int4_, s, 1);
  NJ_SHARED(hw::MemoryBarrier, full, 1);
  hw::send(int4_{}, s, full, 7);)"},
    {"order", R"(
  if (threadIdx.x % 32 == 0)
    on.y[hw::take_ticket(reinterpret_cast<unsigned long long*>(on.workspace))] =
        blockIdx.x * 64 + threadIdx.x;)"},
    {"overflow", R"(
  int big = on.x[63] << 25;
  on.y[threadIdx.x] = big + big;)"},
    {"too_much_shared", R"(
  NJ_SHARED(int, s, 20000);
  s[threadIdx.x] = 1;)"},
};

Source source_of(const Tiny& tiny) {
  return {.text = std::string(
                      "namespace normjit {\nstruct alignas(16) int4_ { int at[4]; };\n"
                      "struct Operands { long long rows; unsigned char* workspace; const int* x; int* y; };\n"
                      "#line 1 \"") +
                  tiny.name + ".cu\"\nNJ_KERNEL(" + tiny.name + ", 64) {" + tiny.body + "\n}\n}\n",
          .kernel = tiny.name,
          .description = tiny.name};
}

struct Outcome {
  std::optional<Diagnosis> diagnosis;
  std::vector<int> y;
};

class Executor : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!sanitizer().empty())
      GTEST_SKIP() << "These kernels have faults, at the first of which a sanitizer would end the program.";
  }
  static void SetUpTestSuite() {
    if (!sanitizer().empty()) return;
    std::vector<Source> sources;
    for (const Tiny& tiny : kTiny) sources.push_back(source_of(tiny));
    const auto compiler = HostCompiler::find();
    ASSERT_TRUE(compiler.ok()) << compiler.error().message;
    for (const Checks checks : {Checks::memory, Checks::none}) {
      const auto kernels = compiler->compile(sources, checks);
      ASSERT_TRUE(kernels.ok()) << kernels.error().message;
      for (std::size_t i = 0; i < kernels->size(); ++i) compiled_[{kTiny[i].name, checks}] = (*kernels)[i];
    }
  }
  static void TearDownTestSuite() { compiled_.clear(); }

  struct Options {
    std::uint32_t blocks = 1;
    LaunchShape shape = {.threads = 64};
    Checks checks = Checks::memory;
    std::uint32_t first_block = 0, run_blocks = 0;
    std::chrono::milliseconds time_limit = std::chrono::seconds(20);
  };
  static Outcome run(const std::string& name, long long rows, std::uint64_t seed, const Options& options) {
    const GuardedMemory x(64 * sizeof(int), GuardedMemory::Side::before_guard),
        y(1024 * sizeof(int), GuardedMemory::Side::before_guard),
        workspace(512, GuardedMemory::Side::before_guard);
    auto* x_argument = reinterpret_cast<int*>(x.data());
    auto* y_argument = reinterpret_cast<int*>(y.data());
    std::iota(x_argument, x_argument + 64, 0);
    struct {
      long long rows;
      void* workspace;
      const int* x;
      int* y;
    } operands{rows, workspace.data(), x_argument, y_argument};
    void* arguments[] = {&operands};
    const Buffer buffers[] = {{x.data(), x.bytes(), "x"},
                              {y.data(), y.bytes(), "y", true, false},
                              {workspace.data(), workspace.bytes(), "workspace", true, true}};
    Outcome outcome;
    outcome.diagnosis = simt::run(compiled_.at({name, options.checks}), {.blocks = options.blocks,
                                                                         .shape = options.shape,
                                                                         .arguments = arguments,
                                                                         .buffers = buffers,
                                                                         .seed = seed,
                                                                         .first_block = options.first_block,
                                                                         .run_blocks = options.run_blocks,
                                                                         .time_limit = options.time_limit});
    outcome.y.assign(y_argument, y_argument + 1024);
    return outcome;
  }
  static Outcome run(const std::string& name, long long rows = 0, std::uint64_t seed = 0) {
    return run(name, rows, seed, Options());
  }

  // Found under every schedule, whatever the order.
  static void expect_fault(const std::string& name, long long rows, Fault fault,
                           const ::testing::Matcher<const std::string&>& message, const Options& options) {
    for (const std::uint64_t seed : {0, 1, 2, 3, 4, 5, 9, 14}) {
      const Outcome outcome = run(name, rows, seed, options);
      ASSERT_TRUE(outcome.diagnosis) << name << " was let pass under " << to_text(schedule_of(seed));
      EXPECT_EQ(outcome.diagnosis->fault, fault) << simt::name(outcome.diagnosis->fault);
      EXPECT_THAT(outcome.diagnosis->message, AllOf(message, HasSubstr(to_text(schedule_of(seed)))));
    }
  }
  static void expect_fault(const std::string& name, long long rows, Fault fault,
                           const ::testing::Matcher<const std::string&>& message) {
    expect_fault(name, rows, fault, message, Options());
  }
  // Found under every schedule, as one thing or the other, depending on who came first.
  static void expect_one_of(const std::string& name, long long rows, const std::set<Fault>& faults,
                            const char* message) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      const Outcome outcome = run(name, rows, seed);
      ASSERT_TRUE(outcome.diagnosis) << name << " was let pass under " << to_text(schedule_of(seed));
      EXPECT_TRUE(faults.contains(outcome.diagnosis->fault)) << outcome.diagnosis->message;
      EXPECT_THAT(outcome.diagnosis->message, HasSubstr(message));
    }
  }
  static void expect_fine(const std::string& name, long long rows, const Options& options) {
    for (std::uint64_t seed = 0; seed < 16; ++seed) {
      const Outcome outcome = run(name, rows, seed, options);
      EXPECT_FALSE(outcome.diagnosis) << outcome.diagnosis->message;
    }
  }

 private:
  static inline std::map<std::pair<std::string, Checks>, HostKernel> compiled_;
};

TEST(Schedules, TheFirstOnesRunSeveralBlocksInBothOrders) {
  EXPECT_EQ(schedule_of(0).resident_blocks, 1);
  for (std::uint64_t seed = 1; seed < 4; ++seed)
    EXPECT_EQ(schedule_of(seed).resident_blocks, static_cast<int>(seed) + 1);
  EXPECT_NE(schedule_of(1).order, schedule_of(2).order);
  EXPECT_NE(schedule_of(1).backwards, schedule_of(2).backwards);
  // Every kind comes: two orders, two directions, one to four blocks.
  std::set<std::tuple<Schedule::Order, bool, int>> kinds;
  for (std::uint64_t seed = 1; seed < 200; ++seed) {
    const Schedule schedule = schedule_of(seed);
    kinds.emplace(schedule.order, schedule.backwards, schedule.resident_blocks);
  }
  EXPECT_EQ(kinds.size(), 2U * 2 * 4);
}

TEST_F(Executor, RunsAKernelUnderEverySchedule) {
  for (std::uint64_t seed = 0; seed < 16; ++seed)
    for (const Checks checks : {Checks::memory, Checks::none}) {
      const Outcome outcome = run("fine", 0, seed, {.blocks = 5, .checks = checks});
      ASSERT_FALSE(outcome.diagnosis) << outcome.diagnosis->message;
      for (int i = 0; i < 5 * 64; ++i) ASSERT_EQ(outcome.y[static_cast<std::size_t>(i)], 63 - i % 64);
    }
}

TEST_F(Executor, RunsSomeBlocksOfAGrid) {
  for (const std::uint64_t seed : {0, 3}) {
    const Outcome outcome = run("fine", 0, seed, {.blocks = 9, .first_block = 3, .run_blocks = 2});
    ASSERT_FALSE(outcome.diagnosis) << outcome.diagnosis->message;
    for (std::size_t i = 0; i < 9 * 64; ++i)
      ASSERT_EQ(outcome.y[i], i / 64 == 3 || i / 64 == 4 ? 63 - static_cast<int>(i % 64) : 0);
  }
}

TEST_F(Executor, FindsAMissingBarrier) {
  expect_one_of("missing_barrier", 0, {Fault::race, Fault::uninitialized}, "missing_barrier.cu:");
  expect_fault("missing_second_barrier", 0, Fault::race,
               AllOf(HasSubstr("missing_second_barrier.cu:4"), HasSubstr("missing_second_barrier.cu:6"),
                     HasSubstr("nothing orders")));
}

TEST_F(Executor, KnowsWhatOrdersMemory) {
  expect_fault("shuffle_orders_nothing", 0, Fault::race, HasSubstr("shuffle_orders_nothing.cu:5"));
  expect_fine("warp_barrier_orders", 0, {});
}

TEST_F(Executor, FindsReadsOfWhatNobodyHasWritten) {
  expect_fault("uninitialised", 0, Fault::uninitialized,
               AllOf(HasSubstr("uninitialised.cu:5: block 0, thread 5 reads shared memory"),
                     HasSubstr("which was never written")));
  expect_fault("reads_output", 0, Fault::uninitialized, HasSubstr("reads_output.cu:2: block 0, thread"));
}

TEST_F(Executor, FindsAccessesOutsideOfEveryBuffer) {
  expect_fault("behind_x", 1, Fault::out_of_bounds,
               HasSubstr("behind_x.cu:2: block 0, thread 63 reads 4 bytes outside of every buffer, 0 bytes "
                         "behind the end of x"));
  expect_fault("behind_x", -1, Fault::out_of_bounds,
               HasSubstr("thread 0 reads 4 bytes outside of every buffer, 4 bytes before x"));
  expect_fault("writes_input", 0, Fault::out_of_bounds,
               AllOf(HasSubstr("writes to x"), HasSubstr("which is an input")));
  expect_fault("behind_shared", 1, Fault::out_of_bounds, HasSubstr("beside the variables in shared memory"));
}

TEST_F(Executor, FindsThemByGuardPagesWhereNothingIsChecked) {
  expect_fault("behind_x", 1, Fault::out_of_bounds,
               HasSubstr("behind_x.cu:2: block 0, thread 63 accesses address 0x"), {.checks = Checks::none});
  expect_fault("null", 0, Fault::out_of_bounds, HasSubstr("null.cu:2: block 0, thread"),
               {.checks = Checks::none});
}

TEST_F(Executor, FindsMisalignedVectors) {
  for (const Checks checks : {Checks::memory, Checks::none})
    expect_fault("misaligned_vector", 0, Fault::misaligned,
                 AllOf(HasSubstr("misaligned_vector.cu:3: "), HasSubstr("accesses 16 bytes at 0x")),
                 {.checks = checks});
}

TEST_F(Executor, FindsUndefinedBehaviour) {
  expect_fault("overflow", 0, Fault::undefined, HasSubstr("overflow.cu:3: block 0, thread"));
  expect_fault("behind_member", 2, Fault::undefined, HasSubstr("behind_member.cu:3"));
}

TEST_F(Executor, FindsThreadsThatMissABarrier) {
  expect_fault("half_waits", 0, Fault::divergence,
               AllOf(HasSubstr("half_waits.cu:3"), HasSubstr("left the kernel")));
  expect_fault(
      "two_barriers", 0, Fault::divergence,
      AllOf(HasSubstr("two_barriers.cu:3"), HasSubstr("two_barriers.cu:5"), HasSubstr("different barriers")));
}

TEST_F(Executor, FindsWrongMasks) {
  expect_fault("lane_left_out", 0, Fault::bad_mask, HasSubstr("lane_left_out.cu:2: block 0, thread"));
  expect_fault("from_outside_the_mask", 0, Fault::bad_mask,
               AllOf(HasSubstr("from_outside_the_mask.cu:2"), HasSubstr("reads lane 20")));
}

TEST_F(Executor, ADeadlockSaysWhoWaitsWhereForWhat) {
  expect_fault(
      "waits_for_ever", 0, Fault::deadlock,
      AllOf(HasSubstr("block 0, thread 7 waits in waits_for_ever.cu:2 until a counter that is 0 reaches 1"),
            HasSubstr("63 of 64 threads wait at the barrier of block 0 in waits_for_ever.cu:3")));
}

TEST_F(Executor, HandsPostsFromBlockToBlock) {
  const Options options{.blocks = 2, .shape = {.threads = 64, .cooperative = true}};
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    const Outcome outcome = run("slots", 0, seed, options);
    ASSERT_FALSE(outcome.diagnosis) << outcome.diagnosis->message;
    EXPECT_EQ(outcome.y[1], 5);
  }
  expect_fault("slots", 2, Fault::race, AllOf(HasSubstr("slots.cu:9: "), HasSubstr("slots.cu:5")), options);
}

TEST_F(Executor, ACollectThatNobodyPostsIsADeadlockThatNamesTheTag) {
  const Options options{.blocks = 2, .shape = {.threads = 64, .cooperative = true}};
  expect_fault(
      "slots", 1, Fault::deadlock,
      HasSubstr("block 1, thread 0 waits in slots.cu:8 for a value with tag 7 where one with tag 8 is"),
      options);
}

TEST_F(Executor, ATimeLimitEndsTheRest) {
  for (const Checks checks : {Checks::memory, Checks::none}) {
    const Outcome outcome =
        run("runs_for_ever", 1, 0, {.checks = checks, .time_limit = std::chrono::milliseconds(50)});
    ASSERT_TRUE(outcome.diagnosis);
    EXPECT_EQ(outcome.diagnosis->fault, Fault::time_limit);
    EXPECT_THAT(outcome.diagnosis->message,
                HasSubstr("block 0, thread 0 still ran when the launch's time was up"));
  }
  EXPECT_FALSE(run("runs_for_ever").diagnosis) << "and the next launch is as good as any";
}

TEST_F(Executor, FollowsOrderFromBlockToBlock) {
  const Options options{.blocks = 2};
  for (const std::uint64_t seed : {0, 1, 4, 5, 10, 11}) {  // block 0 begins no later than block 1
    const Outcome wrong = run("hands_over", 1, seed, options);
    ASSERT_TRUE(wrong.diagnosis) << to_text(schedule_of(seed));
    EXPECT_EQ(wrong.diagnosis->fault, Fault::race);
    EXPECT_THAT(wrong.diagnosis->message,
                AllOf(HasSubstr("hands_over.cu:9: block 1, thread 0 reads y (0 bytes"),
                      HasSubstr("hands_over.cu:5")));
    const Outcome right = run("hands_over", 0, seed, options);
    EXPECT_FALSE(right.diagnosis) << right.diagnosis->message;
    EXPECT_EQ(right.y[1], 1);
  }
}

TEST_F(Executor, BlocksThatDoNotFitWaitForTheirTurn) {
  constexpr std::uint64_t kBackwardsOneAtATime = 8;
  const Outcome outcome = run("hands_over", 0, kBackwardsOneAtATime, {.blocks = 2});
  ASSERT_TRUE(outcome.diagnosis);
  EXPECT_EQ(outcome.diagnosis->fault, Fault::deadlock)
      << "block 1 waits for block 0, which never gets a place";
}

TEST_F(Executor, FindsThatTwoThreadsWriteTheSame) {
  expect_fault("same_output", 0, Fault::race, AllOf(HasSubstr("same_output.cu:2"), HasSubstr("has written")));
}

TEST_F(Executor, FindsMissingWaitsForCopies) {
  expect_fine("copies", 1, {});
  expect_fault("copies", 0, Fault::missing_wait, HasSubstr("copies.cu:6: block 0, thread"));
  expect_one_of("copies_of_others", 0, {Fault::race, Fault::missing_wait, Fault::uninitialized},
                "copies_of_others.cu:6: ");
}

TEST_F(Executor, FindsMissingWaitsForBulkCopies) {
  expect_fine("bulk", 0, {});
  expect_one_of("bulk", 1, {Fault::race, Fault::missing_wait, Fault::uninitialized}, "bulk.cu:12: ");
  expect_fault("bulk", 2, Fault::missing_wait, HasSubstr("without barriers_ready()"));
  expect_fault("bulk", 3, Fault::misuse, HasSubstr("never initialised"));
}

TEST_F(Executor, FindsABufferThatIsRefilledUnderItsReaders) {
  expect_fine("refill", 0, {});
  expect_one_of("refill", 1, {Fault::race, Fault::missing_wait}, "refill.cu:1");
}

TEST_F(Executor, RunsClusters) {
  const Options clusters{.blocks = 8, .shape = {.threads = 64, .cluster_blocks = 4}};
  expect_fine("cluster", 0, clusters);
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    const Outcome outcome = run("cluster", 0, seed, clusters);
    for (std::size_t i = 0; i < 512; ++i) ASSERT_EQ(outcome.y[i], 3 - static_cast<int>(i / 64 % 4));
  }
  expect_fault("outside_the_cluster", 0, Fault::misuse, HasSubstr("asks for block 7 of a cluster of 4"),
               clusters);
}

TEST_F(Executor, KnowsWhenABlockHasEnteredItsCluster) {
  const Options clusters{.blocks = 8, .shape = {.threads = 64, .cluster_blocks = 4}};
  expect_fault("never_enters", 0, Fault::misuse,
               AllOf(HasSubstr("never_enters.cu:2"), HasSubstr("without having called cluster_enter()")),
               clusters);
  expect_fault("enters", 2, Fault::misuse,
               AllOf(HasSubstr("enters.cu:5"), HasSubstr("before it has waited with cluster_entered()")),
               clusters);
  expect_fault("enters", 1, Fault::misuse,
               AllOf(HasSubstr("enters.cu:6"), HasSubstr("sends to its cluster before cluster_entered()")),
               clusters);
  expect_fault("entering_orders_nothing", 0, Fault::race, HasSubstr("entering_orders_nothing.cu:"), clusters);
}

TEST_F(Executor, FindsWhatIsTouchedBeforeTheLaunchBeforeIsOver) {
  const Options overlapping{.shape = {.threads = 64, .overlap_previous = true}};
  expect_fine("overlaps", 0, overlapping);
  const struct {
    long long rows;
    const char* what;
  } cases[] = {{1, "overlaps.cu:3: block 0, thread"},
               {2, "overlaps.cu:2: block 0, thread"},
               {3, "overlaps.cu:4: block 0, thread"}};
  for (const auto& [rows, what] : cases) {
    expect_fault("overlaps", rows, Fault::missing_wait,
                 AllOf(HasSubstr(what), HasSubstr("before wait_for_previous_launch()")), overlapping);
    expect_fine("overlaps", rows, {});
  }
}

TEST_F(Executor, FindsABlockThatLeavesWhileOthersSendToIt) {
  std::set<Fault> faults;
  for (std::uint64_t seed = 0; seed < 16; ++seed)
    if (const Outcome outcome =
            run("cluster", 1, seed, {.blocks = 4, .shape = {.threads = 64, .cluster_blocks = 4}});
        outcome.diagnosis)
      faults.insert(outcome.diagnosis->fault);
  EXPECT_EQ(faults, std::set{Fault::out_of_bounds});
}

TEST_F(Executor, RefusesWhatAGpuWouldNotLaunch) {
  const auto refused = [](const Options& options, const char* why) {
    const Outcome outcome = run("fine", 0, 0, options);
    ASSERT_TRUE(outcome.diagnosis);
    EXPECT_EQ(outcome.diagnosis->fault, Fault::bad_launch);
    EXPECT_THAT(outcome.diagnosis->message, HasSubstr(why));
  };
  refused({.shape = {.threads = 0}}, "0 threads a block");
  refused({.shape = {.threads = 1056}}, "1056 threads a block");
  refused({.blocks = 0}, "no blocks");
  refused({.shape = {.threads = 64, .dynamic_shared_bytes = 300000}},
          "300000 bytes of dynamic shared memory");
  refused({.blocks = 6, .shape = {.threads = 64, .cluster_blocks = 4}}, "clusters of 4 blocks");
  refused({.blocks = 8, .first_block = 8}, "0 blocks from block 8 on of a grid of 8");
  refused({.blocks = 8, .first_block = 4, .run_blocks = 5}, "5 blocks from block 4 on");
  refused({.blocks = 1000, .shape = {.threads = 64, .cooperative = true}}, "64000 threads that run together");
  expect_fault("too_much_shared", 0, Fault::bad_launch, HasSubstr("80000 bytes of shared memory"));
}

TEST_F(Executor, ASeedStandsForOneOrder) {
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    const std::vector<int> order = run("order", 0, seed, {.blocks = 8}).y;
    EXPECT_EQ(order, run("order", 0, seed, {.blocks = 8}).y) << to_text(schedule_of(seed));
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 8u);
}

TEST_F(Executor, ThreadsLaunchAtTheSameTime) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (std::uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([t, &wrong] {
      for (std::uint64_t i = 0; i < 20; ++i) {
        const Outcome fine = run("fine", 0, t + i, {.blocks = 5});
        if (fine.diagnosis || fine.y[100] != 63 - 100 % 64) ++wrong;
        const Outcome fault = run("behind_x", 1, t + i, {.checks = Checks::none});
        if (!fault.diagnosis || fault.diagnosis->fault != Fault::out_of_bounds) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(HostCompiler, SaysWhatToInstallWhereThereIsNone) {
  const auto compiler = HostCompiler::find("/nowhere/c++");
  ASSERT_EQ(compiler.code(), Code::NoCompiler);
  EXPECT_THAT(compiler.error().message, AllOf(HasSubstr("/nowhere/c++"), HasSubstr("apt-get install g++")));
}

TEST(HostCompiler, AnErrorNamesTheKernelAndItsLine) {
  const Source wrong = source_of({"wrong", "\n  on.y[0] = undeclared;"});
  const auto kernels = HostCompiler::find().value().compile({&wrong, 1});
  ASSERT_EQ(kernels.code(), Code::CompileFailed);
  EXPECT_THAT(kernels.error().message, AllOf(HasSubstr("wrong.cu:2:"), HasSubstr("undeclared")));
}

}  // namespace
}  // namespace normjit::simt
