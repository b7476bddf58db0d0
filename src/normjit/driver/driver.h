// SPDX-License-Identifier: Apache-2.0
// The interface to the driver: loads machine code, launches a named kernel with an argument array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "normjit/device.h"
#include "normjit/result.h"
#include "normjit/stream.h"

namespace normjit {

// The shape of a launch besides its grid, for the driver and for the executor on the CPU.
struct LaunchShape {
  int threads = 0;  // a block
  int dynamic_shared_bytes = 0;
  int cluster_blocks = 1;         // blocks that form a cluster (sm_90 and newer); divides the grid
  bool cooperative = false;       // all blocks are resident together, or the launch fails
  bool overlap_previous = false;  // may start before the previous launch has finished (sm_90 and newer)
};

// A loaded kernel, set up for its device. Unloaded with its last owner; it may outlive the Driver, a fork and
// the end of main.
class LoadedKernel {
 public:
  virtual ~LoadedKernel() = default;
  // One kernel launch. `arguments` holds a pointer to each argument, as for cuLaunchKernel. Returns the
  // driver's CUresult, 0 for success; CUDA_ERROR_INVALID_DEVICE, without a launch, if the current context is
  // another device's. Takes no lock, allocates nothing.
  virtual int launch(std::uint32_t blocks, const LaunchShape& shape, Stream stream,
                     void** arguments) const noexcept = 0;
  // The number of blocks of this shape that the device runs at once, within this process's share of it (MIG,
  // MPS) as far as the driver reports the share; ignores other work on the device. 0 if no cluster fits.
  // NoContext unless the device's context is current.
  virtual Result<int> resident_blocks(const LaunchShape& shape) const = 0;
};

// Whether a launch failed because the blocks of a cooperative launch or of a cluster, which must be resident
// together, do not fit.
bool refuses_to_run_together(int result) noexcept;

// The code of a failed CUresult: DriverError if no other code fits.
Code code_of(int result) noexcept;

// Whether the context is lost: a kernel in it has failed, and every later call that needs it returns this.
bool loses_context(int result) noexcept;
// Advice on a result: a sentence with a leading space, or empty.
const char* advice_on(int result) noexcept;

// What the driver knows about an address.
struct Allocation {
  // Device memory, managed memory, or pinned host memory that kernels see at the same address. Memory from
  // malloc never counts, even if the GPU could page it in.
  bool device_accessible = false;
  int device = -1;  // ordinal of the GPU that owns it; -1 for host and managed memory
  // From the address to the end of its allocation; UINT64_MAX if unknown, as for memory mapped in pieces.
  std::uint64_t bytes_left = 0;
};

// CudaDriver in production, a fake in tests. Implementations are thread-safe. The library is opened at the
// first call; no call changes the caller's current context or makes one. Every call may also fail with
// NoDriver, DriverTooOld and DriverError; all but version() with NoDevice, and with ForkedAfterCudaInit in a
// child of a process that had initialised the driver.
class Driver {
 public:
  virtual ~Driver() = default;

  // The driver's CUDA version, 13000 for 13.0. Does not initialise the driver.
  virtual Result<int> version() = 0;
  // At least 1: a driver that sees no GPU is the error NoDevice.
  virtual Result<int> device_count() = 0;
  // The ordinal of the current context's device. NoContext.
  virtual Result<int> current_device() = 0;
  // The noexcept fast path of current_device() and profile(): a null profile on any error, else one that
  // lives as long as the driver.
  struct Current {
    int device = -1;
    const DeviceProfile* profile = nullptr;
  };
  virtual Current current() noexcept = 0;
  // Read once per device.
  virtual Result<DeviceProfile> profile(int device) = 0;
  virtual Result<std::string> device_name(int device) = 0;
  // Loads `code` (cubin or PTX), finds `kernel` and sets it up for `device`; if that device's context is
  // current, the first launch costs no more than later ones. Legal while a stream is being captured.
  // LoadFailed if the driver refuses the code; OutOfMemory.
  virtual Result<std::shared_ptr<LoadedKernel>> load(std::string_view code, const std::string& kernel,
                                                     int device, const LaunchShape& shape) = 0;
  virtual Result<Allocation> allocation(const void* address) = 0;
  // Sets memory of the current context's device to zero, in the order of the stream. Returns the driver's
  // CUresult, 0 for success. Takes no lock, allocates nothing.
  virtual int clear(void* memory, std::size_t bytes, Stream stream) noexcept = 0;
  // Whether work on the stream would become part of a graph or invalidate another stream's capture.
  virtual bool is_capturing(Stream) noexcept { return false; }
  // "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"; "CUresult 700" without a driver.
  virtual std::string describe(int result) = 0;
};

// The driver of this machine: libcuda.so.1, opened on first use.
std::shared_ptr<Driver> make_cuda_driver();

}  // namespace normjit
