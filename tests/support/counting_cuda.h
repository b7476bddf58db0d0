// SPDX-License-Identifier: Apache-2.0
// A libcuda that only counts: the driver that the cost of normjit itself is measured against.
#pragma once

#include <cstdint>

#include "normjit/driver/driver_table.h"

namespace normjit::testing {

// One GPU like an H200, whose context is current in every thread. Takes no lock, and a launch writes nothing
// that threads share.
Result<DriverTable> counting_cuda();

// The launches of the calling thread so far.
std::uint64_t launches_of_this_thread() noexcept;

// The libraries that are loaded and not yet unloaded, over all threads.
int live_libraries() noexcept;

}  // namespace normjit::testing
