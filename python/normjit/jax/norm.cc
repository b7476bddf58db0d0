// SPDX-License-Identifier: Apache-2.0
// Norms for JAX: handlers of the XLA FFI around normjit's C interface.
//
// Compiled on the user's machine against the headers of the jaxlib that is installed. No CUDA header is
// needed; libnormjit is reached by a table of addresses, and libcuda, which XLA has open, by dlopen.
//
// The attribute `spec` is a normjit_spec, word by word. Operands are those that it has, in the order of the
// header's enumeration: x, in_bias, gate, gate_table, residual, weight, bias, modulation, tensor_scale,
// upper_bound, global_scale, and results those of y, sum, mean, rstd, also, row_scale, block_scale and amax,
// all of them contiguous. A residual, and weight and bias with affine_rows, may have fewer rows than x, a
// divisor n: row r takes row r % n. With channels_first x is [samples, columns, plane], and a residual is
// that or one sample. Operands of a backward spec are x, gate, weight, bias if it is read, modulation, of
// which a shift with an activation only, dy and dsum; its results those that it needs of dx, dweight, dbias,
// dgate, dmod_scale and dmod_shift; a call of 0 rows writes none. Then comes a workspace where the plans of
// the spec may need one. It is a result because XLA then knows of it: a command buffer that is replayed finds
// it at the same place, and no other launch uses it.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>

#include "normjit/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

// The functions of libnormjit, and its service, by their addresses in this process.
struct NormjitTable {
  decltype(&normjit_norm) norm;
  decltype(&normjit_prepare) prepare;
  decltype(&normjit_kernel_release) kernel_release;
  decltype(&normjit_block_scale_shape) block_scale_shape;
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

using Spec = ffi::Span<const std::int64_t>;

// Takes the buffers of a call one by one. Each member is false where the next buffer is not what it should
// be.
class Operands {
 public:
  Operands(ffi::RemainingArgs arguments, const normjit_spec& spec) : arguments_(arguments), spec_(spec) {}

  // Rows of `columns` elements.
  bool rows(std::int32_t dtype, const void*& pointer, std::int64_t& rows) {
    std::int64_t elements = 0;
    if (!take(dtype, pointer, elements) || elements % spec_.columns != 0) return false;
    rows = elements / spec_.columns;
    return true;
  }
  // The positions of a sample, without taking it.
  bool plane(std::int64_t& plane) {
    auto buffer = arguments_.get<ffi::AnyBuffer>(at_);
    if (!buffer || buffer->dimensions().size() != 3 || buffer->dimensions()[1] != spec_.columns) return false;
    plane = buffer->dimensions()[2];
    return true;
  }
  bool vector(std::int32_t dtype, const void*& pointer) {
    std::int64_t own = 0;
    return rows(dtype, pointer, own) && own == 1;
  }
  // Rows for `all` rows, which may be fewer. With a plane these are all, or one sample.
  bool rows_for(std::int64_t all, std::int64_t plane, std::int32_t dtype, normjit_input_rows& to) {
    std::int64_t own = 0;
    if (!rows(dtype, to.pointer, own)) return false;
    if (own == all) return true;
    if (plane != 0) {
      to.outer = 0;
      return own == plane;
    }
    to.n = own, to.outer = 0, to.inner = spec_.columns;
    return own > 0 && all % own == 0;
  }
  // A row for each of so many samples, which have as many rows each.
  bool samples_for(std::int64_t all, std::int32_t dtype, normjit_input_rows& to) {
    std::int64_t own = 0;
    if (!rows(dtype, to.pointer, own)) return false;
    if (own == all) return true;
    if (own <= 0 || all % own != 0) return false;
    to.n = all / own, to.outer = spec_.columns, to.inner = 0;
    return true;
  }
  bool one(const void*& pointer) {
    std::int64_t elements = 0;
    return take(NORMJIT_F32, pointer, elements) && elements == 1;
  }
  bool at_end() const { return at_ == arguments_.size(); }

 private:
  bool take(std::int32_t dtype, const void*& pointer, std::int64_t& elements) {
    auto buffer = arguments_.get<ffi::AnyBuffer>(at_++);
    if (!buffer || dtype_of(buffer->element_type()) != dtype) return false;
    pointer = buffer->untyped_data();
    elements = static_cast<std::int64_t>(buffer->element_count());
    return true;
  }

  const ffi::RemainingArgs arguments_;
  const normjit_spec& spec_;
  std::size_t at_ = 0;
};

// Which gradients a backward spec needs.
bool needs(const normjit_spec& spec, std::initializer_list<std::int32_t> some) {
  return spec.need <= NORMJIT_NEED_ALL || std::find(some.begin(), some.end(), spec.need) != some.end();
}
bool needs_dx(const normjit_spec& spec) {
  return needs(spec, {NORMJIT_NEED_DX, NORMJIT_NEED_DX_DWEIGHT, NORMJIT_NEED_DX_DBIAS});
}

bool read_gradient_operands(Operands operands, const normjit_spec& spec, normjit_tensors& to) {
  const bool has_gate = spec.gate > NORMJIT_NO_GATE, modulates = spec.modulation > NORMJIT_NO_MODULATION;
  const bool activates = spec.activation > NORMJIT_NO_ACTIVATION;
  const bool has_factor = (spec.gate == NORMJIT_GATE_AFTER || modulates) && needs_dx(spec);
  const bool reads_bias = spec.affine == NORMJIT_WEIGHT_BIAS && (activates || has_factor);
  const bool reads_shift = spec.modulation == NORMJIT_MOD_SCALE_SHIFT && activates;
  return operands.rows(spec.input, to.x.pointer, to.rows) &&
         (!has_gate || operands.rows_for(to.rows, 0, spec.modulation_type, to.gate)) &&
         (spec.affine < NORMJIT_WEIGHT || operands.vector(spec.weight, to.weight.pointer)) &&
         (!reads_bias || operands.vector(spec.weight, to.bias.pointer)) &&
         (!modulates || operands.samples_for(to.rows, spec.modulation_type, to.mod_scale)) &&
         (!reads_shift || operands.samples_for(to.rows, spec.modulation_type, to.mod_shift)) &&
         operands.rows_for(to.rows, 0, spec.output, to.dy) &&
         (!spec.dsum || operands.rows_for(to.rows, 0, spec.residual_type, to.dsum)) && operands.at_end();
}

bool read_operands(ffi::RemainingArgs arguments, Call& call) {
  const normjit_spec& spec = call.spec;
  normjit_tensors& to = call.tensors;
  Operands operands(arguments, spec);
  if (spec.backward) return read_gradient_operands(operands, spec, to);
  const auto affine = [&](normjit_input_rows& rows) {
    return spec.affine_rows ? operands.rows_for(to.rows, to.plane, spec.weight, rows)
                            : operands.vector(spec.weight, rows.pointer);
  };
  const bool has_residual = spec.residual > NORMJIT_NO_RESIDUAL, has_gate = spec.gate > NORMJIT_NO_GATE;
  const bool modulates = spec.modulation > NORMJIT_NO_MODULATION;
  const bool shifts = spec.modulation == NORMJIT_MOD_SCALE_SHIFT;
  const auto samples = [&](bool present, normjit_input_rows& rows) {
    return !present || operands.samples_for(to.rows, spec.modulation_type, rows);
  };
  const auto table = [&](bool present, const void*& pointer) {
    return !present || operands.vector(spec.weight, pointer);
  };
  return (!spec.channels_first || operands.plane(to.plane)) &&
         operands.rows(spec.input, to.x.pointer, to.rows) && table(spec.in_bias, to.in_bias) &&
         samples(has_gate, to.gate) && table(has_gate && spec.gate_table, to.gate_table) &&
         (!has_residual || operands.rows_for(to.rows, to.plane, spec.residual_type, to.residual)) &&
         (spec.affine < NORMJIT_WEIGHT || affine(to.weight)) &&
         (spec.affine != NORMJIT_WEIGHT_BIAS || affine(to.bias)) && samples(modulates, to.mod_scale) &&
         table(modulates && spec.modulation_table, to.mod_scale_table) && samples(shifts, to.mod_shift) &&
         table(shifts && spec.modulation_table, to.mod_shift_table) &&
         (spec.quantization != NORMJIT_QUANTIZE_BY_TENSOR || operands.one(to.tensor_scale)) &&
         (!spec.upper_bound || operands.one(to.upper_bound)) &&
         (spec.scale_format != NORMJIT_SCALE_E4M3 || operands.one(to.global_scale)) && operands.at_end();
}

// How many elements the scales of blocks have; of packed columns, words of four.
std::int64_t block_scales(const normjit_spec& spec, std::int64_t rows) {
  std::int64_t shape[3] = {0, 0, 1};
  std::size_t rank = 0;
  normjit.block_scale_shape(&spec, rows, shape, &rank, nullptr);  // of a valid spec
  return shape[0] * shape[1] * (spec.scale_layout == NORMJIT_SCALE_LAYOUT_PACKED_COLUMNS ? 1 : shape[2]);
}

// Takes the results of a call one by one, as Operands does.
class Results {
 public:
  explicit Results(ffi::RemainingRets results) : results_(results) {}

  bool take(void*& pointer, std::int64_t elements) {
    auto buffer = results_.get<ffi::AnyBuffer>(at_++);
    if (!buffer || static_cast<std::int64_t>((*buffer)->element_count()) != elements) return false;
    pointer = (*buffer)->untyped_data();
    return true;
  }
  // The workspace, if there is one, and the end.
  bool take_workspace(Call& call) {
    if (at_ == results_.size()) return true;
    auto workspace = results_.get<ffi::AnyBuffer>(at_++);
    if (!workspace || at_ != results_.size()) return false;
    call.tensors.workspace = (*workspace)->untyped_data();
    call.workspace_bytes = (*workspace)->size_bytes();
    return true;
  }

 private:
  const ffi::RemainingRets results_;
  std::size_t at_ = 0;
};

bool read_gradients(Results& results, const normjit_spec& spec, normjit_tensors& to) {
  const bool of_weight =
      spec.affine >= NORMJIT_WEIGHT &&
      needs(spec, {NORMJIT_NEED_DX_DWEIGHT, NORMJIT_NEED_DWEIGHT, NORMJIT_NEED_DWEIGHT_DBIAS});
  const bool of_bias = spec.affine == NORMJIT_WEIGHT_BIAS &&
                       needs(spec, {NORMJIT_NEED_DX_DBIAS, NORMJIT_NEED_DBIAS, NORMJIT_NEED_DWEIGHT_DBIAS});
  const std::int64_t elements = to.rows * spec.columns, n = std::max<std::int64_t>(1, to.mod_scale.n);
  // Of a scale or a shift that n rows share.
  const auto take_shared = [&](normjit_output_rows& rows) {
    if (n > 1) rows.n = n, rows.outer = spec.columns, rows.inner = 0;
    return results.take(rows.pointer, elements / n);
  };
  const bool of_x = needs_dx(spec);
  return (!of_x || results.take(to.dx.pointer, elements)) &&
         (!of_weight || results.take(to.dweight, spec.columns)) &&
         (!of_bias || results.take(to.dbias, spec.columns)) &&
         (!of_x || spec.gate <= NORMJIT_NO_GATE || results.take(to.dgate.pointer, elements)) &&
         (!of_x || spec.modulation <= NORMJIT_NO_MODULATION || take_shared(to.dmod_scale)) &&
         (!of_x || spec.modulation != NORMJIT_MOD_SCALE_SHIFT || take_shared(to.dmod_shift));
}

bool read_norm(Results& results, const normjit_spec& spec, normjit_tensors& to) {
  const std::int64_t elements = to.rows * spec.columns;
  return results.take(to.y.pointer, spec.output == NORMJIT_E2M1 ? elements / 2 : elements) &&
         (!spec.sum || results.take(to.sum.pointer, elements)) &&
         (!spec.statistics || spec.norm == NORMJIT_RMS || results.take(to.mean, to.rows)) &&
         (!spec.statistics || results.take(to.rstd, to.rows)) &&
         (spec.also <= NORMJIT_NO_ALSO || results.take(to.also.pointer, elements)) &&
         (spec.quantization != NORMJIT_QUANTIZE_BY_ROW || results.take(to.row_scale, to.rows)) &&
         (spec.quantization < NORMJIT_QUANTIZE_BY_BLOCK_16 ||
          results.take(to.block_scale, block_scales(spec, to.rows))) &&
         (!spec.amax || results.take(to.amax, 1));
}

bool read_results(ffi::RemainingRets from, Call& call) {
  Results results(from);
  return (call.spec.backward ? read_gradients : read_norm)(results, call.spec, call.tensors) &&
         results.take_workspace(call);
}

ffi::Error read(ffi::RemainingArgs arguments, ffi::RemainingRets results, Spec spec, Call& call) {
  call = {NORMJIT_SPEC_INIT, NORMJIT_TENSORS_INIT, 0};
  if (spec.size() * sizeof(std::int64_t) == sizeof(call.spec)) {
    std::memcpy(&call.spec, spec.begin(), sizeof(call.spec));
    if (call.spec.columns > 0 && read_operands(arguments, call) && read_results(results, call))
      return ffi::Error::Success();
  }
  return ffi::Error::InvalidArgument("normjit: the operands and results of normjit_norm do not fit together");
}

ffi::Error launch(Call& call, void* stream, Zero* zero) {
  if (call.tensors.rows == 0) return ffi::Error::Success();
  if (call.workspace_bytes != 0) {
    const std::size_t bytes = std::min(call.workspace_bytes, NORMJIT_WORKSPACE_ZEROED);
    if (const int result = zero(call.tensors.workspace, bytes, stream); result != 0)
      return ffi::Error::Internal("normjit: zeroing the workspace gave CUDA error " + std::to_string(result));
  }
  // A capture without its kernel would fail the whole program: what initialize() did not foresee is made now.
  normjit_launch_options options = NORMJIT_LAUNCH_OPTIONS_INIT;
  options.miss_in_capture = 1;
  char* text = nullptr;
  const normjit_status status =
      normjit.norm(normjit.service, &call.spec, &call.tensors, stream, &options, &text);
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
std::int32_t alignment_of(const normjit_tensors& t) {
  std::uint64_t all = 16;
  for (const normjit_output_rows* rows :
       {&t.y, &t.sum, &t.also, &t.dx, &t.dgate, &t.dmod_scale, &t.dmod_shift})
    all |= bits(rows->pointer);
  for (const normjit_input_rows* rows :
       {&t.x, &t.gate, &t.residual, &t.weight, &t.bias, &t.mod_scale, &t.mod_shift, &t.dy, &t.dsum})
    all |= bits(rows->pointer);
  for (const void* vector : {t.in_bias, t.gate_table, t.mod_scale_table, t.mod_shift_table})
    all |= bits(vector);
  for (const void* vector : {t.dweight, t.dbias}) all |= bits(vector);
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
  options.plane = call.tensors.plane;
  const normjit_tensors& t = call.tensors;
  for (const normjit_input_rows* rows :
       {&t.gate, &t.residual, &t.weight, &t.bias, &t.mod_scale, &t.mod_shift, &t.dy, &t.dsum})
    if (rows->n > 1) options.grouped_rows = 1;
  std::uint64_t words[sizeof(spec) / sizeof(std::uint64_t)], key = 1;
  std::memcpy(words, &spec, sizeof(spec));
  for (const std::uint64_t word : words) key = mixed(key, word);
  for (const std::uint64_t word : {bits(device), bits(options.rows_hint), bits(options.pointer_alignment),
                                   bits(options.grouped_rows), bits(options.plane)})
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
  return std::move(binding).RemainingArgs().RemainingRets().template Attr<Spec>("spec");
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

ffi::Error execute(void* stream, ffi::RemainingArgs arguments, ffi::RemainingRets results, Spec spec) {
  Call call;
  ffi::Error bad = read(arguments, results, spec, call);
  return bad.failure() ? bad : launch(call, stream, &cuda_zero);
}

ffi::Error initialize(std::int32_t device, ffi::RemainingArgs arguments, ffi::RemainingRets results,
                      Spec spec) {
  Call call;
  ffi::Error bad = read(arguments, results, spec, call);
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
