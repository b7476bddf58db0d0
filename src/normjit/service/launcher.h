// All that a launch of a prepared kernel reads, worked out once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "normjit/base/fork.h"
#include "normjit/driver/driver.h"
#include "normjit/plan/grid.h"
#include "normjit/service.h"
#include "normjit/service/tensor_rules.h"

namespace normjit {

// The operands in the block of a plan's kernel: those of the spec; all of them for the generic kernel, which
// learns at run time which it has.
OperandSet kernel_operands(const Plan& plan, const NormSpec& spec) noexcept;

// The shape of a plan's launches.
LaunchShape launch_shape(const Plan& plan, const NormSpec& spec) noexcept;

struct RuntimeSpec;

// A plain value of one cache line: copies stand wherever a launch would else have to look elsewhere.
struct Launcher {
  Launcher() = default;
  // Of a plan that is legal for the spec. Admits nothing before `loaded` is set.
  Launcher(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) noexcept;

  // Ok, or why the kernel cannot run on these tensors, which the spec's TensorRules accept and give this
  // alignment.
  Status admit(const Tensors& tensors, Alignment alignment) const noexcept {
    if (generation != fork_generation()) return {Code::ForkedAfterCudaInit};
    if (alignment < needed) return {Code::Misaligned};
    if (needs_workspace && tensors.workspace == nullptr) return {Code::WorkspaceRequired};
    return {};
  }

  // Launches with tensors that the rules and admit() accept; at least one row.
  Status launch(const Tensors& tensors, const Strides& strides, Stream stream,
                const LaunchOptions& options) const noexcept;

  const LoadedKernel* loaded = nullptr;       // somebody else's
  std::uint64_t generation = 0;               // fork_generation() of the process that has it loaded
  const RuntimeSpec* runtime_spec = nullptr;  // likewise
  Grid grid;
  LaunchShape shape;
  Alignment needed = Alignment::one;  // of the tensors, at least
  bool can_overlap = false;           // whether the device knows LaunchOptions::overlap_previous
  bool needs_workspace = false;
  bool is_fallback = false;  // the generic kernel in the place of another
  bool shares_rows = false;  // whether blocks must run together
  OperandSet operands = 0;   // that the kernel takes
};
static_assert(sizeof(Launcher) <= 64);

}  // namespace normjit
