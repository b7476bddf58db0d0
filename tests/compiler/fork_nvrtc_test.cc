// SPDX-License-Identifier: Apache-2.0
// Forks, and the end of the process, while threads are inside NVRTC. NORMJIT_TEST_FORKS=N forks N children
// instead of 40.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "normjit/compiler/nvrtc_compiler.h"
#include "normjit/service.h"
#include "tests/support/child.h"

namespace normjit::testing {
namespace {

constexpr int kThreads = 4;
constexpr std::size_t kChildrenAtOnce = 2;
constexpr Arch kArch{.number = 90};

std::shared_ptr<Compiler> make_compiler() {
  const Options options = Options::from_environment();
  return make_nvrtc_compiler(
      {.explicit_path = options.compiler_path, .cuda_home = options.cuda_home, .driver_cuda_version = {}});
}

Source small_kernel() {
  return {.text = "extern \"C\" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }",
          .kernel = "twice",
          .description = "a test kernel"};
}

// Asks in a child, so that this process has no NVRTC yet.
class ForkNvrtc : public ::testing::Test {
 protected:
  void SetUp() override {
    NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
    if (outcome_in_child([] { return make_compiler()->facts().ok(); }) != "done")
      GTEST_SKIP() << "There is no NVRTC on this machine.";
  }
};

TEST_F(ForkNvrtc, EveryChildCompiles) {
  const char* const wanted = std::getenv("NORMJIT_TEST_FORKS");
  const int forks = wanted != nullptr ? std::atoi(wanted) : 40;
  const auto compiler = make_compiler();
  std::atomic<bool> stop = false;
  std::atomic<int> compiles = 0, failures = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      while (!stop) ++(compiler->compile(small_kernel(), kArch) ? compiles : failures);
    });

  const int done = done_children(forks, kChildrenAtOnce,
                                 [&](int) { return compiler->compile(small_kernel(), kArch).ok(); });
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, forks);
  EXPECT_EQ(failures, 0);
  std::printf("%d of %d children compiled, and their parent %d kernels meanwhile\n", done, forks,
              compiles.load());
}

// Threads that compile for as long as they may, and are joined by an exit handler that was there before NVRTC
// and so runs after NVRTC's own: it must be given back threads that were refused.
std::vector<std::thread>* g_threads = nullptr;
std::atomic<bool> g_refused = true;

void compile_until_refused(const std::shared_ptr<Compiler>& compiler) {
  for (;;) {
    const auto binary = compiler->compile(small_kernel(), kArch);
    if (binary) continue;
    if (binary.code() != Code::NoCompiler) g_refused = false;
    return;
  }
}

// `after`: how long the threads run. At 0 the process ends within their first compiles, or before them.
std::string exit_while_compiling(std::chrono::milliseconds after, bool join) {
  return outcome_in_child(
      [=] {
        g_threads = new std::vector<std::thread>;
        if (join)
          std::atexit([] {
            for (std::thread& thread : *g_threads) thread.join();
            if (!g_refused) std::_Exit(2);
          });
        const auto compiler = make_compiler();
        for (int i = 0; i < kThreads; ++i) g_threads->emplace_back(compile_until_refused, compiler);
        std::this_thread::sleep_for(after);
        return true;
      },
      Ending::exit_handlers);
}

TEST_F(ForkNvrtc, TheProcessEndsWhileThreadsCompile) {
  for (int i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    ASSERT_EQ(exit_while_compiling(std::chrono::milliseconds(23 * i), /*join=*/i % 2 == 1), "done") << i;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << i;
  }
}

}  // namespace
}  // namespace normjit::testing
