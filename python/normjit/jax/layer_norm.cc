// SPDX-License-Identifier: Apache-2.0
// LayerNorm for JAX: handlers of the XLA FFI around normjit's C interface.
//
// Compiled on the user's machine against the headers of the jaxlib that is installed. No CUDA header is
// needed; libnormjit is reached by a table of addresses, and libcuda, which XLA has open, by dlopen.
//
// Operands: x [rows, columns], then weight and bias [columns] as the attribute `affine` says. Results: y as
// x, then with `statistics` mean and rstd [rows], then a workspace where the plans of the spec may need one.
// It is a result because XLA then knows of it: a command buffer that is replayed finds it at the same place,
// and nobody else in it.
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "normjit/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

// The functions of libnormjit, and its service, by their addresses in this process.
struct NormjitTable {
  decltype(&normjit_layer_norm) layer_norm;
  decltype(&normjit_prepare) prepare;
  decltype(&normjit_kernel_release) kernel_release;
  decltype(&normjit_status_message) status_message;
  decltype(&normjit_free) free;
  normjit_service* service;
};

namespace {

NormjitTable normjit;

using Zero = int(void* memory, std::size_t bytes, void* stream);  // 0, or what went wrong

// What is passed by value in every stage.
struct Call {
  normjit_spec spec;
  normjit_tensors tensors;
  std::size_t workspace_bytes;
};

ffi::Error failure(normjit_status status, char* text) {
  const std::string message = std::string("normjit: ") + (text ? text : normjit.status_message(status));
  normjit.free(text);
  if (status == NORMJIT_OUT_OF_MEMORY) return {ffi::ErrorCode::kResourceExhausted, message};
  if (status == NORMJIT_NOT_CACHED) return {ffi::ErrorCode::kNotFound, message};
  if (status == NORMJIT_NO_COMPILER || status == NORMJIT_NO_DRIVER || status == NORMJIT_NO_CONTEXT)
    return {ffi::ErrorCode::kFailedPrecondition, message};
  return {ffi::ErrorCode::kInternal, message};
}

std::int32_t dtype_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F16:
      return NORMJIT_F16;
    case ffi::DataType::BF16:
      return NORMJIT_BF16;
    case ffi::DataType::F32:
      return NORMJIT_F32;
    case ffi::DataType::F64:
      return NORMJIT_F64;
    default:
      return 0;
  }
}

// Reads operands and results in the order that the top of this file says. False if they are others.
bool read(ffi::RemainingArgs arguments, ffi::RemainingRets results, Call& call) {
  normjit_spec& spec = call.spec;
  normjit_tensors& tensors = call.tensors;
  std::size_t at = 0;
  const auto operand = [&](const void*& pointer, std::int32_t& dtype, std::int64_t& elements) {
    auto buffer = arguments.get<ffi::AnyBuffer>(at++);
    if (!buffer) return false;
    pointer = buffer->untyped_data();
    dtype = dtype_of(buffer->element_type());
    elements = static_cast<std::int64_t>(buffer->element_count());
    return dtype != 0;
  };
  std::int64_t elements = 0, weights = spec.columns, biases = spec.columns;
  std::int32_t bias = 0;
  if (!operand(tensors.x.pointer, spec.input, elements) || elements % spec.columns != 0) return false;
  if (spec.affine != NORMJIT_NO_AFFINE && !operand(tensors.weight, spec.weight, weights)) return false;
  if (spec.affine == NORMJIT_WEIGHT_BIAS && (!operand(tensors.bias, bias, biases) || bias != spec.weight))
    return false;
  if (weights != spec.columns || biases != spec.columns || at != arguments.size()) return false;
  tensors.rows = elements / spec.columns;

  at = 0;
  const auto result = [&](void*& pointer, std::int32_t& dtype, std::size_t& bytes) {
    auto buffer = results.get<ffi::AnyBuffer>(at++);
    if (!buffer) return false;
    pointer = (*buffer)->untyped_data();
    dtype = dtype_of((*buffer)->element_type());
    bytes = (*buffer)->size_bytes();
    return true;
  };
  std::int32_t ignored = 0;
  std::size_t bytes = 0;
  if (!result(tensors.y.pointer, spec.output, bytes) || spec.output == 0) return false;
  if (spec.statistics && (!result(tensors.mean, ignored, bytes) || !result(tensors.rstd, ignored, bytes)))
    return false;
  if (at < results.size() && !result(tensors.workspace, ignored, call.workspace_bytes)) return false;
  return at == results.size();
}

ffi::Error read(ffi::RemainingArgs arguments, ffi::RemainingRets results, std::int64_t columns,
                std::int64_t affine, std::int64_t activation, std::int64_t statistics, double epsilon,
                double scale, Call& call) {
  call = {NORMJIT_SPEC_INIT, NORMJIT_TENSORS_INIT, 0};
  call.spec.columns = columns;
  call.spec.epsilon = epsilon;
  call.spec.scale = scale;
  call.spec.affine = static_cast<std::int32_t>(affine);
  call.spec.activation = static_cast<std::int32_t>(activation);
  call.spec.statistics = static_cast<std::int32_t>(statistics);
  if (columns > 0 && read(arguments, results, call)) return ffi::Error::Success();
  return ffi::Error::InvalidArgument(
      "normjit: the operands and results of normjit_layer_norm do not fit together");
}

ffi::Error launch(Call& call, void* stream, Zero* zero) {
  if (call.tensors.rows == 0) return ffi::Error::Success();
  if (call.workspace_bytes != 0) {
    if (const int result = zero(call.tensors.workspace, call.workspace_bytes, stream); result != 0)
      return ffi::Error::Internal("normjit: zeroing the workspace gave CUDA error " + std::to_string(result));
  }
  // A capture without its kernel would fail the whole program: what initialize() did not foresee is made now.
  normjit_launch_options options = NORMJIT_LAUNCH_OPTIONS_INIT;
  options.miss_in_capture = 1;
  char* text = nullptr;
  const normjit_status status =
      normjit.layer_norm(normjit.service, &call.spec, &call.tensors, stream, &options, &text);
  return status == NORMJIT_OK ? ffi::Error::Success() : failure(status, text);
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
  return hash ^ (hash >> 29);
}

template <class T>
std::uint64_t bits(T value) {
  std::uint64_t word = 0;
  static_assert(sizeof(value) <= sizeof(word));
  __builtin_memcpy(&word, &value, sizeof(value));
  return word;
}

// Every pointer is a multiple of this; of 16 at most, as more makes no other kernel.
std::int32_t alignment_of(const normjit_tensors& tensors) {
  const std::uint64_t all =
      bits(tensors.x.pointer) | bits(tensors.y.pointer) | bits(tensors.weight) | bits(tensors.bias) | 16;
  return static_cast<std::int32_t>(all & -all);
}

// What has been prepared lately. Two that share a place push each other out, which costs time only.
std::atomic<std::uint64_t> prepared[1024];

// XLA runs this before each execution, and before it records a command buffer, in which nothing should
// compile.
ffi::Error prepare(const Call& call, std::int32_t device) {
  const normjit_spec& spec = call.spec;
  if (call.tensors.rows == 0) return ffi::Error::Success();
  normjit_prepare_options options = NORMJIT_PREPARE_OPTIONS_INIT;
  options.rows_hint = call.tensors.rows;
  options.pointer_alignment = alignment_of(call.tensors);
  std::uint64_t key = 1;
  for (const std::uint64_t word :
       {bits(spec.columns), bits(spec.epsilon), bits(spec.scale), bits(spec.input), bits(spec.output),
        bits(spec.weight), bits(spec.affine), bits(spec.activation), bits(spec.statistics), bits(device),
        bits(options.rows_hint), bits(options.pointer_alignment)})
    key = mixed(key, word);
  std::atomic<std::uint64_t>& place = prepared[key % (sizeof(prepared) / sizeof(*prepared))];
  if (place.load(std::memory_order_relaxed) == key) return ffi::Error::Success();

  normjit_kernel* kernel = nullptr;
  char* text = nullptr;
  const normjit_status status = normjit.prepare(normjit.service, &spec, &options, &kernel, &text);
  if (status != NORMJIT_OK) return failure(status, text);
  normjit.kernel_release(kernel);
  place.store(key, std::memory_order_relaxed);
  return ffi::Error::Success();
}

template <class Binding>
auto with_operands(Binding&& binding) {
  return std::move(binding)
      .RemainingArgs()
      .RemainingRets()
      .template Attr<std::int64_t>("columns")
      .template Attr<std::int64_t>("affine")
      .template Attr<std::int64_t>("activation")
      .template Attr<std::int64_t>("statistics")
      .template Attr<double>("epsilon")
      .template Attr<double>("scale");
}

int cuda_zero(void* memory, std::size_t bytes, void* stream) {
  using Memset = int(std::uint64_t, unsigned char, std::size_t, void*);
  static std::atomic<Memset*> known;
  Memset* memset = known.load(std::memory_order_acquire);
  if (memset == nullptr) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    memset = driver ? reinterpret_cast<Memset*>(dlsym(driver, "cuMemsetD8Async")) : nullptr;
    if (memset == nullptr) return 999;  // CUDA_ERROR_UNKNOWN
    known.store(memset, std::memory_order_release);
  }
  return memset(reinterpret_cast<std::uintptr_t>(memory), 0, bytes, stream);
}

ffi::Error execute(void* stream, ffi::RemainingArgs arguments, ffi::RemainingRets results,
                   std::int64_t columns, std::int64_t affine, std::int64_t activation,
                   std::int64_t statistics, double epsilon, double scale) {
  Call call;
  ffi::Error bad = read(arguments, results, columns, affine, activation, statistics, epsilon, scale, call);
  return bad.failure() ? bad : launch(call, stream, &cuda_zero);
}

ffi::Error initialize(std::int32_t device, ffi::RemainingArgs arguments, ffi::RemainingRets results,
                      std::int64_t columns, std::int64_t affine, std::int64_t activation,
                      std::int64_t statistics, double epsilon, double scale) {
  Call call;
  ffi::Error bad = read(arguments, results, columns, affine, activation, statistics, epsilon, scale, call);
  return bad.failure() ? bad : prepare(call, device);
}

ffi::Error refuse(ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary) {
  return {ffi::ErrorCode::kUnimplemented,
          "normjit.jax needs an NVIDIA GPU; got platform cpu. Place the arrays on a GPU, or use the "
          "formula in jax.numpy there."};
}

}  // namespace

#define NORMJIT_EXPORT __attribute__((visibility("default")))

// Before anything else.
extern "C" NORMJIT_EXPORT void normjit_jax_bind(const NormjitTable* table) { normjit = *table; }

XLA_FFI_DECLARE_HANDLER_SYMBOL(normjit_jax_execute);
#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    normjit_jax_initialize, initialize,
    with_operands(ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>().Ctx<ffi::DeviceOrdinal>()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(normjit_jax_execute, execute,
                              with_operands(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>()),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(normjit_jax_refuse, refuse,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
#pragma GCC visibility pop
