// SPDX-License-Identifier: Apache-2.0
// One Service for several devices at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "normjit/service.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

using ::testing::IsEmpty;

constexpr NormSpec kSpec{.columns = 4096};

void* memory(std::uintptr_t number) { return reinterpret_cast<void*>(number << 30); }
Tensors tensors(std::int64_t rows) { return {.x = memory(1), .y = memory(2), .rows = rows}; }

std::shared_ptr<FakeDriver> gpus(const std::vector<int>& sm_counts) {
  std::vector<DeviceProfile> devices;
  for (const int sms : sm_counts) {
    devices.push_back(profile_of(90));
    devices.back().sm_count = sms;
  }
  const auto driver = std::make_shared<FakeDriver>(devices);
  for (std::uintptr_t i = 1; i <= 2; ++i)
    driver->set_allocation(memory(i), {.device_accessible = true, .device = -1, .bytes_left = UINT64_MAX});
  return driver;
}

TEST(Devices, TellsEachOnesFacts) {
  FakeMachine machine(gpus({132, 66}));
  Service service = machine.service();
  EXPECT_EQ(service.device(0).value().sm_count, 132);
  EXPECT_EQ(service.device(1).value().sm_count, 66);
  EXPECT_EQ(service.device(2).code(), Code::NoDevice);
  EXPECT_EQ(service.prepare(kSpec, {.device = 1}).value().device().sm_count, 66);
  EXPECT_EQ(service.prepare(kSpec, {.device = 2}).code(), Code::NoDevice);
}

// Would fail if a launch of one thread took the kernel of another's device: the fake refuses it.
TEST(Devices, ThreadsLaunchOnTheirOwnAtOnce) {
  constexpr int kThreads = 8, kLaunches = 500;
  FakeMachine machine(gpus({132, 66}));
  Service service = machine.service();
  std::atomic<int> failed = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      FakeDriver::set_device_of_this_thread(i % 2);
      const auto kernel = service.prepare(kSpec);
      if (!kernel || kernel->device().sm_count != (i % 2 == 0 ? 132 : 66)) ++failed;
      for (int launch = 0; launch < kLaunches; ++launch) {
        if (!service.layer_norm(kSpec, tensors(1 + launch), nullptr)) ++failed;
        if (!kernel->launch(tensors(1 + launch), nullptr)) ++failed;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  int of_device[2] = {};
  for (const FakeDriver::Launch& launch : machine.driver->launches()) ++of_device[launch.device];
  EXPECT_EQ(of_device[0], kThreads * kLaunches);
  EXPECT_EQ(of_device[1], kThreads * kLaunches);
}

TEST(Devices, AKernelIsNotLaunchedOnAnother) {
  FakeMachine machine(gpus({132, 132}));
  Service service = machine.service();
  const Kernel kernel = service.prepare(kSpec, {.device = 0}).value();
  machine.driver->set_current_device(1);
  EXPECT_EQ(kernel.launch(tensors(5), nullptr).code, Code::WrongDevice);
  EXPECT_THAT(machine.driver->launches(), IsEmpty());
  EXPECT_TRUE(service.layer_norm(kSpec, tensors(5), nullptr).ok()) << "which takes the other's";
  EXPECT_EQ(machine.driver->launches().at(0).device, 1);
}

}  // namespace
}  // namespace normjit::testing
