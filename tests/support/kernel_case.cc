// SPDX-License-Identifier: Apache-2.0
#include "tests/support/kernel_case.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/plan/footprint.h"
#include "simt/launch.h"

namespace normjit::testing {
namespace {

constexpr std::string_view kInputNames[] = {"unit",          "near_epsilon", "large_mean",
                                            "constant_rows", "subnormal",    "nan_row",
                                            "inf_row",       "mixed",        "extreme_affine"};

// The numbers of a case besides its plan, as its text names them, in order.
template <class Case, class Visit>
void visit_numbers(Case& c, Visit visit) {
  visit("sms", c.device.sm_count);
  visit("rows", c.rows);
  visit("plane", c.plane);
  visit("x_gap", c.x_gap);
  visit("gate_gap", c.gate_gap);
  visit("residual_gap", c.residual_gap);
  visit("scale_gap", c.scale_gap);
  visit("shift_gap", c.shift_gap);
  visit("y_gap", c.y_gap);
  visit("sum_gap", c.sum_gap);
  visit("group", c.group);
  visit("group_gap", c.group_gap);
  visit("x_shift", c.x_shift);
  visit("y_shift", c.y_shift);
  visit("weight_shift", c.weight_shift);
  visit("bias_shift", c.bias_shift);
  visit("blocks", c.blocks);
  visit("runs", c.runs);
  visit("seed", c.seed);
}

// Likewise what is or is not.
template <class Case, class Visit>
void visit_switches(Case& c, Visit visit) {
  visit("in_place", c.in_place);
  visit("sum_in_place", c.sum_in_place);
  visit("overlaps", c.overlaps);
}

template <class Enum, std::size_t n>
std::optional<Enum> one_of(const Enum (&values)[n], std::string_view text) {
  for (const Enum value : values)
    if (name(value) == text) return value;
  return {};
}

}  // namespace

std::string_view name(InputKind kind) noexcept { return kInputNames[static_cast<std::size_t>(kind)]; }

std::uint32_t blocks_of(const KernelCase& c) {
  const std::int64_t planned =
      c.rows == 0 ? c.plan.blocks_per_row : grid_blocks(c.plan, c.spec, c.device, c.rows);
  return static_cast<std::uint32_t>(c.blocks > 0 ? c.blocks : planned);
}

std::int64_t KernelCase::stride_of(Operand matrix) const {
  switch (is_in_place(matrix) ? row_of(matrix).in_place : matrix) {
    case Operand::x:
      return elements_of_row() + x_gap;
    case Operand::residual:
    case Operand::dsum:
      return elements_of_row() + residual_gap;
    case Operand::gate:
      return elements_of_row() + gate_gap;
    case Operand::mod_scale:
    case Operand::dy:
      return elements_of_row() + scale_gap;
    case Operand::mod_shift:
    case Operand::dgate:
      return elements_of_row() + shift_gap;
    case Operand::weight:
    case Operand::bias:
      return spec.columns;
    case Operand::sum:
    case Operand::dmod_scale:
    case Operand::dmod_shift:
      return elements_of_row() + sum_gap;
    case Operand::also:
      return elements_of_row() + 2 * y_gap;
    default:
      return elements_of_row() / columns_in(spec.output) + y_gap;
  }
}

oracle::RowLayout KernelCase::layout_of(Operand operand) const {
  const std::int64_t stride = stride_of(operand);
  if (group == 1) return stride;
  if (row_of(operand).extent == Extent::affine) return {group, 0, stride};
  if (operand == Operand::gate || row_of(operand).extent == Extent::shared) return {group, stride, 0};
  return {group, group * stride + group_gap, stride};
}

bool legal(const KernelCase& c) {
  if (!validate(c.spec) || canonical(c.spec) != c.spec || !check(c.plan, c.spec, c.device)) return false;
  if (c.rows < 0) return false;
  for (const OperandRow& row : kOperands)
    if (is_matrix(row, c.spec) && row.present(c.spec) &&
        c.stride_of(row.operand) < (row.output ? c.elements_of_row() / columns_in(row.dtype(c.spec)) : 0))
      return false;
  if (c.group < 1 || c.rows % c.group != 0 || c.group_gap < 0) return false;
  if (c.spec.channels_first ? c.plane < 1 || c.rows % c.plane != 0 || c.group > 1 : c.plane != 0)
    return false;
  if (c.group > 1 ? !c.plan.grouped_rows && c.plan.strategy != Strategy::generic : c.group_gap != 0)
    return false;
  if (c.in_place && c.spec.backward && !writes_dx(c.spec)) return false;
  if (c.in_place && (c.y_gap != 0 || size_of(c.spec.input) != size_of(c.spec.output))) return false;
  const auto lacks = [&](Operand operand) { return !row_of(operand).present(c.spec); };
  const bool has_dgate = !lacks(Operand::dgate);
  if ((lacks(Operand::gate) && c.gate_gap != 0) ||
      (lacks(Operand::mod_shift) && (!has_dgate || c.sum_in_place) && c.shift_gap != 0) ||
      (lacks(Operand::residual) && lacks(Operand::dsum) && c.residual_gap != 0) ||
      (lacks(Operand::mod_scale) && lacks(Operand::dy) && c.scale_gap != 0))
    return false;
  if ((c.spec.backward ? lacks(Operand::dmod_scale) : !c.spec.sum || c.sum_in_place) && c.sum_gap != 0)
    return false;
  // The rows of a group have one gate.
  if (c.sum_in_place && !(c.spec.sum && c.spec.residual == Residual::before) && !(has_dgate && c.group == 1))
    return false;
  const std::int64_t shifts[] = {c.x_shift, c.y_shift, c.weight_shift, c.bias_shift};
  const std::int64_t gaps[] = {c.x_gap,     c.gate_gap, c.residual_gap, c.scale_gap,
                               c.shift_gap, c.y_gap,    c.sum_gap,      c.group_gap};
  if (*std::min_element(std::begin(shifts), std::end(shifts)) < 0) return false;
  // Every row of every tensor begins at a multiple of an access, unless rows may begin anywhere.
  const int needed = needed_alignment(c.plan, c.spec);
  const auto aligned = [&](std::int64_t distance) { return distance % needed == 0; };
  if (!aligned(c.plane)) return false;
  if (!c.plan.unaligned && (!std::all_of(std::begin(gaps), std::end(gaps), aligned) ||
                            !std::all_of(std::begin(shifts), std::end(shifts), aligned)))
    return false;
  // Where blocks meet, no rows are no launch; nor are they in the service.
  if (c.rows == 0 && (c.plan.exchange == Exchange::grid || c.spec.backward)) return false;
  if (c.overlaps && c.device.arch.number < 90) return false;
  if (c.runs < 1 || c.blocks < 0 || c.blocks % c.plan.blocks_per_row != 0) return false;
  if (c.blocks > 0 && (c.rows == 0 || c.blocks > grid_blocks(c.plan, c.spec, c.device, c.rows))) return false;
  if (c.plan.exchange == Exchange::grid &&
      std::int64_t{blocks_of(c)} * c.plan.threads > simt::most_threads_together())
    return false;
  // A NaN in several rows would say nothing about whether it stays in its own.
  const bool one_bad_row = c.inputs == InputKind::nan_row || c.inputs == InputKind::inf_row;
  if (one_bad_row && (c.x_gap < 0 || c.residual_gap < 0 || (c.spec.backward && c.scale_gap < 0)))
    return false;
  // The variance of subnormal numbers is zero in their own type.
  return c.inputs != InputKind::subnormal || c.spec.epsilon > 0;
}

std::string to_text(const KernelCase& c) {
  std::string text = concat({normjit::to_text(c.spec), " ", normjit::to_text(c.plan)});
  const auto add = [&](std::string_view key, std::string_view value) {
    text += concat({" ", key, "=", value});
  };
  visit_numbers(c, [&](std::string_view key, auto value) { add(key, shortest(value)); });
  add("arch", c.device.arch.name());
  add("guard", c.guard == Guard::before ? "before" : "behind");
  visit_switches(c, [&](std::string_view key, bool value) { add(key, value ? "1" : "0"); });
  add("inputs", name(c.inputs));
  return text;
}

std::optional<KernelCase> case_from_text(std::string_view text) {
  const std::vector<std::string_view> words = split(text, ' ');
  if (words.size() < 2) return {};
  KernelCase c;
  const auto spec = parse_spec(words[0]);
  if (!spec) return {};
  c.spec = *spec;

  // The architecture first: it sets what `sms` then changes. What is nobody else's belongs to the plan.
  std::string plan(words[1]);
  std::vector<std::pair<std::string_view, std::string_view>> fields;
  for (std::size_t i = 2; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    if (equals == words[i].npos) return {};
    fields.emplace_back(words[i].substr(0, equals), words[i].substr(equals + 1));
    if (fields.back().first != "arch") continue;
    const auto arch = Arch::parse(fields.back().second);
    if (!arch) return {};
    const auto device = DeviceProfile::of(*arch);
    if (!device) return {};
    c.device = *device;
  }
  for (const auto& field : fields) {  // clang before 16 captures no structured binding
    const std::string_view key = field.first, value = field.second;
    bool known = key == "arch";
    visit_numbers(c, [&](std::string_view own, auto& member) {
      if (own != key) return;
      const auto read = number<std::remove_reference_t<decltype(member)>>(value);
      if (!read) return;
      member = *read;
      known = true;
    });
    visit_switches(c, [&](std::string_view own, bool& member) {
      if (own != key) return;
      known = value == "0" || value == "1";
      member = value == "1";
    });
    if (key == "guard") {
      known = value == "before" || value == "behind";
      c.guard = value == "before" ? Guard::before : Guard::behind;
    } else if (key == "inputs") {
      const auto kind = one_of(kInputKinds, value);
      known = kind.has_value();
      c.inputs = kind.value_or(InputKind::unit);
    }
    if (!known) plan += concat({" ", key, "=", value});
  }
  const auto parsed = parse_plan(plan);
  if (!parsed) return {};
  c.plan = *parsed;
  return c;
}

}  // namespace normjit::testing
