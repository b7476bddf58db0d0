// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/report_json.h"

#include <algorithm>

#include "normjit/base/text.h"
#include "normjit/service/tuned_plans.h"

namespace normjit {
namespace {

template <class Range, class ToJson>
Json list_of(const Range& range, const ToJson& to_json) {
  std::vector<Json> elements;
  for (const auto& element : range) elements.push_back(to_json(element));
  return Json::array(elements);
}

Json list_of(const std::vector<std::string>& texts) { return Json::array({texts.begin(), texts.end()}); }

Json list_of(const std::vector<Arch>& archs) {
  return list_of(archs, [](const Arch& arch) { return Json(arch.name()); });
}

Json entry_json(const EntryReport& entry) {
  JsonObject json;
  json.add("id", entry.id)
      .add("tier", entry.tier)
      .add("bytes", entry.bytes)
      .add("modified", timestamp(entry.modified))
      .add("damaged", entry.damaged);
  if (entry.damaged) return json.add("error", entry.error);
  json.add("arch", entry.arch)
      .add("spec", entry.spec)
      .add("plan", entry.plan)
      .add("kernel", entry.kernel)
      .add("toolchain", entry.toolchain)
      .add("code", entry.code)
      .add("registers", entry.registers)
      .add("spill_bytes", entry.spill_bytes)
      .add("shared_bytes", entry.shared_bytes);
  if (entry.code == "plan")
    json.add("device", entry.device).add("regime", entry.regime).add("alignment", entry.alignment);
  return json;
}

Json kernel_json(const KernelReport& kernel) {
  JsonObject json;
  json.add("spec", to_text(kernel.spec))
      .add("arch", kernel.arch.name())
      .add("plan", to_text(kernel.plan))
      .add("id", kernel.id)
      .add("outcome", name(kernel.outcome))
      .add("milliseconds", kernel.milliseconds);
  if (kernel.unstored) json.add("unstored", true);
  if (!kernel.error.empty()) json.add("error", kernel.error);
  return json;
}

Json why_json(const WhyReport& kernel) {
  const auto difference_json = [](const WhyReport::Difference& difference) -> Json {
    return JsonObject()
        .add("field", difference.field)
        .add("asked", difference.asked)
        .add("stored", difference.stored);
  };
  return JsonObject()
      .add("arch", kernel.arch.name())
      .add("plan", to_text(kernel.plan))
      .add("uses", kernel.uses)
      .add("id", kernel.id)
      .add("identity", kernel.identity)
      .add("tier", kernel.tier)
      .add("reason", kernel.reason)
      .add("nearest", kernel.nearest)
      .add("differences", list_of(kernel.differences, difference_json));
}

}  // namespace

JsonObject json_of(const DeviceProfile& device) {
  JsonObject json;
  json.add("arch", device.arch.name());
  visit_numbers(device, [&](std::string_view name, auto value) { json.add(name, value); });
  return json;
}

JsonObject json_of(const Environment& e, const Options& settings) {
  const auto layer_json = [](const Environment::Layer& layer) -> Json {
    return JsonObject().add("path", layer.path).add("entries", layer.entries).add("error", layer.error);
  };
  const auto device_json = [](const Environment::Device& device) -> Json {
    return JsonObject()
        .add("ordinal", device.ordinal)
        .add("name", device.name)
        .add("profile", json_of(device.profile));
  };
  return JsonObject()
      .add("version", e.version)
      .add("cache", JsonObject()
                        .add("directory", e.cache_directory)
                        .add("error", e.cache_error)
                        .add("max_bytes", settings.max_cache_bytes)
                        .add("shared", settings.shared_cache)
                        .add("exact_toolchain", settings.exact_toolchain))
      .add("layers", list_of(e.layers, layer_json))
      .add("ignored", list_of(settings.warnings))
      .add("generic", JsonObject().add("archs", list_of(e.embedded_archs)).add("error", e.embedded_error))
      .add("compiler", JsonObject()
                           .add("path", e.compiler_path)
                           .add("version", e.compiler_version)
                           .add("error", e.compiler_error)
                           .add("archs", list_of(e.compiler_archs)))
      .add("driver", JsonObject().add("version", e.driver_version).add("error", e.driver_error))
      .add("devices", list_of(e.devices, device_json));
}

JsonObject json_of(const PrebuildReport& report, const std::string& cache_directory) {
  return JsonObject()
      .add("requested", report.requested)
      .add("cached", report.cached)
      .add("compiled", report.compiled)
      .add("failed", report.failed)
      .add("missing", report.missing)
      .add("unstored", report.unstored)
      .add("seconds", report.seconds)
      .add("cache_directory", cache_directory)
      .add("results", list_of(report.results, kernel_json));
}

JsonObject json_of(const std::vector<EntryReport>& entries, const Options& settings) {
  return JsonObject()
      .add("cache_directory", settings.cache_directory)
      .add("layers", list_of(settings.layers))
      .add("damaged", std::ranges::count(entries, true, &EntryReport::damaged))
      .add("entries", list_of(entries, entry_json));
}

JsonObject json_of(const VerifyReport& report, const Options& settings) {
  const auto flaw_json = [](const VerifyReport::Flaw& flaw) -> Json {
    return JsonObject()
        .add("path", flaw.path)
        .add("reason", flaw.reason)
        .add("quarantined", flaw.quarantined);
  };
  return JsonObject()
      .add("cache_directory", settings.cache_directory)
      .add("layers", list_of(settings.layers))
      .add("entries", report.entries)
      .add("bytes", report.bytes)
      .add("flaws", list_of(report.flaws, flaw_json));
}

JsonObject json_of(const PruneReport& report, const std::string& cache_directory, bool dry_run) {
  return JsonObject()
      .add("cache_directory", cache_directory)
      .add("dry_run", dry_run)
      .add("busy", report.busy)
      .add("removed", JsonObject()
                          .add("entries", report.entries)
                          .add("damaged", report.damaged)
                          .add("temporaries", report.temporaries)
                          .add("bytes", report.bytes))
      .add("kept", JsonObject().add("entries", report.kept).add("bytes", report.kept_bytes))
      .add("refused", report.refused);
}

JsonObject json_of(const ExportReport& report, const std::string& path) {
  return JsonObject()
      .add("pack", path)
      .add("written", report.missing.empty())  // a pack with gaps is not
      .add("entries", report.entries)
      .add("bytes", report.bytes)
      .add("xxh128", report.digest)
      .add("damaged", report.damaged)
      .add("missing", list_of(report.missing));
}

JsonObject json_of(const ImportReport& report, const std::string& cache_directory) {
  return JsonObject()
      .add("cache_directory", cache_directory)
      .add("imported", report.imported)
      .add("present", report.present)
      .add("refused", report.refused)
      .add("unstored", report.unstored)
      .add("errors", list_of(report.errors));
}

JsonObject json_of(const std::vector<WhyReport>& kernels, const WhyReport& generic, const NormSpec& spec,
                   const DeviceProfile& device, std::int64_t rows) {
  JsonObject json;
  json.add("spec", to_text(spec)).add("device", json_of(device));
  if (rows > 0) json.add("rows", rows);
  return json.add("missing", std::ranges::count(kernels, std::string(), &WhyReport::tier))
      .add("kernels", list_of(kernels, why_json))
      .add("generic", why_json(generic));
}

}  // namespace normjit
