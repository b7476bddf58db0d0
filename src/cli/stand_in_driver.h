// What stands in for the driver where there is none: the first call of a process can then be timed up to the
// load, and from there on.
#pragma once

#include <memory>

#include "normjit/driver/driver.h"

namespace normjit::cli {

// A driver with one GPU of this profile, whose context is current. Loads anything at once and launches
// nothing; says nothing of its version, so no NVRTC is too new for it.
std::shared_ptr<Driver> make_stand_in_driver(const DeviceProfile& profile);

}  // namespace normjit::cli
