// SPDX-License-Identifier: Apache-2.0
// A libnormjit for tests of the drop-ins on a machine without a GPU: the launch computes at once, on host
// memory, in f64 with the roundings of the spec, and the tests set what else it answers. Only what the
// drop-ins call is here. Specs, their texts and their operands are the library's own.
#include <normjit/c_api/values.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <normjit/service/packed_tensors.h>
#include <normjit/spec/valid.h>
#include <verify/element.h>
#include <verify/gradients.h>
#include <verify/reference.h>

using namespace normjit;

// Set and read by the tests.
extern "C" {
#pragma GCC visibility push(default)
std::int32_t fake_next_status = 0;     // of the next launch, instead of it
std::int32_t fake_prepare_status = 0;  // of every prepare, likewise
std::int32_t fake_idle = 0;            // 1: launches return at once
std::int64_t fake_workspace_bytes = 0, fake_launches = 0, fake_prepares = 0;
std::int64_t fake_captured_misses = 0;  // launches that allow them
// Of the last launch: the row stride of x, the workspace, the text of the spec, the address of each operand
// in the order of the table, and whether its service was one for batch invariance.
std::int64_t fake_row_stride = 0;
const void* fake_workspace = nullptr;
char fake_spec[512] = "";
const void* fake_operands[kOperandCount] = {};
std::int32_t fake_batch_invariant = 0;
#pragma GCC visibility pop
}

namespace {

double load(const void* base, DType dtype, std::int64_t i) {
  double value;
  oracle::load(dtype, base, i, 1, &value);
  return value;
}
void store(void* base, DType dtype, std::int64_t i, double value) {
  oracle::store(dtype, base, i, 1, &value);
}

double activated(double v, Activation activation) {
  switch (activation) {
    case Activation::relu:
      return v < 0 ? 0 : v;
    case Activation::gelu:
      return 0.5 * v * (1 + std::erf(v * std::sqrt(0.5)));
    case Activation::gelu_tanh:
      return 0.5 * v * (1 + std::tanh(std::sqrt(2 / std::acos(-1)) * (v + 0.044715 * v * v * v)));
    case Activation::silu:
      return v / (1 + std::exp(-v));
    default:
      return v;
  }
}

double through(double v, GateFunction function) {
  switch (function) {
    case GateFunction::silu:
      return activated(v, Activation::silu);
    case GateFunction::sigmoid:
      return 1 / (1 + std::exp(-v));
    case GateFunction::tanh:
      return std::tanh(v);
    default:
      return v;
  }
}

struct RowNumber {
  std::int64_t row, of;
};

// The operands of one row.
class Row {
 public:
  Row(const NormSpec& spec, const Tensors& tensors, std::int64_t row) : spec_(spec) {
    for (const OperandRow& operand : kOperands) {
      std::int64_t begin = operand.extent == Extent::rows ? row : 0;
      step_[operand.operand] = 1;
      if (is_matrix(operand, spec) && spec.channels_first) {
        const std::int64_t plane = tensors.plane, outer = outer_of(tensors, operand);
        begin = row / plane * (outer == kContiguous ? spec.columns * plane : outer) + row % plane;
        step_[operand.operand] = plane;
      } else if (is_matrix(operand, spec)) {
        const std::int64_t n = std::max<std::int64_t>(n_of(tensors, operand), 1);
        const std::int64_t outer = outer_of(tensors, operand), inner = inner_of(tensors, operand);
        begin = outer == kContiguous ? row * row_elements(operand, spec) : row / n * outer + row % n * inner;
      }
      auto* const pointer = static_cast<std::byte*>(const_cast<void*>(pointer_of(tensors, operand)));
      address_[operand.operand] = pointer ? pointer + begin * size_of(operand.dtype(spec)) : nullptr;
    }
  }

  bool has(Operand operand) const { return address_[operand] != nullptr; }
  // For the reference: every operand of a spec without channels first.
  oracle::RowInputs inputs() const {
    oracle::RowInputs all{};
    for (const OperandRow& operand : kOperands) all[operand.operand] = address_[operand.operand];
    return all;
  }
  // An element, or `otherwise` where there is no such operand.
  double get(Operand operand, std::int64_t i, double otherwise = 0) const {
    return has(operand) ? load(address_[operand], row_of(operand).dtype(spec_), i * step_[operand])
                        : otherwise;
  }
  void put(Operand operand, std::int64_t i, double value) const {
    if (has(operand)) store(address_[operand], row_of(operand).dtype(spec_), i * step_[operand], value);
  }

 private:
  const NormSpec& spec_;
  PerOperand<std::byte*> address_{};
  PerOperand<std::int64_t> step_{};  // from a column to the next
};

// The largest magnitude of values; NaN if one is.
double largest_of(const double* values, std::int64_t count) {
  double largest = 0;
  for (std::int64_t i = 0; i < count && !std::isnan(largest); ++i)
    if (!(std::fabs(values[i]) <= largest)) largest = std::fabs(values[i]);
  return largest;
}

// Writes results, and what is known of them.
void put_results(const NormSpec& spec, const Row& row, const RowNumber& number, std::vector<double>& y,
                 double& largest) {
  const std::int64_t piece = scales_blocks(spec) ? block_columns(spec) : spec.columns;
  for (double& value : y)
    value = is_narrow(spec.output) ? oracle::before_quantization(spec, value)
                                   : oracle::rounded(spec.output, value);
  const double all[] = {largest, largest_of(y.data(), spec.columns)};
  largest = largest_of(all, 2);
  for (std::int64_t first = 0; first < spec.columns; first += piece) {
    double scale = row.get(Operand::tensor_scale, 0, 1);
    if (scales_rows(spec) || scales_blocks(spec)) {
      const double given = row.get(scales_rows(spec) ? Operand::upper_bound : Operand::global_scale, 0, 1);
      scale = oracle::scale_for(spec, largest_of(&y[first], piece), given);
      row.put(Operand::row_scale, 0, scale);
      row.put(Operand::block_scale, scale_place(spec, number.of, number.row, first / piece), scale);
      if (row.has(Operand::global_scale)) scale = oracle::factor_of(scale, given);
    }
    for (std::int64_t i = first; i < first + piece; ++i) {
      row.put(Operand::also, i, y[i]);
      row.put(Operand::y, i, is_narrow(spec.output) ? oracle::quantized(spec, y[i], scale) : y[i]);
    }
  }
}

// What is missing in a sum is -0, which keeps the sign of a zero.
void compute(const NormSpec& spec, const Row& row, const RowNumber& number, std::vector<double>& s,
             double& largest) {
  const std::int64_t n = spec.columns;
  const auto gate = [&](std::int64_t i) {
    return through(row.get(Operand::gate, i) + row.get(Operand::gate_table, i), spec.gate_function);
  };
  for (std::int64_t i = 0; i < n; ++i) {
    s[i] = row.get(Operand::x, i) + row.get(Operand::in_bias, i, -0.0);
    if (spec.gate == Gate::before) s[i] *= gate(i);
    if (spec.residual == Residual::before) s[i] += row.get(Operand::residual, i);
    if (rounds_sum(spec)) s[i] = oracle::rounded(sum_type(spec), s[i]);
  }
  double mean = 0, squares = 0;
  if (spec.norm == Norm::layer)
    for (const double value : s) mean += value / n;
  for (const double value : s) squares += (value - mean) * (value - mean) / n;
  const double rstd = 1 / std::sqrt(squares + spec.epsilon);
  for (std::int64_t i = 0; i < n; ++i) {
    double v = (s[i] - mean) * rstd;
    if (rounds_norm(spec)) v = oracle::rounded(spec.input, v);
    if (row.has(Operand::weight)) v *= row.get(Operand::weight, i) + (spec.weight_offset ? 1 : -0.0);
    v += row.get(Operand::bias, i, -0.0);
    if (spec.modulation != Modulation::none)
      v *= row.get(Operand::mod_scale, i) + row.get(Operand::mod_scale_table, i) +
           (spec.plain_modulation ? 0 : 1);
    v += row.get(Operand::mod_shift, i, -0.0) + row.get(Operand::mod_shift_table, i, -0.0);
    v = activated(v, spec.activation) * spec.scale;
    if (spec.gate == Gate::after) v *= gate(i);
    // sum may be the residual itself, and y may be x
    if (spec.residual == Residual::after) v += row.get(Operand::residual, i);
    row.put(Operand::sum, i, s[i]);
    s[i] = v;
  }
  put_results(spec, row, number, s, largest);
  row.put(Operand::mean, 0, mean);
  row.put(Operand::rstd, 0, rstd);
}

// All rows of a backward spec. dx may be dy, and dgate the gate.
void compute_gradients(const NormSpec& spec, const Tensors& tensors) {
  const auto columns = static_cast<std::size_t>(spec.columns);
  std::vector<double> dweight(columns), dbias(columns), dscale(columns), dshift(columns);
  std::vector<oracle::GradientValue> dx(columns), dgate(columns);
  std::vector<oracle::ModulationGradient> modulated(columns);
  const bool has_dgate = row_of(Operand::dgate).present(spec);
  const bool shares_rows = tensors.dmod_scale.n > 1 && tensors.dmod_scale.inner == 0;
  const std::int64_t shared = shares_rows ? tensors.dmod_scale.n : 1;
  for (std::int64_t number = 0; number < tensors.rows; ++number) {
    const Row row(spec, tensors, number);
    const oracle::RowGradients gradients = oracle::row_gradients(spec, row.inputs());
    oracle::reference_dx(spec, row.inputs(), gradients, 0, spec.columns, dx.data(),
                         has_dgate ? dgate.data() : nullptr, modulated.data());
    if (number % shared == 0) dscale.assign(columns, 0), dshift.assign(columns, 0);
    for (std::size_t i = 0; i < columns; ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const double gate =
          row.has(Operand::gate) ? oracle::gate_factor(spec.gate_function, row.get(Operand::gate, at)) : 1;
      const double s = row.get(Operand::x, at) * (spec.gate == Gate::before ? gate : 1);
      const double n = (s - gradients.statistics.mean) * gradients.statistics.rstd;
      const double factor =
          row.has(Operand::mod_scale) ? row.get(Operand::mod_scale, at) + !spec.plain_modulation : 1;
      const double da = modulated[i].shift.value * factor;
      dscale[i] += modulated[i].scale.value;
      dshift[i] += modulated[i].shift.value;
      dweight[i] += da * n;
      dbias[i] += da;
    }
    for (std::size_t i = 0; i < columns; ++i) {
      row.put(Operand::dx, static_cast<std::int64_t>(i), dx[i].value);
      row.put(Operand::dgate, static_cast<std::int64_t>(i), dgate[i].value);
      row.put(Operand::dmod_scale, static_cast<std::int64_t>(i), dscale[i]);
      row.put(Operand::dmod_shift, static_cast<std::int64_t>(i), dshift[i]);
    }
  }
  const Row first(spec, tensors, 0);
  for (std::size_t i = 0; i < columns; ++i) {
    first.put(Operand::dweight, static_cast<std::int64_t>(i), dweight[i]);
    first.put(Operand::dbias, static_cast<std::int64_t>(i), dbias[i]);
  }
}

bool is_zero(const void* workspace) {
  const char* bytes = static_cast<const char*>(workspace);
  const std::size_t zeroed = std::min<std::size_t>(fake_workspace_bytes, NORMJIT_WORKSPACE_ZEROED);
  return !bytes || std::all_of(bytes, bytes + zeroed, [](char byte) { return byte == 0; });
}

normjit_status refuse(normjit_status status, const std::string& text, char** error) {
  if (error) *error = strdup(text.c_str());
  return status;
}

// Two services: one of them for batch invariance.
int g_services[2];

}  // namespace

std::uint32_t normjit_abi_version() { return NORMJIT_ABI_VERSION; }
const char* normjit_version() { return "0.0.0"; }
const char* normjit_status_name(normjit_status) { return "Fake"; }
const char* normjit_status_message(normjit_status) { return "The fake says so."; }

normjit_status normjit_spec_parse(const char* text, normjit_spec* spec, char** error) {
  const auto parsed = parse_spec(text);
  if (!parsed) return c_api::answer(parsed.error(), error);
  c_api::each_member([&](const auto& field, auto in_c) {
    const auto value = (*parsed).*field.member;
    if constexpr (std::is_enum_v<decltype(value)>)
      spec->*in_c = c_api::number_of(value);
    else
      spec->*in_c = value;
  });
  return NORMJIT_OK;
}

normjit_status normjit_spec_text(const normjit_spec* given, char** text, char** error) {
  NormSpec spec;
  if (!c_api::convert(*given, spec))
    return refuse(NORMJIT_BAD_ARGUMENT, "The fake was called wrongly.", error);
  if (const auto valid = validate(spec); !valid) return c_api::answer(valid.error(), error);
  *text = strdup(to_text(spec).c_str());
  return NORMJIT_OK;
}

normjit_status normjit_block_scale_shape(const normjit_spec* given, std::int64_t rows, std::int64_t* shape,
                                         std::size_t* rank, char** error) {
  NormSpec spec;
  if (!c_api::convert(*given, spec))
    return refuse(NORMJIT_BAD_ARGUMENT, "The fake was called wrongly.", error);
  const std::vector<std::int64_t> found = block_scale_shape(spec, rows).value();
  *rank = found.size();
  std::copy(found.begin(), found.end(), shape);
  return NORMJIT_OK;
}

normjit_status normjit_service_create(const normjit_options* options, normjit_service** service, char**) {
  const bool invariant = options && options->batch_invariant == NORMJIT_YES;
  *service = reinterpret_cast<normjit_service*>(&g_services[invariant]);
  return NORMJIT_OK;
}
void normjit_service_destroy(normjit_service*) {}

normjit_status normjit_workspace_bytes(normjit_service*, const normjit_spec*, size_t* bytes, char**) {
  *bytes = static_cast<size_t>(fake_workspace_bytes);
  return NORMJIT_OK;
}

normjit_status normjit_norm(normjit_service* service, const normjit_spec* given,
                            const normjit_tensors* operands, void*, const normjit_launch_options* options,
                            char** error) {
  ++fake_launches;
  fake_captured_misses += options && options->miss_in_capture;
  NormSpec spec;
  Tensors tensors;
  if (given->struct_size != sizeof *given || operands->struct_size != sizeof *operands ||
      !c_api::convert(*given, spec) || !c_api::convert(*operands, tensors))
    return refuse(NORMJIT_BAD_ARGUMENT, "The fake was called wrongly.", error);
  fake_row_stride = tensors.x.outer;
  fake_workspace = tensors.workspace;
  fake_batch_invariant = reinterpret_cast<int*>(service) == &g_services[1];
  for (std::size_t i = 0; i < kOperandCount; ++i) fake_operands[i] = pointer_of(tensors, kOperands[i]);
  if (fake_next_status) {
    const normjit_status status = fake_next_status;
    fake_next_status = 0;
    return refuse(status, "The fake was told to refuse.", error);
  }
  if (fake_idle) return NORMJIT_OK;
  if (const auto valid = validate(spec); !valid) return c_api::answer(valid.error(), error);
  spec = canonical(spec);
  const std::string text = to_text(spec);
  fake_spec[text.copy(fake_spec, sizeof fake_spec - 1)] = '\0';
  for (const OperandRow& row : kOperands)
    if (tensors.rows != 0 && row.present(spec) != (pointer_of(tensors, row) != nullptr))
      return refuse(NORMJIT_NULL_POINTER, "The fake was called with a wrong " + std::string(row.name), error);
  if ((fake_workspace_bytes != 0) != (tensors.workspace != nullptr) || !is_zero(tensors.workspace))
    return refuse(NORMJIT_BAD_ARGUMENT, "The fake was called with a wrong workspace.", error);
  if (spec.channels_first ? tensors.plane < 1 || tensors.rows % tensors.plane != 0 : tensors.plane != 0)
    return refuse(NORMJIT_BAD_PLANE, "The fake was called with a wrong plane.", error);
  if (const Status status = pack(spec, tensors).status; tensors.rows != 0 && status.code != Code::Ok)
    return refuse(static_cast<normjit_status>(status.code), "The fake was called with wrong rows.", error);
  if (spec.backward) {
    compute_gradients(spec, tensors);
    return NORMJIT_OK;
  }
  std::vector<double> values(static_cast<std::size_t>(spec.columns));
  const OperandRow& scales = row_of(Operand::block_scale);
  if (scales.present(spec))
    std::memset(
        tensors.block_scale, 0,
        static_cast<std::size_t>(elements_of(scales, spec, tensors.rows) * size_of(scales.dtype(spec))));
  double largest = 0;
  for (std::int64_t row = 0; row < tensors.rows; ++row)
    compute(spec, Row(spec, tensors, row), {row, tensors.rows}, values, largest);
  if (spec.amax) store(tensors.amax, DType::f32, 0, largest);
  return NORMJIT_OK;
}

normjit_status normjit_layer_norm(normjit_service* service, const normjit_spec* spec,
                                  const normjit_tensors* tensors, void* stream,
                                  const normjit_launch_options* options, char** error) {
  return normjit_norm(service, spec, tensors, stream, options, error);
}

normjit_status normjit_prepare(normjit_service*, const normjit_spec*, const normjit_prepare_options*,
                               normjit_kernel** kernel, char** error) {
  ++fake_prepares;
  if (fake_prepare_status) return refuse(fake_prepare_status, "The fake was told to refuse.", error);
  *kernel = reinterpret_cast<normjit_kernel*>(new char);
  return NORMJIT_OK;
}
void normjit_kernel_release(normjit_kernel* kernel) { delete reinterpret_cast<char*>(kernel); }
