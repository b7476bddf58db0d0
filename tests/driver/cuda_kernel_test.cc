// SPDX-License-Identifier: Apache-2.0
#include "normjit/driver/cuda_kernel.h"

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "normjit/driver/cuda_driver.h"
#include "normjit/driver/driver_table.h"
#include "tests/support/child.h"
#include "tests/support/fake_cuda.h"

namespace normjit::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CudaKernelTest : public ::testing::Test {
 protected:
  // Loads for GPU B, ordinal 1, with its context current; initialisation is not among the calls.
  Result<std::shared_ptr<LoadedKernel>> load(std::string_view code = "code", LaunchShape shape = {}) {
    driver_->device_count().value();
    cuda_.forget_calls();
    return driver_->load(code, "kernel", 1, shape);
  }

  FakeCuda cuda_;
  std::unique_ptr<CudaDriver> driver_ =
      std::make_unique<CudaDriver>([this] { return read_driver(cuda_.symbols()); });

  void SetUp() override { cuda_.current = 101; }
};

TEST_F(CudaKernelTest, LoadsCompletelyWhereTheDeviceIsCurrent) {
  const auto kernel = load("code", {.threads = 256, .dynamic_shared_bytes = 65536});
  ASSERT_TRUE(kernel.ok()) << kernel.error().message;
  EXPECT_THAT(cuda_.calls(), ElementsAre("cuCtxGetDevice", "cuThreadExchangeStreamCaptureMode relaxed",
                                         "cuLibraryLoadData options=0 relaxed", "cuLibraryGetKernel 1 kernel",
                                         "cuKernelGetFunction 1001", "cuFuncLoad 2001",
                                         "cuKernelSetAttribute 1001 shared=65536 device=101",
                                         "cuThreadExchangeStreamCaptureMode global"));
}

TEST_F(CudaKernelTest, TouchesNoContextForAnotherDevice) {
  for (const std::optional<CUdevice> current : {std::optional<CUdevice>(100), std::optional<CUdevice>()}) {
    cuda_.current = current;
    const auto kernel = load("code", {.threads = 256, .dynamic_shared_bytes = 16});
    ASSERT_TRUE(kernel.ok()) << kernel.error().message;
    EXPECT_EQ(cuda_.count("cuKernelSetAttribute"), 1);
    EXPECT_EQ(cuda_.count("cuKernelGetFunction"), 0);
    EXPECT_EQ(cuda_.count("cuFuncLoad"), 0);
  }
}

TEST_F(CudaKernelTest, SetsNoAttributeWithoutDynamicSharedMemory) {
  ASSERT_TRUE(load().ok());
  EXPECT_EQ(cuda_.count("cuKernelSetAttribute"), 0);
}

TEST_F(CudaKernelTest, AsksForClustersBeyondThePortableSize) {
  for (const int blocks : {1, 2, 8}) {
    ASSERT_TRUE(load("code", {.threads = 32, .cluster_blocks = blocks}).ok());
    EXPECT_EQ(cuda_.count("cuKernelSetAttribute"), 0) << blocks;
  }
  ASSERT_TRUE(load("code", {.threads = 32, .cluster_blocks = 9}).ok());
  EXPECT_EQ(cuda_.count("cuKernelSetAttribute"), 1);
  EXPECT_THAT(cuda_.calls(), Contains(HasSubstr(" any_cluster=1 device=101")));
}

TEST_F(CudaKernelTest, LoadsOnADriverWithoutFuncLoad) {
  cuda_.version = kOldestDriver;
  ASSERT_TRUE(load().ok());
  EXPECT_EQ(cuda_.count("cuKernelGetFunction"), 1);
  EXPECT_EQ(cuda_.count("cuFuncLoad"), 0);
}

TEST_F(CudaKernelTest, HandsOverATextThatEndsInNul) {
  const std::string text = "text and more";
  ASSERT_TRUE(load(std::string_view(text).substr(0, 4)).ok());
  EXPECT_EQ(cuda_.last_code(), "text");
}

TEST_F(CudaKernelTest, UnloadsOnceWithItsLastOwner) {
  auto kernel = load().value();
  auto copy = kernel;
  cuda_.forget_calls();
  kernel.reset();
  EXPECT_THAT(cuda_.calls(), ElementsAre());
  copy.reset();
  EXPECT_THAT(cuda_.calls(),
              ElementsAre("cuThreadExchangeStreamCaptureMode relaxed", "cuLibraryUnload 1 relaxed",
                          "cuThreadExchangeStreamCaptureMode global"));
  EXPECT_EQ(cuda_.live_libraries(), 0);
}

TEST_F(CudaKernelTest, IsLeftToTheParentByAForkedChild) {
  auto kernel = load().value();
  cuda_.forget_calls();
  EXPECT_EQ(outcome_in_child([&] {
              kernel.reset();
              return cuda_.calls().empty();
            }),
            "done");
  kernel.reset();
  EXPECT_EQ(cuda_.live_libraries(), 0);
}

TEST_F(CudaKernelTest, OutlivesItsDriver) {
  auto kernel = load().value();
  driver_.reset();
  EXPECT_EQ(kernel->launch(1, {.threads = 32}, nullptr, nullptr), 0);
  kernel.reset();
  EXPECT_EQ(cuda_.live_libraries(), 0);
}

TEST_F(CudaKernelTest, UnloadsQuietlyFromADriverThatIsGone) {
  auto kernel = load().value();
  cuda_.failing = {{"cuLibraryUnload", CUDA_ERROR_DEINITIALIZED},
                   {"cuThreadExchangeStreamCaptureMode", CUDA_ERROR_DEINITIALIZED}};
  kernel.reset();
  EXPECT_EQ(cuda_.count("cuLibraryUnload"), 1);
}

TEST_F(CudaKernelTest, AForkedChildLeavesItsParentsLibraryAlone) {
  auto kernel = load().value();
  cuda_.forget_calls();
  EXPECT_EXIT(
      {
        kernel.reset();
        _exit(static_cast<int>(cuda_.calls().size()));
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(CudaKernelTest, PassesTheLaunchOnAsItIs) {
  const auto kernel = load().value();
  const auto stream = reinterpret_cast<Stream>(std::uintptr_t{77});
  int value = 5;
  void* arguments[] = {&value};
  EXPECT_EQ(kernel->launch(0x7fffffff, {.threads = 1024, .dynamic_shared_bytes = 99}, stream, arguments), 0);
  ASSERT_EQ(cuda_.launches().size(), 1U);
  const FakeCuda::Launch launch = cuda_.launches()[0];
  EXPECT_EQ(launch.config.gridDimX, 0x7fffffffU);
  EXPECT_EQ(launch.config.gridDimY, 1U);
  EXPECT_EQ(launch.config.gridDimZ, 1U);
  EXPECT_EQ(launch.config.blockDimX, 1024U);
  EXPECT_EQ(launch.config.blockDimY, 1U);
  EXPECT_EQ(launch.config.blockDimZ, 1U);
  EXPECT_EQ(launch.config.sharedMemBytes, 99U);
  EXPECT_EQ(launch.config.hStream, stream);
  EXPECT_EQ(launch.config.numAttrs, 0U);
  EXPECT_EQ(launch.function, reinterpret_cast<CUfunction>(std::uintptr_t{1001}));
  EXPECT_EQ(launch.arguments, arguments);
  EXPECT_EQ(launch.extra, nullptr);
}

TEST_F(CudaKernelTest, ALaunchIsOneCallWhereThereIsOneDevice) {
  cuda_.gpus.erase(cuda_.gpus.begin());
  driver_->device_count().value();
  const auto kernel = driver_->load("code", "kernel", 0, {}).value();
  cuda_.forget_calls();
  EXPECT_EQ(kernel->launch(1, {.threads = 32}, nullptr, nullptr), 0);
  EXPECT_THAT(cuda_.calls(), ElementsAre("cuLaunchKernelEx"));
}

TEST_F(CudaKernelTest, IsNotLaunchedInAContextOfAnotherDevice) {
  const auto kernel = load().value();
  cuda_.forget_calls();
  cuda_.current = 100;
  EXPECT_EQ(kernel->launch(1, {.threads = 32}, nullptr, nullptr), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_THAT(cuda_.calls(), ElementsAre("cuCtxGetDevice"));
  cuda_.current = 101;
  EXPECT_EQ(kernel->launch(1, {.threads = 32}, nullptr, nullptr), 0);
}

TEST_F(CudaKernelTest, WithoutAContextTheDriverItselfSaysSo) {
  const auto kernel = load().value();
  cuda_.current.reset();
  cuda_.failing = {{"cuLaunchKernelEx", CUDA_ERROR_INVALID_CONTEXT}};
  EXPECT_EQ(kernel->launch(1, {.threads = 32}, nullptr, nullptr), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(CudaKernelTest, LaunchesInClusters) {
  const auto kernel = load().value();
  EXPECT_EQ(kernel->launch(12, {.threads = 64, .cluster_blocks = 4}, nullptr, nullptr), 0);
  const FakeCuda::Launch launch = cuda_.launches().at(0);
  EXPECT_EQ(launch.config.gridDimX, 12U);
  ASSERT_EQ(launch.attributes.size(), 1U);
  EXPECT_EQ(launch.attributes[0].id, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  EXPECT_EQ(launch.attributes[0].value.clusterDim.x, 4U);
  EXPECT_EQ(launch.attributes[0].value.clusterDim.y, 1U);
  EXPECT_EQ(launch.attributes[0].value.clusterDim.z, 1U);
}

TEST_F(CudaKernelTest, LaunchesCooperatively) {
  const auto kernel = load().value();
  EXPECT_EQ(kernel->launch(12, {.threads = 64, .cooperative = true}, nullptr, nullptr), 0);
  const FakeCuda::Launch launch = cuda_.launches().at(0);
  ASSERT_EQ(launch.attributes.size(), 1U);
  EXPECT_EQ(launch.attributes[0].id, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  EXPECT_EQ(launch.attributes[0].value.cooperative, 1);
}

TEST_F(CudaKernelTest, LaunchesCooperativelyInClusters) {
  const auto kernel = load().value();
  EXPECT_EQ(kernel->launch(12, {.threads = 64, .cluster_blocks = 2, .cooperative = true}, nullptr, nullptr),
            0);
  const FakeCuda::Launch launch = cuda_.launches().at(0);
  ASSERT_EQ(launch.attributes.size(), 2U);
  EXPECT_EQ(launch.attributes[0].id, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  EXPECT_EQ(launch.attributes[0].value.clusterDim.x, 2U);
  EXPECT_EQ(launch.attributes[1].id, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  EXPECT_EQ(launch.attributes[1].value.cooperative, 1);
}

TEST_F(CudaKernelTest, OverlapsTheLaunchBeforeOnlyWhereItIsAskedTo) {
  const auto kernel = load().value();
  EXPECT_EQ(kernel->launch(12, {.threads = 64}, nullptr, nullptr), 0);
  EXPECT_EQ(kernel->launch(12, {.threads = 64, .overlap_previous = true}, nullptr, nullptr), 0);
  EXPECT_EQ(cuda_.launches().at(0).attributes.size(), 0U);
  const FakeCuda::Launch launch = cuda_.launches().at(1);
  ASSERT_EQ(launch.attributes.size(), 1U);
  EXPECT_EQ(launch.attributes[0].id, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
  EXPECT_EQ(launch.attributes[0].value.programmaticStreamSerializationAllowed, 1);
}

TEST_F(CudaKernelTest, OverlapsClustersAndCooperativeLaunchesToo) {
  const auto kernel = load().value();
  const auto ids = [&](const LaunchShape& shape) {
    EXPECT_EQ(kernel->launch(12, shape, nullptr, nullptr), 0);
    std::vector<CUlaunchAttributeID> ids;
    const FakeCuda::Launch launch = cuda_.launches().back();
    for (const CUlaunchAttribute& attribute : launch.attributes) ids.push_back(attribute.id);
    return ids;
  };
  constexpr auto kOverlap = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  EXPECT_THAT(ids({.threads = 64, .cluster_blocks = 2, .overlap_previous = true}),
              ElementsAre(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, kOverlap));
  EXPECT_THAT(ids({.threads = 64, .cooperative = true, .overlap_previous = true}),
              ElementsAre(CU_LAUNCH_ATTRIBUTE_COOPERATIVE, kOverlap));
  EXPECT_THAT(ids({.threads = 64, .cluster_blocks = 2, .cooperative = true, .overlap_previous = true}),
              ElementsAre(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, kOverlap));
}

constexpr LaunchShape kTogether{.threads = 64, .dynamic_shared_bytes = 512, .cooperative = true};
constexpr LaunchShape kClusters{.threads = 64, .dynamic_shared_bytes = 512, .cluster_blocks = 4};

TEST_F(CudaKernelTest, CountsTheBlocksThatAllMultiprocessorsHold) {
  const auto kernel = load().value();
  cuda_.forget_calls();
  cuda_.blocks_per_sm = 5;
  const auto blocks = kernel->resident_blocks(kTogether);
  ASSERT_TRUE(blocks.ok()) << blocks.error().message;
  EXPECT_EQ(*blocks, 5 * 6) << "GPU B has 6 multiprocessors";
  EXPECT_THAT(cuda_.calls(),
              Contains("cuOccupancyMaxActiveBlocksPerMultiprocessor 1001 threads=64 shared=512 relaxed"));
  EXPECT_EQ(cuda_.capture_mode(), CU_STREAM_CAPTURE_MODE_GLOBAL);
}

TEST_F(CudaKernelTest, CountsNoMultiprocessorBeyondTheShareOfTheContext) {
  const auto kernel = load().value();
  for (const auto& [share, sms] : {std::pair{4, 4}, {6, 6}, {9, 6}, {0, 6}}) {
    cuda_.sm_share = share;
    EXPECT_EQ(kernel->resident_blocks(kTogether).value(), cuda_.blocks_per_sm * sms) << share;
  }
}

TEST_F(CudaKernelTest, CountsTheBlocksOfAllClusters) {
  const auto kernel = load().value();
  cuda_.forget_calls();
  EXPECT_EQ(kernel->resident_blocks(kClusters).value(), 4 * cuda_.clusters);
  EXPECT_THAT(cuda_.calls(), Contains("cuOccupancyMaxActiveClusters 1001 threads=64 shared=512 cluster=4"));
  cuda_.clusters = 0;
  EXPECT_EQ(kernel->resident_blocks(kClusters).value(), 0);
}

TEST_F(CudaKernelTest, AClusterSizeThatTheDeviceDoesNotHaveIsNoRoomAndNoError) {
  const auto kernel = load().value();
  for (const CUresult result : {CUDA_ERROR_INVALID_CLUSTER_SIZE, CUDA_ERROR_NOT_SUPPORTED}) {
    cuda_.failing = {{"cuOccupancyMaxActiveClusters", result}};
    const auto blocks = kernel->resident_blocks(kClusters);
    ASSERT_TRUE(blocks.ok()) << blocks.error().message;
    EXPECT_EQ(*blocks, 0);
  }
}

TEST_F(CudaKernelTest, CountsOnlyInAContextOfItsDevice) {
  const auto kernel = load().value();
  for (const std::optional<CUdevice> current : {std::optional<CUdevice>(100), std::optional<CUdevice>()}) {
    cuda_.current = current;
    EXPECT_EQ(kernel->resident_blocks(kTogether).code(), Code::NoContext);
    EXPECT_EQ(kernel->resident_blocks(kClusters).code(), Code::NoContext);
  }
}

TEST_F(CudaKernelTest, SaysWhichCountFailed) {
  const auto kernel = load().value();
  const std::pair<const char*, LaunchShape> questions[] = {
      {"cuOccupancyMaxActiveBlocksPerMultiprocessor", kTogether},
      {"cuDeviceGetAttribute", kTogether},
      {"cuOccupancyMaxActiveClusters", kClusters}};
  for (const auto& [call, shape] : questions) {
    cuda_.failing = {{call, CUDA_ERROR_ILLEGAL_ADDRESS}};
    const auto blocks = kernel->resident_blocks(shape);
    ASSERT_EQ(blocks.code(), Code::DriverError) << call;
    EXPECT_THAT(blocks.error().message, HasSubstr(call));
    EXPECT_EQ(cuda_.capture_mode(), CU_STREAM_CAPTURE_MODE_GLOBAL);
  }
}

TEST(RefusesToRunTogether, IsWhatTheDriverAnswersToBlocksThatDoNotFit) {
  EXPECT_TRUE(refuses_to_run_together(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE));
  EXPECT_TRUE(refuses_to_run_together(CUDA_ERROR_INVALID_CLUSTER_SIZE));
  EXPECT_TRUE(refuses_to_run_together(CUDA_ERROR_NOT_SUPPORTED));
  for (const CUresult other : {CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY,
                               CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED})
    EXPECT_FALSE(refuses_to_run_together(other)) << other;
}

// The results of which cuda.h says that they leave a process in an inconsistent state, or its context lost.
TEST(LosesContext, IsWhatTheDriverAnswersForGoodAfterAKernelHasFailed) {
  for (const int result : {226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 911}) {
    EXPECT_TRUE(loses_context(result)) << result;
    EXPECT_EQ(code_of(result), Code::DriverError) << result;
    EXPECT_FALSE(refuses_code(static_cast<CUresult>(result))) << result;
    EXPECT_FALSE(refuses_to_run_together(result)) << result;
    EXPECT_THAT(advice_on(result), HasSubstr("of normjit or of other code"));
  }
  for (const CUresult other : {CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_CONTEXT,
                               CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE})
    EXPECT_FALSE(loses_context(other)) << other;
}

TEST_F(CudaKernelTest, ReturnsTheDriversResultOfALaunch) {
  const auto kernel = load().value();
  cuda_.failing = {{"cuLaunchKernelEx", CUDA_ERROR_ILLEGAL_ADDRESS}};
  EXPECT_EQ(kernel->launch(1, {.threads = 32}, nullptr, nullptr), 700);
}

TEST_F(CudaKernelTest, RefusesACutOffCubinBeforeTheDriverReadsPastIt) {
  std::string cubin(256, '\0');
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_shoff = 128;
  header.e_shentsize = 64;
  header.e_shnum = 2;
  std::memcpy(cubin.data(), &header, sizeof header);
  EXPECT_TRUE(load(cubin).ok());
  for (const std::size_t bytes : {0, 4, 63, 64, 128, 255}) {
    const auto kernel = load(std::string_view(cubin).substr(0, bytes));
    EXPECT_EQ(kernel.code(), Code::LoadFailed) << bytes;
    EXPECT_EQ(cuda_.count("cuLibraryLoadData"), 0) << bytes;
  }
}

TEST_F(CudaKernelTest, SaysWhenADeviceHasNoSuchClusters) {
  cuda_.failing = {{"cuKernelSetAttribute", CUDA_ERROR_INVALID_VALUE}};
  const auto kernel = load("code", {.threads = 32, .cluster_blocks = 16});
  ASSERT_EQ(kernel.code(), Code::DriverError);
  EXPECT_THAT(kernel.error().message, HasSubstr("cuKernelSetAttribute of kernel kernel"));
  EXPECT_EQ(cuda_.live_libraries(), 0);
}

TEST_F(CudaKernelTest, NamesTheKernelThatIsNotThere) {
  cuda_.kernel = "another";
  const auto kernel = load();
  ASSERT_EQ(kernel.code(), Code::LoadFailed);
  EXPECT_THAT(kernel.error().message, HasSubstr("kernel kernel"));
  EXPECT_THAT(kernel.error().message, HasSubstr("cuLibraryGetKernel"));
  EXPECT_EQ(cuda_.live_libraries(), 0);
}

// Which error each result of each call of a load becomes. Whatever fails, nothing stays behind.
struct Failure {
  const char* call;
  CUresult result;
  Code code;
};
void PrintTo(const Failure& failure, std::ostream* out) {
  *out << failure.call << " answers " << failure.result << ", " << code_name(failure.code);
}
class FailingLoad : public CudaKernelTest, public ::testing::WithParamInterface<Failure> {};

TEST_P(FailingLoad, IsMappedAndLeavesNothingBehind) {
  cuda_.failing = {{GetParam().call, GetParam().result}};
  const auto kernel = load("code", {.threads = 32, .dynamic_shared_bytes = 65536});
  ASSERT_EQ(kernel.code(), GetParam().code);
  EXPECT_THAT(kernel.error().message, HasSubstr(GetParam().call));
  EXPECT_THAT(kernel.error().message, HasSubstr(driver_->describe(GetParam().result)));
  EXPECT_EQ(cuda_.live_libraries(), 0);
  EXPECT_EQ(cuda_.capture_mode(), CU_STREAM_CAPTURE_MODE_GLOBAL);
}

INSTANTIATE_TEST_SUITE_P(
    CudaKernel, FailingLoad,
    ::testing::Values(Failure{"cuLibraryLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU, Code::LoadFailed},
                      Failure{"cuLibraryLoadData", CUDA_ERROR_INVALID_IMAGE, Code::LoadFailed},
                      Failure{"cuLibraryLoadData", CUDA_ERROR_INVALID_PTX, Code::LoadFailed},
                      Failure{"cuLibraryLoadData", CUDA_ERROR_UNSUPPORTED_PTX_VERSION, Code::LoadFailed},
                      Failure{"cuLibraryLoadData", CUDA_ERROR_JIT_COMPILER_NOT_FOUND, Code::LoadFailed},
                      Failure{"cuLibraryLoadData", CUDA_ERROR_JIT_COMPILATION_DISABLED, Code::LoadFailed},
                      Failure{"cuLibraryLoadData", CUDA_ERROR_OUT_OF_MEMORY, Code::OutOfMemory},
                      Failure{"cuLibraryLoadData", CUDA_ERROR_ILLEGAL_ADDRESS, Code::DriverError},
                      Failure{"cuLibraryLoadData", CUDA_ERROR_NOT_INITIALIZED, Code::ForkedAfterCudaInit},
                      Failure{"cuLibraryGetKernel", CUDA_ERROR_NOT_FOUND, Code::LoadFailed},
                      Failure{"cuKernelSetAttribute", CUDA_ERROR_INVALID_VALUE, Code::DriverError},
                      Failure{"cuKernelGetFunction", CUDA_ERROR_NO_BINARY_FOR_GPU, Code::LoadFailed},
                      Failure{"cuFuncLoad", CUDA_ERROR_NO_BINARY_FOR_GPU, Code::LoadFailed},
                      Failure{"cuFuncLoad", CUDA_ERROR_OUT_OF_MEMORY, Code::OutOfMemory}));

}  // namespace
}  // namespace normjit::testing
