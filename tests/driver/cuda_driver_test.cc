// SPDX-License-Identifier: Apache-2.0
#include "normjit/driver/cuda_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/fake_cuda.h"

namespace normjit::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CudaDriverTest : public ::testing::Test {
 protected:
  FakeCuda cuda_;
  std::atomic<int> opened_ = 0;
  CudaDriver driver_{[this] {
    ++opened_;
    return read_driver(cuda_.symbols());
  }};
};

TEST_F(CudaDriverTest, TouchesNothingBeforeTheFirstCall) {
  EXPECT_EQ(opened_, 0);
  EXPECT_THAT(cuda_.calls(), IsEmpty());
}

TEST_F(CudaDriverTest, TellsItsVersionWithoutInitialising) {
  EXPECT_EQ(driver_.version().value(), 13000);
  EXPECT_EQ(driver_.describe(CUDA_ERROR_ILLEGAL_ADDRESS), "CUDA_ERROR_ILLEGAL_ADDRESS: what it means");
  // A sanitizer refuses what no CUresult can be: from 1024 on.
  EXPECT_EQ(driver_.describe(998), "CUresult 998");
  EXPECT_EQ(cuda_.count("cuInit"), 0);
}

TEST_F(CudaDriverTest, OpensAndInitialisesOnce) {
  EXPECT_EQ(driver_.device_count().value(), 2);
  const std::vector<std::string> first = cuda_.calls();
  EXPECT_EQ(driver_.device_count().value(), 2);
  EXPECT_EQ(driver_.profile(1).value().sm_count, 6);
  EXPECT_EQ(cuda_.calls(), first);
  EXPECT_EQ(cuda_.count("cuInit"), 1);
  EXPECT_EQ(opened_, 1);
}

TEST_F(CudaDriverTest, KeepsTheFactsOfEachDeviceApart) {
  const DeviceProfile a{.arch = {91},
                        .sm_count = 1,
                        .threads_per_sm = 2,
                        .blocks_per_sm = 3,
                        .registers_per_sm = 4,
                        .shared_per_block = 5,
                        .shared_per_sm = 6,
                        .l2_bytes = 7};
  const DeviceProfile b{.arch = {86},
                        .sm_count = 6,
                        .threads_per_sm = 12,
                        .blocks_per_sm = 18,
                        .registers_per_sm = 24,
                        .shared_per_block = 30,
                        .shared_per_sm = 36,
                        .l2_bytes = 42};
  EXPECT_EQ(driver_.profile(1).value(), b);
  EXPECT_EQ(driver_.profile(0).value(), a);
  EXPECT_EQ(driver_.device_name(0).value(), "GPU A");
  EXPECT_EQ(driver_.device_name(1).value(), "GPU B");
}

TEST_F(CudaDriverTest, ADeviceWithoutFactsLeavesTheOthersUsable) {
  cuda_.gpus[0].attributes.clear();
  EXPECT_EQ(driver_.profile(0).code(), Code::DriverError);
  EXPECT_EQ(driver_.profile(1).value().sm_count, 6);
}

TEST_F(CudaDriverTest, SaysHowManyDevicesThereAre) {
  for (const int device : {-1, 2}) {
    const Result<DeviceProfile> profile = driver_.profile(device);
    ASSERT_EQ(profile.code(), Code::NoDevice);
    EXPECT_THAT(profile.error().message, HasSubstr("no CUDA device " + std::to_string(device)));
    EXPECT_THAT(profile.error().message, HasSubstr("sees 2"));
    EXPECT_EQ(driver_.device_name(device).code(), Code::NoDevice);
    EXPECT_EQ(driver_.load("code", "kernel", device, {}).code(), Code::NoDevice);
  }
  EXPECT_EQ(cuda_.count("cuLibraryLoadData"), 0);
}

TEST_F(CudaDriverTest, FindsTheCurrentContextsOrdinal) {
  cuda_.current = 101;
  EXPECT_EQ(driver_.current_device().value(), 1);
  cuda_.current = 100;
  EXPECT_EQ(driver_.current_device().value(), 0);
  cuda_.current = 55;
  EXPECT_EQ(driver_.current_device().code(), Code::NoDevice);
}

TEST_F(CudaDriverTest, SaysWhatToDoWithoutAContext) {
  const Result<int> device = driver_.current_device();
  ASSERT_EQ(device.code(), Code::NoContext);
  EXPECT_THAT(device.error().message, HasSubstr("cudaSetDevice"));
  EXPECT_THAT(device.error().message, HasSubstr("PrepareOptions"));
}

TEST_F(CudaDriverTest, TellsAMachineWithoutGpu) {
  cuda_.failing = {{"cuInit", CUDA_ERROR_NO_DEVICE}};
  EXPECT_EQ(driver_.device_count().code(), Code::NoDevice);
  cuda_.failing.clear();
  const auto gpus = std::exchange(cuda_.gpus, {});
  EXPECT_EQ(driver_.device_count().code(), Code::NoDevice);
  cuda_.gpus = gpus;
  EXPECT_EQ(driver_.device_count().value(), 2) << "a failure was remembered";
}

TEST_F(CudaDriverTest, TellsWhetherAStreamIsBeingCaptured) {
  EXPECT_FALSE(driver_.is_capturing(nullptr));
  cuda_.capturing = true;
  EXPECT_TRUE(driver_.is_capturing(nullptr));
  cuda_.capturing = false;
  cuda_.failing = {{"cuStreamIsCapturing", CUDA_ERROR_STREAM_CAPTURE_IMPLICIT}};
  EXPECT_TRUE(driver_.is_capturing(nullptr)) << "the null stream waits for one that is";
  cuda_.failing = {{"cuStreamIsCapturing", CUDA_ERROR_INVALID_HANDLE}};
  EXPECT_FALSE(driver_.is_capturing(nullptr)) << "the launch will say what is wrong";
}

TEST_F(CudaDriverTest, ClearsMemoryInTheOrderOfAStream) {
  void* const memory = reinterpret_cast<void*>(std::uintptr_t{4096});
  EXPECT_EQ(driver_.clear(memory, 12, reinterpret_cast<Stream>(std::uintptr_t{7})), CUDA_SUCCESS);
  EXPECT_EQ(cuda_.calls().back(), "cuMemsetD8Async 4096 0 12 7");
  cuda_.failing = {{"cuMemsetD8Async", CUDA_ERROR_INVALID_VALUE}};
  EXPECT_EQ(driver_.clear(memory, 12, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(CudaDriverTest, TellsAForkedChildWhatIsWrong) {
  cuda_.failing = {{"cuInit", CUDA_ERROR_NOT_INITIALIZED}};
  const Result<int> count = driver_.device_count();
  ASSERT_EQ(count.code(), Code::ForkedAfterCudaInit);
  EXPECT_THAT(count.error().message, HasSubstr("forked"));
}

TEST_F(CudaDriverTest, AsksNothingOfTheDriverThatAParentHasInitialised) {
  cuda_.current = 101;
  EXPECT_EQ(outcome_in_child([this] { return driver_.profile(1).ok(); }), "done") << "not yet initialised";
  ASSERT_TRUE(driver_.profile(1).ok());
  cuda_.forget_calls();
  EXPECT_EQ(outcome_in_child([this] {
              const auto forked = [](const auto& result) {
                return result.code() == Code::ForkedAfterCudaInit;
              };
              return forked(driver_.device_count()) && forked(driver_.current_device()) &&
                     forked(driver_.profile(1)) && forked(driver_.device_name(1)) &&
                     forked(driver_.load("code", "kernel", 1, {})) && forked(driver_.allocation(this)) &&
                     cuda_.calls().empty() && driver_.version().ok();
            }),
            "done");
  EXPECT_TRUE(driver_.current_device().ok());
}

TEST_F(CudaDriverTest, OpensAgainAfterAFailure) {
  cuda_.missing = {"cuDriverGetVersion"};
  EXPECT_EQ(driver_.version().code(), Code::NoDriver);
  EXPECT_EQ(driver_.device_count().code(), Code::NoDriver);
  EXPECT_EQ(driver_.current_device().code(), Code::NoDriver);
  EXPECT_EQ(driver_.profile(0).code(), Code::NoDriver);
  EXPECT_EQ(driver_.device_name(0).code(), Code::NoDriver);
  EXPECT_EQ(driver_.load("code", "kernel", 0, {}).code(), Code::NoDriver);
  EXPECT_EQ(driver_.allocation(this).code(), Code::NoDriver);
  EXPECT_EQ(driver_.describe(700), "CUresult 700");
  cuda_.missing.clear();
  EXPECT_EQ(driver_.version().value(), 13000);
}

TEST_F(CudaDriverTest, ServesManyThreadsFromTheFirstCallOn) {
  cuda_.current = 101;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([this, &wrong] {
      const auto kernel = driver_.load("code", "kernel", 1, {});
      if (!kernel.ok() || driver_.current_device().value() != 1 || driver_.profile(0).value().sm_count != 1)
        ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(cuda_.count("cuLibraryUnload"), 16);
  EXPECT_EQ(cuda_.live_libraries(), 0);
}

}  // namespace
}  // namespace normjit::testing
