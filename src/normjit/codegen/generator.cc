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

// Behind the rendered spec.cuh, in this order: what every kernel has, what its strategy has besides, and the
// kernel. Packed and tiled rows share none between blocks, and leaving out what only those use that do takes
// 1.5 % and 0.6 % off the compile.
constexpr std::string_view kAlways[] = {"hw.cuh",    "number.cuh",     "layout.cuh",  "reduce.cuh",
                                        "slice.cuh", "statistics.cuh", "epilogue.cuh"};
constexpr std::string_view kBesides[] = {"shift.cuh", "workspace.cuh", "exchange.cuh", "ring.cuh",
                                         "singles.cuh"};

// How many of kBesides.
std::size_t besides(Strategy strategy) {
  switch (strategy) {
    case Strategy::packed_rows:
      return 0;
    case Strategy::tiled_rows:
      return 1;
    case Strategy::streamed_row:
      return std::size(kBesides);
    default:
      return 3;
  }
}

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
  const std::string kernel(name(plan.strategy)), last = kernel + ".cu";
  std::vector<std::string_view> files(std::begin(kAlways), std::end(kAlways));
  files.insert(files.end(), kBesides, kBesides + besides(plan.strategy));
  files.push_back(last);

  const auto frame = find_template(template_directory, "spec.cuh.in");
  if (!frame) return frame.error();
  const auto rendered = render("spec.cuh.in", frame->view(), constants(spec, plan, arch));
  if (!rendered) return rendered.error();
  std::vector<TemplateText> bodies;
  std::size_t size = rendered->size();
  for (const std::string_view file : files) {
    auto body = find_template(template_directory, file);
    if (!body) return body.error();
    size += body->view().size();
    bodies.push_back(*std::move(body));
  }

  // Written once, into memory of the right size: of a cold process's 145 us for text and digest this took 60.
  constexpr std::size_t kDirective = 40;  // "#line 1 ..." and its file
  std::string text;
  text.reserve(size + (files.size() + 1) * kDirective);
  const auto append = [&](std::string_view file, std::string_view body) {
    text.append("#line 1 \"").append(file).append("\"\n").append(body);
  };
  append("spec.cuh", *rendered);
  for (std::size_t i = 0; i < files.size(); ++i) append(files[i], bodies[i].view());
  return Source{std::move(text), kernel, concat({to_text(spec), " as ", to_text(plan)})};
}

}  // namespace normjit
