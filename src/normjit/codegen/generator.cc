#include "normjit/codegen/generator.h"

#include <iterator>
#include <utility>

#include "normjit/base/digest.h"
#include "normjit/base/text.h"
#include "normjit/codegen/render.h"
#include "normjit/codegen/spec_constants.h"
#include "normjit/spec/operands.h"

namespace normjit {
namespace {

// Behind the rendered spec.cuh, in this order: what every kernel has, what its strategy has besides, and the
// kernel. Warp and staged rows share none between blocks, and leaving out what only those use that do takes
// 1.5 % and 0.6 % off the compile.
constexpr std::string_view kAlways[] = {
    "hw.cuh",        "plan_math.cuh",     "number.cuh",  "layout.cuh",           "reduce.cuh",
    "op/source.cuh", "op/statistics.cuh", "op/sink.cuh", "schedule/fragment.cuh"};
constexpr std::string_view kBesides[] = {"schedule/unaligned.cuh", "schedule/workspace.cuh",
                                         "schedule/exchange.cuh", "schedule/ring.cuh", "schedule/scalar.cuh"};

// How many of kBesides.
std::size_t besides(Strategy strategy) {
  switch (strategy) {
    case Strategy::warp_rows:
      return 0;
    case Strategy::staged_rows:
      return 1;
    case Strategy::persistent_row:
      return std::size(kBesides);
    default:
      return 3;
  }
}

// "normjit_block_row_layernorm_cols_4096_bf16_eps_1e_05_wb": what profilers show. A spec of more than so many
// characters is cut.
std::string entry_name(const NormSpec& spec, const Plan& plan) {
  constexpr std::size_t kMostOfSpec = 80;
  std::string text = to_text(spec).substr(0, kMostOfSpec);
  for (char& c : text)
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))) c = '_';
  return concat({"normjit_", name(plan.strategy), "_", text});
}

// The members of struct Operands that spec.cuh.in leaves to the table: "const Input* x; long long x_stride;".
// The generic kernel has all of them.
std::string operands_text(const NormSpec& spec, bool all) {
  std::string text;
  for (const OperandRow& row : kOperands) {
    if (!all && !row.present(spec)) continue;
    text += concat({text.empty() ? "" : " ", row.output ? "" : "const ", row.storage, "* ", row.name, ";"});
    if (row.extent == Extent::matrix) text += concat({" long long ", row.name, "_stride;"});
  }
  return text;
}

std::vector<Placeholder> constants(const NormSpec& spec, const Plan& plan, Arch arch) {
  std::vector<Placeholder> all = spec_constants(spec);
  all.insert(all.end(), {
                            {"spec", to_text(spec)},
                            {"operands", operands_text(spec, plan.strategy == Strategy::generic)},
                            {"entry", entry_name(spec, plan)},
                            {"plan", to_text(plan)},
                            {"arch", shortest(target_of(plan, arch).number)},
                            {"threads", shortest(plan.threads)},
                            {"threads_per_row", shortest(plan.threads_per_row)},
                            {"vector", shortest(plan.vector)},
                            {"per_thread", shortest(plan.per_thread)},
                            {"group_rows", shortest(plan.group_rows)},
                            {"blocks_per_sm", shortest(plan.blocks_per_sm)},
                            {"blocks_per_row", shortest(plan.blocks_per_row)},
                            {"exchange", std::string(name(plan.exchange))},
                            {"unaligned", plan.unaligned ? "true" : "false"},
                            {"stages", shortest(plan.stages)},
                        });
  return all;
}

// The planner has been compiled with one plan_math.cuh; kernels with another would not be launched as they
// need.
Result<void> check_plan_math(const std::string& template_directory) {
  constexpr std::string_view kName = "plan_math.cuh";
  if (template_directory.empty()) return {};
  const auto compiled = find_template({}, kName), given = find_template(template_directory, kName);
  if (!compiled) return compiled.error();
  if (!given) return given.error();
  if (compiled->view() == given->view()) return {};
  return Error{Code::BadTemplate,
               concat({template_directory, "/", kName,
                       " differs from the one that this library was built with, and the planner uses that; "
                       "build the library with the new one"})};
}

}  // namespace

std::vector<std::string_view> Draft::pieces() const {
  std::vector<std::string_view> all;
  all.reserve(4 * files.size());
  for (const File& file : files) all.insert(all.end(), {"#line 1 \"", file.name, "\"\n", file.text.view()});
  return all;
}

std::string Draft::digest() const { return normjit::digest(pieces()); }

// Written once, into memory of the right size.
Source Draft::source() const {
  const std::vector<std::string_view> all = pieces();
  std::size_t size = 0;
  for (const std::string_view piece : all) size += piece.size();
  std::string text;
  text.reserve(size);
  for (const std::string_view piece : all) text += piece;
  return {std::move(text), kernel, description};
}

Result<Draft> draft(const NormSpec& any, const Plan& plan, Arch arch, const std::string& template_directory) {
  const NormSpec spec = source_spec(plan, any);
  std::vector<std::string> names(std::begin(kAlways), std::end(kAlways));
  names.insert(names.end(), kBesides, kBesides + besides(plan.strategy));
  names.push_back(concat({"schedule/", name(plan.strategy), ".cu"}));

  Draft result{entry_name(spec, plan), concat({to_text(spec), " as ", to_text(plan)}), {}};
  result.files.reserve(1 + names.size());
  if (auto same = check_plan_math(template_directory); !same) return same.error();
  const auto frame = find_template(template_directory, "spec.cuh.in");
  if (!frame) return frame.error();
  auto rendered = render("spec.cuh.in", frame->view(), constants(spec, plan, arch));
  if (!rendered) return rendered.error();
  result.files.push_back({"spec.cuh", {*std::move(rendered), {}}});
  for (std::string& file : names) {
    auto text = find_template(template_directory, file);
    if (!text) return text.error();
    result.files.push_back({std::move(file), *std::move(text)});
  }
  return result;
}

Result<Source> generate(const NormSpec& spec, const Plan& plan, Arch arch,
                        const std::string& template_directory) {
  const auto pieces = draft(spec, plan, arch, template_directory);
  if (!pieces) return pieces.error();
  return pieces->source();
}

}  // namespace normjit
