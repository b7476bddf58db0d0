// SPDX-License-Identifier: Apache-2.0
// A libnormjit for tests of the drop-ins on a machine without a GPU: the launch computes at once, on host
// memory, and the tests set what else it answers. Only what the drop-ins call is here.
#include <normjit/c_api.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

// Set and read by the tests.
extern "C" {
__attribute__((visibility("default"))) std::int32_t fake_next_status =
    0;  // of the next launch, instead of it
__attribute__((visibility("default"))) std::int64_t fake_workspace_bytes = 0;
__attribute__((visibility("default"))) std::int64_t fake_launches = 0;
__attribute__((visibility("default"))) std::int64_t fake_row_stride = 0;      // of x, in the last launch
__attribute__((visibility("default"))) const void* fake_workspace = nullptr;  // of the last launch
__attribute__((visibility("default"))) std::int64_t fake_prepares = 0;
__attribute__((visibility("default"))) std::int64_t fake_captured_misses = 0;  // launches that allow them
__attribute__((visibility("default"))) std::int32_t fake_idle = 0;             // 1: launches return at once
}

namespace {

float from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

double load(const void* base, int dtype, std::int64_t i) {
  switch (dtype) {
    case NORMJIT_F16:
      return static_cast<double>(static_cast<const _Float16*>(base)[i]);
    case NORMJIT_BF16:
      return from_bits(static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(base)[i]) << 16);
    case NORMJIT_F64:
      return static_cast<const double*>(base)[i];
    default:
      return static_cast<const float*>(base)[i];
  }
}

void store(void* base, int dtype, std::int64_t i, double value) {
  switch (dtype) {
    case NORMJIT_F16:
      static_cast<_Float16*>(base)[i] = static_cast<_Float16>(value);
      break;
    case NORMJIT_BF16: {  // to the nearest, ties to even
      const std::uint32_t bits = bits_of(static_cast<float>(value));
      static_cast<std::uint16_t*>(base)[i] =
          static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
      break;
    }
    case NORMJIT_F64:
      static_cast<double*>(base)[i] = value;
      break;
    default:
      static_cast<float*>(base)[i] = static_cast<float>(value);
  }
}

double activated(double v, int activation) {
  switch (activation) {
    case NORMJIT_RELU:
      return v < 0 ? 0 : v;
    case NORMJIT_GELU:
      return 0.5 * v * (1 + std::erf(v * std::sqrt(0.5)));
    case NORMJIT_GELU_TANH:
      return 0.5 * v * (1 + std::tanh(std::sqrt(2 / std::acos(-1)) * (v + 0.044715 * v * v * v)));
    case NORMJIT_SILU:
      return v / (1 + std::exp(-v));
    default:
      return v;
  }
}

bool is_zero(const void* workspace) {
  const char* bytes = static_cast<const char*>(workspace);
  return !bytes || std::all_of(bytes, bytes + fake_workspace_bytes, [](char byte) { return byte == 0; });
}

normjit_status refuse(normjit_status status, const char* text, char** error) {
  if (error) *error = strdup(text);
  return status;
}

}  // namespace

extern "C" {

std::uint32_t normjit_abi_version() { return NORMJIT_ABI_VERSION; }
const char* normjit_version() { return "0.0.0"; }
const char* normjit_status_name(normjit_status) { return "Fake"; }
const char* normjit_status_message(normjit_status) { return "The fake says so."; }
void normjit_free(char* text) { std::free(text); }

normjit_status normjit_service_create(const normjit_options*, normjit_service** service, char**) {
  static int made;
  *service = reinterpret_cast<normjit_service*>(&made);
  return NORMJIT_OK;
}
void normjit_service_destroy(normjit_service*) {}

normjit_status normjit_workspace_bytes(normjit_service*, const normjit_spec*, size_t* bytes, char**) {
  *bytes = static_cast<size_t>(fake_workspace_bytes);
  return NORMJIT_OK;
}

normjit_status normjit_layer_norm(normjit_service*, const normjit_spec* spec, const normjit_tensors* t, void*,
                                  const normjit_launch_options* options, char** error) {
  ++fake_launches;
  fake_captured_misses += options && options->miss_in_capture;
  fake_row_stride = t->x.outer;
  fake_workspace = t->workspace;
  if (fake_next_status) {
    const normjit_status status = fake_next_status;
    fake_next_status = 0;
    return refuse(status, "The fake was told to refuse.", error);
  }
  if (fake_idle) return NORMJIT_OK;
  if (spec->struct_size != sizeof *spec || t->struct_size != sizeof *t || spec->columns < 1 ||
      !t->x.pointer || !t->y.pointer || (spec->affine >= NORMJIT_WEIGHT) != (t->weight != nullptr) ||
      (spec->affine == NORMJIT_WEIGHT_BIAS) != (t->bias != nullptr) ||
      (spec->statistics != 0) != (t->mean != nullptr) ||
      (fake_workspace_bytes != 0) != (t->workspace != nullptr) || !is_zero(t->workspace))
    return refuse(NORMJIT_BAD_ARGUMENT, "The fake was called wrongly.", error);
  const std::int64_t n = spec->columns, stride = t->x.outer < 0 ? n : t->x.outer;
  const bool wide = spec->input == NORMJIT_F64 || spec->output == NORMJIT_F64 || spec->weight == NORMJIT_F64;
  for (std::int64_t row = 0; row < t->rows; ++row) {
    double mean = 0, variance = 0;
    for (std::int64_t i = 0; i < n; ++i) mean += load(t->x.pointer, spec->input, row * stride + i) / n;
    for (std::int64_t i = 0; i < n; ++i) {
      const double away = load(t->x.pointer, spec->input, row * stride + i) - mean;
      variance += away * away / n;
    }
    const double rstd = 1 / std::sqrt(variance + spec->epsilon);
    for (std::int64_t i = 0; i < n; ++i) {
      double v = (load(t->x.pointer, spec->input, row * stride + i) - mean) * rstd;
      if (t->weight) v *= load(t->weight, spec->weight, i);
      if (t->bias) v += load(t->bias, spec->weight, i);
      store(t->y.pointer, spec->output, row * n + i, activated(v, spec->activation) * spec->scale);
    }
    if (t->mean) {
      store(t->mean, wide ? NORMJIT_F64 : NORMJIT_F32, row, mean);
      store(t->rstd, wide ? NORMJIT_F64 : NORMJIT_F32, row, rstd);
    }
  }
  return NORMJIT_OK;
}

normjit_status normjit_prepare(normjit_service*, const normjit_spec*, const normjit_prepare_options*,
                               normjit_kernel** kernel, char**) {
  ++fake_prepares;
  *kernel = reinterpret_cast<normjit_kernel*>(new char);
  return NORMJIT_OK;
}
void normjit_kernel_release(normjit_kernel* kernel) { delete reinterpret_cast<char*>(kernel); }
}
