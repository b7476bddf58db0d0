// SPDX-License-Identifier: Apache-2.0
#include "normjit/c_api/values.h"

#include <string>
#include <utility>

#include "normjit/base/text.h"

namespace normjit::c_api {
namespace {

// The values of an enumeration or switch in C.
std::string_view allowed(DType) {
  return "NORMJIT_F16 (1) to NORMJIT_F64 (4), for y up to NORMJIT_S8 (7), or 0 for the default";
}
std::string_view allowed(Norm) { return "NORMJIT_LAYER (1), NORMJIT_RMS (2), or 0 for layer"; }
std::string_view allowed(Gate) {
  return "NORMJIT_NO_GATE (1), NORMJIT_GATE_BEFORE (2), NORMJIT_GATE_AFTER (3), or 0 for none";
}
std::string_view allowed(GateFunction) {
  return "NORMJIT_NO_GATE_FUNCTION (1) to NORMJIT_GATE_TANH (4), or 0 for none";
}
std::string_view allowed(Modulation) {
  return "NORMJIT_NO_MODULATION (1), NORMJIT_MOD_SCALE (2), NORMJIT_MOD_SCALE_SHIFT (3), or 0 for none";
}
std::string_view allowed(Residual) {
  return "NORMJIT_NO_RESIDUAL (1), NORMJIT_RESIDUAL_BEFORE (2), NORMJIT_RESIDUAL_AFTER (3), or 0 for none";
}
std::string_view allowed(Rounding) {
  return "NORMJIT_NO_ROUNDING (1) to NORMJIT_ROUND_SUM_NORM_Y (8), or 0 for none";
}
std::string_view allowed(Quantization) {
  return "NORMJIT_NO_QUANTIZATION (1) to NORMJIT_QUANTIZE_BY_BLOCK_128 (7), or 0 for none";
}
std::string_view allowed(ScaleFormat) {
  return "NORMJIT_SCALE_F32 (1) to NORMJIT_SCALE_E4M3 (4), or 0 for f32";
}
std::string_view allowed(ScaleLayout) {
  return "NORMJIT_SCALE_LAYOUT_ROWS (1) to NORMJIT_SCALE_LAYOUT_SWIZZLED (4), or 0 for rows";
}
std::string_view allowed(Also) { return "NORMJIT_NO_ALSO (1) to NORMJIT_ALSO_F32 (4), or 0 for none"; }
std::string_view allowed(Need) { return "NORMJIT_NEED_ALL (1) to NORMJIT_NEED_DBIAS (7), or 0 for all"; }
std::string_view allowed(Affine) {
  return "NORMJIT_NO_AFFINE (1), NORMJIT_WEIGHT (2), NORMJIT_WEIGHT_BIAS (3), or 0 for none";
}
std::string_view allowed(Activation) {
  return "NORMJIT_NO_ACTIVATION (1) to NORMJIT_SILU (5), or 0 for none";
}
std::string_view allowed(bool) { return "0 or 1"; }

}  // namespace

Error mistake_in(const normjit_launch_options& given) {
  const auto options = struct_of("normjit_launch_options", given);
  if (!options) return options.error();
  if (!is_within(options->overlap_previous, 1))
    return out_of_range("overlap_previous", options->overlap_previous, "0 or 1");
  return out_of_range("miss_in_capture", options->miss_in_capture, "0 or 1");
}

Result<NormSpec> spec_of(const normjit_spec* given) {
  if (given == nullptr) return null("spec");
  if (NormSpec spec; convert(*given, spec)) return spec;
  const auto own = struct_of("normjit_spec", *given);
  if (!own) return own.error();
  Error first;
  bool found = false;
  each_member([&](const auto& field, auto in_c) {
    using Value = typename std::decay_t<decltype(field)>::Value;
    if constexpr (std::is_enum_v<Value> || std::is_same_v<Value, bool>)
      if (const std::int32_t value = *own.*in_c; !found && !is_within(value, kLast<Value>)) {
        first = out_of_range(field.name, value, allowed(Value{}), field.mistake);
        found = true;
      }
  });
  return first;
}

Result<NormSpec> valid_spec_of(const normjit_spec* given) {
  auto spec = spec_of(given);
  if (spec)
    if (auto valid = validate(*spec); !valid) return valid.error();
  return spec;
}

Result<Tensors> tensors_of(const normjit_tensors* given) {
  if (given == nullptr) return null("tensors");
  if (Tensors tensors; convert(*given, tensors)) return tensors;
  return struct_mistake("normjit_tensors", given);
}

Result<PrepareOptions> prepare_options_of(const normjit_prepare_options* given) {
  PrepareOptions options;
  if (given == nullptr) return options;
  const auto own = struct_of("normjit_prepare_options", *given);
  if (!own) return own.error();
  options.device = own->device;
  options.rows_hint = own->rows_hint;
  if (own->pointer_alignment != 0) options.pointer_alignment = own->pointer_alignment;
  options.x_row_stride = own->x_row_stride;
  options.y_row_stride = own->y_row_stride;
  options.plane = own->plane;
  for (const auto& [name, value, to] :
       {std::tuple{"grouped_rows", own->grouped_rows, &PrepareOptions::grouped_rows},
        std::tuple{"batch_invariant", own->batch_invariant, &PrepareOptions::batch_invariant}}) {
    if (!is_within(value, 1)) return out_of_range(name, value, "0 or 1");
    options.*to = value != 0;
  }
  if (own->plan != nullptr) {
    const auto plan = parse_plan(own->plan);
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
    auto& member = all.*in_c;
    if constexpr (std::is_enum_v<decltype(value)>) {
      // 0 is the default, also to a caller whose structure ends before this member.
      const auto at = reinterpret_cast<const char*>(&member) - reinterpret_cast<const char*>(&all);
      const bool is_known = static_cast<std::size_t>(at) < to.struct_size;
      member = is_known || value != field.default_for(spec) ? number_of(value) : 0;
    } else {
      member = value;
    }
  });
  return write_struct(&all, sizeof all, &to);
}

}  // namespace normjit::c_api
