#include "normjit/codegen/generator.h"

#include <charconv>
#include <cmath>
#include <iterator>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/codegen/render.h"
#include "normjit/codegen/templates.h"
#include "normjit/spec/tables.h"

namespace normjit {
namespace {

// Behind the rendered spec.cuh, in this order; the kernel of the strategy comes last.
constexpr std::string_view kShared[] = {"hw.cuh",        "number.cuh",     "layout.cuh",   "reduce.cuh",
                                        "slice.cuh",     "statistics.cuh", "epilogue.cuh", "shift.cuh",
                                        "workspace.cuh", "exchange.cuh"};
constexpr std::string_view kStreamed[] = {"ring.cuh", "singles.cuh"};

// As the compute type holds it, exactly, and independent of the locale.
std::string hexadecimal(double value, DType compute) {
  if (compute == DType::f32) value = static_cast<float>(value);
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, std::fabs(value), std::chars_format::hex).ptr;
  return concat(
      {std::signbit(value) ? "-" : "", "0x", std::string_view(text, static_cast<std::size_t>(end - text))});
}

std::string boolean(bool value) { return value ? "true" : "false"; }

std::vector<Placeholder> constants(const LayerNormSpec& spec, const Plan& plan, Arch arch) {
  const auto storage = [](DType dtype) { return std::string(row_of(dtype)->storage); };
  return {
      {"spec", to_text(spec)},
      {"plan", to_text(plan)},
      {"columns", shortest(spec.columns)},
      {"input", storage(spec.input)},
      {"output", storage(spec.output)},
      {"weight", storage(spec.weight)},
      {"compute", storage(compute_type(spec))},
      {"epsilon", hexadecimal(spec.epsilon, compute_type(spec))},
      {"has_weight", boolean(spec.affine != Affine::none)},
      {"has_bias", boolean(spec.affine == Affine::weight_bias)},
      {"activation", std::string(name(spec.activation))},
      {"scale", hexadecimal(spec.scale, compute_type(spec))},
      {"has_statistics", boolean(spec.statistics)},
      {"arch", shortest(target_of(plan, arch).number)},
      {"threads", shortest(plan.threads)},
      {"lanes", shortest(plan.lanes)},
      {"vector", shortest(plan.vector)},
      {"per_thread", shortest(plan.per_thread)},
      {"group_rows", shortest(plan.group_rows)},
      {"blocks_per_sm", shortest(plan.blocks_per_sm)},
      {"slices", shortest(plan.slices)},
      {"exchange", std::string(name(plan.exchange))},
      {"shifted", boolean(plan.shifted)},
      {"stages", shortest(plan.stages)},
  };
}

}  // namespace

Result<Source> generate(const LayerNormSpec& any, const Plan& plan, Arch arch,
                        const std::string& template_directory) {
  const LayerNormSpec spec = source_spec(plan, any);
  const std::string kernel(name(plan.strategy));
  std::string text;
  const auto append = [&](std::string_view file, std::string_view body) {
    text += concat({"#line 1 \"", file, "\"\n", body});
  };

  const auto frame = template_text(template_directory, "spec.cuh.in");
  if (!frame) return frame.error();
  const auto rendered = render("spec.cuh.in", *frame, constants(spec, plan, arch));
  if (!rendered) return rendered.error();
  append("spec.cuh", *rendered);

  std::vector<std::string> files(std::begin(kShared), std::end(kShared));
  if (plan.strategy == Strategy::streamed_row)
    files.insert(files.end(), std::begin(kStreamed), std::end(kStreamed));
  files.push_back(kernel + ".cu");
  for (const std::string& file : files) {
    const auto body = template_text(template_directory, file);
    if (!body) return body.error();
    append(file, *body);
  }
  return Source{std::move(text), kernel, concat({to_text(spec), " as ", to_text(plan)})};
}

}  // namespace normjit
