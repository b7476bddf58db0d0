// What a Kernel handle points to: everything that a launch needs, worked out once.
#pragma once

#include <atomic>
#include <memory>

#include "normjit/base/fork.h"
#include "normjit/driver/driver.h"
#include "normjit/plan/grid.h"
#include "normjit/service.h"
#include "normjit/service/tensor_rules.h"

namespace normjit {

// Sorted by how often it is needed: what every launch reads lies together, and nothing near it is written
// once the first launch was sound.
struct alignas(64) Kernel::Prepared {
  TensorRules rules;  // of the spec
  Grid grid;
  LaunchShape shape;
  LoadedKernel* launcher = nullptr;                    // what `loaded` owns
  const std::uint64_t generation = fork_generation();  // of the process that has it loaded
  std::size_t workspace_bytes = 0;
  Alignment needed = Alignment::one;  // of the tensors, at least
  bool can_overlap = false;           // whether its device knows LaunchOptions::overlap_previous
  // Whether the one-call form has seen this kernel with pointers that Kernel::check accepted.
  mutable std::atomic<bool> pointers_checked = false;

  LayerNormSpec spec;  // canonical
  Plan plan;
  DeviceProfile profile;
  int device = -1;
  Origin origin = Origin::compiled;
  std::shared_ptr<Driver> driver;
  std::shared_ptr<LoadedKernel> loaded;

  // Of a plan that is legal for the spec; nothing is loaded yet.
  Prepared(const LayerNormSpec& spec, const Plan& plan, const DeviceProfile& profile, int device,
           std::shared_ptr<Driver> driver);

  // Ok, or why this very kernel cannot run on these tensors, which the rules accept.
  Status admit(const Tensors& tensors, Alignment alignment) const noexcept {
    if (generation != fork_generation()) return {Code::ForkedAfterCudaInit};
    if (alignment < needed) return {Code::Misaligned};
    if (workspace_bytes != 0 && tensors.workspace == nullptr) return {Code::WorkspaceRequired};
    return {};
  }

  // Launches with tensors that the rules and admit() accept; at least one row.
  Status launch(const Tensors& tensors, Strides strides, Stream stream,
                const LaunchOptions& options) const noexcept;
};

// The shape of a plan's launches.
LaunchShape launch_shape(const Plan& plan, const LayerNormSpec& spec) noexcept;

// TensorRules of a spec, for those who ask once.
Strides strides_of(const LayerNormSpec& spec, const Tensors& tensors) noexcept;
Status check_tensors(const LayerNormSpec& spec, const Tensors& tensors) noexcept;
Alignment alignment_of(const LayerNormSpec& spec, const Tensors& tensors) noexcept;

// The kernels' one argument list, of templates/hw.cuh, as a launch takes it. Points into the tensors, and
// into itself.
struct ArgumentList {
  // In the order of NJ_KERNEL.
  ArgumentList(const Tensors& t, Strides of_launch) noexcept
      : strides(of_launch),
        pointers{const_cast<void**>(&t.x),
                 const_cast<void**>(&t.weight),
                 const_cast<void**>(&t.bias),
                 const_cast<void**>(&t.y),
                 const_cast<void**>(&t.mean),
                 const_cast<void**>(&t.rstd),
                 const_cast<std::int64_t*>(&t.rows),
                 &strides.x,
                 &strides.y,
                 const_cast<void**>(&t.workspace)} {}
  ArgumentList(const ArgumentList&) = delete;
  ArgumentList& operator=(const ArgumentList&) = delete;

  Strides strides;
  void* pointers[10];
};

}  // namespace normjit
