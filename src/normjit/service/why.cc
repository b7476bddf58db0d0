// SPDX-License-Identifier: Apache-2.0
// Service::why(): why a kernel is a hit or a miss.
#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/plan/footprint.h"
#include "normjit/service/impl.h"
#include "normjit/spec/fields.h"

namespace normjit {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

// The value of the word "key=..." of an identity.
std::string word_of(std::string_view identity, std::string_view key) {
  const std::size_t at = identity.find(concat({key, "="}));
  if (at == std::string_view::npos) return {};
  const std::string_view value = identity.substr(at + key.size() + 1);
  // The options come last and contain spaces.
  return std::string(key == "options" ? value : value.substr(0, value.find(' ')));
}

// Everything that a kernel depends on, by name.
Fields fields_of(const NormSpec& spec, std::string_view plan, std::string_view arch,
                 std::string_view identity) {
  Fields all;
  each_field([&](const auto& field) { all.emplace_back(field.name, text_of(spec.*field.member)); });
  all.insert(all.end(), {{"plan", std::string(plan)},
                         {"arch", std::string(arch)},
                         {"options", word_of(identity, "options")},
                         {"source", word_of(identity, "source")}});
  return all;
}

bool depends_on_others(std::string_view field) { return field == "options" || field == "source"; }

// How a stored kernel differs from the one asked for. The source depends on all other fields, and the options
// on the architecture: both count only if the other fields agree.
std::vector<WhyReport::Difference> compare(const Fields& asked, const Fields& stored) {
  std::vector<WhyReport::Difference> differences;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const auto& [field, value] = asked[i];
    if (value != stored[i].second && (!depends_on_others(field) || differences.empty()))
      differences.push_back({field, value, stored[i].second});
  }
  return differences;
}

// Whether only fields that depend on others differ: the same kernel, of another version.
bool is_namesake(const std::vector<WhyReport::Difference>& differences) {
  return std::ranges::all_of(differences, depends_on_others, &WhyReport::Difference::field);
}

// Finds the entry that differs in the fewest fields. A namesake has precedence, then equal columns.
void find_nearest(const std::vector<Listed>& listed, WhyReport& report) {
  const Fields asked = fields_of(report.spec, to_text(report.plan),
                                 target_of(report.plan, report.spec, report.arch).name(), report.identity);
  std::size_t fewest = std::numeric_limits<std::size_t>::max();
  for (const Listed& each : listed) {
    if (!each.entry || each.entry->fact("code") == "plan") continue;
    const auto spec = parse_spec(each.entry->fact("spec"));
    if (!spec) continue;
    auto differences = compare(
        asked, fields_of(*spec, plan_text_in(*each.entry), each.entry->fact("arch"), each.entry->identity));
    std::size_t distance = is_namesake(differences) ? 0 : differences.size();
    if (spec->columns != report.spec.columns) distance += asked.size();
    if (distance >= fewest) continue;
    fewest = distance;
    report.nearest = each.id;
    report.differences = std::move(differences);
  }
}

std::string reason_of_miss(const WhyReport& report) {
  if (report.nearest.empty()) return "no kernel is stored to compare it with";
  if (report.differences.size() == 1 && report.differences[0].field == "source")
    return "entry " + report.nearest +
           " has the same spec, plan and architecture, but other kernel source: from another version of "
           "normjit, or from templates in NORMJIT_TEMPLATE_DIR";
  std::string fields;
  for (const auto& difference : report.differences) fields += (fields.empty() ? "" : ", ") + difference.field;
  return "it is not stored; the nearest entry, " + report.nearest + ", differs in " + fields;
}

// What the store that machines share says of a kernel that no cache here has.
std::string in_remote(Remote& remote, const std::string& identity) {
  using Kind = Remote::Answer::Kind;
  const Remote::Answer answer = remote.look(identity);
  switch (answer.kind) {
    case Kind::entry:
      return concat({remote.shown(), " has it, made by ", answer.entry.fact("toolchain")});
    case Kind::absent:
      return concat({remote.shown(), " does not have it either"});
    case Kind::untrusted:
      return concat({remote.shown(), " has a value that is not believed: ", answer.why});
    case Kind::failed:
      return concat({remote.shown(), " does not answer: ", answer.why});
    case Kind::not_asked:
      break;
  }
  const std::string error = remote.keys()->error;
  return concat({remote.shown(), " is not asked: ", error.empty() ? "it counts as down" : error});
}

// Completes a report: where the kernel of its spec and plan is stored, or why it is not.
Result<void> explain(const BinaryStore& binaries, const Result<std::vector<Listed>>& listed,
                     WhyReport& report) {
  const auto kernel = binaries.identify(report.spec, report.plan, report.arch);
  if (!kernel) return kernel.error();
  report.id = kernel->id;
  report.identity = kernel->identity;
  const Cache::Look look = binaries.look(*kernel);
  switch (look.lookup.kind) {
    case Lookup::Kind::entry:
      report.reason = concat({look.tier, " holds it, made by ", look.lookup.entry.fact("toolchain")});
      if (binaries.is_outdated(look.lookup.entry))
        report.reason += ", but only entries of this machine's compiler count (NORMJIT_TOOLCHAIN=exact)";
      else
        report.tier = look.tier;
      break;
    case Lookup::Kind::absent:
      if (listed) find_nearest(*listed, report);
      report.reason = listed ? reason_of_miss(report) : listed.error().message;
      if (Remote* const remote = binaries.remote())
        report.reason += concat({"; ", in_remote(*remote, report.identity)});
      break;
    default:
      report.reason = look.lookup.error;
  }
  return {};
}

WhyReport report_on(const NormSpec& spec, const DeviceProfile& device, const Plan& plan) {
  WhyReport report;
  report.spec = spec, report.arch = device.arch, report.plan = plan;
  return report;
}

}  // namespace

Result<std::vector<WhyReport>> Service::why(const NormSpec& given, const DeviceProfile& device,
                                            const Uses& asked) {
  const Uses uses = uses_in(asked, impl_->options.batch_invariant);
  if (auto valid = validate(given); !valid) return valid.error();
  const NormSpec spec = canonical(given);
  std::vector<WhyReport> reports;
  const auto index_of = [&](const Plan& plan) {
    const auto known = std::ranges::find(reports, plan, &WhyReport::plan);
    const auto index = static_cast<std::size_t>(known - reports.begin());
    if (known == reports.end()) reports.push_back(report_on(spec, device, plan));
    return index;
  };
  // Of each report, the alignments that it serves in regimes side by side.
  struct Served {
    RowsRegime first, last;
    std::string alignments;
  };
  std::map<std::size_t, std::vector<Served>> served;
  for (const RowsRegime regime : kRowsRegimes) {
    if (uses.batch_invariant && regime != RowsRegime::many) continue;
    const RowsRegime first = uses.batch_invariant ? RowsRegime::lone : regime;
    std::map<std::size_t, std::string> now;
    for (const Alignment alignment : kAlignments) {
      const auto tuned =
          uses.batch_invariant ? std::optional<Plan>() : impl_->tuned.find(spec, device, regime, alignment);
      const Plan plan =
          in_groups(tuned ? *tuned : choose(spec, device, regime, alignment, uses.batch_invariant), spec,
                    uses.grouped_rows);
      std::string& alignments = now[index_of(plan)];
      alignments += concat(
          {alignments.empty() ? "" : " or ", shortest(static_cast<int>(alignment)), tuned ? " (tuned)" : ""});
    }
    for (const auto& [index, alignments] : now) {
      std::vector<Served>& runs = served[index];
      const bool goes_on = !runs.empty() && runs.back().alignments == alignments &&
                           static_cast<int>(runs.back().last) + 1 == static_cast<int>(regime);
      if (goes_on)
        runs.back().last = regime;
      else
        runs.push_back({first, regime, alignments});
    }
  }
  for (const auto& [index, runs] : served)
    for (const Served& run : runs) {
      std::string& text = reports[index].uses;
      text += concat({text.empty() ? "" : "; ", rows_text(run.first, run.last, spec, device),
                      " rows, alignment ", run.alignments});
    }
  for (const Alignment alignment : kAlignments) {
    const Plan plan =
        in_groups(choose(spec, device, RowsRegime::many, alignment, true), spec, uses.grouped_rows);
    std::string& served_uses = reports[index_of(plan)].uses;
    if (served_uses.empty())
      served_uses =
          concat({"batch invariant launches of all rows, alignment ", shortest(static_cast<int>(alignment))});
  }
  for (const Plan& plan : plans(spec, device, uses)) {
    std::string& served_uses = reports[index_of(plan)].uses;
    if (served_uses.empty())
      served_uses = "if the device has no room for blocks that share a row, or another plan is tuned";
  }

  const auto listed = impl_->binaries.cache().list();
  for (WhyReport& report : reports)
    if (auto explained = explain(impl_->binaries, listed, report); !explained) return explained.error();
  return reports;
}

Result<WhyReport> Service::why(const NormSpec& given, const DeviceProfile& device, const Plan& plan) {
  if (auto valid = validate(given); !valid) return valid.error();
  WhyReport report = report_on(canonical(given), device, plan);
  if (auto legal = check(plan, report.spec, device); !legal) return legal.error();
  const auto listed = impl_->binaries.cache().list();
  if (auto explained = explain(impl_->binaries, listed, report); !explained) return explained.error();
  return report;
}

}  // namespace normjit
