// SPDX-License-Identifier: Apache-2.0
#include "normjit/codegen/generator.h"

#include <charconv>
#include <cmath>
#include <iterator>
#include <utility>

#include "normjit/base/digest.h"
#include "normjit/base/text.h"
#include "normjit/codegen/templates.h"
#include "normjit/plan/footprint.h"
#include "normjit/spec/fields.h"
#include "normjit/spec/operands.h"

namespace normjit {
namespace {

// The rendered spec.cuh comes first; then, in this order, the files of every kernel, further files of its
// schedule, and the kernel. channels_first has no row that a thread holds vector by vector, and no fragment.
// warp_rows and staged_rows share no row between blocks. Without the files for that they compile faster, by
// 1 % and 0.6 %.
constexpr std::string_view kAlways[] = {
    "hw.cuh",           "plan_math.cuh", "number.cuh",        "layout.cuh",       "reduce.cuh",
    "op/functions.cuh", "op/source.cuh", "op/statistics.cuh", "op/quantizer.cuh", "op/sink.cuh"};
constexpr std::string_view kFurther[] = {"schedule/fragment.cuh",  "schedule/workspace.cuh",
                                         "schedule/unaligned.cuh", "schedule/exchange.cuh",
                                         "schedule/ring.cuh",      "schedule/unaligned_ring.cuh"};

// What gradients have besides; the generic kernel only the first.
constexpr std::string_view kGradients[] = {"op/derivatives.cuh", "op/gradients.cuh"};

// How many files of kFurther a schedule has.
std::size_t further(Strategy strategy) {
  switch (strategy) {
    case Strategy::channels_first:
      return 0;
    case Strategy::gradient_rows:
    case Strategy::gradient_ring:
    case Strategy::gradient_columns:
    case Strategy::warp_rows:
    case Strategy::staged_rows:
    case Strategy::generic:
      return 2;
    case Strategy::persistent_row:
      return std::size(kFurther);
    default:
      return 4;
  }
}

// "normjit_block_row_layernorm_cols_4096_bf16_eps_1e_05_wb": the name that profilers show. Long specs are
// cut.
std::string entry_name(const NormSpec& spec, const Plan& plan) {
  constexpr std::size_t kMostOfSpec = 80;
  std::string text = to_text(spec).substr(0, kMostOfSpec);
  for (char& c : text)
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))) c = '_';
  return concat({"normjit_", name(plan.strategy), "_", text});
}

// The members of struct Operands in spec.cuh.in: "const Input* x; Rows x_rows;". The generic kernels have
// those of all operands.
std::string operands_text(const NormSpec& spec, const Plan& plan) {
  const bool all = plan.strategy == Strategy::generic;
  const std::string_view rows = has_grouped_addresses(plan, spec) ? " GroupedRows " : " Rows ";
  std::string text;
  for (const OperandRow& row : kOperands) {
    if (!all && !row.present(spec)) continue;
    text += concat({text.empty() ? "" : " ", row.output ? "" : "const ", row.storage, "* ", row.name, ";"});
    if (all ? has_rows(row) : is_matrix(row, spec)) text += concat({rows, row.name, "_rows;"});
  }
  return text;
}

std::string constant(bool value, DType) { return value ? "true" : "false"; }
std::string constant(std::int64_t value, DType) { return shortest(value); }
// The exact value in the compute type, independent of the locale.
std::string constant(double value, DType compute) {
  if (compute == DType::f32) value = static_cast<float>(value);
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, std::fabs(value), std::chars_format::hex).ptr;
  return concat(
      {std::signbit(value) ? "-" : "", "0x", std::string_view(text, static_cast<std::size_t>(end - text))});
}
template <class Enum>
std::string constant(Enum value, DType) {
  return std::string(row_of(value)->constant);
}

// The values of all placeholders, for a canonical spec.
std::vector<Placeholder> constants(const NormSpec& spec, const Plan& plan, Arch arch) {
  const DType compute = compute_type(spec);
  std::vector<Placeholder> all = {
      {"compute", constant(compute, compute)},
      {"also_type", constant(also_type(spec), compute)},
      {"block_scale", block_scale_type(spec) == DType::f32 ? "float" : "unsigned char"},
      {"has_weight", constant(spec.affine != Affine::none, compute)},
      {"has_bias", constant(spec.affine == Affine::weight_bias, compute)},
      {"writes_dx", constant(writes_dx(spec), compute)},
      {"writes_dweight", constant(writes_dweight(spec), compute)},
      {"writes_dbias", constant(writes_dbias(spec), compute)},
      {"grouped_rows", constant(has_grouped_addresses(plan, spec), compute)},
      {"spec", to_text(spec)},
      {"operands", operands_text(spec, plan)},
      {"entry", entry_name(spec, plan)},
      {"plan", to_text(plan)},
      {"arch", shortest(target_of(plan, spec, arch).number)},
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
  };
  each_field([&](const auto& field) {
    if (!field.constant.empty()) all.push_back({field.constant, constant(spec.*field.member, compute)});
  });
  return all;
}

// The planner is compiled with plan_math.cuh. Kernels of another version would be launched with a wrong
// shape.
Result<void> check_plan_math(const std::string& template_directory) {
  constexpr std::string_view kName = "plan_math.cuh";
  if (template_directory.empty()) return {};
  const auto compiled = find_template({}, kName), given = find_template(template_directory, kName);
  if (!compiled) return compiled.error();
  if (!given) return given.error();
  if (compiled->view() == given->view()) return {};
  return Error{
      Code::BadTemplate,
      concat({template_directory, "/", kName,
              " differs from the version that is compiled into the planner of this library; build the "
              "library with the new version"})};
}

}  // namespace

std::string Draft::digest() const {
  std::string all;
  for (const File& file : files) all += concat({file.name, " ", file.text.digest(), "\n"});
  return normjit::digest(all);
}

// Each file has a #line directive in front of it. Reserves the whole text before it copies the files.
Source Draft::source() const {
  constexpr std::string_view kLine = "#line 1 \"", kEnd = "\"\n";
  std::size_t size = 0;
  for (const File& file : files)
    size += kLine.size() + file.name.size() + kEnd.size() + file.text.view().size();
  std::string text;
  text.reserve(size);
  for (const File& file : files) ((((text += kLine) += file.name) += kEnd) += file.text.view());
  return {std::move(text), kernel, description};
}

Result<Draft> draft(const NormSpec& any, const Plan& plan, Arch arch, const std::string& template_directory) {
  const NormSpec spec = source_spec(plan, any);
  std::vector<std::string> names(std::begin(kAlways), std::end(kAlways));
  names.insert(names.end(), kFurther, kFurther + further(plan.strategy));
  const bool generic = plan.strategy == Strategy::generic;
  if (spec.backward) names.insert(names.end(), std::begin(kGradients), std::end(kGradients) - generic);
  if (generic) names.push_back("schedule/generic.cuh");
  names.push_back(
      concat({"schedule/", name(plan.strategy), generic && spec.backward ? "_gradients" : "", ".cu"}));

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
  const auto files = draft(spec, plan, arch, template_directory);
  if (!files) return files.error();
  return files->source();
}

}  // namespace normjit
