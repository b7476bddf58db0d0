#include "normjit/driver/cuda_device.h"

#include <string>
#include <utility>

#include "normjit/driver/driver_error.h"

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

}  // namespace

Result<std::vector<CudaDevice>> read_devices(const DriverTable& driver) {
  CUresult result = driver.cuInit(0);
  if (result != CUDA_SUCCESS) return driver_error(driver, result, "cuInit");
  int count = 0;
  result = driver.cuDeviceGetCount(&count);
  if (result == CUDA_SUCCESS && count == 0) result = CUDA_ERROR_NO_DEVICE;
  if (result != CUDA_SUCCESS) return driver_error(driver, result, "cuDeviceGetCount");

  std::vector<CudaDevice> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice handle = 0;
    result = driver.cuDeviceGet(&handle, ordinal);
    if (result != CUDA_SUCCESS) return driver_error(driver, result, "cuDeviceGet");
    devices.push_back({handle, read_profile(driver, handle)});
  }
  return devices;
}

}  // namespace normjit
