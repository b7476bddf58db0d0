// Which kernels a prebuild of specs needs.
#pragma once

#include <span>
#include <vector>

#include "normjit/service.h"

namespace normjit {

// Each kernel that launches of these valid specs can use on the devices, once. A tuned plan counts for its
// whole architecture, since a GPU of another size than the named one finds its own tuned plans in the same
// directory.
std::vector<KernelReport> kernels_for(std::span<const NormSpec> specs, std::span<const DeviceProfile> devices,
                                      std::span<const TunedPlan> tuned);

}  // namespace normjit
