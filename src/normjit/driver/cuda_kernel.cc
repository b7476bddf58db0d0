// SPDX-License-Identifier: Apache-2.0
#include "normjit/driver/cuda_kernel.h"

#include <elf.h>

#include <algorithm>
#include <cstring>

#include "normjit/driver/driver_table.h"

namespace normjit {
namespace {

// Makes this thread's calls legal during a stream capture. Without it, cuLibraryUnload invalidates any
// thread's capture in the global mode.
class BesideCapture {
 public:
  explicit BesideCapture(const DriverTable& driver) : driver_(driver) { exchange(); }
  ~BesideCapture() { exchange(); }
  BesideCapture(const BesideCapture&) = delete;
  BesideCapture& operator=(const BesideCapture&) = delete;

 private:
  void exchange() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }  // swaps mode_ and the thread's mode

  const DriverTable& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// cuLibraryLoadData takes no size. It trusts the offsets of an ELF header, and would read past the end of a
// truncated file.
bool is_cut_off(std::string_view code) {
  if (code.substr(0, SELFMAG) != ELFMAG) return code.empty();
  Elf64_Ehdr header;
  if (code.size() < sizeof header) return true;
  std::memcpy(&header, code.data(), sizeof header);
  const auto reaches_past = [&code](std::uint64_t offset, std::uint64_t bytes) {
    return offset > code.size() || bytes > code.size() - offset;
  };
  return reaches_past(header.e_shoff, std::uint64_t{header.e_shnum} * header.e_shentsize) ||
         reaches_past(header.e_phoff, std::uint64_t{header.e_phnum} * header.e_phentsize);
}

// Larger clusters are non-portable: a kernel must opt in, and only some GPUs run them.
constexpr int kPortableCluster = 8;

Error refused(const std::string& kernel, const std::string& why) {
  return {Code::LoadFailed,
          "The driver refuses the code of kernel " + kernel + ": " + why +
              ". The code must be complete, for this device's architecture, and from a compiler no newer "
              "than the driver."};
}

}  // namespace

Result<std::shared_ptr<LoadedKernel>> CudaKernel::load(const DriverTable& driver, std::string_view code,
                                                       const std::string& kernel, const Place& place,
                                                       const LaunchShape& shape) {
  if (is_cut_off(code))
    return refused(kernel, "it is cut off after " + std::to_string(code.size()) + " bytes");
  const BesideCapture beside_capture(driver);
  const auto failed = [&](CUresult result, const char* call) {
    if (refuses_code(result)) return refused(kernel, describe(driver, result) + " (" + call + ")");
    return driver_error(driver, result, std::string(call) + " of kernel " + kernel);
  };

  // A copy, because PTX must end in a NUL and a string_view need not.
  const std::string image(code);
  CUlibrary library = nullptr;
  CUresult result =
      driver.cuLibraryLoadData(&library, image.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (result != CUDA_SUCCESS) return failed(result, "cuLibraryLoadData");
  const std::shared_ptr<CudaKernel> loaded(
      new CudaKernel(driver, library, place));  // its destructor unloads on errors

  result = driver.cuLibraryGetKernel(&loaded->kernel_, library, kernel.c_str());
  if (result != CUDA_SUCCESS) return failed(result, "cuLibraryGetKernel");
  // Before its attributes are set: where memory is short, the driver accepts those of a function that it has
  // not loaded, loads it, and leaves them out.
  if (place.is_current) {
    CUfunction function = nullptr;
    result = driver.cuKernelGetFunction(&function, loaded->kernel_);
    if (result != CUDA_SUCCESS) return failed(result, "cuKernelGetFunction");
    if (driver.cuFuncLoad != nullptr) result = driver.cuFuncLoad(function);
    if (result != CUDA_SUCCESS) return failed(result, "cuFuncLoad");
  }
  // Set for any size: the default limit is 48 KiB less the kernel's static shared memory.
  if (shape.dynamic_shared_bytes > 0) {
    result = driver.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                         shape.dynamic_shared_bytes, loaded->kernel_, place.device);
    if (result != CUDA_SUCCESS) return failed(result, "cuKernelSetAttribute");
  }
  if (shape.cluster_blocks > kPortableCluster) {
    result = driver.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1,
                                         loaded->kernel_, place.device);
    if (result != CUDA_SUCCESS) return failed(result, "cuKernelSetAttribute");
  }
  return std::shared_ptr<LoadedKernel>(loaded);
}

CudaKernel::~CudaKernel() {
  if (fork_generation() != generation_) return;  // a forked child does not own its parent's libraries
  const BesideCapture beside_capture(driver_);
  // Failures are ignored: at process exit the driver may already be torn down.
  driver_.cuLibraryUnload(library_);
}

namespace {

// A CUlaunchConfig and its attributes.
class Configuration {
 public:
  Configuration(std::uint32_t blocks, const LaunchShape& shape, Stream stream) noexcept {
    config_.gridDimX = blocks;
    config_.gridDimY = config_.gridDimZ = 1;
    config_.blockDimX = static_cast<unsigned>(shape.threads);
    config_.blockDimY = config_.blockDimZ = 1;
    config_.sharedMemBytes = static_cast<unsigned>(shape.dynamic_shared_bytes);
    config_.hStream = stream;
    config_.attrs = attributes_;
    if (shape.cluster_blocks > 1)
      add(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim = {static_cast<unsigned>(shape.cluster_blocks), 1,
                                                               1};
    if (shape.cooperative) add(CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative = 1;
    if (shape.overlap_previous)
      add(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION).programmaticStreamSerializationAllowed = 1;
  }
  Configuration(const Configuration&) = delete;
  Configuration& operator=(const Configuration&) = delete;

  const CUlaunchConfig* get() const noexcept { return &config_; }

 private:
  CUlaunchAttributeValue& add(CUlaunchAttributeID id) noexcept {
    CUlaunchAttribute& attribute = attributes_[config_.numAttrs++];
    attribute = {};
    attribute.id = id;
    return attribute.value;
  }

  CUlaunchAttribute attributes_[3];  // uninitialised: zeroing 200 bytes would cost every launch
  CUlaunchConfig config_{};
};

}  // namespace

// The driver would launch a CUkernel on any current device, even one for which it is not set up.
int CudaKernel::launch(std::uint32_t blocks, const LaunchShape& shape, Stream stream,
                       void** arguments) const noexcept {
  CUdevice current = device_;
  if (current_device_ != nullptr && current_device_(&current) == CUDA_SUCCESS && current != device_)
    return CUDA_ERROR_INVALID_DEVICE;
  const Configuration configuration(blocks, shape, stream);
  return launch_(configuration.get(), function(), arguments, nullptr);
}

// A MIG slice is a device with its own number of multiprocessors. MPS gives a share to a process or a
// context; the context's execution affinity shows it if the driver reports it. If not, the driver still
// refuses a cooperative launch that is too large.
Result<int> CudaKernel::multiprocessors() const {
  int all = 0;
  const CUresult result =
      driver_.cuDeviceGetAttribute(&all, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_);
  if (result != CUDA_SUCCESS) return driver_error(driver_, result, "cuDeviceGetAttribute");
  CUexecAffinityParam share{};
  if (driver_.cuCtxGetExecAffinity(&share, CU_EXEC_AFFINITY_TYPE_SM_COUNT) != CUDA_SUCCESS) return all;
  const auto own = static_cast<int>(share.param.smCount.val);
  return own > 0 ? std::min(all, own) : all;
}

Result<int> CudaKernel::resident_blocks(const LaunchShape& shape) const {
  CUdevice current = 0;
  CUresult result = driver_.cuCtxGetDevice(&current);
  if (result != CUDA_SUCCESS) return driver_error(driver_, result, "cuCtxGetDevice");
  if (current != device_)
    return Error{Code::NoContext,
                 "The driver reports how many blocks a device runs at once only if a context of that device "
                 "is current: make one current."};
  const BesideCapture beside_capture(driver_);
  int count = 0;
  if (shape.cluster_blocks > 1) {
    const Configuration one(static_cast<std::uint32_t>(shape.cluster_blocks), shape, nullptr);
    result = driver_.cuOccupancyMaxActiveClusters(&count, function(), one.get());
    if (refuses_to_run_together(result)) return 0;
    if (result != CUDA_SUCCESS) return driver_error(driver_, result, "cuOccupancyMaxActiveClusters");
    return count * shape.cluster_blocks;
  }
  result = driver_.cuOccupancyMaxActiveBlocksPerMultiprocessor(
      &count, function(), shape.threads, static_cast<std::size_t>(shape.dynamic_shared_bytes));
  if (result != CUDA_SUCCESS)
    return driver_error(driver_, result, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  const Result<int> sms = multiprocessors();
  if (!sms) return sms.error();
  return count * *sms;
}

}  // namespace normjit
