// SPDX-License-Identifier: Apache-2.0
#include "normjit/driver/cuda_driver.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "normjit/driver/cuda_kernel.h"
#include "normjit/driver/driver_table.h"

namespace normjit {
namespace {

Result<DeviceProfile> read_profile(const DriverTable& driver, CUdevice device) {
  int major = 0, minor = 0, l2_bytes = 0;
  DeviceProfile profile;
  const std::pair<CUdevice_attribute, int*> facts[] = {
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &profile.sm_count},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &profile.threads_per_sm},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, &profile.blocks_per_sm},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, &profile.registers_per_sm},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &profile.shared_per_block},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, &profile.shared_per_sm},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &l2_bytes},
  };
  for (const auto& [attribute, value] : facts) {
    const CUresult result = driver.cuDeviceGetAttribute(value, attribute, device);
    if (result != CUDA_SUCCESS) return driver_error(driver, result, "cuDeviceGetAttribute");
  }
  profile.arch.number = 10 * major + minor;
  profile.l2_bytes = l2_bytes;
  return profile;
}

// Memory that cuMemMap mapped in pieces, such as PyTorch's expandable segments. The driver reports the range
// of one piece, and a tensor may continue in the next.
bool is_mapped_in_pieces(const DriverTable& driver, const void* address) {
  CUmemGenericAllocationHandle piece = 0;
  if (driver.cuMemRetainAllocationHandle(&piece, const_cast<void*>(address)) != CUDA_SUCCESS) return false;
  driver.cuMemRelease(piece);
  return true;
}

}  // namespace

Result<std::vector<CudaDriver::Device>> CudaDriver::read_devices(const DriverTable& driver) {
  CUresult result = driver.cuInit(0);
  if (result != CUDA_SUCCESS) return driver_error(driver, result, "cuInit");
  int count = 0;
  result = driver.cuDeviceGetCount(&count);
  if (result == CUDA_SUCCESS && count == 0) result = CUDA_ERROR_NO_DEVICE;
  if (result != CUDA_SUCCESS) return driver_error(driver, result, "cuDeviceGetCount");

  std::vector<Device> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice handle = 0;
    result = driver.cuDeviceGet(&handle, ordinal);
    if (result != CUDA_SUCCESS) return driver_error(driver, result, "cuDeviceGet");
    devices.push_back({handle, read_profile(driver, handle)});
  }
  return devices;
}

Result<const CudaDriver::Machine*> CudaDriver::machine() {
  // The driver returns the same error, but not if the fork interrupted its initialisation.
  const std::uint64_t generation = fork_generation(), initialised = initialised_.load();
  if (initialised != 0 && initialised != generation)
    return Error{Code::ForkedAfterCudaInit, Status{Code::ForkedAfterCudaInit}.message()};
  return machine_.get([&]() -> Result<Machine> {
    const Result<const DriverTable*> driver = this->driver();
    if (!driver) return driver.error();
    initialised_ = generation;
    Result<std::vector<Device>> devices = read_devices(**driver);
    if (!devices) {
      initialised_ = 0;
      return devices.error();
    }
    return Machine{**driver, std::move(*devices)};
  });
}

int CudaDriver::Machine::ordinal_of(CUdevice handle) const noexcept {
  const auto found = std::ranges::find(devices, handle, &Device::handle);
  return found != devices.end() ? static_cast<int>(found - devices.begin()) : -1;
}

Result<CudaDriver::Found> CudaDriver::find(int device) {
  const Result<const Machine*> machine = this->machine();
  if (!machine) return machine.error();
  const int count = static_cast<int>((*machine)->devices.size());
  if (device < 0 || device >= count) {
    return Error{Code::NoDevice, "There is no CUDA device " + std::to_string(device) + ": the driver sees " +
                                     std::to_string(count) + ", numbered from 0 to " +
                                     std::to_string(count - 1) + "."};
  }
  return Found{**machine, (*machine)->devices[device]};
}

Result<int> CudaDriver::version() {
  const Result<const DriverTable*> driver = this->driver();
  if (!driver) return driver.error();
  int version = 0;
  const CUresult result = (*driver)->cuDriverGetVersion(&version);
  if (result != CUDA_SUCCESS) return driver_error(**driver, result, "cuDriverGetVersion");
  return version;
}

Result<int> CudaDriver::device_count() {
  const Result<const Machine*> machine = this->machine();
  if (!machine) return machine.error();
  return static_cast<int>((*machine)->devices.size());
}

Result<int> CudaDriver::current_device() {
  const Result<const Machine*> machine = this->machine();
  if (!machine) return machine.error();
  CUdevice current = 0;
  const CUresult result = (*machine)->driver.cuCtxGetDevice(&current);
  if (result != CUDA_SUCCESS) return driver_error((*machine)->driver, result, "cuCtxGetDevice");
  if (const int ordinal = (*machine)->ordinal_of(current); ordinal >= 0) return ordinal;
  return Error{Code::NoDevice, "The current CUDA context belongs to no device that cuDeviceGet lists."};
}

Driver::Current CudaDriver::current() noexcept {
  const Machine* machine = machine_.peek();
  if (machine == nullptr || initialised_.load(std::memory_order_relaxed) != fork_generation()) return {};
  CUdevice current = 0;
  if (machine->driver.cuCtxGetDevice(&current) != CUDA_SUCCESS) return {};
  const int ordinal = machine->ordinal_of(current);
  if (ordinal < 0) return {};
  const Result<DeviceProfile>& profile = machine->devices[ordinal].profile;
  return {ordinal, profile ? &*profile : nullptr};
}

Result<DeviceProfile> CudaDriver::profile(int device) {
  const Result<Found> found = find(device);
  if (!found) return found.error();
  return found->device.profile;
}

Result<std::string> CudaDriver::device_name(int device) {
  const Result<Found> found = find(device);
  if (!found) return found.error();
  char name[256] = {};
  const DriverTable& driver = found->machine.driver;
  const CUresult result = driver.cuDeviceGetName(name, sizeof name, found->device.handle);
  if (result != CUDA_SUCCESS) return driver_error(driver, result, "cuDeviceGetName");
  return std::string(name);
}

Result<std::shared_ptr<LoadedKernel>> CudaDriver::load(std::string_view code, const std::string& kernel,
                                                       int device, const LaunchShape& shape) {
  const Result<Found> found = find(device);
  if (!found) return found.error();
  const Result<int> current = current_device();
  const CudaKernel::Place place{.device = found->device.handle,
                                .is_current = current.ok() && *current == device,
                                .is_only = found->machine.devices.size() == 1};
  return CudaKernel::load(found->machine.driver, code, kernel, place, shape);
}

Result<Allocation> CudaDriver::allocation(const void* address) {
  const Result<const Machine*> machine = this->machine();
  if (!machine) return machine.error();
  const DriverTable& driver = (*machine)->driver;
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  // Initialised, because the driver skips values that do not apply and writes a flag as one byte or four.
  unsigned type = 0, managed = 0;
  int ordinal = -1;
  CUdeviceptr device_address = 0, start = 0;
  std::size_t bytes = 0;
  CUpointer_attribute attributes[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,   CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
  };
  void* values[] = {&type, &managed, &ordinal, &device_address, &start, &bytes};
  static_assert(std::size(attributes) == std::size(values));
  const CUresult result = driver.cuPointerGetAttributes(std::size(values), attributes, values, at);

  Allocation facts;
  facts.bytes_left = UINT64_MAX;
  if (result == CUDA_ERROR_INVALID_VALUE) return facts;  // the driver does not know this address
  if (result != CUDA_SUCCESS) return driver_error(driver, result, "cuPointerGetAttributes");

  const bool on_device = type == CU_MEMORYTYPE_DEVICE && managed == 0;
  // Pinned memory counts only if kernels may use the host's pointer.
  const bool mapped_host = type == CU_MEMORYTYPE_HOST && device_address == at;
  facts.device_accessible = on_device || managed != 0 || mapped_host;
  if (on_device) facts.device = ordinal;
  const bool has_range = start <= at && at - start < bytes;
  if (has_range && !(on_device && is_mapped_in_pieces(driver, address)))
    facts.bytes_left = bytes - (at - start);
  return facts;
}

int CudaDriver::clear(void* memory, std::size_t bytes, Stream stream) noexcept {
  const Result<const Machine*> machine = this->machine();
  if (!machine) return CUDA_ERROR_NOT_INITIALIZED;
  return (*machine)->driver.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory), 0, bytes, stream);
}

// For the null stream the call fails while a stream that it waits for is being captured.
bool CudaDriver::is_capturing(Stream stream) noexcept {
  const Result<const Machine*> machine = this->machine();
  if (!machine) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = (*machine)->driver.cuStreamIsCapturing(stream, &status);
  return result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
         (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE);
}

std::string CudaDriver::describe(int result) {
  const Result<const DriverTable*> driver = this->driver();
  if (!driver) return "CUresult " + std::to_string(result);
  return normjit::describe(**driver, static_cast<CUresult>(result));
}

std::shared_ptr<Driver> make_cuda_driver() { return std::make_shared<CudaDriver>(open_driver); }

}  // namespace normjit
