// SPDX-License-Identifier: Apache-2.0
// A plan as a line of text, and back.
#include <algorithm>
#include <iterator>

#include "normjit/base/text.h"
#include "normjit/plan.h"

namespace normjit {
namespace {

constexpr std::string_view kStrategyNames[] = {
    "warp_rows",      "staged_rows",   "block_row",     "persistent_row",   "split_row",
    "channels_first", "gradient_rows", "gradient_ring", "gradient_columns", "generic"};
constexpr std::string_view kExchangeNames[] = {"none", "cluster", "grid"};

template <class Enum, std::size_t n>
std::string_view name_in(const std::string_view (&names)[n], Enum value) noexcept {
  const auto index = static_cast<std::size_t>(value);
  return index < n ? names[index] : "?";
}

template <class Enum, std::size_t n>
bool read(const std::string_view (&names)[n], std::string_view word, Enum& value) {
  const auto found = std::find(names, names + n, word);
  value = static_cast<Enum>(found - names);
  return found != names + n;
}

// The numbers of a plan, in the order of the text. The first kAlways are always written, the others where
// they are not the default.
struct Field {
  std::string_view name;
  int Plan::*value;
};
constexpr Field kFields[] = {
    {"threads", &Plan::threads},
    {"threads_per_row", &Plan::threads_per_row},
    {"vector", &Plan::vector},
    {"per_thread", &Plan::per_thread},
    {"group_rows", &Plan::group_rows},
    {"blocks_per_sm", &Plan::blocks_per_sm},
    {"blocks_per_row", &Plan::blocks_per_row},
    {"stages", &Plan::stages},
};
constexpr std::size_t kAlways = 6;
// Written where they are true.
struct Switch {
  std::string_view name;
  bool Plan::*value;
};
constexpr Switch kSwitches[] = {{"unaligned", &Plan::unaligned}, {"grouped_rows", &Plan::grouped_rows}};

// Only stages may be 0: the arithmetic of a plan divides by the others.
int least(const Field& field) { return field.value == &Plan::stages ? 0 : 1; }

// Words of 0.1, which tuned plans in caches and packs may still have, and their present names.
constexpr std::string_view kFormerly[][2] = {
    {"packed_rows", "warp_rows"},       {"tiled_rows", "staged_rows"}, {"resident_row", "block_row"},
    {"streamed_row", "persistent_row"}, {"two_reads", "split_row"},    {"lanes", "threads_per_row"},
    {"slices", "blocks_per_row"},       {"shifted", "unaligned"},
};
std::string_view current(std::string_view word) {
  for (const auto& [old, now] : kFormerly)
    if (word == old) return now;
  return word;
}

}  // namespace

std::string_view name(Strategy strategy) noexcept { return name_in(kStrategyNames, strategy); }
std::string_view name(Exchange exchange) noexcept { return name_in(kExchangeNames, exchange); }
std::string_view name(RowsRegime regime) noexcept {
  constexpr std::string_view kNames[] = {"lone", "1/4", "1/2", "1",   "2",   "4",   "8",
                                         "16",   "32",  "64",  "128", "256", "512", "many"};
  static_assert(std::size(kNames) == kRowsRegimes.size());
  return name_in(kNames, regime);
}

std::string to_text(const Plan& plan) {
  const Plan defaults;
  std::string text(name(plan.strategy));
  for (std::size_t i = 0; i < std::size(kFields); ++i)
    if (const auto value = kFields[i].value; i < kAlways || plan.*value != defaults.*value)
      text += concat({" ", kFields[i].name, "=", shortest(plan.*value)});
  if (plan.exchange != Exchange::none) text += concat({" exchange=", name(plan.exchange)});
  for (const auto& [name, value] : kSwitches)
    if (plan.*value) text += concat({" ", name, "=1"});
  return text;
}

Result<Plan> parse_plan(std::string_view text) {
  const auto bad = [&](std::string_view what, std::string_view why = "is unknown or too small") {
    return Error{Code::BadArgument, concat({"'", text, "' is not a plan: '", what, "' ", why,
                                            ". A plan reads like '", to_text(generic_plan()), "'"})};
  };
  Plan plan;
  const std::vector<std::string_view> words = split(text, ' ');
  if (!read(kStrategyNames, current(words.front()), plan.strategy)) return bad(words.front());
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const std::size_t equals = word.find('=');
    if (equals == word.npos) return bad(word);
    const std::string_view key = current(word.substr(0, equals)), value = word.substr(equals + 1);
    if (key == "exchange") {
      if (!read(kExchangeNames, value, plan.exchange)) return bad(word);
      continue;
    }
    const auto parsed = number<int>(value);
    if (!parsed) return bad(word);
    const auto flag = std::ranges::find(kSwitches, key, &Switch::name);
    if (flag != std::end(kSwitches) && (*parsed == 0 || *parsed == 1)) {
      plan.*flag->value = *parsed == 1;
      continue;
    }
    const auto field =
        std::find_if(std::begin(kFields), std::end(kFields), [&](const Field& f) { return f.name == key; });
    if (field == std::end(kFields) || *parsed < least(*field)) return bad(word);
    plan.*field->value = *parsed;
  }
  for (const Field& field : kFields)
    if (plan.*field.value < least(field)) return bad(field.name, "is missing");
  return plan;
}

}  // namespace normjit
