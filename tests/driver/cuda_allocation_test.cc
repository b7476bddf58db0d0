// SPDX-License-Identifier: Apache-2.0
#include "normjit/driver/cuda_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/support/fake_cuda.h"

namespace normjit::testing {
namespace {

// Nothing is read or written at this address: the fake only knows facts about it.
constexpr std::uintptr_t kAddress = 0x7000'0000'0100;

class CudaAllocationTest : public ::testing::Test {
 protected:
  Result<Allocation> ask() { return driver_.allocation(reinterpret_cast<const void*>(kAddress)); }
  Allocation ask(const FakeCuda::Memory& memory) {
    cuda_.memory[kAddress] = memory;
    return ask().value();
  }

  FakeCuda cuda_;
  CudaDriver driver_{[this] { return read_driver(cuda_.symbols()); }};
};

TEST_F(CudaAllocationTest, DeviceMemoryBelongsToItsDevice) {
  const Allocation facts = ask({.type = CU_MEMORYTYPE_DEVICE,
                                .ordinal = 1,
                                .device_address = kAddress,
                                .start = kAddress - 0x100,
                                .bytes = 0x180});
  EXPECT_TRUE(facts.device_accessible);
  EXPECT_EQ(facts.device, 1);
  EXPECT_EQ(facts.bytes_left, 0x80U);
}

TEST_F(CudaAllocationTest, ManagedMemoryBelongsToNoDevice) {
  const Allocation facts = ask({.type = CU_MEMORYTYPE_DEVICE,
                                .managed = true,
                                .device_address = kAddress,
                                .start = kAddress,
                                .bytes = 64});
  EXPECT_TRUE(facts.device_accessible);
  EXPECT_EQ(facts.device, -1);
  EXPECT_EQ(facts.bytes_left, 64U);
}

TEST_F(CudaAllocationTest, PinnedMemoryCountsUnderTheAddressOfTheDevice) {
  FakeCuda::Memory memory{
      .type = CU_MEMORYTYPE_HOST, .device_address = kAddress, .start = kAddress, .bytes = 64};
  EXPECT_TRUE(ask(memory).device_accessible);
  EXPECT_EQ(ask(memory).device, -1);
  EXPECT_EQ(ask(memory).bytes_left, 64U);
  memory.device_address = kAddress + 0x1000;  // registered memory that the device sees elsewhere
  EXPECT_FALSE(ask(memory).device_accessible);
  memory.device_address = 0;  // registered, not mapped
  EXPECT_FALSE(ask(memory).device_accessible);
}

TEST_F(CudaAllocationTest, UnregisteredMemoryIsNotAccessible) {
  Allocation facts = ask().value();
  EXPECT_FALSE(facts.device_accessible);
  EXPECT_EQ(facts.device, -1);
  EXPECT_EQ(facts.bytes_left, UINT64_MAX);
  cuda_.failing = {{"cuPointerGetAttributes", CUDA_ERROR_INVALID_VALUE}};
  facts = ask().value();
  EXPECT_FALSE(facts.device_accessible);
  EXPECT_EQ(facts.device, -1);
}

TEST_F(CudaAllocationTest, TheExtentOfMemoryMappedInPiecesIsUnknown) {
  const Allocation facts =
      ask({.device_address = kAddress, .start = kAddress, .bytes = 2 << 20, .mapped_in_pieces = true});
  EXPECT_TRUE(facts.device_accessible);
  EXPECT_EQ(facts.bytes_left, UINT64_MAX);
  EXPECT_EQ(cuda_.live_pieces(), 0);
}

TEST_F(CudaAllocationTest, ARangeThatDoesNotHoldTheAddressIsUnknown) {
  EXPECT_EQ(ask({.device_address = kAddress, .start = kAddress + 1, .bytes = 64}).bytes_left, UINT64_MAX);
  EXPECT_EQ(ask({.device_address = kAddress, .start = kAddress - 64, .bytes = 64}).bytes_left, UINT64_MAX);
  EXPECT_EQ(ask({.device_address = kAddress, .start = kAddress - 63, .bytes = 64}).bytes_left, 1U);
}

TEST_F(CudaAllocationTest, NeedsNoContextAndPassesOtherErrorsOn) {
  EXPECT_TRUE(ask().ok());
  EXPECT_EQ(cuda_.count("cuCtxGetDevice"), 0);
  cuda_.failing = {{"cuPointerGetAttributes", CUDA_ERROR_INVALID_CONTEXT}};
  EXPECT_EQ(ask().code(), Code::NoContext);
  cuda_.failing = {{"cuPointerGetAttributes", CUDA_ERROR_ILLEGAL_ADDRESS}};
  EXPECT_EQ(ask().code(), Code::DriverError);
}

}  // namespace
}  // namespace normjit::testing
