// SPDX-License-Identifier: Apache-2.0
// The driver stage on a real GPU, device 0: what a fake cannot promise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "normjit/compiler/nvrtc_compiler.h"
#include "normjit/driver/driver.h"
#include "tests/support/cuda_calls.h"

namespace normjit::testing {
namespace {

using ::testing::HasSubstr;

// Writes base, base + 1, ... through shared memory of as many bytes as the launch gives it.
constexpr const char* kCount = R"(
extern "C" __global__ void count(int* to, int base, int last_shared) {
  extern __shared__ int shared[];
  shared[threadIdx.x] = base + threadIdx.x;
  if (threadIdx.x == 0) shared[last_shared] = base;
  __syncthreads();
  to[blockIdx.x * blockDim.x + threadIdx.x] = shared[threadIdx.x] + blockIdx.x * blockDim.x;
}
)";
constexpr LaunchShape kShape{.threads = 64, .dynamic_shared_bytes = 512};
constexpr int kBlocks = 3;
constexpr int kCounted = kBlocks * kShape.threads;

class CudaDriverGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Result<int> count = driver_->device_count(); !count) GTEST_SKIP() << count.error().message;
    ASSERT_EQ(CUDA(cuCtxSetCurrent)(nullptr), CUDA_SUCCESS);
  }
  void TearDown() override {
    if (primary_ == nullptr) return;
    CUDA(cuCtxSetCurrent)(nullptr);
    CUDA(cuDevicePrimaryCtxRelease)(0);
  }

  void make_primary_context_current() {
    ASSERT_EQ(CUDA(cuDevicePrimaryCtxRetain)(&primary_, 0), CUDA_SUCCESS);
    ASSERT_EQ(CUDA(cuCtxSetCurrent)(primary_), CUDA_SUCCESS);
  }
  static CUcontext current_context() {
    CUcontext context = nullptr;
    EXPECT_EQ(CUDA(cuCtxGetCurrent)(&context), CUDA_SUCCESS);
    return context;
  }
  static bool primary_is_active() {
    unsigned flags = 0;
    int active = 0;
    EXPECT_EQ(CUDA(cuDevicePrimaryCtxGetState)(0, &flags, &active), CUDA_SUCCESS);
    return active != 0;
  }

  // The code of kCount for device 0; compiled once.
  const std::string& code() {
    static const std::string code = [this] {
      NvrtcSearch search;
      search.driver_cuda_version = [this] { return driver_->version().value(); };
      return make_nvrtc_compiler(search)
          ->compile({.text = kCount, .kernel = "count", .description = "a test kernel"},
                    driver_->profile(0).value().arch)
          .value()
          .code;
    }();
    return code;
  }
  std::shared_ptr<LoadedKernel> load(const LaunchShape& shape = kShape) {
    return driver_->load(code(), "count", 0, shape).value();
  }

  // Enqueues a count from `base` into `to`.
  static int enqueue(const LoadedKernel& kernel, CUdeviceptr to, int base, CUstream stream = nullptr,
                     const LaunchShape& shape = kShape) {
    int last_shared = shape.dynamic_shared_bytes / 4 - 1;
    void* arguments[] = {&to, &base, &last_shared};
    return kernel.launch(kBlocks, shape, stream, arguments);
  }
  static CUdeviceptr allocate() {
    CUdeviceptr memory = 0;
    EXPECT_EQ(CUDA(cuMemAlloc)(&memory, kCounted * sizeof(int)), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuMemsetD32)(memory, 0, kCounted), CUDA_SUCCESS);
    return memory;
  }
  static void expect_counted(CUdeviceptr from, int base) {
    std::vector<int> counted(kCounted);
    ASSERT_EQ(CUDA(cuCtxSynchronize)(), CUDA_SUCCESS);
    ASSERT_EQ(CUDA(cuMemcpyDtoH)(counted.data(), from, kCounted * sizeof(int)), CUDA_SUCCESS);
    for (int i = 0; i < kCounted; ++i) ASSERT_EQ(counted[i], base + i) << i;
  }
  void expect_healthy() {
    const CUdeviceptr memory = allocate();
    EXPECT_EQ(enqueue(*load(), memory, 5), 0);
    expect_counted(memory, 5);
    EXPECT_EQ(CUDA(cuMemFree)(memory), CUDA_SUCCESS);
  }

  std::shared_ptr<Driver> driver_ = make_cuda_driver();
  CUcontext primary_ = nullptr;
};

TEST_F(CudaDriverGpuTest, TellsEachDevice) {
  const int count = driver_->device_count().value();
  for (int device = 0; device < count; ++device) {
    const DeviceProfile profile = driver_->profile(device).value();
    EXPECT_GE(profile.arch.number, 50);
    EXPECT_GT(profile.sm_count, 0);
    EXPECT_GE(profile.threads_per_sm, 1024);
    EXPECT_GE(profile.blocks_per_sm, 16);
    EXPECT_GE(profile.registers_per_sm, 65536);
    EXPECT_GE(profile.shared_per_block, 48 << 10);
    EXPECT_GE(profile.shared_per_sm, profile.shared_per_block);
    EXPECT_GE(profile.l2_bytes, 1 << 19);
    EXPECT_FALSE(driver_->device_name(device).value().empty());
  }
  EXPECT_EQ(driver_->profile(count).code(), Code::NoDevice);
  EXPECT_EQ(driver_->describe(700), "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered");
}

TEST_F(CudaDriverGpuTest, MakesNoContext) {
  ASSERT_FALSE(primary_is_active());
  EXPECT_EQ(driver_->current_device().code(), Code::NoContext);
  EXPECT_TRUE(driver_->load(code(), "count", 0, kShape).ok());
  const Result<Allocation> plain = driver_->allocation(this);
  EXPECT_FALSE(plain.ok() && plain->device_accessible);
  EXPECT_EQ(current_context(), nullptr);
  EXPECT_FALSE(primary_is_active());
}

TEST_F(CudaDriverGpuTest, LaunchesWhatItLoadsInTheCallersContext) {
  make_primary_context_current();
  EXPECT_EQ(driver_->current_device().value(), 0);
  const auto kernel = load();
  const CUdeviceptr memory = allocate();
  EXPECT_EQ(enqueue(*kernel, memory, 42), 0);
  expect_counted(memory, 42);
  EXPECT_EQ(current_context(), primary_);
  EXPECT_EQ(CUDA(cuMemFree)(memory), CUDA_SUCCESS);
}

TEST_F(CudaDriverGpuTest, LaunchesWhatWasLoadedBeforeTheContext) {
  const auto kernel = load();
  make_primary_context_current();
  const CUdeviceptr memory = allocate();
  EXPECT_EQ(enqueue(*kernel, memory, 7), 0);
  expect_counted(memory, 7);
  EXPECT_EQ(CUDA(cuMemFree)(memory), CUDA_SUCCESS);
}

TEST_F(CudaDriverGpuTest, GivesAllTheSharedMemoryOfABlock) {
  const LaunchShape shape{.threads = kShape.threads,
                          .dynamic_shared_bytes = driver_->profile(0).value().shared_per_block};
  const auto before_context = load(shape);
  make_primary_context_current();
  const auto in_context = load(shape);
  const CUdeviceptr memory = allocate();
  EXPECT_EQ(enqueue(*before_context, memory, 1, nullptr, shape), 0);
  expect_counted(memory, 1);
  EXPECT_EQ(enqueue(*in_context, memory, 2, nullptr, shape), 0);
  expect_counted(memory, 2);
  EXPECT_EQ(CUDA(cuMemFree)(memory), CUDA_SUCCESS);
}

TEST_F(CudaDriverGpuTest, CountsExactlyTheBlocksThatRunTogether) {
  constexpr LaunchShape kTogether{.threads = 64, .dynamic_shared_bytes = 20000, .cooperative = true};
  const auto kernel = load(kTogether);
  EXPECT_EQ(kernel->resident_blocks(kTogether).code(), Code::NoContext);
  make_primary_context_current();
  const int blocks = kernel->resident_blocks(kTogether).value();
  const DeviceProfile device = driver_->profile(0).value();
  EXPECT_GE(blocks, device.sm_count);
  EXPECT_LE(blocks, device.sm_count * device.blocks_per_sm);

  CUdeviceptr memory = 0;
  ASSERT_EQ(CUDA(cuMemAlloc)(&memory, (blocks + 1) * 64 * sizeof(int)), CUDA_SUCCESS);
  int base = 0, last_shared = 0;
  void* arguments[] = {&memory, &base, &last_shared};
  const auto launch = [&](int of) {
    return kernel->launch(static_cast<std::uint32_t>(of), kTogether, nullptr, arguments);
  };
  EXPECT_EQ(launch(blocks), 0);
  const int refused = launch(blocks + 1);
  EXPECT_TRUE(refuses_to_run_together(refused)) << driver_->describe(refused);
  EXPECT_EQ(CUDA(cuCtxSynchronize)(), CUDA_SUCCESS) << "a refusal harms nothing";
  EXPECT_EQ(CUDA(cuMemFree)(memory), CUDA_SUCCESS);
}

TEST_F(CudaDriverGpuTest, CountsTheBlocksOfClusters) {
  const DeviceProfile device = driver_->profile(0).value();
  if (device.arch.number < 90) GTEST_SKIP() << "Clusters are there from sm_90 on.";
  make_primary_context_current();
  const LaunchShape clusters{.threads = 64, .dynamic_shared_bytes = 512, .cluster_blocks = 8};
  const int blocks = load(clusters)->resident_blocks(clusters).value();
  EXPECT_EQ(blocks % 8, 0);
  EXPECT_GE(blocks, 8);
  EXPECT_LE(blocks, device.sm_count * device.blocks_per_sm);

  const LaunchShape impossible{.threads = 64, .dynamic_shared_bytes = 512, .cluster_blocks = 64};
  const auto kernel = load(impossible);
  EXPECT_EQ(kernel->resident_blocks(impossible).value(), 0);
  CUdeviceptr memory = allocate();
  int base = 0, last_shared = 0;
  void* arguments[] = {&memory, &base, &last_shared};
  const int refused = kernel->launch(64, impossible, nullptr, arguments);
  EXPECT_TRUE(refuses_to_run_together(refused)) << driver_->describe(refused);
  EXPECT_EQ(CUDA(cuMemFree)(memory), CUDA_SUCCESS);
  expect_healthy();
}

TEST_F(CudaDriverGpuTest, LoadsAPtxTextThatDoesNotEndInNul) {
  make_primary_context_current();
  const std::string text =
      ".version 7.8\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n";
  const std::string more = text + "and what follows in the buffer is no PTX";
  const auto kernel =
      driver_->load(std::string_view(more).substr(0, text.size()), "nothing", 0, {.threads = 32});
  ASSERT_TRUE(kernel.ok()) << kernel.error().message;
  EXPECT_EQ((*kernel)->launch(1, {.threads = 32}, nullptr, nullptr), 0);
  EXPECT_EQ(CUDA(cuCtxSynchronize)(), CUDA_SUCCESS);
}

TEST_F(CudaDriverGpuTest, RefusesBadCodeAndStaysHealthy) {
  make_primary_context_current();
  const std::string whole = code();
  std::string foreign = whole;  // an ELF file for another machine
  foreign[18] ^= 0x55;
  const std::string bad[] = {"",
                             "garbage",
                             std::string(4096, '\x7f'),
                             foreign,
                             whole.substr(0, 64),
                             whole.substr(0, whole.size() / 2),
                             whole.substr(0, whole.size() - 1),
                             ".version 7.8\n.target sm_75\n.address_size 64\nnonsense\n"};
  for (const std::string& code : bad) {
    const auto kernel = driver_->load(code, "count", 0, kShape);
    ASSERT_EQ(kernel.code(), Code::LoadFailed)
        << code.size() << " bytes: " << (kernel.ok() ? "loaded" : kernel.error().message);
  }
  const auto missing = driver_->load(whole, "no_such_kernel", 0, kShape);
  ASSERT_EQ(missing.code(), Code::LoadFailed);
  EXPECT_THAT(missing.error().message, HasSubstr("no_such_kernel"));
  EXPECT_EQ(current_context(), primary_);
  expect_healthy();
}

TEST_F(CudaDriverGpuTest, LoadsLaunchesAndUnloadsDuringACapture) {
  make_primary_context_current();
  const CUdeviceptr memory = allocate();
  CUstream stream = nullptr;
  ASSERT_EQ(CUDA(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  int base = 100;
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    SCOPED_TRACE(mode);
    ++base;
    ASSERT_EQ(CUDA(cuStreamBeginCapture)(stream, mode), CUDA_SUCCESS);
    const auto kernel = load();  // and one more, unloaded at once, here and on another thread
    load().reset();
    std::thread([this] {
      CUDA(cuCtxSetCurrent)(primary_);
      load().reset();
    }).join();
    EXPECT_TRUE(driver_->allocation(reinterpret_cast<const void*>(memory)).ok());
    EXPECT_EQ(enqueue(*kernel, memory, base, stream), 0);
    CUgraph graph = nullptr;
    ASSERT_EQ(CUDA(cuStreamEndCapture)(stream, &graph), CUDA_SUCCESS);

    std::size_t nodes = 0;
    EXPECT_EQ(CUDA(cuGraphGetNodes)(graph, nullptr, &nodes), CUDA_SUCCESS);
    EXPECT_EQ(nodes, 1U);
    CUgraphExec replay = nullptr;
    ASSERT_EQ(CUDA(cuGraphInstantiateWithFlags)(&replay, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuGraphLaunch)(replay, stream), CUDA_SUCCESS);
    expect_counted(memory, base);
    EXPECT_EQ(CUDA(cuGraphExecDestroy)(replay), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuGraphDestroy)(graph), CUDA_SUCCESS);
  }
  EXPECT_EQ(CUDA(cuStreamDestroy)(stream), CUDA_SUCCESS);
  EXPECT_EQ(CUDA(cuMemFree)(memory), CUDA_SUCCESS);
}

TEST_F(CudaDriverGpuTest, TellsDeviceMemory) {
  make_primary_context_current();
  CUdeviceptr memory = 0;
  ASSERT_EQ(CUDA(cuMemAlloc)(&memory, 1 << 20), CUDA_SUCCESS);
  const Allocation facts = driver_->allocation(reinterpret_cast<const void*>(memory + 1000)).value();
  EXPECT_TRUE(facts.device_accessible);
  EXPECT_EQ(facts.device, 0);
  EXPECT_EQ(facts.bytes_left, (1U << 20) - 1000);
  ASSERT_EQ(CUDA(cuMemFree)(memory), CUDA_SUCCESS);

  ASSERT_EQ(CUDA(cuMemAllocAsync)(&memory, 5000, nullptr), CUDA_SUCCESS);
  const Allocation pooled = driver_->allocation(reinterpret_cast<const void*>(memory)).value();
  EXPECT_TRUE(pooled.device_accessible);
  EXPECT_EQ(pooled.device, 0);
  EXPECT_GE(pooled.bytes_left, 5000U);
  EXPECT_EQ(CUDA(cuMemFreeAsync)(memory, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(CUDA(cuCtxSynchronize)(), CUDA_SUCCESS);
}

TEST_F(CudaDriverGpuTest, TellsManagedPinnedAndPlainMemory) {
  make_primary_context_current();
  CUdeviceptr managed = 0;
  ASSERT_EQ(CUDA(cuMemAllocManaged)(&managed, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  Allocation facts = driver_->allocation(reinterpret_cast<const void*>(managed + 96)).value();
  EXPECT_TRUE(facts.device_accessible);
  EXPECT_EQ(facts.device, -1);
  EXPECT_EQ(facts.bytes_left, 4000U);
  EXPECT_EQ(CUDA(cuMemFree)(managed), CUDA_SUCCESS);

  void* pinned = nullptr;
  ASSERT_EQ(CUDA(cuMemHostAlloc)(&pinned, 4096, 0), CUDA_SUCCESS);
  facts = driver_->allocation(static_cast<char*>(pinned) + 96).value();
  EXPECT_TRUE(facts.device_accessible);
  EXPECT_EQ(facts.device, -1);
  EXPECT_EQ(facts.bytes_left, 4000U);
  EXPECT_EQ(CUDA(cuMemFreeHost)(pinned), CUDA_SUCCESS);

  const std::vector<char> plain(1 << 20);
  EXPECT_FALSE(driver_->allocation(plain.data()).value().device_accessible);
  EXPECT_EQ(driver_->allocation(plain.data()).value().device, -1);
  EXPECT_FALSE(driver_->allocation(&facts).value().device_accessible);
}

// A tensor in PyTorch's expandable segments spans pieces that were mapped one by one.
TEST_F(CudaDriverGpuTest, DoesNotCutATensorAtTheEndOfAMappedPiece) {
  make_primary_context_current();
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  std::size_t piece = 0;
  ASSERT_EQ(CUDA(cuMemGetAllocationGranularity)(&piece, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_SUCCESS);
  CUdeviceptr base = 0;
  ASSERT_EQ(CUDA(cuMemAddressReserve)(&base, 2 * piece, 0, 0, 0), CUDA_SUCCESS);
  for (const CUdeviceptr at : {base, base + piece}) {
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_EQ(CUDA(cuMemCreate)(&handle, piece, &properties, 0), CUDA_SUCCESS);
    ASSERT_EQ(CUDA(cuMemMap)(at, piece, 0, handle, 0), CUDA_SUCCESS);
    ASSERT_EQ(CUDA(cuMemRelease)(handle), CUDA_SUCCESS);
  }
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ASSERT_EQ(CUDA(cuMemSetAccess)(base, 2 * piece, &access, 1), CUDA_SUCCESS);

  const Allocation facts = driver_->allocation(reinterpret_cast<const void*>(base)).value();
  EXPECT_TRUE(facts.device_accessible);
  EXPECT_EQ(facts.device, 0);
  EXPECT_GE(facts.bytes_left, 2 * piece);

  EXPECT_EQ(CUDA(cuMemUnmap)(base, 2 * piece), CUDA_SUCCESS);
  EXPECT_EQ(CUDA(cuMemAddressFree)(base, 2 * piece), CUDA_SUCCESS);
}

TEST_F(CudaDriverGpuTest, AKernelOutlivesTheDriverObject) {
  make_primary_context_current();
  const auto kernel = load();
  driver_.reset();
  const CUdeviceptr memory = allocate();
  EXPECT_EQ(enqueue(*kernel, memory, 3), 0);
  expect_counted(memory, 3);
  EXPECT_EQ(CUDA(cuMemFree)(memory), CUDA_SUCCESS);
}

TEST_F(CudaDriverGpuTest, AKernelThatIsFreedAtExitIsHarmless) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";  // a new process, not a fork of one that uses CUDA
  EXPECT_EXIT(
      {
        static std::shared_ptr<LoadedKernel> kernel;
        make_primary_context_current();
        kernel = load();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace normjit::testing
