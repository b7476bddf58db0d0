// A library of the driver with the one kernel that is launched from it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "normjit/base/fork.h"
#include "normjit/driver/driver.h"
#include "normjit/driver/driver_table.h"

namespace normjit {

// A cache line holds all that a launch reads.
class alignas(64) CudaKernel final : public LoadedKernel {
 public:
  // Loads `code`, finds `kernel` and sets it up for `device`. `is_current` says that the device's context is
  // current: then the code is brought onto the device now, so that the first launch costs what every launch
  // costs; else the first launch there brings it. Legal while this or another thread captures a stream.
  // LoadFailed, OutOfMemory, DriverError.
  static Result<std::shared_ptr<LoadedKernel>> load(const DriverTable& driver, std::string_view code,
                                                    const std::string& kernel, CUdevice device,
                                                    bool is_current, const LaunchShape& shape);
  ~CudaKernel() override;
  CudaKernel(const CudaKernel&) = delete;
  CudaKernel& operator=(const CudaKernel&) = delete;

  int launch(std::uint32_t blocks, const LaunchShape& shape, Stream stream,
             void** arguments) const noexcept override;
  Result<int> resident_blocks(const LaunchShape& shape) const override;

 private:
  CudaKernel(const DriverTable& driver, CUlibrary library, CUdevice device)
      : launch_(driver.cuLaunchKernelEx),
        library_(library),
        device_(device),
        generation_(fork_generation()),
        driver_(driver) {}

  // The driver takes a CUkernel as the function, and finds that of the current context.
  CUfunction function() const noexcept { return reinterpret_cast<CUfunction>(kernel_); }
  Result<int> multiprocessors() const;

  CUkernel kernel_ = nullptr;
  decltype(DriverTable::cuLaunchKernelEx) const launch_;
  const CUlibrary library_;
  const CUdevice device_;
  const std::uint64_t generation_;  // of the process that loaded it
  const DriverTable driver_;        // a copy: kernels outlive the Driver
};

}  // namespace normjit
