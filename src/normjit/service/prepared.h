// SPDX-License-Identifier: Apache-2.0
// What a Kernel handle points to: everything that a launch needs, worked out once.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "normjit/driver/driver.h"
#include "normjit/service.h"
#include "normjit/service/launcher.h"
#include "normjit/service/meter.h"
#include "normjit/service/packed_tensors.h"

namespace normjit {

// What the generic kernel takes of a spec at run time, as templates/schedule/generic.cu declares it. Other
// kernels ignore it.
struct RuntimeSpec {
  explicit RuntimeSpec(const NormSpec& spec) noexcept;

  double epsilon, scale;
  std::int32_t columns, activation;
  DType input, output, weight;
};

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
