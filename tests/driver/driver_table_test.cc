// SPDX-License-Identifier: Apache-2.0
#include "normjit/driver/driver_table.h"

#include <cudaTypedefs.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <type_traits>

#include "normjit/base/dynamic_library.h"
#include "tests/support/fake_cuda.h"

namespace normjit::testing {
namespace {

using ::testing::HasSubstr;

// The toolkit's own word for each signature as of the version that the table asks for.
template <class Ours, class Theirs>
constexpr bool kSame = std::is_same_v<Ours, Theirs>;
static_assert(kSame<decltype(DriverTable::cuGetErrorName), PFN_cuGetErrorName_v6000>);
static_assert(kSame<decltype(DriverTable::cuGetErrorString), PFN_cuGetErrorString_v6000>);
static_assert(kSame<decltype(DriverTable::cuInit), PFN_cuInit_v2000>);
static_assert(kSame<decltype(DriverTable::cuDriverGetVersion), PFN_cuDriverGetVersion_v2020>);
static_assert(kSame<decltype(DriverTable::cuDeviceGetCount), PFN_cuDeviceGetCount_v2000>);
static_assert(kSame<decltype(DriverTable::cuDeviceGet), PFN_cuDeviceGet_v2000>);
static_assert(kSame<decltype(DriverTable::cuDeviceGetName), PFN_cuDeviceGetName_v2000>);
static_assert(kSame<decltype(DriverTable::cuDeviceGetAttribute), PFN_cuDeviceGetAttribute_v2000>);
static_assert(kSame<decltype(DriverTable::cuCtxGetDevice), PFN_cuCtxGetDevice_v2000>);
static_assert(kSame<decltype(DriverTable::cuCtxGetExecAffinity), PFN_cuCtxGetExecAffinity_v11040>);
static_assert(kSame<decltype(DriverTable::cuThreadExchangeStreamCaptureMode),
                    PFN_cuThreadExchangeStreamCaptureMode_v10010>);
static_assert(kSame<decltype(DriverTable::cuStreamIsCapturing), PFN_cuStreamIsCapturing_v10000>);
static_assert(kSame<decltype(DriverTable::cuMemsetD8Async), PFN_cuMemsetD8Async_v3020>);
static_assert(kSame<decltype(DriverTable::cuLibraryLoadData), PFN_cuLibraryLoadData_v12000>);
static_assert(kSame<decltype(DriverTable::cuLibraryUnload), PFN_cuLibraryUnload_v12000>);
static_assert(kSame<decltype(DriverTable::cuLibraryGetKernel), PFN_cuLibraryGetKernel_v12000>);
static_assert(kSame<decltype(DriverTable::cuKernelSetAttribute), PFN_cuKernelSetAttribute_v12000>);
static_assert(kSame<decltype(DriverTable::cuKernelGetFunction), PFN_cuKernelGetFunction_v12000>);
#if CUDA_VERSION >= 12040
static_assert(kSame<decltype(DriverTable::cuFuncLoad), PFN_cuFuncLoad_v12040>);
#endif
static_assert(kSame<decltype(DriverTable::cuOccupancyMaxActiveBlocksPerMultiprocessor),
                    PFN_cuOccupancyMaxActiveBlocksPerMultiprocessor_v6050>);
static_assert(
    kSame<decltype(DriverTable::cuOccupancyMaxActiveClusters), PFN_cuOccupancyMaxActiveClusters_v11070>);
static_assert(kSame<decltype(DriverTable::cuLaunchKernelEx), PFN_cuLaunchKernelEx_v11060>);
static_assert(kSame<decltype(DriverTable::cuPointerGetAttributes), PFN_cuPointerGetAttributes_v7000>);
static_assert(
    kSame<decltype(DriverTable::cuMemRetainAllocationHandle), PFN_cuMemRetainAllocationHandle_v11000>);
static_assert(kSame<decltype(DriverTable::cuMemRelease), PFN_cuMemRelease_v10020>);

TEST(DriverTable, IsFullOnANewDriver) {
  FakeCuda cuda;
  const Result<DriverTable> table = read_driver(cuda.symbols());
  ASSERT_TRUE(table.ok()) << table.error().message;
#define NORMJIT_EXPECT(name, version, ...) EXPECT_NE(table->name, nullptr) << #name;
  NORMJIT_DRIVER_CALLS(NORMJIT_EXPECT)
#undef NORMJIT_EXPECT
  EXPECT_THAT(cuda.calls(), ::testing::ElementsAre("cuDriverGetVersion"));
}

// So no call of the library can change the caller's context, wait for the device, or take memory or a stream.
TEST(DriverTable, HasNoCallThatChangesAContextOrWaits) {
  constexpr const char* kNames[] = {
#define NORMJIT_NAME(name, version, ...) #name,
      NORMJIT_DRIVER_CALLS(NORMJIT_NAME)
#undef NORMJIT_NAME
  };
  for (const std::string name : kNames) {
    for (const char* const changing :
         {"cuCtxSet", "cuCtxPush", "cuCtxPop", "cuCtxCreate", "cuCtxDestroy", "cuCtxReset", "cuCtxAttach",
          "cuCtxDetach", "cuDevicePrimaryCtx", "cuMemAlloc", "cuStreamCreate"})
      EXPECT_FALSE(name.starts_with(changing)) << name;
    EXPECT_EQ(name.find("Synchronize"), std::string::npos) << name;
  }
}

TEST(DriverTable, DoesWithoutFuncLoadOnTheOldestDriver) {
  FakeCuda cuda;
  cuda.version = kOldestDriver;
  const Result<DriverTable> table = read_driver(cuda.symbols());
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_EQ(table->cuFuncLoad, nullptr);
  EXPECT_NE(table->cuLibraryLoadData, nullptr);
}

TEST(DriverTable, RefusesAnOldDriverWithBothVersions) {
  FakeCuda cuda;
  cuda.version = 11080;
  const Result<DriverTable> table = read_driver(cuda.symbols());
  ASSERT_EQ(table.code(), Code::DriverTooOld);
  EXPECT_THAT(table.error().message, HasSubstr("CUDA 11.8"));
  EXPECT_THAT(table.error().message, HasSubstr("CUDA 12.0 or newer (R525)"));
}

TEST(DriverTable, NamesTheCallThatIsMissing) {
  for (const char* call : {"cuLaunchKernelEx", "cuLibraryLoadData", "cuGetProcAddress_v2"}) {
    FakeCuda cuda;
    cuda.missing = {call};
    const Result<DriverTable> table = read_driver(cuda.symbols());
    ASSERT_EQ(table.code(), Code::DriverTooOld);
    EXPECT_THAT(table.error().message, HasSubstr(call));
  }
}

TEST(DriverTable, TakesALibraryWithoutVersionForNoDriver) {
  FakeCuda cuda;
  cuda.missing = {"cuDriverGetVersion"};
  EXPECT_EQ(read_driver(cuda.symbols()).code(), Code::NoDriver);
  cuda.missing.clear();
  cuda.failing = {{"cuDriverGetVersion", CUDA_ERROR_STUB_LIBRARY}};
  EXPECT_EQ(read_driver(cuda.symbols()).code(), Code::NoDriver);
}

TEST(DriverTable, SaysWhatToDoWithoutADriver) {
  if (DynamicLibrary::open("libcuda.so.1")) GTEST_SKIP() << "this machine has libcuda.so.1";
  const Result<DriverTable> table = open_driver();
  ASSERT_EQ(table.code(), Code::NoDriver);
  EXPECT_THAT(table.error().message, HasSubstr("libcuda.so.1 cannot be opened"));
  EXPECT_THAT(table.error().message, HasSubstr("install driver R525"));
}

}  // namespace
}  // namespace normjit::testing
