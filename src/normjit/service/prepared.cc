// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/prepared.h"

#include "normjit/plan/footprint.h"

namespace normjit {
namespace {
constexpr int kInvalidDevice = 101;  // CUDA_ERROR_INVALID_DEVICE, as LoadedKernel::launch says
}  // namespace

LaunchShape launch_shape(const Plan& plan, const NormSpec& spec) noexcept {
  return {.threads = plan.threads,
          .dynamic_shared_bytes = shared_bytes(plan, spec),
          .cluster_blocks = plan.exchange == Exchange::cluster ? plan.blocks_per_row : 1,
          .cooperative = all_blocks_meet(plan, spec)};
}

Launcher::Launcher(const Plan& plan, const NormSpec& spec, const DeviceProfile& device) noexcept
    : generation(fork_generation()),
      grid(grid_of(plan, spec, device)),
      shape(launch_shape(plan, spec)),
      needed(Alignment{static_cast<std::uint8_t>(needed_alignment(plan, spec))}),
      can_overlap(device.arch.number >= 90),
      needs_workspace(workspace_bytes(plan, spec, device) != 0),
      shares_rows(plan.exchange != Exchange::none),
      takes_all(plan.strategy == Strategy::generic),
      takes_groups(has_grouped_addresses(plan, spec)) {}

Status Launcher::launch(const PackedTensors& tensors, Stream stream,
                        const LaunchOptions& options) const noexcept {
  OperandBlock own;
  const bool converts = takes_all || (takes_groups && !tensors.layout.grouped);
  if (converts) {
    const OperandLayout& given = tensors.layout;
    own = tensors.block.converted(
        given, takes_all ? kGenericLayout : OperandLayout{given.operands, given.matrices, true});
  }
  const OperandBlock& block = converts ? own : tensors.block;
  void* arguments[] = {const_cast<OperandBlock*>(&block), const_cast<RuntimeSpec*>(runtime_spec)};
  LaunchShape now = shape;
  now.overlap_previous = options.overlap_previous && can_overlap;
  const int result = loaded->launch(grid.blocks(tensors.rows()), now, stream, arguments);
  if (result == 0) return {};
  if (shares_rows && refuses_to_run_together(result)) return {Code::NotResident, result};
  return {result == kInvalidDevice ? Code::WrongDevice : code_of(result), result};
}

}  // namespace normjit
