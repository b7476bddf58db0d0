// SPDX-License-Identifier: Apache-2.0
// Many processes want the same kernels at once: each is compiled once, and nobody waits for long for anybody
// who is stopped or dead.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <thread>

#include "normjit/base/text.h"
#include "normjit/service.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = RecordingFileSystem::Kind;
using std::chrono::milliseconds;

NormSpec spec_of(int key) { return {.columns = 1024 + 64 * key}; }

// What all processes of a test see.
struct Counts {
  std::atomic<int> compiles{0};
  std::atomic<int> begun{0};  // compiles of the one who stands still
};
static_assert(std::atomic<int>::is_always_lock_free);

class Shared {
 public:
  Shared()
      : counts_(new (::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                            0)) Counts) {}
  ~Shared() { ::munmap(counts_, sizeof(Counts)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  Counts* operator->() const { return counts_; }

 private:
  Counts* const counts_;
};

// Takes about as long as a fast compile, and counts in all processes.
class SlowCompiler final : public FakeCompiler {
 public:
  SlowCompiler(const Shared& shared, bool stands_still) : shared_(shared), stands_still_(stands_still) {}
  Result<Binary> compile(const Source& source, Arch arch) override {
    ++shared_->compiles;
    if (stands_still_) {
      ++shared_->begun;
      ::raise(SIGSTOP);
    }
    std::this_thread::sleep_for(milliseconds(10));
    return FakeCompiler::compile(source, arch);
  }

 private:
  const Shared& shared_;
  const bool stands_still_;
};

class StormTest : public ::testing::Test {
 protected:
  // Prepares these kernels in a process of its own, which exits with 0 if all are right.
  pid_t start(const std::vector<int>& keys, bool stands_still = false) {
    std::fflush(nullptr);
    const pid_t child = ::fork();
    EXPECT_GE(child, 0);
    if (child == 0) ::_exit(prepare_all(keys, stands_still));
    return child;
  }

  // The status with which a process has ended.
  static int end_of(pid_t child) {
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }

  // A process that has stopped in the middle of its first compile.
  pid_t start_stopped(const std::vector<int>& keys) {
    const pid_t child = start(keys, /*stands_still=*/true);
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, WUNTRACED), child);
    EXPECT_TRUE(WIFSTOPPED(status));
    EXPECT_EQ(shared_->begun, 1);
    return child;
  }

  int entries() const {
    int entries = 0;
    for (const auto& file : std::filesystem::directory_iterator(directory_.path())) {
      EXPECT_NE(file.path().extension(), ".tmp");
      entries += file.path().extension() == ".njk";
    }
    return entries;
  }

  const TempDirectory directory_;
  const Shared shared_;
  bool locks_ = true;

 private:
  int prepare_all(const std::vector<int>& keys, bool stands_still) const {
    const auto compiler = std::make_shared<SlowCompiler>(shared_, stands_still);
    const auto driver = std::make_shared<FakeDriver>(std::vector{profile_of(90)});
    const auto files = std::make_shared<RecordingFileSystem>();
    files->skip_flushes();  // the disk of a busy machine may take seconds
    if (!locks_) files->fail_always(Kind::lock, ENOLCK);
    Options options;
    options.cache_directory = directory_.path();
    Service service(options, {.compiler = compiler, .driver = driver, .files = files});
    for (const int key : keys) {
      const auto kernel = service.prepare(spec_of(key));
      if (!kernel) return 1;
      const auto rendered = service.render(spec_of(key), profile_of(90), kernel->plan());
      if (!rendered) return 2;
      const std::string code = concat({"fake code of ", rendered->kernel, " for sm_90\n", rendered->text});
      if (driver->loads().back().code != code) return 3;
    }
    return files->open_files() == 0 ? 0 : 4;
  }
};

constexpr int kProcesses = 16, kKeys = 40;

std::vector<int> shuffled_keys(int seed) {
  std::vector<int> keys(kKeys);
  std::iota(keys.begin(), keys.end(), 0);
  std::shuffle(keys.begin(), keys.end(), std::mt19937(static_cast<unsigned>(seed)));
  return keys;
}

TEST_F(StormTest, OneCompileAKeyAmongAllProcesses) {
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) children.push_back(start(shuffled_keys(i)));
  for (const pid_t child : children) EXPECT_EQ(end_of(child), 0);
  EXPECT_EQ(shared_->compiles, kKeys);
  EXPECT_EQ(entries(), kKeys);
  std::printf("%d processes, %d cold keys: %d compiles\n", kProcesses, kKeys, shared_->compiles.load());
}

TEST_F(StormTest, AlsoWhereAllAskForTheSameKeyAtOnce) {
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) children.push_back(start(shuffled_keys(0)));
  for (const pid_t child : children) EXPECT_EQ(end_of(child), 0);
  EXPECT_EQ(shared_->compiles, kKeys);
}

TEST_F(StormTest, WithoutLocksSomeCompileTwiceAndAllAreRight) {
  locks_ = false;
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) children.push_back(start(shuffled_keys(i)));
  for (const pid_t child : children) EXPECT_EQ(end_of(child), 0);
  EXPECT_GE(shared_->compiles, kKeys);
  EXPECT_LE(shared_->compiles, kProcesses * kKeys);
  EXPECT_EQ(entries(), kKeys);
}

TEST_F(StormTest, WhoIsStoppedInACompileDelaysTheOthersForABoundedTime) {
  const pid_t stopped = start_stopped({0});
  const auto begin = Clock::now();
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) children.push_back(start({1, 2, 0, 3}));
  for (const pid_t child : children) EXPECT_EQ(end_of(child), 0);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20)) << "2 seconds, on a machine at rest";
  // The other keys once each, and the one that is stuck by each of the four at worst.
  EXPECT_LE(shared_->compiles, 1 + 3 + 4);
  EXPECT_EQ(end_of(start({0, 1, 2, 3})), 0);

  ASSERT_EQ(::kill(stopped, SIGCONT), 0);
  EXPECT_EQ(end_of(stopped), 0) << "who was stopped goes on with what it has made";
  EXPECT_EQ(entries(), 4);
}

TEST_F(StormTest, WhoIsKilledInACompileDelaysNobody) {
  const pid_t stopped = start_stopped({0});
  ASSERT_EQ(::kill(stopped, SIGKILL), 0);
  EXPECT_TRUE(WIFSIGNALED(end_of(stopped)));
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) children.push_back(start({0, 1}));
  for (const pid_t child : children) EXPECT_EQ(end_of(child), 0);
  EXPECT_EQ(shared_->compiles, 1 + 2);
}

TEST(Storm, HitsTakeNoLock) {
  FakeMachine machine;
  ASSERT_TRUE(machine.service().prepare(spec_of(0)).ok());
  EXPECT_GT(machine.files->count(Kind::lock), 0);
  machine.files->forget();
  ASSERT_TRUE(machine.service().prepare(spec_of(0)).ok());
  EXPECT_EQ(machine.files->count(Kind::lock), 0);
  EXPECT_EQ(machine.files->writes(), 0);
}

}  // namespace
}  // namespace normjit::testing
