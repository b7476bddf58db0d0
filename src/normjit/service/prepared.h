// What a Kernel handle points to: everything that a launch needs, worked out once.
#pragma once

#include <atomic>
#include <memory>

#include "normjit/base/fork.h"
#include "normjit/driver/driver.h"
#include "normjit/service.h"

namespace normjit {

// What the generic kernel takes of a spec at run time, as templates/generic.cu declares it. Other kernels
// ignore it.
struct RuntimeSpec {
  explicit RuntimeSpec(const LayerNormSpec& spec) noexcept;

  double epsilon, scale;
  std::int32_t columns, activation;
  DType input, output, weight;
};

struct Kernel::Prepared {
  Prepared(const LayerNormSpec& canonical_spec, const Plan& of_plan) : spec(canonical_spec), plan(of_plan) {}

  LayerNormSpec spec;  // canonical
  Plan plan;
  DeviceProfile profile;
  int device = -1;
  Origin origin = Origin::compiled;
  std::size_t workspace_bytes = 0;
  LaunchShape shape;
  RuntimeSpec runtime_spec{spec};
  std::shared_ptr<Driver> driver;
  std::shared_ptr<LoadedKernel> loaded;
  const std::uint64_t generation = fork_generation();  // of the process that has it loaded
  // Whether the one-call form has seen this kernel with pointers that Kernel::check accepted.
  mutable std::atomic<bool> pointers_checked = false;
};

// The shape of a plan's launches.
LaunchShape launch_shape(const Plan& plan, const LayerNormSpec& spec) noexcept;

// The row strides of a launch, in elements.
struct Strides {
  std::int64_t x = 0, y = 0;
};

// With kContiguous filled in, and as if contiguous where there is but one row.
Strides strides_of(const LayerNormSpec& spec, const Tensors& tensors) noexcept;

// The kernels' one argument list, of templates/hw.cuh, as a launch takes it. Points into the tensors and the
// spec, and into itself.
struct ArgumentList {
  ArgumentList(const Tensors& tensors, Strides of_launch, const RuntimeSpec& spec) noexcept;
  ArgumentList(const ArgumentList&) = delete;
  ArgumentList& operator=(const ArgumentList&) = delete;

  Strides strides;
  void* pointers[11];
};

// Ok, or what is wrong with these tensors for every kernel of the spec.
Status check_tensors(const LayerNormSpec& spec, const Tensors& tensors) noexcept;

// The alignment that all of these tensors allow; Alignment{0} where one is less aligned than its element.
Alignment alignment_of(const LayerNormSpec& spec, const Tensors& tensors) noexcept;

}  // namespace normjit
