// SPDX-License-Identifier: Apache-2.0
// Runs a service, and maintains its cache.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/c_api/call.h"
#include "normjit/c_api/values.h"
#include "normjit/plan/arch_list.h"
#include "normjit/service/report_json.h"

using namespace normjit;
using namespace normjit::c_api;

namespace {

// A call that returns a report: report() makes a Json or an error.
template <class Report>
normjit_status reported(const normjit_service* service, char** json, char** error, const Report& report) {
  return guarded(error, {{"service", service}, {"json", json}}, [&]() -> Result<void> {
    const Result<Json> made = report();
    if (!made) return made.error();
    return hand_over(made->text(), json);
  });
}

// The JSON of a report; `more` are the other arguments of its json_of().
template <class Report, class... More>
Result<Json> json_if(const Result<Report>& report, const More&... more) {
  if (!report) return report.error();
  return json_of(*report, more...);
}

Result<DeviceProfile> device_of(const char* arch) {
  if (arch == nullptr) return null("arch");
  const auto parsed = Arch::parse(arch);
  if (!parsed) return parsed.error();
  return DeviceProfile::of(*parsed);
}

// The specs and devices of a set.
struct Wanted {
  std::vector<NormSpec> specs;
  std::vector<DeviceProfile> devices;
};

Result<Wanted> wanted_of(Service& service, const normjit_kernel_set& given) {
  const auto set = struct_of("normjit_kernel_set", given);
  if (!set) return set.error();
  if (set->specs == nullptr && set->spec_count > 0) return null("specs");
  if (set->archs == nullptr && set->arch_count > 0) return null("archs");
  Wanted wanted;
  for (const char* const text : std::span(set->specs, set->spec_count)) {
    if (text == nullptr) return null("a text of specs");
    auto spec = parse_spec(text);
    if (!spec) return spec.error();
    wanted.specs.push_back(*spec);
  }
  std::string archs;
  for (const char* const text : std::span(set->archs, set->arch_count)) {
    if (text == nullptr) return null("a text of archs");
    archs += concat({archs.empty() ? "" : ",", text});
  }
  if (set->arch_count == 0) return wanted;
  auto devices = parse_arch_list(archs, [&](int ordinal) { return service.device(ordinal); });
  if (!devices) return devices.error();
  wanted.devices = *std::move(devices);
  return wanted;
}

}  // namespace

normjit_status normjit_freeze(normjit_service* service, int32_t when_missing, char** error) {
  return guarded(error, {{"service", service}}, [&]() -> Result<void> {
    if (when_missing < NORMJIT_THAWED || when_missing > NORMJIT_FROZEN_ERROR)
      return out_of_range("when_missing", when_missing,
                          "NORMJIT_THAWED (1), NORMJIT_FROZEN_WARN (2) or NORMJIT_FROZEN_ERROR (3)");
    service->service.freeze(enum_of(when_missing, Frozen::no));
    return {};
  });
}

void normjit_wait_for_compiles(normjit_service* service) {
  guarded(nullptr, {{"service", service}}, [&]() -> Result<void> {
    service->service.wait_for_compiles();
    return {};
  });
}

normjit_status normjit_counters(normjit_service* service, char** json, char** error) {
  return guarded(error, {{"service", service}, {"json", json}},
                 [&] { return hand_over(to_json(service->service.counters()), json); });
}

normjit_status normjit_prometheus(normjit_service* service, const normjit_label* labels, size_t label_count,
                                  char** text, char** error) {
  return guarded(error, {{"service", service}, {"text", text}}, [&]() -> Result<void> {
    if (labels == nullptr && label_count > 0) return null("labels");
    std::vector<Label> given;
    for (const auto& [name, value] : std::span(labels, label_count)) {
      if (name == nullptr || value == nullptr) return null("a text of labels");
      given.push_back({name, value});
    }
    const auto page = to_prometheus(service->service.counters(), given);
    if (!page) return page.error();
    return hand_over(*page, text);
  });
}

normjit_status normjit_environment(normjit_service* service, char** json, char** error) {
  return reported(service, json, error, [&]() -> Result<Json> {
    return json_of(service->service.environment(), service->options);
  });
}

normjit_status normjit_prebuild(normjit_service* service, const normjit_kernel_set* set, int32_t jobs,
                                int32_t dry_run, normjit_progress_callback progress, void* user, char** json,
                                char** error) {
  return reported(service, json, error, [&]() -> Result<Json> {
    if (set == nullptr) return null("set");
    if (!is_within(dry_run, 1)) return out_of_range("dry_run", dry_run, "0 or 1");
    const auto wanted = wanted_of(service->service, *set);
    if (!wanted) return wanted.error();
    PrebuildOptions options{.jobs = jobs, .dry_run = dry_run != 0, .progress = {}};
    if (progress != nullptr) {
      options.progress = [&](const KernelReport& kernel, int done, int total) {
        progress(user, to_text(kernel.spec).c_str(), std::string(name(kernel.outcome)).c_str(), done, total);
      };
    }
    return json_if(service->service.prebuild(wanted->specs, wanted->devices, options),
                   service->options.cache_directory);
  });
}

normjit_status normjit_export_pack(normjit_service* service, const char* path, const normjit_kernel_set* set,
                                   char** json, char** error) {
  return reported(service, json, error, [&]() -> Result<Json> {
    if (path == nullptr) return null("path");
    ExportOptions options;
    if (set != nullptr) {
      auto wanted = wanted_of(service->service, *set);
      if (!wanted) return wanted.error();
      if (wanted->specs.empty() && wanted->devices.empty())
        return Error{Code::BadArgument, "the set is empty; pass NULL instead to export all entries"};
      options.specs = std::move(wanted->specs);
      options.devices = std::move(wanted->devices);
    }
    return json_if(service->service.export_pack(path, options), path);
  });
}

normjit_status normjit_import(normjit_service* service, const char* sources, char** json, char** error) {
  return reported(service, json, error, [&]() -> Result<Json> {
    if (sources == nullptr) return null("sources");
    return json_if(service->service.import_from(paths_of(sources)), service->options.cache_directory);
  });
}

normjit_status normjit_add_layer(normjit_service* service, const void* pack, size_t size,
                                 const char* signature, char** error) {
  return guarded(error, {{"service", service}, {"pack", pack}}, [&]() -> Result<void> {
    return service->service.add_layer(std::string(static_cast<const char*>(pack), size),
                                      signature == nullptr ? "" : signature);
  });
}

normjit_status normjit_entries(normjit_service* service, char** json, char** error) {
  return reported(service, json, error,
                  [&]() -> Result<Json> { return json_if(service->service.entries(), service->options); });
}

normjit_status normjit_verify(normjit_service* service, int32_t quarantine, char** json, char** error) {
  return reported(service, json, error, [&]() -> Result<Json> {
    if (!is_within(quarantine, 1)) return out_of_range("quarantine", quarantine, "0 or 1");
    return json_if(service->service.verify(quarantine != 0), service->options);
  });
}

normjit_status normjit_prune(normjit_service* service, int64_t max_bytes, int32_t dry_run, char** json,
                             char** error) {
  return reported(service, json, error, [&]() -> Result<Json> {
    if (!is_within(dry_run, 1)) return out_of_range("dry_run", dry_run, "0 or 1");
    if (max_bytes < -1)
      return out_of_range("max_bytes", max_bytes, "a number of bytes, or -1 for the service's own");
    return json_if(service->service.prune({.max_bytes = max_bytes, .dry_run = dry_run != 0}),
                   service->options.cache_directory, dry_run != 0);
  });
}

normjit_status normjit_why(normjit_service* service, const normjit_spec* spec, const char* arch, char** json,
                           char** error) {
  return reported(service, json, error, [&]() -> Result<Json> {
    const auto given = spec_of(spec);
    if (!given) return given.error();
    const auto device = device_of(arch);
    if (!device) return device.error();
    const auto kernels = service->service.why(*given, *device);
    if (!kernels) return kernels.error();
    const auto generic = service->service.why(*given, *device, generic_plan());
    if (!generic) return generic.error();
    return json_of(*kernels, *generic, *given, *device, 0);
  });
}

normjit_status normjit_render(normjit_service* service, const normjit_spec* spec, const char* arch,
                              int64_t rows_hint, const char* plan, char** source, char** error) {
  return guarded(error, {{"service", service}, {"source", source}}, [&]() -> Result<void> {
    if (rows_hint < 0)
      return Error{Code::BadArgument, concat({"rows_hint is ", shortest(rows_hint), "; 0 means many"})};
    const auto given = valid_spec_of(spec);
    if (!given) return given.error();
    const auto device = device_of(arch);
    if (!device) return device.error();
    Result<RenderedKernel> kernel = Error{};
    if (plan != nullptr) {
      const auto pinned = parse_plan(plan);
      if (!pinned) return pinned.error();
      kernel = service->service.render(*given, *device, *pinned);
    } else {
      const auto regime = rows_hint == 0 ? RowsRegime::many : regime_of(*given, rows_hint, *device);
      kernel = service->service.render(*given, *device, regime, contiguous_alignment(*given));
    }
    if (!kernel) return kernel.error();
    return hand_over(kernel->text, source);
  });
}

normjit_status normjit_remember(normjit_service* service, const normjit_spec* spec, int64_t rows,
                                const char* plan, char** error) {
  return guarded(error, {{"service", service}, {"plan", plan}}, [&]() -> Result<void> {
    if (rows < 1) return out_of_range("rows", rows, "at least 1");
    const auto given = valid_spec_of(spec);
    if (!given) return given.error();
    const auto best = parse_plan(plan);
    if (!best) return best.error();
    const auto device = service->service.device();
    if (!device) return device.error();
    return service->service.remember({.spec = *given,
                                      .device = *device,
                                      .regime = regime_of(*given, rows, *device),
                                      .alignment = contiguous_alignment(*given),
                                      .plan = *best,
                                      .rows = rows});
  });
}
