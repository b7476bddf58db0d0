// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/prepared.h"

#include "normjit/plan/footprint.h"
#include "normjit/spec/operands.h"

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

namespace {
// Calls each(row) for each sum over rows that a spec has.
template <class Each>
void each_sum(const NormSpec& spec, Each each) {
  for (const Operand sum : {Operand::dweight, Operand::dbias})
    if (const OperandRow& row = row_of(sum); row.present(spec)) each(row);
}
}  // namespace

bool has_sums(const NormSpec& spec, const Tensors& tensors) noexcept {
  bool given = true;
  each_sum(spec, [&](const OperandRow& row) { given &= pointer_of(tensors, row) != nullptr; });
  return given;
}

// Zero bits are 0 in every type.
Status launch_no_rows(const NormSpec& spec, const Tensors& tensors, Driver& driver, Stream stream) noexcept {
  if (!has_sums(spec, tensors)) return {Code::NullPointer};
  int result = 0;
  each_sum(spec, [&](const OperandRow& row) {
    const auto bytes = static_cast<std::size_t>(spec.columns * size_of(row.dtype(spec)));
    if (result == 0) result = driver.clear(const_cast<void*>(pointer_of(tensors, row)), bytes, stream);
  });
  return result == 0 ? Status{} : Status{code_of(result), result};
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
