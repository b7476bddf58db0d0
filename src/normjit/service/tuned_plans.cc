// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/tuned_plans.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <type_traits>
#include <utility>

#include "normjit/base/run_on_threads.h"
#include "normjit/base/text.h"
#include "normjit/plan/footprint.h"

namespace normjit {
namespace {

constexpr std::string_view kBegin = "tuned plan";

// Holds every fact of the device, so that a slice of a GPU has its own entries.
std::string identity_of(const NormSpec& spec, const DeviceProfile& device, std::string_view regime,
                        Alignment alignment) {
  std::string identity = concat({kBegin, " spec=", to_text(spec), " arch=", device.arch.name()});
  visit_numbers(device, [&](std::string_view key, auto value) {
    identity += concat({" ", key, "=", shortest(value)});
  });
  return identity + concat({" regime=", regime, " alignment=", shortest(static_cast<int>(alignment))});
}

std::string identity_of(const TunedPlan& tuned) {
  return identity_of(tuned.spec, tuned.device, name(tuned.regime), tuned.alignment);
}

// What 0.1 called a regime, which had three of them.
std::string_view former_name(RowsRegime regime) {
  constexpr auto kFull = static_cast<RowsRegime>(3);  // a row for each multiprocessor
  return regime == RowsRegime::lone ? "lone" : regime <= kFull ? "few" : "many";
}

// Whether an entry was measured with rows of a regime.
bool is_of(const Entry& entry, const NormSpec& spec, const DeviceProfile& device, RowsRegime regime) {
  const auto rows = number<std::int64_t>(entry.fact("rows"));
  return rows && regime_of(spec, *rows, device) == regime;
}

// Reads one word of an identity, "key=value". Words with other keys are ignored.
void read(std::string_view word, TunedPlan& tuned) {
  const std::size_t equals = std::min(word.find('='), word.size() - 1);
  const std::string_view key = word.substr(0, equals), value = word.substr(equals + 1);
  if (key == "spec")
    if (const auto spec = parse_spec(value)) tuned.spec = *spec;
  if (key == "arch")
    if (const auto arch = Arch::parse(value)) tuned.device.arch = *arch;
  visit_numbers(tuned.device, [&](std::string_view wanted, auto& to) {
    if (key == wanted) to = number<std::remove_reference_t<decltype(to)>>(value).value_or(-1);
  });
  if (key == "regime")
    for (const RowsRegime regime : kRowsRegimes)
      if (value == name(regime)) tuned.regime = regime;
  if (key == "alignment")
    for (const Alignment alignment : kAlignments)
      if (value == shortest(static_cast<int>(alignment))) tuned.alignment = alignment;
}

std::vector<KernelReport> kernels_of(const NormSpec& spec, std::span<const DeviceProfile> devices,
                                     std::span<const TunedPlan> tuned, const Uses& uses) {
  std::vector<KernelReport> all;
  const auto add = [&](Arch arch, const Plan& chosen) {
    const Plan plan = in_groups(chosen, spec, uses.grouped_rows);
    const auto is_it = [&](const KernelReport& known) { return known.arch == arch && known.plan == plan; };
    if (std::ranges::any_of(all, is_it)) return;
    KernelReport& report = all.emplace_back();
    report.spec = spec, report.arch = arch, report.plan = plan;
  };
  for (const DeviceProfile& device : devices) {
    for (const Plan& plan : plans(spec, device, uses)) add(device.arch, plan);
    if (uses.batch_invariant) continue;
    for (const TunedPlan& kept : tuned)
      if (kept.spec == spec && kept.device.arch == device.arch) add(device.arch, kept.plan);
  }
  return all;
}

}  // namespace

std::optional<TunedPlan> tuned_plan_in(const Entry& entry) {
  if (!entry.identity.starts_with(kBegin)) return {};
  TunedPlan tuned;
  for (const std::string_view word : split(entry.identity, ' '))
    if (!word.empty()) read(word, tuned);
  const auto plan = parse_plan(entry.body);
  if (!validate(tuned.spec) || !plan || identity_of(tuned) != entry.identity) return {};
  tuned.plan = *plan;
  return tuned;
}

std::string plan_text_in(const Entry& entry) {
  const std::string_view text = entry.fact("plan");
  const auto plan = parse_plan(text);
  return plan ? to_text(*plan) : std::string(text);
}

Result<void> check(const TunedPlan& tuned) {
  if (auto legal = check(tuned.plan, tuned.spec, tuned.device); !legal) return legal;
  if (const int needed = needed_alignment(tuned.plan, tuned.spec); needed > static_cast<int>(tuned.alignment))
    return Error{Code::IllegalPlan,
                 concat({"plan '", to_text(tuned.plan), "' for ", to_text(tuned.spec), " reads ",
                         shortest(needed), " elements at once; tensors of alignment ",
                         shortest(static_cast<int>(tuned.alignment)), " do not allow it"})};
  return {};
}

std::vector<KernelReport> kernels_for(std::span<const NormSpec> specs, std::span<const DeviceProfile> devices,
                                      std::span<const TunedPlan> tuned, const Uses& uses) {
  std::vector<NormSpec> distinct;
  std::set<std::string> seen;
  for (const NormSpec& given : specs) {
    const NormSpec spec = canonical(given);
    if (seen.insert(to_text(spec)).second) distinct.push_back(spec);
  }

  std::vector<std::vector<KernelReport>> of(distinct.size());
  constexpr std::int64_t kPiece = 4;  // specs; they take some 10 ms, so that fewer are not worth a thread
  parallel_for(std::ssize(distinct), kPiece, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      of[i] = kernels_of(distinct[i], devices, tuned, uses);
  });
  std::vector<KernelReport> all;
  for (std::vector<KernelReport>& kernels : of) std::ranges::move(kernels, std::back_inserter(all));
  return all;
}

std::optional<Plan> TunedPlans::find(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                                     Alignment alignment) {
  std::string identity = identity_of(spec, device, name(regime), alignment);
  const std::string key = identity;
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
  }
  std::optional<Plan> found;
  const auto damaged = [&](std::string_view what) {
    const std::string text = to_text(spec), arch = device.arch.name();
    if (meter_) meter_->tell({Event::Kind::damaged, text, {}, arch, 0, what});
  };
  auto kept = cache_.find(identity, {}, damaged);
  if (const std::string_view former = former_name(regime); !kept && former != name(regime)) {
    identity = identity_of(spec, device, former, alignment);
    kept = cache_.find(identity, {}, damaged);
    if (kept && !is_of(kept->entry, spec, device, regime)) kept.reset();
  }
  if (kept) {
    const auto plan = parse_plan(kept->entry.body);
    auto fit =
        plan
            ? check({.spec = spec, .device = device, .regime = regime, .alignment = alignment, .plan = *plan})
            : Result<void>(plan.error());
    if (fit) {
      found = *plan;
    } else if (warn_) {
      warn_(concat({"the tuned plan in cache entry ", entry_id(identity),
                    " is not used: ", fit.error().message, "; normjit tune measures again"}));
    }
  }
  const std::lock_guard lock(mutex_);
  return known_.try_emplace(key, found).first->second;
}

Result<void> TunedPlans::store(const TunedPlan& tuned) {
  if (auto fit = check(tuned); !fit) return fit;
  const Plan rules = choose(tuned.spec, tuned.device, tuned.regime, tuned.alignment);
  const Entry entry{identity_of(tuned),
                    {{"code", "plan"},
                     {"spec", to_text(tuned.spec)},
                     {"arch", tuned.device.arch.name()},
                     {"device", tuned.device.text()},
                     {"regime", std::string(name(tuned.regime))},
                     {"alignment", shortest(static_cast<int>(tuned.alignment))},
                     {"plan", to_text(tuned.plan)},
                     {"rows", shortest(tuned.rows)},
                     {"fraction_of_copy", shortest(tuned.fraction_of_copy)},
                     {"rules", to_text(rules)}},
                    to_text(tuned.plan)};
  if (cache_.store(entry, /*replace=*/true)) return {};
  return Error{Code::CacheIo, concat({"the plan '", to_text(tuned.plan), "' for ", to_text(tuned.spec),
                                      " could not be stored: there is no cache directory, or it cannot "
                                      "be written; the log has the reason"})};
}

std::vector<TunedPlan> TunedPlans::list() const {
  std::vector<TunedPlan> all;
  const auto listed = cache_.list();
  if (!listed) return all;  // find() finds nothing then, either
  for (const Listed& file : *listed)
    if (file.entry)
      if (auto tuned = tuned_plan_in(*file.entry); tuned && check(*tuned)) all.push_back(*std::move(tuned));
  return all;
}

}  // namespace normjit
