// SPDX-License-Identifier: Apache-2.0
// What a Kernel handle points to: everything that a launch needs, worked out once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "normjit/base/fork.h"
#include "normjit/driver/driver.h"
#include "normjit/plan/grid.h"
#include "normjit/service.h"
#include "normjit/service/meter.h"
#include "normjit/service/packed_tensors.h"

namespace normjit {

// What a generic kernel takes of a spec at run time, as templates/schedule/generic.cuh declares it. Other
// kernels ignore it.
struct RuntimeSpec {
  explicit RuntimeSpec(const NormSpec& spec) noexcept;

  double epsilon, scale;
  std::int32_t columns, activation, residual_at, gate_at, gate_function, quantization, block, scale_format,
      scale_layout;
  DType input, output, weight, residual, modulation, also, gradient;
  bool is_rms, weight_offset, plain_modulation, rounds_sum, rounds_norm, rounds_y, inverse_scale,
      channels_first;
};

// The shape of a plan's launches.
LaunchShape launch_shape(const Plan& plan, const NormSpec& spec) noexcept;

// Whether all sums over rows that a backward spec has are given.
bool has_sums(const NormSpec& spec, const Tensors& tensors) noexcept;
// A launch of no rows: sets these sums to zero, and does nothing for any other spec. NullPointer unless all
// are given; what the driver answers. Takes no lock, allocates nothing.
Status launch_no_rows(const NormSpec& spec, const Tensors& tensors, Driver& driver, Stream stream) noexcept;

// All that a launch reads. A plain value of one cache line: copies stand wherever a launch would else have to
// look elsewhere.
struct Launcher {
  Launcher() = default;
  // Of a plan that is legal for the spec. Admits nothing before `loaded` is set.
  Launcher(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) noexcept;

  // Ok, or why the kernel cannot run on these tensors, whose status is ok.
  Status admit(const PackedTensors& tensors) const noexcept {
    if (generation != fork_generation()) return {Code::ForkedAfterCudaInit};
    if (tensors.layout.grouped && !takes_groups) return {Code::BadStride};
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
  bool is_fallback = false;   // the generic kernel in the place of another
  bool shares_rows = false;   // whether blocks must run together
  bool takes_all = false;     // a generic kernel: all operands, absent ones are null
  bool takes_groups = false;  // addresses of groups of rows, or of planes
};
static_assert(sizeof(Launcher) <= 64);

// What every launch reads comes first, on cache lines to which nothing is written while it is launched.
struct alignas(64) Kernel::Prepared {
  TensorRules rules;  // of the spec
  Launcher launcher;  // of `loaded`

  NormSpec spec;  // canonical
  Plan plan;
  DeviceProfile profile;
  int device = -1;
  Origin origin = Origin::compiled;
  std::size_t workspace_bytes = 0;
  RuntimeSpec runtime_spec;
  std::shared_ptr<Driver> driver;
  std::shared_ptr<LoadedKernel> loaded;
  std::shared_ptr<Meter> meter;  // of the fallback's launches
  // Whether the one-call form has seen this kernel with pointers that Kernel::check accepted.
  mutable std::atomic<bool> pointers_checked = false;

  // Of a plan that is legal for the spec; nothing is loaded yet.
  Prepared(const NormSpec& spec, const Plan& plan, const DeviceProfile& profile, int device,
           std::shared_ptr<Driver> driver)
      : rules(spec),
        launcher(plan, spec, profile),
        spec(spec),
        plan(plan),
        profile(profile),
        device(device),
        workspace_bytes(normjit::workspace_bytes(plan, spec, profile)),
        runtime_spec(spec),
        driver(std::move(driver)) {
    launcher.runtime_spec = &runtime_spec;
  }
};

}  // namespace normjit
