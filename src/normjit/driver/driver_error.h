// SPDX-License-Identifier: Apache-2.0
// From a CUresult to an Error.
#pragma once

#include <string>

#include "normjit/driver/driver_table.h"
#include "normjit/result.h"

namespace normjit {

// "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"; "CUresult 12345" for a number that
// the driver does not know.
std::string describe(const DriverTable& driver, CUresult result);

// The error of a call that failed, with code_of its result. `what` begins the message: "cuCtxGetDevice",
// "cuLibraryLoadData of kernel k on device 0".
Error driver_error(const DriverTable& driver, CUresult result, const std::string& what);

// Whether the fault is in the code itself, not in the process or the device.
bool refuses_code(CUresult result) noexcept;

}  // namespace normjit
