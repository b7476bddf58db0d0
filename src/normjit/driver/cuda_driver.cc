#include "normjit/driver/cuda_driver.h"

#include "normjit/driver/cuda_allocation.h"
#include "normjit/driver/cuda_kernel.h"
#include "normjit/driver/driver_error.h"

namespace normjit {

Result<const CudaDriver::Machine*> CudaDriver::machine() {
  // The driver answers so too, but not if the fork interrupted its initialisation.
  const std::uint64_t generation = fork_generation(), initialised = initialised_.load();
  if (initialised != 0 && initialised != generation)
    return Error{Code::ForkedAfterCudaInit, Status{Code::ForkedAfterCudaInit}.message()};
  return machine_.get([&]() -> Result<Machine> {
    const Result<const DriverTable*> driver = this->driver();
    if (!driver) return driver.error();
    initialised_ = generation;
    Result<std::vector<CudaDevice>> devices = read_devices(**driver);
    if (!devices) {
      initialised_ = 0;
      return devices.error();
    }
    return Machine{**driver, std::move(*devices)};
  });
}

Result<const CudaDevice*> CudaDriver::find(const Machine& machine, int device) {
  const int count = static_cast<int>(machine.devices.size());
  if (device < 0 || device >= count) {
    return Error{Code::NoDevice, "There is no CUDA device " + std::to_string(device) + ": the driver sees " +
                                     std::to_string(count) + ", numbered from 0 to " +
                                     std::to_string(count - 1) + "."};
  }
  return &machine.devices[device];
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
  int ordinal = 0;
  for (const CudaDevice& device : (*machine)->devices) {
    if (device.handle == current) return ordinal;
    ++ordinal;
  }
  return Error{Code::NoDevice, "The current CUDA context belongs to no device that cuDeviceGet lists."};
}

Driver::Current CudaDriver::current() noexcept {
  const Machine* machine = machine_.peek();
  if (machine == nullptr || initialised_.load(std::memory_order_relaxed) != fork_generation()) return {};
  CUdevice current = 0;
  if (machine->driver.cuCtxGetDevice(&current) != CUDA_SUCCESS) return {};
  for (std::size_t i = 0; i < machine->devices.size(); ++i) {
    const CudaDevice& device = machine->devices[i];
    if (device.handle == current) return {static_cast<int>(i), device.profile ? &*device.profile : nullptr};
  }
  return {};
}

Result<DeviceProfile> CudaDriver::profile(int device) {
  const Result<const Machine*> machine = this->machine();
  if (!machine) return machine.error();
  const Result<const CudaDevice*> found = find(**machine, device);
  if (!found) return found.error();
  return (*found)->profile;
}

Result<std::string> CudaDriver::device_name(int device) {
  const Result<const Machine*> machine = this->machine();
  if (!machine) return machine.error();
  const Result<const CudaDevice*> found = find(**machine, device);
  if (!found) return found.error();
  char name[256] = {};
  const CUresult result = (*machine)->driver.cuDeviceGetName(name, sizeof name, (*found)->handle);
  if (result != CUDA_SUCCESS) return driver_error((*machine)->driver, result, "cuDeviceGetName");
  return std::string(name);
}

Result<std::shared_ptr<LoadedKernel>> CudaDriver::load(std::string_view code, const std::string& kernel,
                                                       int device, const LaunchShape& shape) {
  const Result<const Machine*> machine = this->machine();
  if (!machine) return machine.error();
  const Result<const CudaDevice*> found = find(**machine, device);
  if (!found) return found.error();
  const Result<int> current = current_device();
  const CudaKernel::Place place{.device = (*found)->handle,
                                .is_current = current.ok() && *current == device,
                                .is_only = (*machine)->devices.size() == 1};
  return CudaKernel::load((*machine)->driver, code, kernel, place, shape);
}

Result<Allocation> CudaDriver::allocation(const void* address) {
  const Result<const Machine*> machine = this->machine();
  if (!machine) return machine.error();
  return read_allocation((*machine)->driver, address);
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
