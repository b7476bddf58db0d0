#include "normjit/codegen/spec_constants.h"

#include <charconv>
#include <cmath>
#include <string>

#include "normjit/base/text.h"
#include "normjit/spec/fields.h"

namespace normjit {
namespace {

std::string constant(bool value, DType) { return value ? "true" : "false"; }
std::string constant(std::int64_t value, DType) { return shortest(value); }
// As the compute type holds it, exactly, and independent of the locale.
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

}  // namespace

std::vector<Placeholder> spec_constants(const NormSpec& spec) {
  const DType compute = compute_type(spec);
  std::vector<Placeholder> all = {
      {"compute", constant(compute, compute)},
      {"has_weight", constant(spec.affine != Affine::none, compute)},
      {"has_bias", constant(spec.affine == Affine::weight_bias, compute)},
  };
  each_field([&](const auto& field) {
    if (!field.constant.empty()) all.push_back({field.constant, constant(spec.*field.member, compute)});
  });
  return all;
}

}  // namespace normjit
