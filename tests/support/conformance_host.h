// SPDX-License-Identifier: Apache-2.0
// The conformance kernels on the executor.
#pragma once

#include <cstdint>
#include <string>

#include "normjit/result.h"
#include "simt/host_compiler.h"
#include "tests/support/conformance_kernels.h"

namespace normjit::testing {

// What one run gave: y, or in words why there is none.
struct HostRun {
  Bytes y;
  std::string trouble;
};
HostRun run_on_host(const ConformanceKernel& kernel, const simt::HostKernel& compiled, std::uint64_t seed);

}  // namespace normjit::testing
