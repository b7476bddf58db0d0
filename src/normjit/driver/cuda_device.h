// The GPUs that the driver sees.
#pragma once

#include <vector>

#include "normjit/device.h"
#include "normjit/driver/driver_table.h"
#include "normjit/result.h"

namespace normjit {

// One GPU. If its profile cannot be read (it fell off the bus), it keeps the error, and the others stay
// usable.
struct CudaDevice {
  CUdevice handle = 0;
  Result<DeviceProfile> profile;
};

// Initialises the driver (cuInit) and reads every device, by ordinal; makes no context. NoDevice if the
// driver sees none.
Result<std::vector<CudaDevice>> read_devices(const DriverTable& driver);

}  // namespace normjit
