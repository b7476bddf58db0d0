// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_driver.h"

#include <gtest/gtest.h>

#include <memory>

namespace normjit::testing {
namespace {

TEST(FakeDriver, RecordsLoadsAndLaunchesWithTheirArguments) {
  auto driver = std::make_unique<FakeDriver>(std::vector<DeviceProfile>(2));
  driver->set_argument_sizes({8, 4});
  auto kernel = driver->load("code", "k", 1, {.threads = 64}).value();
  std::int64_t rows = 1LL << 40;
  int width = 7;
  void* arguments[] = {&rows, &width};
  EXPECT_NE(kernel->launch(3, {.threads = 64}, nullptr, arguments), 0) << "another device is current";
  driver->set_current_device(1);
  EXPECT_EQ(kernel->launch(3, {.threads = 64}, nullptr, arguments), 0);
  rows = 0;

  ASSERT_EQ(driver->loads().size(), 1U);
  EXPECT_EQ(driver->loads()[0].code, "code");
  EXPECT_EQ(driver->loads()[0].device, 1);
  ASSERT_EQ(driver->launches().size(), 1U);
  const FakeDriver::Launch launch = driver->launches()[0];
  EXPECT_EQ(launch.kernel, "k");
  EXPECT_EQ(launch.blocks, 3U);
  EXPECT_EQ(launch.argument<std::int64_t>(0), 1LL << 40);
  EXPECT_EQ(launch.argument<int>(1), 7);
  EXPECT_EQ(driver->live_kernels(), 1);
  driver.reset();
  EXPECT_EQ(kernel->launch(1, {.threads = 64}, nullptr, arguments), 0);
}

TEST(FakeDriver, FailsAsItIsTold) {
  FakeDriver driver({DeviceProfile{}});
  EXPECT_EQ(driver.current_device().value(), 0);
  driver.set_current_device(std::nullopt);
  EXPECT_EQ(driver.current_device().code(), Code::NoContext);
  driver.refuse_load(2);
  EXPECT_TRUE(driver.load("a", "k", 0, {}).ok());
  EXPECT_EQ(driver.load("b", "k", 0, {}).code(), Code::LoadFailed);
  EXPECT_TRUE(driver.load("c", "k", 0, {}).ok());
  EXPECT_EQ(driver.load("d", "k", 1, {}).code(), Code::NoDevice);
  EXPECT_EQ(driver.live_kernels(), 0);
  driver.set_driver_missing(true);
  EXPECT_EQ(driver.version().code(), Code::NoDriver);
  EXPECT_EQ(driver.allocation(&driver).code(), Code::NoDriver);
}

}  // namespace
}  // namespace normjit::testing
