#include "normjit/c_api/values.h"

#include <string>
#include <utility>

#include "normjit/base/text.h"

namespace normjit::c_api {
namespace {

Error out_of_range(Code code, std::string_view name, std::int64_t value, std::string_view allowed) {
  return {code, concat({name, " is ", shortest(value), "; it is ", allowed})};
}

// The values of an enumeration or switch in C.
std::string_view allowed(DType) {
  return "NORMJIT_F16 (1), NORMJIT_BF16 (2), NORMJIT_F32 (3), NORMJIT_F64 (4), or 0 for the default";
}
std::string_view allowed(Norm) { return "NORMJIT_LAYER (1), NORMJIT_RMS (2), or 0 for layer"; }
std::string_view allowed(Residual) {
  return "NORMJIT_NO_RESIDUAL (1), NORMJIT_RESIDUAL_BEFORE (2), or 0 for none";
}
std::string_view allowed(Affine) {
  return "NORMJIT_NO_AFFINE (1), NORMJIT_WEIGHT (2), NORMJIT_WEIGHT_BIAS (3), or 0 for none";
}
std::string_view allowed(Activation) {
  return "NORMJIT_NO_ACTIVATION (1) to NORMJIT_SILU (5), or 0 for none";
}
std::string_view allowed(bool) { return "0 or 1"; }

}  // namespace

Error mistake_in(const normjit_spec& given) {
  normjit_spec own;
  const normjit_spec* const s = read(given, own);
  if (s == nullptr) return struct_mistake("normjit_spec", &given);
  Error first = out_of_range(Code::BadArgument, "reserved", s->reserved, "0");
  bool found = false;
  each_member([&](const auto& field, auto in_c) {
    using Value = typename std::decay_t<decltype(field)>::Value;
    if constexpr (std::is_enum_v<Value> || std::is_same_v<Value, bool>)
      if (!found && !is_within(s->*in_c, kLast<Value>)) {
        first = out_of_range(field.mistake, field.name, s->*in_c, allowed(Value{}));
        found = true;
      }
  });
  return first;
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
  normjit_spec all = NORMJIT_SPEC_INIT;
  each_member([&](const auto& field, auto in_c) {
    const auto value = spec.*field.member;
    if constexpr (std::is_enum_v<decltype(value)>)
      all.*in_c = number_of(value);
    else
      all.*in_c = value;
  });
  return write_struct(&all, sizeof all, &to);
}

}  // namespace normjit::c_api
