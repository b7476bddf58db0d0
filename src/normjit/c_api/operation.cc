// Running a service, and looking after its cache.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/c_api/call.h"
#include "normjit/c_api/handles.h"
#include "normjit/c_api/values.h"
#include "normjit/plan/arch_list.h"
#include "normjit/service/report_json.h"

using namespace normjit::c_api;
using normjit::Code;
using normjit::concat;
using normjit::DeviceProfile;
using normjit::Error;
using normjit::NormSpec;
using normjit::Result;
using normjit::shortest;

namespace {

// A call that answers with a report: report() makes a JsonObject, or an error.
template <class Report>
normjit_status reported(const normjit_service* service, char** json, char** error, const Report& report) {
  return guarded(error, [&]() -> normjit_status {
    if (service == nullptr) return is_null("service", error);
    if (json == nullptr) return is_null("json", error);
    const Result<normjit::JsonObject> made = report();
    return made ? hand_over(made->text(), json, error) : answer(made, error);
  });
}

Error not_0_or_1(std::string_view name, std::int32_t value) {
  return {Code::BadArgument, concat({name, " is ", shortest(value), "; it is 0 or 1"})};
}

Result<DeviceProfile> device_of(const char* arch) {
  if (arch == nullptr) return null("arch");
  const auto parsed = normjit::Arch::parse(arch);
  if (!parsed) return parsed.error();
  return DeviceProfile::of(*parsed);
}

// The set's specs and devices.
struct Wanted {
  std::vector<NormSpec> specs;
  std::vector<DeviceProfile> devices;
};

Result<Wanted> wanted_of(normjit::Service& service, const normjit_kernel_set& given) {
  normjit_kernel_set own;
  const normjit_kernel_set* const set = read(given, own);
  if (set == nullptr) return struct_mistake("normjit_kernel_set", &given);
  if (set->specs == nullptr && set->spec_count > 0) return null("specs");
  if (set->archs == nullptr && set->arch_count > 0) return null("archs");
  Wanted wanted;
  for (const char* const text : std::span(set->specs, set->spec_count)) {
    if (text == nullptr) return null("a text of specs");
    auto spec = normjit::parse_spec(text);
    if (!spec) return spec.error();
    wanted.specs.push_back(*spec);
  }
  std::string archs;
  for (const char* const text : std::span(set->archs, set->arch_count)) {
    if (text == nullptr) return null("a text of archs");
    archs += concat({archs.empty() ? "" : ",", text});
  }
  if (set->arch_count == 0) return wanted;
  auto devices = normjit::parse_arch_list(archs, [&](int ordinal) { return service.device(ordinal); });
  if (!devices) return devices.error();
  wanted.devices = *std::move(devices);
  return wanted;
}

}  // namespace

normjit_status normjit_freeze(normjit_service* service, int32_t when_missing, char** error) {
  return guarded(error, [&]() -> normjit_status {
    if (service == nullptr) return is_null("service", error);
    if (when_missing < NORMJIT_THAWED || when_missing > NORMJIT_FROZEN_ERROR)
      return answer(Error{Code::BadArgument, concat({"when_missing is ", shortest(when_missing),
                                                     "; it is NORMJIT_THAWED (1), NORMJIT_FROZEN_WARN (2) or "
                                                     "NORMJIT_FROZEN_ERROR (3)"})},
                    error);
    service->service.freeze(enum_of(when_missing, normjit::Frozen::no));
    return NORMJIT_OK;
  });
}

void normjit_wait_for_compiles(normjit_service* service) {
  guarded(nullptr, [&]() -> normjit_status {
    if (service != nullptr) service->service.wait_for_compiles();
    return NORMJIT_OK;
  });
}

normjit_status normjit_counters(normjit_service* service, char** json, char** error) {
  return guarded(error, [&]() -> normjit_status {
    if (service == nullptr) return is_null("service", error);
    if (json == nullptr) return is_null("json", error);
    return hand_over(to_json(service->service.counters()), json, error);
  });
}

normjit_status normjit_environment(normjit_service* service, char** json, char** error) {
  return reported(service, json, error, [&]() -> Result<normjit::JsonObject> {
    return json_of(service->service.environment(), service->options);
  });
}

normjit_status normjit_prebuild(normjit_service* service, const normjit_kernel_set* set, int32_t jobs,
                                int32_t dry_run, normjit_progress_callback progress, void* user, char** json,
                                char** error) {
  return reported(service, json, error, [&]() -> Result<normjit::JsonObject> {
    if (set == nullptr) return null("set");
    if (!is_within(dry_run, 1)) return not_0_or_1("dry_run", dry_run);
    const auto wanted = wanted_of(service->service, *set);
    if (!wanted) return wanted.error();
    normjit::PrebuildOptions options{.jobs = jobs, .dry_run = dry_run != 0, .progress = {}};
    if (progress != nullptr) {
      options.progress = [&](const normjit::KernelReport& kernel, int done, int total) {
        progress(user, to_text(kernel.spec).c_str(), std::string(name(kernel.outcome)).c_str(), done, total);
      };
    }
    const auto report = service->service.prebuild(wanted->specs, wanted->devices, options);
    if (!report) return report.error();
    return json_of(*report, service->options.cache_directory);
  });
}

normjit_status normjit_export_pack(normjit_service* service, const char* path, const normjit_kernel_set* set,
                                   char** json, char** error) {
  return reported(service, json, error, [&]() -> Result<normjit::JsonObject> {
    if (path == nullptr) return null("path");
    normjit::ExportOptions options;
    if (set != nullptr) {
      auto wanted = wanted_of(service->service, *set);
      if (!wanted) return wanted.error();
      if (wanted->specs.empty() && wanted->devices.empty())
        return Error{Code::BadArgument, "the set is empty; NULL in its place exports all entries"};
      options.specs = std::move(wanted->specs);
      options.devices = std::move(wanted->devices);
    }
    const auto report = service->service.export_pack(path, options);
    if (!report) return report.error();
    return json_of(*report, path);
  });
}

normjit_status normjit_import(normjit_service* service, const char* sources, char** json, char** error) {
  return reported(service, json, error, [&]() -> Result<normjit::JsonObject> {
    if (sources == nullptr) return null("sources");
    const auto report = service->service.import_from(paths_of(sources));
    if (!report) return report.error();
    return json_of(*report, service->options.cache_directory);
  });
}

normjit_status normjit_entries(normjit_service* service, char** json, char** error) {
  return reported(service, json, error, [&]() -> Result<normjit::JsonObject> {
    const auto entries = service->service.entries();
    if (!entries) return entries.error();
    return json_of(*entries, service->options);
  });
}

normjit_status normjit_verify(normjit_service* service, int32_t quarantine, char** json, char** error) {
  return reported(service, json, error, [&]() -> Result<normjit::JsonObject> {
    if (!is_within(quarantine, 1)) return not_0_or_1("quarantine", quarantine);
    const auto report = service->service.verify(quarantine != 0);
    if (!report) return report.error();
    return json_of(*report, service->options);
  });
}

normjit_status normjit_prune(normjit_service* service, int64_t max_bytes, int32_t dry_run, char** json,
                             char** error) {
  return reported(service, json, error, [&]() -> Result<normjit::JsonObject> {
    if (!is_within(dry_run, 1)) return not_0_or_1("dry_run", dry_run);
    if (max_bytes < -1)
      return Error{Code::BadArgument, concat({"max_bytes is ", shortest(max_bytes),
                                              "; it is a number of bytes, or -1 for the service's own"})};
    const auto report = service->service.prune({.max_bytes = max_bytes, .dry_run = dry_run != 0});
    if (!report) return report.error();
    return json_of(*report, service->options.cache_directory, dry_run != 0);
  });
}

normjit_status normjit_why(normjit_service* service, const normjit_spec* spec, const char* arch, char** json,
                           char** error) {
  return reported(service, json, error, [&]() -> Result<normjit::JsonObject> {
    const auto given = spec_of(spec);
    if (!given) return given.error();
    const auto device = device_of(arch);
    if (!device) return device.error();
    const auto kernels = service->service.why(*given, *device);
    if (!kernels) return kernels.error();
    const auto generic = service->service.why(*given, *device, normjit::generic_plan());
    if (!generic) return generic.error();
    return json_of(*kernels, *generic, *given, *device, 0);
  });
}

normjit_status normjit_render(normjit_service* service, const normjit_spec* spec, const char* arch,
                              int64_t rows_hint, const char* plan, char** source, char** error) {
  return guarded(error, [&]() -> normjit_status {
    if (service == nullptr) return is_null("service", error);
    if (source == nullptr) return is_null("source", error);
    if (rows_hint < 0)
      return answer(
          Error{Code::BadArgument, concat({"rows_hint is ", shortest(rows_hint), "; 0 means many"})}, error);
    const auto given = spec_of(spec);
    if (!given) return answer(given, error);
    if (const auto valid = validate(*given); !valid) return answer(valid, error);
    const auto device = device_of(arch);
    if (!device) return answer(device, error);
    Result<normjit::RenderedKernel> kernel = Error{};
    if (plan != nullptr) {
      const auto pinned = normjit::parse_plan(plan);
      if (!pinned) return answer(pinned, error);
      kernel = service->service.render(*given, *device, *pinned);
    } else {
      const auto regime = rows_hint == 0 ? normjit::RowsRegime::many : regime_of(rows_hint, *device);
      kernel = service->service.render(*given, *device, regime, contiguous_alignment(*given));
    }
    return kernel ? hand_over(kernel->text, source, error) : answer(kernel, error);
  });
}

normjit_status normjit_remember(normjit_service* service, const normjit_spec* spec, int64_t rows,
                                const char* plan, char** error) {
  return guarded(error, [&]() -> normjit_status {
    if (service == nullptr) return is_null("service", error);
    if (plan == nullptr) return is_null("plan", error);
    if (rows < 1)
      return answer(Error{Code::BadArgument, concat({"rows is ", shortest(rows), "; it is at least 1"})},
                    error);
    const auto given = spec_of(spec);
    if (!given) return answer(given, error);
    if (const auto valid = validate(*given); !valid) return answer(valid, error);
    const auto best = normjit::parse_plan(plan);
    if (!best) return answer(best, error);
    const auto device = service->service.device();
    if (!device) return answer(device, error);
    return answer(service->service.remember({.spec = *given,
                                             .device = *device,
                                             .regime = regime_of(rows, *device),
                                             .alignment = contiguous_alignment(*given),
                                             .plan = *best,
                                             .rows = rows}),
                  error);
  });
}
