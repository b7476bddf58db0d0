// SPDX-License-Identifier: Apache-2.0
// A process that launches for days keeps nothing of it.
#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>

#include "normjit/driver/cuda_driver.h"
#include "normjit/service.h"
#include "tests/support/counting_cuda.h"
#include "tests/support/fake_compiler.h"
#include "tests/support/process_state.h"
#include "tests/support/temp_directory.h"

namespace normjit::testing {
namespace {

void* memory(std::uintptr_t number) { return reinterpret_cast<void*>(number << 30); }
Tensors tensors(std::int64_t rows) {
  return {.x = memory(1), .y = memory(2), .rows = rows, .workspace = memory(3)};
}

// Bytes that malloc has given out; sanitizers have their own malloc, and their own way to find leaks.
std::size_t bytes_in_use() { return mallinfo2().uordblks; }

class Leaks : public ::testing::Test {
 protected:
  Service service() {
    Options options;
    options.cache_directory = directory_.path();
    return Service(options, {.compiler = compiler_,
                             .driver = std::make_shared<CudaDriver>(counting_cuda),
                             .files = {},
                             .embedded = ""});
  }

  const TempDirectory directory_;
  const std::shared_ptr<FakeCompiler> compiler_ = std::make_shared<FakeCompiler>();
};

TEST_F(Leaks, AHundredThousandCallsLeaveTheProcessAsItWas) {
  constexpr NormSpec kSpecs[] = {
      {.columns = 64}, {.columns = 5000}, {.columns = 300001}, {.columns = 1 << 20}};
  Service service = this->service();
  int failed = 0;
  const auto calls = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const NormSpec& spec = kSpecs[i / 4 % 4];
      const std::int64_t rows = 1 + i % 200;
      if (i % 4 == 0) {
        const auto kernel = service.prepare(spec, {.rows_hint = rows, .pointer_alignment = 4});
        if (!kernel || !kernel->launch(tensors(rows), nullptr)) ++failed;
      } else if (!service.layer_norm(spec, tensors(rows), nullptr)) {
        ++failed;
      }
    }
  };
  calls(10000);  // every kernel that there will be
  const ProcessState before = process_state();
  const std::size_t bytes = bytes_in_use();
  const int libraries = live_libraries();
  calls(100000);
  EXPECT_EQ(bytes_in_use(), bytes);
  EXPECT_EQ(live_libraries(), libraries);
  EXPECT_EQ(process_state(), before);
  EXPECT_EQ(failed, 0);
}

TEST_F(Leaks, AServiceTakesAllWithIt) {
  const auto one = [&] {
    Service service = this->service();
    ASSERT_TRUE(service.layer_norm({.columns = 5000}, tensors(100), nullptr).ok());
    ASSERT_FALSE(service.layer_norm({.columns = 0}, tensors(100), nullptr).ok());
  };
  one();
  const ProcessState before = process_state();
  const int libraries = live_libraries();
  for (int i = 0; i < 100; ++i) one();
  EXPECT_EQ(process_state(), before);
  EXPECT_EQ(live_libraries(), libraries);
}

}  // namespace
}  // namespace normjit::testing
