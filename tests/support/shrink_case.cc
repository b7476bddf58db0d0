// SPDX-License-Identifier: Apache-2.0
#include "tests/support/shrink_case.h"

#include <algorithm>
#include <vector>

#include "normjit/plan/footprint.h"

namespace normjit::testing {
namespace {

// Smaller numbers than `value`, the boldest first, down to `least` in steps.
std::vector<std::int64_t> smaller(std::int64_t value, std::int64_t least, std::int64_t step = 1) {
  std::vector<std::int64_t> all;
  const auto add = [&](std::int64_t candidate) {
    candidate = std::max(least, candidate / step * step);
    if (candidate < value && std::find(all.begin(), all.end(), candidate) == all.end())
      all.push_back(candidate);
  };
  add(least);
  add(value / 2);
  add(value - value / 4);
  add(value - value / 8);
  add(value - step);
  return all;
}

// Whether a block may have rows side by side, of fewer threads than it has.
bool has_several_rows(const Plan& plan) {
  return in_warps(plan) || plan.strategy == Strategy::channels_first ||
         (plan.strategy == Strategy::gradient_rows && plan.threads_per_row <= kWarp);
}

// Simpler cases than `c` in one point each. Those that a test learns most from, and those that make all later
// ones cheaper, come first.
std::vector<KernelCase> simpler(const KernelCase& c) {
  std::vector<KernelCase> all;
  const auto with = [&](auto change) {
    KernelCase candidate = c;
    change(candidate);
    candidate.spec = canonical(candidate.spec);
    if (candidate.spec.gate == Gate::none) candidate.gate_gap = 0;
    if (candidate.spec.modulation == Modulation::none && !candidate.spec.backward) candidate.scale_gap = 0;
    const bool has_dgate = row_of(Operand::dgate).present(candidate.spec);
    if (!row_of(Operand::mod_shift).present(candidate.spec) && !has_dgate) candidate.shift_gap = 0;
    if (candidate.spec.backward && !writes_dx(candidate.spec)) candidate.in_place = false;
    if (candidate.spec.residual == Residual::none && !candidate.spec.dsum) candidate.residual_gap = 0;
    if (candidate.spec.residual != Residual::before && !has_dgate) candidate.sum_in_place = false;
    if (!candidate.spec.sum) {
      candidate.sum_in_place = has_dgate && candidate.sum_in_place;
      if (!row_of(Operand::dmod_scale).present(candidate.spec)) candidate.sum_gap = 0;
    }
    if (!validate(candidate.spec)) return;
    if (!check(candidate.plan, candidate.spec, candidate.device)) return;
    // Less work is for fewer blocks, all of them in whole teams.
    candidate.blocks = std::min(
        candidate.blocks, grid_blocks(candidate.plan, candidate.spec, candidate.device, candidate.rows));
    candidate.blocks -= candidate.blocks % candidate.plan.blocks_per_row;
    if (!(candidate == c)) all.push_back(candidate);
  };
  with([](KernelCase& to) { to.runs = 1; });
  const int step = c.plan.unaligned || c.spec.channels_first ? 1 : c.plan.vector;
  const std::int64_t sample = std::max<std::int64_t>(1, c.plane);
  for (const std::int64_t rows : smaller(c.rows, sample, sample))
    with([&](KernelCase& to) { to.rows = rows; });
  for (const std::int64_t plane : smaller(c.plane, c.plan.vector, c.plan.vector))
    with([&](KernelCase& to) {
      to.rows = c.rows / c.plane * plane;
      to.plane = plane;
      for (std::int64_t* const gap : {&to.x_gap, &to.residual_gap})
        *gap = std::max(*gap, -to.elements_of_row());
    });
  for (const std::int64_t columns : smaller(c.spec.columns, step, step))
    with([&](KernelCase& to) {
      to.spec.columns = columns;
      for (std::int64_t* const gap :
           {&to.x_gap, &to.gate_gap, &to.residual_gap, &to.scale_gap, &to.shift_gap})
        *gap = std::max(*gap, -to.elements_of_row());
    });

  with([](KernelCase& to) { to.inputs = InputKind::unit; });
  with([](KernelCase& to) { to.seed = 0; });
  with([](KernelCase& to) { to.spec.norm = Norm::layer; });
  with([](KernelCase& to) {
    to.spec.quantization = Quantization::none;
    to.spec.output = to.spec.input;
  });
  with([](KernelCase& to) { to.spec.quantization = Quantization::none; });
  with([](KernelCase& to) { to.spec.also = Also::none; });
  with([](KernelCase& to) { to.spec.amax = false; });
  with([](KernelCase& to) { to.spec.upper_bound = false; });
  with([](KernelCase& to) { to.spec.scale_layout = ScaleLayout::rows; });
  with([](KernelCase& to) {
    to.spec.quantization = std::min(to.spec.quantization, Quantization::tensor);
    to.spec.inverse_scale = false;
  });
  with([](KernelCase& to) { to.spec.sum = false; });
  with([](KernelCase& to) { to.spec.dsum = false; });
  with([](KernelCase& to) { to.spec.need = Need::all; });
  with([](KernelCase& to) { to.spec.rounding = Rounding::none; });
  with([](KernelCase& to) { to.spec.in_bias = false; });
  with([](KernelCase& to) { to.spec.gate = Gate::none; });
  with([](KernelCase& to) { to.spec.gate_function = GateFunction::none; });
  with([](KernelCase& to) { to.spec.gate_table = false; });
  with([](KernelCase& to) { to.spec.modulation = Modulation::none; });
  with([](KernelCase& to) { to.spec.modulation = std::min(to.spec.modulation, Modulation::scale); });
  with([](KernelCase& to) { to.spec.plain_modulation = to.spec.modulation_table = false; });
  with([](KernelCase& to) { to.spec.residual = Residual::none; });
  with([](KernelCase& to) {
    to.spec.residual = Residual::none;
    to.spec.sum = false;
  });
  with([](KernelCase& to) { to.spec.weight_offset = false; });
  with([](KernelCase& to) { to.spec.affine_rows = false; });
  with([](KernelCase& to) { to.spec.residual_type = to.spec.modulation_type = to.spec.input; });
  with([](KernelCase& to) { to.spec.gradient_type = to.spec.input; });
  with([](KernelCase& to) { to.spec.activation = Activation::none; });
  with([](KernelCase& to) { to.spec.affine = Affine::none; });
  with([](KernelCase& to) { to.spec.affine = std::min(to.spec.affine, Affine::weight); });
  with([](KernelCase& to) { to.spec.scale = 1; });
  with([](KernelCase& to) { to.spec.statistics = false; });
  with([](KernelCase& to) { to.spec.epsilon = 1e-5; });
  with([](KernelCase& to) {
    to.spec.input = to.spec.output = to.spec.weight = to.spec.residual_type = to.spec.modulation_type =
        to.spec.gradient_type = DType::f32;
  });
  with([](KernelCase& to) {
    to.spec.output = to.spec.weight = to.spec.residual_type = to.spec.modulation_type =
        to.spec.gradient_type = to.spec.input;
  });

  with([](KernelCase& to) {
    to.group = 1;
    to.group_gap = 0;
    to.plan.grouped_rows = false;
  });
  with([](KernelCase& to) {
    to.x_gap = to.gate_gap = to.residual_gap = to.scale_gap = to.shift_gap = to.y_gap = to.sum_gap = 0;
  });
  with([](KernelCase& to) { to.x_shift = 0; });
  with([](KernelCase& to) { to.y_shift = 0; });
  with([](KernelCase& to) { to.weight_shift = 0; });
  with([](KernelCase& to) { to.bias_shift = 0; });
  with([](KernelCase& to) { to.in_place = false; });
  with([](KernelCase& to) { to.sum_in_place = false; });
  with([](KernelCase& to) { to.guard = Guard::behind; });
  with([](KernelCase& to) { to.blocks = 0; });
  with([](KernelCase& to) { to.overlaps = false; });

  with([](KernelCase& to) { to.device.sm_count = 1; });
  with([](KernelCase& to) { to.plan.blocks_per_sm = 1; });
  with([](KernelCase& to) { to.plan.group_rows = 1; });
  with([](KernelCase& to) { to.plan.unaligned = false; });
  with([](KernelCase& to) {
    to.plan.blocks_per_row = 1;
    to.plan.exchange = Exchange::none;
  });
  with([](KernelCase& to) { to.plan.blocks_per_row = std::max(2, to.plan.blocks_per_row / 2); });
  for (const std::int64_t stages : smaller(c.plan.stages, 2))
    with([&](KernelCase& to) { to.plan.stages = static_cast<int>(stages); });
  with([](KernelCase& to) { to.plan.per_thread = 1; });
  with([](KernelCase& to) { to.plan.per_thread = std::max(1, to.plan.per_thread / 2); });
  with([](KernelCase& to) {
    to.plan.vector = 1;
    to.plan.unaligned = false;  // single elements never are
  });
  with([](KernelCase& to) {
    to.plan.threads /= 2;
    to.plan.threads_per_row =
        has_several_rows(to.plan) ? std::min(to.plan.threads_per_row, to.plan.threads) : to.plan.threads;
  });
  with([](KernelCase& to) {
    if (has_several_rows(to.plan)) to.plan.threads_per_row /= 2;
  });
  return all;
}

}  // namespace

ShrunkCase shrink(const KernelCase& failing, const std::string& wrong, const Verdict& verdict, int most) {
  ShrunkCase result{failing, wrong};
  // What does not fail now may do so once the case is smaller, but seldom: go on behind the simplification
  // that was taken, and begin anew only when the end of the list is reached.
  std::size_t at = 0;
  bool changed = false;
  while (result.tried < most) {
    const std::vector<KernelCase> candidates = simpler(result.smallest);
    if (at >= candidates.size()) {
      if (!changed) break;
      at = 0;
      changed = false;
      continue;
    }
    const KernelCase& candidate = candidates[at];
    if (!legal(candidate)) {
      ++at;
      continue;
    }
    ++result.tried;
    if (const auto message = verdict(candidate)) {
      result.smallest = candidate;
      result.wrong = *message;
      changed = true;
    } else {
      ++at;
    }
  }
  return result;
}

}  // namespace normjit::testing
