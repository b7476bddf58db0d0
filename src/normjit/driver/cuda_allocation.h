// What an address points to.
#pragma once

#include "normjit/driver/driver.h"
#include "normjit/driver/driver_table.h"
#include "normjit/result.h"

namespace normjit {

// Driver::allocation; `driver` must be initialised.
Result<Allocation> read_allocation(const DriverTable& driver, const void* address);

}  // namespace normjit
