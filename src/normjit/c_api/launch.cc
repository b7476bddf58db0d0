// Launching and preparing.
#include "normjit/base/json.h"
#include "normjit/base/text.h"
#include "normjit/c_api/call.h"
#include "normjit/c_api/handles.h"
#include "normjit/c_api/values.h"
#include "normjit/service/prepared.h"

using namespace normjit::c_api;
using normjit::Error;
using normjit::Stream;

namespace {

// Why a launch was not tried.
normjit_status launch_mistake(const normjit_service* service, const normjit_spec* spec,
                              const normjit_tensors* tensors, const normjit_launch_options* options,
                              char** error) {
  if (service == nullptr) return is_null("service", error);
  if (const auto given = spec_of(spec); !given) return answer(given, error);
  if (const auto given = tensors_of(tensors); !given) return answer(given, error);
  return answer(mistake_in(*options), error);
}

// Room for what convert() sets: to initialise it before would be a tenth of a launch.
template <class T>
union Room {
  Room() {}
  T value;
};

void tell(const normjit_launch_options* options, std::int32_t driver_result) {
  if (options == nullptr) return;
  normjit_launch_options own;
  const normjit_launch_options* const given = read(*options, own);
  if (given != nullptr && given->driver_result != nullptr) *given->driver_result = driver_result;
}

}  // namespace

normjit_status normjit_norm(normjit_service* service, const normjit_spec* spec,
                            const normjit_tensors* tensors, void* stream,
                            const normjit_launch_options* options, char** error) {
  return guarded(error, [&]() -> normjit_status {
    normjit::NormSpec what;
    Room<normjit::Tensors> room;
    normjit::Tensors& on = room.value;
    normjit::LaunchOptions how;
    if (service == nullptr || spec == nullptr || tensors == nullptr || !convert(*spec, what) ||
        !convert(*tensors, on) || !convert(options, how))
      return launch_mistake(service, spec, tensors, options, error);
    return answer(service->service.norm(what, on, static_cast<Stream>(stream), how), error);
  });
}

normjit_status normjit_layer_norm(normjit_service* service, const normjit_spec* spec,
                                  const normjit_tensors* tensors, void* stream,
                                  const normjit_launch_options* options, char** error) {
  return normjit_norm(service, spec, tensors, stream, options, error);
}

normjit_status normjit_kernel_launch(const normjit_kernel* kernel, const normjit_tensors* tensors,
                                     void* stream, const normjit_launch_options* options) {
  Room<normjit::Tensors> room;
  normjit::Tensors& on = room.value;
  normjit::LaunchOptions how;
  if (kernel == nullptr || tensors == nullptr || !convert(*tensors, on) || !convert(options, how))
    return NORMJIT_BAD_ARGUMENT;
  const normjit::Status status = kernel->kernel.launch(on, static_cast<Stream>(stream), how);
  if (status.driver_result != 0) tell(options, status.driver_result);
  return static_cast<normjit_status>(status.code);
}

normjit_status normjit_workspace_bytes(normjit_service* service, const normjit_spec* spec, size_t* bytes,
                                       char** error) {
  return guarded(error, [&]() -> normjit_status {
    if (service == nullptr) return is_null("service", error);
    if (bytes == nullptr) return is_null("bytes", error);
    const auto given = spec_of(spec);
    if (!given) return answer(given, error);
    const auto most = service->service.workspace_bytes(*given);
    if (!most) return answer(most, error);
    *bytes = *most;
    return NORMJIT_OK;
  });
}

normjit_status normjit_prepare(normjit_service* service, const normjit_spec* spec,
                               const normjit_prepare_options* options, normjit_kernel** kernel,
                               char** error) {
  return guarded(error, [&]() -> normjit_status {
    if (service == nullptr) return is_null("service", error);
    if (kernel == nullptr) return is_null("kernel", error);
    const auto given = spec_of(spec);
    if (!given) return answer(given, error);
    const auto use = prepare_options_of(options);
    if (!use) return answer(use, error);
    const auto prepared = service->service.prepare(*given, *use);
    if (!prepared) return answer(prepared, error);
    *kernel = new normjit_kernel{*prepared};
    return NORMJIT_OK;
  });
}

normjit_status normjit_node_offset(const normjit_kernel* kernel, int32_t operand, size_t* offset,
                                   char** error) {
  return guarded(error, [&]() -> normjit_status {
    if (kernel == nullptr) return is_null("kernel", error);
    if (offset == nullptr) return is_null("offset", error);
    if (operand != NORMJIT_OPERAND_WORKSPACE &&
        (operand < 1 || operand > static_cast<std::int32_t>(normjit::kOperandCount)))
      return answer(
          Error{normjit::Code::BadArgument, normjit::concat({"operand is ", normjit::shortest(operand),
                                                             "; it is one of NORMJIT_OPERAND_X (1), ..."})},
          error);
    const auto found = kernel->kernel.node_offset(enum_of(operand, normjit::Operand::x));
    if (!found) return answer(found, error);
    *offset = *found;
    return NORMJIT_OK;
  });
}

normjit_status normjit_kernel_check(const normjit_kernel* kernel, const normjit_tensors* tensors,
                                    char** error) {
  return guarded(error, [&]() -> normjit_status {
    if (kernel == nullptr) return is_null("kernel", error);
    const auto given = tensors_of(tensors);
    if (!given) return answer(given, error);
    return answer(kernel->kernel.check(*given), error);
  });
}

size_t normjit_kernel_workspace_bytes(const normjit_kernel* kernel) {
  return kernel == nullptr ? 0 : kernel->kernel.workspace_bytes();
}

normjit_status normjit_kernel_describe(const normjit_kernel* kernel, char** json, char** error) {
  return guarded(error, [&]() -> normjit_status {
    if (kernel == nullptr) return is_null("kernel", error);
    if (json == nullptr) return is_null("json", error);
    const normjit::Kernel& k = kernel->kernel;
    const std::string text = normjit::JsonObject()
                                 .add("spec", to_text(k.spec()))
                                 .add("plan", to_text(k.plan()))
                                 .add("device", k.prepared().device)
                                 .add("arch", k.device().arch.name())
                                 .add("origin", name(k.origin()))
                                 .add("fallback", k.is_fallback())
                                 .add("workspace_bytes", k.workspace_bytes())
                                 .text();
    return hand_over(text, json, error);
  });
}

void normjit_kernel_release(normjit_kernel* kernel) { delete kernel; }
