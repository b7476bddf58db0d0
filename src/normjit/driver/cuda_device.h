// The GPUs that the driver sees.
#pragma once

#include <vector>

#include "normjit/device.h"
#include "normjit/driver/driver_table.h"
#include "normjit/result.h"

namespace normjit {

// One GPU. Its facts are its own: two GPUs of a machine may differ. A GPU that cannot say them (it fell off
// the bus) keeps the reason and leaves the others usable.
struct CudaDevice {
  CUdevice handle = 0;
  Result<DeviceProfile> profile;
};

// Initialises the driver (cuInit) and reads every device, by ordinal; makes no context. NoDevice where the
// driver sees none.
Result<std::vector<CudaDevice>> read_devices(const DriverTable& driver);

}  // namespace normjit
