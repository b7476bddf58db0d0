#include "tests/support/kernel_case.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "normjit/base/text.h"

namespace normjit::testing {
namespace {

constexpr std::string_view kInputNames[] = {"unit",          "near_epsilon", "large_mean",
                                            "constant_rows", "subnormal",    "nan_row",
                                            "inf_row",       "mixed",        "extreme_affine"};
constexpr Strategy kStrategies[] = {Strategy::packed_rows, Strategy::resident_row, Strategy::two_reads};

// The numbers of a case as its text names them, in order.
template <class Case, class Visit>
void visit_numbers(Case& c, Visit visit) {
  visit("threads", c.plan.threads);
  visit("lanes", c.plan.lanes);
  visit("vector", c.plan.vector);
  visit("per_thread", c.plan.per_thread);
  visit("group_rows", c.plan.group_rows);
  visit("blocks_per_sm", c.plan.blocks_per_sm);
  visit("sms", c.device.sm_count);
  visit("rows", c.rows);
  visit("x_gap", c.x_gap);
  visit("y_gap", c.y_gap);
  visit("shift", c.shift);
  visit("blocks", c.blocks);
  visit("runs", c.runs);
  visit("seed", c.seed);
}

template <class Enum, std::size_t n>
std::optional<Enum> one_of(const Enum (&values)[n], std::string_view text) {
  for (const Enum value : values)
    if (name(value) == text) return value;
  return {};
}

}  // namespace

std::string_view name(InputKind kind) noexcept { return kInputNames[static_cast<std::size_t>(kind)]; }

bool legal(const KernelCase& c) {
  if (!validate(c.spec) || canonical(c.spec) != c.spec || !check(c.plan, c.spec, c.device)) return false;
  if (c.rows < 0 || c.x_stride() < 0 || c.y_stride() < c.spec.columns || c.shift < 0) return false;
  if (c.in_place && (c.y_gap != 0 || size_of(c.spec.input) != size_of(c.spec.output))) return false;
  // Every row of every tensor begins at a multiple of a vector.
  for (const std::int64_t distance : {c.x_gap, c.y_gap, std::int64_t{c.shift}})
    if (distance % c.plan.vector != 0) return false;
  if (c.runs < 1 || c.blocks < 0) return false;
  if (c.blocks > 0 && (c.rows == 0 || c.blocks > grid_blocks(c.plan, c.spec, c.device, c.rows))) return false;
  // A NaN in several rows would say nothing about whether it stays in its own.
  const bool one_bad_row = c.inputs == InputKind::nan_row || c.inputs == InputKind::inf_row;
  if (one_bad_row && c.x_gap < 0) return false;
  // The variance of subnormal numbers is zero in their own type.
  return c.inputs != InputKind::subnormal || c.spec.epsilon > 0;
}

std::string to_text(const KernelCase& c) {
  std::string text = concat({normjit::to_text(c.spec), " ", name(c.plan.strategy)});
  const auto add = [&](std::string_view key, std::string_view value) {
    text += concat({" ", key, "=", value});
  };
  visit_numbers(c, [&](std::string_view key, auto value) { add(key, shortest(value)); });
  add("arch", c.device.arch.name());
  add("guard", c.guard == Guard::before ? "before" : "behind");
  add("in_place", c.in_place ? "1" : "0");
  add("inputs", name(c.inputs));
  return text;
}

std::optional<KernelCase> case_from_text(std::string_view text) {
  const std::vector<std::string_view> words = split(text, ' ');
  if (words.size() < 2) return {};
  KernelCase c;
  const auto spec = parse_spec(words[0]);
  const auto strategy = one_of(kStrategies, words[1]);
  if (!spec || !strategy) return {};
  c.spec = *spec;
  c.plan.strategy = *strategy;

  // The architecture first: it sets what `sms` then changes.
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
  for (const auto& [key, value] : fields) {
    bool known = key == "arch";
    visit_numbers(c, [&](std::string_view own, auto& member) {
      if (own != key) return;
      const auto read = number<std::remove_reference_t<decltype(member)>>(value);
      if (!read) return;
      member = *read;
      known = true;
    });
    if (key == "guard") {
      known = value == "before" || value == "behind";
      c.guard = value == "before" ? Guard::before : Guard::behind;
    } else if (key == "in_place") {
      known = value == "0" || value == "1";
      c.in_place = value == "1";
    } else if (key == "inputs") {
      const auto kind = one_of(kInputKinds, value);
      known = kind.has_value();
      c.inputs = kind.value_or(InputKind::unit);
    }
    if (!known) return {};
  }
  return c;
}

}  // namespace normjit::testing
