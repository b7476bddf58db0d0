// SPDX-License-Identifier: Apache-2.0
// All that a launch of a prepared kernel reads, worked out once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "normjit/base/fork.h"
#include "normjit/driver/driver.h"
#include "normjit/plan/grid.h"
#include "normjit/service.h"
#include "normjit/service/packed_tensors.h"

namespace normjit {

// The shape of a plan's launches.
LaunchShape launch_shape(const Plan& plan, const NormSpec& spec) noexcept;

struct RuntimeSpec;

// A plain value of one cache line: copies stand wherever a launch would else have to look elsewhere.
struct Launcher {
  Launcher() = default;
  // Of a plan that is legal for the spec. Admits nothing before `loaded` is set.
  Launcher(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) noexcept;

  // Ok, or why the kernel cannot run on these tensors, whose status is ok.
  Status admit(const PackedTensors& tensors) const noexcept {
    if (generation != fork_generation()) return {Code::ForkedAfterCudaInit};
    if (tensors.alignment < needed) return {Code::Misaligned};
    if (needs_workspace && !tensors.has_workspace()) return {Code::WorkspaceRequired};
    return {};
  }

  // Launches with tensors that admit() accepts; at least one row.
  Status launch(const PackedTensors& tensors, Stream stream, const LaunchOptions& options) const noexcept;

  const LoadedKernel* loaded = nullptr;       // not owned
  std::uint64_t generation = 0;               // fork_generation() of the process that has it loaded
  const RuntimeSpec* runtime_spec = nullptr;  // likewise
  Grid grid;
  LaunchShape shape;
  Alignment needed = Alignment::one;  // of the tensors, at least
  bool can_overlap = false;           // whether the device knows LaunchOptions::overlap_previous
  bool needs_workspace = false;
  bool is_fallback = false;  // the generic kernel in the place of another
  bool shares_rows = false;  // whether blocks must run together
  bool takes_all = false;    // the generic kernel: all operands, absent ones are null
};
static_assert(sizeof(Launcher) <= 64);

}  // namespace normjit
