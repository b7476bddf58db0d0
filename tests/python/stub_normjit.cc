// In place of libnormjit for tests without a GPU: the C interface whose launches run on the CPU, in host
// memory.
//
// Rows of 4096 columns and more need a workspace, which must be zero, and is left as it was. What has been
// called can be asked for by stub_count.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "normjit/c_api.h"

struct normjit_kernel {};
struct normjit_service {};

namespace {

constexpr std::size_t kWorkspace = 64;
int prepares = 0, launches = 0, misses_in_capture = 0;
normjit_status next_status = NORMJIT_OK;
normjit_service the_service;

template <class To, class From>
To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

double half(std::uint16_t word) {
  const int exponent = word >> 10 & 31;
  const double fraction = word & 1023;
  const double size = exponent == 0    ? std::ldexp(fraction, -24)
                      : exponent == 31 ? (fraction != 0 ? NAN : INFINITY)
                                       : std::ldexp(fraction + 1024, exponent - 25);
  return (word & 0x8000) != 0 ? -size : size;
}

std::uint16_t to_half(double value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double size = std::fabs(value);
  if (std::isnan(value)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  if (size < std::ldexp(1, -14))
    return sign | static_cast<std::uint16_t>(std::nearbyint(std::ldexp(size, 24)));
  const int exponent = std::ilogb(size);
  const auto fraction = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));  // 1024 .. 2048
  return sign | static_cast<std::uint16_t>(((exponent + 14) << 10) + fraction);
}

double load(const void* array, std::int64_t at, std::int32_t dtype) {
  switch (dtype) {
    case NORMJIT_F16:
      return half(static_cast<const std::uint16_t*>(array)[at]);
    case NORMJIT_BF16:
      return bits<float>(std::uint32_t{static_cast<const std::uint16_t*>(array)[at]} << 16);
    case NORMJIT_F64:
      return static_cast<const double*>(array)[at];
    default:
      return static_cast<const float*>(array)[at];
  }
}

void store(void* array, std::int64_t at, std::int32_t dtype, double value) {
  const auto word = bits<std::uint32_t>(static_cast<float>(value));
  switch (dtype) {
    case NORMJIT_F16:
      static_cast<std::uint16_t*>(array)[at] = to_half(value);
      break;
    case NORMJIT_BF16:
      static_cast<std::uint16_t*>(array)[at] =
          std::isnan(value) ? 0x7fc0 : static_cast<std::uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
      break;
    case NORMJIT_F64:
      static_cast<double*>(array)[at] = value;
      break;
    default:
      static_cast<float*>(array)[at] = static_cast<float>(value);
  }
}

double activated(double z, std::int32_t activation) {
  switch (activation) {
    case NORMJIT_RELU:
      return z > 0 ? z : 0;
    case NORMJIT_GELU:
      return z / 2 * std::erfc(-z / std::sqrt(2.0));
    case NORMJIT_GELU_TANH:
      return z / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
    case NORMJIT_SILU:
      return z / (1 + std::exp(-z));
    default:
      return z;
  }
}

void one_row(const normjit_spec& spec, const normjit_tensors& t, std::int64_t row) {
  const std::int64_t n = spec.columns;
  const std::int64_t x = row * (t.x_row_stride < 0 ? n : t.x_row_stride);
  const std::int64_t y = row * (t.y_row_stride < 0 ? n : t.y_row_stride);
  double mean = 0, variance = 0;
  std::vector<double> values(n);
  for (std::int64_t i = 0; i < n; ++i) mean += values[i] = load(t.x, x + i, spec.input);
  mean /= static_cast<double>(n);
  for (const double value : values) variance += (value - mean) * (value - mean);
  const double rstd = 1 / std::sqrt(variance / static_cast<double>(n) + spec.epsilon);
  for (std::int64_t i = 0; i < n; ++i) {
    double z = (values[i] - mean) * rstd;
    if (t.weight) z *= load(t.weight, i, spec.weight);
    if (t.bias) z += load(t.bias, i, spec.weight);
    store(t.y, y + i, spec.output, activated(z, spec.activation) * spec.scale);
  }
  if (!spec.statistics) return;
  const bool wide = spec.input == NORMJIT_F64 || (t.weight && spec.weight == NORMJIT_F64);
  store(t.mean, row, wide ? NORMJIT_F64 : NORMJIT_F32, mean);
  store(t.rstd, row, wide ? NORMJIT_F64 : NORMJIT_F32, rstd);
}

normjit_status failure(normjit_status status, const char* text, char** error) {
  if (error) *error = strdup(text);
  return status;
}

std::size_t workspace_of(const normjit_spec& spec) { return spec.columns >= 4096 ? kWorkspace : 0; }

}  // namespace

extern "C" {

NORMJIT_C_EXPORT int stub_count(const char* what) {
  return std::strcmp(what, "prepares") == 0   ? prepares
         : std::strcmp(what, "launches") == 0 ? launches
                                              : misses_in_capture;
}
// The status of the next launch.
NORMJIT_C_EXPORT void stub_fail(normjit_status status) { next_status = status; }

uint32_t normjit_abi_version(void) { return NORMJIT_ABI_VERSION; }
const char* normjit_version(void) { return "stub"; }
const char* normjit_status_name(normjit_status) { return "Stub"; }
const char* normjit_status_message(normjit_status) { return "the stub was told to fail"; }
void normjit_free(char* text) { std::free(text); }

normjit_status normjit_service_create(const normjit_options*, normjit_service** service, char**) {
  *service = &the_service;
  return NORMJIT_OK;
}
void normjit_service_destroy(normjit_service*) {}

normjit_status normjit_layer_norm(normjit_service* service, const normjit_spec* spec,
                                  const normjit_tensors* tensors, void*,
                                  const normjit_launch_options* options, char** error) {
  ++launches;
  misses_in_capture += options && options->miss_in_capture;
  if (const normjit_status status = next_status; status != NORMJIT_OK) {
    next_status = NORMJIT_OK;
    return failure(status, "layernorm/cols=1: the stub fails as it was told", error);
  }
  if (service != &the_service || spec->struct_size != sizeof(*spec) ||
      tensors->struct_size != sizeof(*tensors))
    return failure(NORMJIT_BAD_ARGUMENT, "the stub got something that it never gave", error);
  if (workspace_of(*spec)) {
    const char zeros[kWorkspace] = {};
    if (!tensors->workspace) return failure(NORMJIT_WORKSPACE_REQUIRED, "no workspace", error);
    if (std::memcmp(tensors->workspace, zeros, kWorkspace) != 0)
      return failure(NORMJIT_BAD_ARGUMENT, "the workspace is not zero", error);
  }
  for (std::int64_t row = 0; row < tensors->rows; ++row) one_row(*spec, *tensors, row);
  return NORMJIT_OK;
}
normjit_status normjit_workspace_bytes(normjit_service*, const normjit_spec* spec, size_t* bytes, char**) {
  *bytes = workspace_of(*spec);
  return NORMJIT_OK;
}
normjit_status normjit_prepare(normjit_service*, const normjit_spec*, const normjit_prepare_options*,
                               normjit_kernel** kernel, char**) {
  ++prepares;
  *kernel = new normjit_kernel;
  return NORMJIT_OK;
}
void normjit_kernel_release(normjit_kernel* kernel) { delete kernel; }
size_t normjit_kernel_workspace_bytes(const normjit_kernel*) { return 0; }

// What the drop-ins declare and these tests do not call.
#define NOT_HERE(name, ...) \
  normjit_status name(__VA_ARGS__) { return NORMJIT_BAD_ARGUMENT; }
NOT_HERE(normjit_spec_text, const normjit_spec*, char**, char**)
NOT_HERE(normjit_spec_parse, const char*, normjit_spec*, char**)
NOT_HERE(normjit_kernel_describe, const normjit_kernel*, char**, char**)
NOT_HERE(normjit_freeze, normjit_service*, int32_t, char**)
NOT_HERE(normjit_counters, normjit_service*, char**, char**)
NOT_HERE(normjit_environment, normjit_service*, char**, char**)
NOT_HERE(normjit_prebuild, normjit_service*, const normjit_kernel_set*, int32_t, int32_t,
         normjit_progress_callback, void*, char**, char**)
void normjit_wait_for_compiles(normjit_service*) {}
}
