// SPDX-License-Identifier: Apache-2.0
// What ONNX Runtime calls: RegisterCustomOps, and the operator normjit::Norm for each execution provider.
//
// The attribute `spec` is a text of docs/algebra.md. Inputs are the operands that it has, in the order of
// that page: x, in_bias, gate, gate_table, residual, weight, bias, mod_scale, mod_scale_table, mod_shift,
// mod_shift_table, tensor_scale, upper_bound, global_scale; outputs likewise y, sum, mean, rstd, also,
// row_scale, block_scale, amax. Both are variadic and of several types, so ONNX Runtime infers no types of
// outputs: a model has them in value_info, as `python -m normjit.onnx` writes it.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "onnxruntime/norm.h"
#include "onnxruntime/ort_api.h"

namespace normjit::onnxruntime {
namespace {

// body(), with what it throws as a status: nothing is thrown into C. who() is put in front.
template <class Who, class Body>
OrtStatus* guarded(const Api& api, const Who& who, const Body& body) {
  try {
    body();
    return nullptr;
  } catch (const Failure& failure) {
    return api.create_status(failure.code, (who() + failure.what()).c_str());
  } catch (const std::bad_alloc&) {
    return api.create_status(kFail, "normjit::Norm: this process has no memory left");
  } catch (const std::exception& other) {
    return api.create_status(kFail, (who() + other.what()).c_str());
  }
}

std::string nobody() { return {}; }

struct Operator : OrtCustomOp {
  bool has_sizes;  // of the runtime that it belongs to: Api::sizes_of
};

template <bool on_gpu>
OrtStatus* create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  const bool has_sizes = static_cast<const Operator*>(op)->has_sizes;
  return guarded(Api(api), &nobody, [&] { *kernel = new Norm(api, info, on_gpu, has_sizes); });
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) {
  const Norm& norm = *static_cast<const Norm*>(kernel);
  return guarded(
      norm.api(), [&] { return "normjit::Norm (node \"" + norm.name() + "\"): "; },
      [&] { norm.run(context); });
}

void destroy(void* kernel) { delete static_cast<Norm*>(kernel); }

int one(const OrtCustomOp*) { return 1; }
int no(const OrtCustomOp*) { return 0; }
std::size_t one_kind(const OrtCustomOp*) { return 1; }
int any_type(const OrtCustomOp*, std::size_t) { return kUndefined; }
int variadic(const OrtCustomOp*, std::size_t) { return kVariadic; }
int default_memory(const OrtCustomOp*, std::size_t) { return kDefaultMemory; }
const char* name(const OrtCustomOp*) { return "Norm"; }
const char* cuda(const OrtCustomOp*) { return "CUDAExecutionProvider"; }
const char* cpu(const OrtCustomOp*) { return nullptr; }

template <bool on_gpu>
constexpr OrtCustomOp kOperator = {
    .version = kApiVersion,
    .create_kernel = nullptr,
    .name = &name,
    .provider = on_gpu ? &cuda : &cpu,
    .input_type = &any_type,
    .input_count = &one_kind,
    .output_type = &any_type,
    .output_count = &one_kind,
    .compute = nullptr,
    .destroy = &destroy,
    .input_kind = &variadic,
    .output_kind = &variadic,
    .input_memory = &default_memory,
    .variadic_input_least = &one,
    .variadic_input_is_of_one_type = &no,
    .variadic_output_least = &one,
    .variadic_output_is_of_one_type = &no,
    .create_kernel_v2 = &create<on_gpu>,
    .compute_v2 = &compute,
    .infer_output_shape = nullptr,
    .first_version = &one,
    .last_version = nullptr,
    .may_inplace = nullptr,
    .release_may_inplace = nullptr,
    .alias_map = nullptr,
    .release_alias_map = nullptr,
};

// 24 of "1.24.0". Asking for functions that a runtime does not have makes it complain on stderr.
std::uint32_t api_version_of(const char* version) {
  int major = 0, minor = 0;
  if (version == nullptr || std::sscanf(version, "%d.%d", &major, &minor) != 2) return 0;
  return major > 1 ? kApiVersionWithSizes : static_cast<std::uint32_t>(minor);
}

// A domain with the operators, made once for each ONNX Runtime of this process: sessions refer to it for as
// long as they live.
struct Made {
  const OrtApi* api;
  OrtCustomOpDomain* domain;
  Operator on_gpu, on_cpu;
  Made* next;
};

OrtStatus* domain_of(const OrtApiBase* base, OrtCustomOpDomain*& domain) {
  static std::atomic<Made*> first{nullptr};
  const OrtApi* const functions = base->get_api(kApiVersion);
  for (const Made* made = first.load(std::memory_order_acquire); made != nullptr; made = made->next)
    if (made->api == functions) {
      domain = made->domain;
      return nullptr;
    }
  const Api api(functions);
  if (OrtStatus* const status = api.create_domain("normjit", &domain)) return status;
  const bool has_sizes = api_version_of(base->version()) >= kApiVersionWithSizes;
  auto made = std::make_unique<Made>(
      Made{functions, domain, {kOperator<true>, has_sizes}, {kOperator<false>, has_sizes}, nullptr});
  for (const Operator* op : {&made->on_gpu, &made->on_cpu})
    if (OrtStatus* const status = api.add(domain, op)) return status;
  made->next = first.load(std::memory_order_acquire);
  while (!first.compare_exchange_weak(made->next, made.get(), std::memory_order_acq_rel)) {
  }
  made.release();
  return nullptr;
}

}  // namespace
}  // namespace normjit::onnxruntime

// Called by SessionOptions.register_custom_ops_library, RegisterCustomOpsLibrary_V2 and the like.
extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  using namespace normjit::onnxruntime;
  const OrtApi* const functions = base->get_api(kApiVersion);
  if (functions == nullptr)
    return Api(base->get_api(1))
        .create_status(
            kFail, (std::string("normjit needs ONNX Runtime 1.18 or newer, and this is ") + base->version())
                       .c_str());
  const Api api(functions);
  OrtStatus* status = nullptr;
  OrtStatus* const thrown = guarded(api, &nobody, [&] {
    OrtCustomOpDomain* domain = nullptr;
    status = domain_of(base, domain);
    if (status == nullptr) status = api.add(options, domain);
  });
  return thrown != nullptr ? thrown : status;
}
