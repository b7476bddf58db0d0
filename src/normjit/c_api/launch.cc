// SPDX-License-Identifier: Apache-2.0
// Launching and preparing.
#include "normjit/base/json.h"
#include "normjit/c_api/call.h"
#include "normjit/c_api/values.h"
#include "normjit/plan/footprint.h"
#include "normjit/service/prepared.h"

using namespace normjit;
using namespace normjit::c_api;

namespace {

// Why the arguments of a launch were not converted.
Error launch_mistake(const normjit_service* service, const normjit_spec* spec, const normjit_tensors* tensors,
                     const normjit_launch_options* options) {
  if (service == nullptr) return null("service");
  if (const auto given = spec_of(spec); !given) return given.error();
  if (const auto given = tensors_of(tensors); !given) return given.error();
  return mistake_in(*options);
}

// Uninitialised room for what convert() sets: initialising it would cost a tenth of a launch.
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
  return guarded(error, {}, [&]() -> Result<void> {
    NormSpec what;
    Room<Tensors> room;
    Tensors& on = room.value;
    LaunchOptions how;
    if (service == nullptr || spec == nullptr || tensors == nullptr || !convert(*spec, what) ||
        !convert(*tensors, on) || !convert(options, how))
      return launch_mistake(service, spec, tensors, options);
    return service->service.norm(what, on, static_cast<Stream>(stream), how);
  });
}

normjit_status normjit_layer_norm(normjit_service* service, const normjit_spec* spec,
                                  const normjit_tensors* tensors, void* stream,
                                  const normjit_launch_options* options, char** error) {
  return normjit_norm(service, spec, tensors, stream, options, error);
}

normjit_status normjit_kernel_launch(const normjit_kernel* kernel, const normjit_tensors* tensors,
                                     void* stream, const normjit_launch_options* options) {
  Room<Tensors> room;
  Tensors& on = room.value;
  LaunchOptions how;
  if (kernel == nullptr || tensors == nullptr || !convert(*tensors, on) || !convert(options, how))
    return NORMJIT_BAD_ARGUMENT;
  const Status status = kernel->kernel.launch(on, static_cast<Stream>(stream), how);
  if (status.driver_result != 0) tell(options, status.driver_result);
  return static_cast<normjit_status>(status.code);
}

static_assert(NORMJIT_WORKSPACE_ZEROED >= kMeetingBytes);
normjit_status normjit_workspace_bytes(normjit_service* service, const normjit_spec* spec, size_t* bytes,
                                       char** error) {
  return guarded(error, {{"service", service}, {"bytes", bytes}}, [&]() -> Result<void> {
    const auto given = spec_of(spec);
    if (!given) return given.error();
    return store(service->service.workspace_bytes(*given), bytes);
  });
}

normjit_status normjit_prepare(normjit_service* service, const normjit_spec* spec,
                               const normjit_prepare_options* options, normjit_kernel** kernel,
                               char** error) {
  return guarded(error, {{"service", service}, {"kernel", kernel}}, [&]() -> Result<void> {
    const auto given = spec_of(spec);
    if (!given) return given.error();
    const auto use = prepare_options_of(options);
    if (!use) return use.error();
    const auto prepared = service->service.prepare(*given, *use);
    if (!prepared) return prepared.error();
    *kernel = new normjit_kernel{*prepared};
    return {};
  });
}

normjit_status normjit_node_offset(const normjit_kernel* kernel, int32_t operand, size_t* offset,
                                   char** error) {
  return guarded(error, {{"kernel", kernel}, {"offset", offset}}, [&]() -> Result<void> {
    if (operand != NORMJIT_OPERAND_WORKSPACE &&
        (operand < 1 || operand > static_cast<std::int32_t>(kOperandCount)))
      return out_of_range("operand", operand, "one of NORMJIT_OPERAND_X (1), ...");
    return store(kernel->kernel.node_offset(enum_of(operand, Operand::x)), offset);
  });
}

normjit_status normjit_kernel_check(const normjit_kernel* kernel, const normjit_tensors* tensors,
                                    char** error) {
  return guarded(error, {{"kernel", kernel}}, [&]() -> Result<void> {
    const auto given = tensors_of(tensors);
    if (!given) return given.error();
    return kernel->kernel.check(*given);
  });
}

size_t normjit_kernel_workspace_bytes(const normjit_kernel* kernel) {
  return kernel == nullptr ? 0 : kernel->kernel.workspace_bytes();
}

normjit_status normjit_kernel_describe(const normjit_kernel* kernel, char** json, char** error) {
  return guarded(error, {{"kernel", kernel}, {"json", json}}, [&] {
    const Kernel& k = kernel->kernel;
    const Json facts = {{"spec", to_text(k.spec())},
                        {"plan", to_text(k.plan())},
                        {"device", k.prepared().device},
                        {"arch", k.device().arch.name()},
                        {"origin", name(k.origin())},
                        {"fallback", k.is_fallback()},
                        {"workspace_bytes", k.workspace_bytes()}};
    return hand_over(facts.text(), json);
  });
}

void normjit_kernel_release(normjit_kernel* kernel) { delete kernel; }
