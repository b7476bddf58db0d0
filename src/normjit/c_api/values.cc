#include "normjit/c_api/values.h"

#include <string>
#include <utility>

#include "normjit/base/text.h"

namespace normjit::c_api {
namespace {

Error out_of_range(Code code, std::string_view name, std::int64_t value, std::string_view allowed) {
  return {code, concat({name, " is ", shortest(value), "; it is ", allowed})};
}

constexpr std::string_view kDTypes =
    "NORMJIT_F16 (1), NORMJIT_BF16 (2), NORMJIT_F32 (3), NORMJIT_F64 (4), or 0 for the default";

}  // namespace

Error mistake_in(const normjit_spec& given) {
  normjit_spec own;
  const normjit_spec* const s = read(given, own);
  if (s == nullptr) return struct_mistake("normjit_spec", &given);
  for (const auto& [name, dtype] :
       {std::pair{"input", s->input}, std::pair{"output", s->output}, std::pair{"weight", s->weight}})
    if (!is_within(dtype, NORMJIT_F64)) return out_of_range(Code::BadDType, name, dtype, kDTypes);
  if (!is_within(s->affine, NORMJIT_WEIGHT_BIAS))
    return out_of_range(Code::BadAffine, "affine", s->affine,
                        "NORMJIT_NO_AFFINE (1), NORMJIT_WEIGHT (2), NORMJIT_WEIGHT_BIAS (3), or 0 for none");
  if (!is_within(s->activation, NORMJIT_SILU))
    return out_of_range(Code::BadActivation, "activation", s->activation,
                        "NORMJIT_NO_ACTIVATION (1) to NORMJIT_SILU (5), or 0 for none");
  return out_of_range(Code::BadArgument, "statistics", s->statistics, "0 or 1");
}

Error mistake_in(const normjit_tensors& given) { return struct_mistake("normjit_tensors", &given); }

Error mistake_in(const normjit_launch_options& given) {
  normjit_launch_options own;
  const normjit_launch_options* const o = read(given, own);
  if (o == nullptr) return struct_mistake("normjit_launch_options", &given);
  if (!is_within(o->overlap_previous, 1))
    return out_of_range(Code::BadArgument, "overlap_previous", o->overlap_previous, "0 or 1");
  return out_of_range(Code::BadArgument, "miss_in_capture", o->miss_in_capture, "0 or 1");
}

Result<NormSpec> spec_of(const normjit_spec* given) {
  if (given == nullptr) return null("spec");
  NormSpec spec;
  if (!convert(*given, spec)) return mistake_in(*given);
  return spec;
}

Result<Tensors> tensors_of(const normjit_tensors* given) {
  if (given == nullptr) return null("tensors");
  Tensors tensors;
  if (!convert(*given, tensors)) return mistake_in(*given);
  return tensors;
}

Result<PrepareOptions> prepare_options_of(const normjit_prepare_options* given) {
  PrepareOptions options;
  if (given == nullptr) return options;
  normjit_prepare_options own;
  const normjit_prepare_options* const o = read(*given, own);
  if (o == nullptr) return struct_mistake("normjit_prepare_options", given);
  options.device = o->device;
  options.rows_hint = o->rows_hint;
  if (o->pointer_alignment != 0) options.pointer_alignment = o->pointer_alignment;
  options.x_row_stride = o->x_row_stride;
  options.y_row_stride = o->y_row_stride;
  if (o->plan != nullptr) {
    const auto plan = parse_plan(o->plan);
    if (!plan) return plan.error();
    options.plan = *plan;
  }
  return options;
}

std::vector<std::string> paths_of(std::string_view list) {
  std::vector<std::string> paths;
  for (const std::string_view path : split(list, ':'))
    if (!path.empty()) paths.emplace_back(path);
  return paths;
}

bool write(const NormSpec& spec, normjit_spec& to) noexcept {
  const normjit_spec all = {.struct_size = sizeof all,
                            .columns = spec.columns,
                            .epsilon = spec.epsilon,
                            .scale = spec.scale,
                            .input = number_of(spec.input),
                            .output = number_of(spec.output),
                            .weight = number_of(spec.weight),
                            .affine = number_of(spec.affine),
                            .activation = number_of(spec.activation),
                            .statistics = spec.statistics};
  return write_struct(&all, sizeof all, &to);
}

}  // namespace normjit::c_api
