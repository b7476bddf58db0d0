// SPDX-License-Identifier: Apache-2.0
// A CUlibrary and its one kernel.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "normjit/base/fork.h"
#include "normjit/driver/driver.h"
#include "normjit/driver/driver_table.h"

namespace normjit {

// All members that a launch reads are in one cache line.
class alignas(64) CudaKernel final : public LoadedKernel {
 public:
  // What a kernel is loaded for.
  struct Place {
    CUdevice device = 0;
    bool is_current = false;  // the device's context is current
    bool is_only = false;     // the driver sees one device: launches need not check which one is current
  };
  // Loads `code`, finds `kernel` and sets it up for a device. If the device is current, the code is copied to
  // it now, so that the first launch costs no more than later ones; else the first launch copies it. Legal
  // while this or another thread captures a stream. LoadFailed, OutOfMemory, DriverError.
  static Result<std::shared_ptr<LoadedKernel>> load(const DriverTable& driver, std::string_view code,
                                                    const std::string& kernel, const Place& place,
                                                    const LaunchShape& shape);
  ~CudaKernel() override;
  CudaKernel(const CudaKernel&) = delete;
  CudaKernel& operator=(const CudaKernel&) = delete;

  int launch(std::uint32_t blocks, const LaunchShape& shape, Stream stream,
             void** arguments) const noexcept override;
  Result<int> resident_blocks(const LaunchShape& shape) const override;

 private:
  CudaKernel(const DriverTable& driver, CUlibrary library, const Place& place)
      : launch_(driver.cuLaunchKernelEx),
        current_device_(place.is_only ? nullptr : driver.cuCtxGetDevice),
        library_(library),
        device_(place.device),
        generation_(fork_generation()),
        driver_(driver) {}

  // The driver accepts a CUkernel as a CUfunction and finds the function of the current context.
  CUfunction function() const noexcept { return reinterpret_cast<CUfunction>(kernel_); }
  Result<int> multiprocessors() const;

  CUkernel kernel_ = nullptr;
  decltype(DriverTable::cuLaunchKernelEx) const launch_;
  decltype(DriverTable::cuCtxGetDevice) const current_device_;  // null if there is one device
  const CUlibrary library_;
  const CUdevice device_;
  const std::uint64_t generation_;  // of the process that loaded it
  const DriverTable driver_;        // a copy: kernels outlive the Driver
};

}  // namespace normjit
