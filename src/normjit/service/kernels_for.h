// Which kernels specs can ask for.
#pragma once

#include <span>
#include <vector>

#include "normjit/service.h"

namespace normjit {

// Each kernel that the specs can ask for on the devices, once; valid specs. Tuned plans count for the whole
// architecture: its named profile stands for GPUs of other sizes, which find their own tuned plans in the
// same directory.
std::vector<KernelReport> kernels_for(std::span<const NormSpec> specs, std::span<const DeviceProfile> devices,
                                      std::span<const TunedPlan> tuned);

}  // namespace normjit
