// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/report_json.h"

#include <algorithm>

#include "normjit/base/text.h"
#include "normjit/service/tuned_plans.h"

namespace normjit {
namespace {

Json list_of(const std::vector<Arch>& archs) { return Json::array(archs, &Arch::name); }

Json entry_json(const EntryReport& entry) {
  Json json = {{"id", entry.id},
               {"tier", entry.tier},
               {"bytes", entry.bytes},
               {"modified", timestamp(entry.modified)},
               {"damaged", entry.damaged}};
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
  Json json = {{"spec", to_text(kernel.spec)},    {"arch", kernel.arch.name()},
               {"plan", to_text(kernel.plan)},    {"id", kernel.id},
               {"outcome", name(kernel.outcome)}, {"milliseconds", kernel.milliseconds}};
  if (kernel.unstored) json.add("unstored", true);
  if (!kernel.error.empty()) json.add("error", kernel.error);
  return json;
}

Json difference_json(const WhyReport::Difference& difference) {
  return {{"field", difference.field}, {"asked", difference.asked}, {"stored", difference.stored}};
}

Json why_json(const WhyReport& kernel) {
  return {{"arch", kernel.arch.name()},
          {"plan", to_text(kernel.plan)},
          {"uses", kernel.uses},
          {"id", kernel.id},
          {"identity", kernel.identity},
          {"tier", kernel.tier},
          {"reason", kernel.reason},
          {"nearest", kernel.nearest},
          {"differences", Json::array(kernel.differences, difference_json)}};
}

Json layer_json(const Environment::Layer& layer) {
  return {{"path", layer.path}, {"entries", layer.entries}, {"error", layer.error}};
}

Json device_json(const Environment::Device& device) {
  return {{"ordinal", device.ordinal}, {"name", device.name}, {"profile", json_of(device.profile)}};
}

Json flaw_json(const VerifyReport::Flaw& flaw) {
  return {{"path", flaw.path}, {"reason", flaw.reason}, {"quarantined", flaw.quarantined}};
}

}  // namespace

Json json_of(const DeviceProfile& device) {
  Json json = {{"arch", device.arch.name()}};
  visit_numbers(device, [&](std::string_view name, auto value) { json.add(name, value); });
  return json;
}

Json json_of(const Environment::Remote& remote) {
  return {{"url", remote.url},
          {"error", remote.error},
          {"milliseconds", remote.milliseconds},
          {"trusted", Json::array(remote.trusted)},
          {"signs_as", remote.signs_as},
          {"unsigned", remote.unsigned_values}};
}

Json json_of(const RemoteReport& report) {
  return {{"kernels", Json::array(report.kernels, [](const RemoteReport::Kernel& kernel) -> Json {
             return {{"id", kernel.id},
                     {"spec", kernel.spec},
                     {"plan", kernel.plan},
                     {"arch", kernel.arch},
                     {"outcome", name(kernel.outcome)},
                     {"why", kernel.why}};
           })}};
}

Json json_of(const Environment& e, const Options& settings) {
  return {{"version", e.version},
          {"cache",
           {{"directory", e.cache_directory},
            {"error", e.cache_error},
            {"max_bytes", settings.max_cache_bytes},
            {"shared", settings.shared_cache},
            {"exact_toolchain", settings.exact_toolchain}}},
          {"layers", Json::array(e.layers, layer_json)},
          {"remote", json_of(e.remote)},
          {"remote_pack",
           {{"url", e.remote_pack.url}, {"path", e.remote_pack.path}, {"error", e.remote_pack.error}}},
          {"ignored", Json::array(settings.warnings)},
          {"generic", {{"archs", list_of(e.embedded_archs)}, {"error", e.embedded_error}}},
          {"compiler",
           {{"path", e.compiler_path},
            {"version", e.compiler_version},
            {"error", e.compiler_error},
            {"archs", list_of(e.compiler_archs)}}},
          {"driver", {{"version", e.driver_version}, {"error", e.driver_error}}},
          {"devices", Json::array(e.devices, device_json)}};
}

Json json_of(const PrebuildReport& report, const std::string& cache_directory) {
  return {{"requested", report.requested},
          {"cached", report.cached},
          {"compiled", report.compiled},
          {"failed", report.failed},
          {"missing", report.missing},
          {"unstored", report.unstored},
          {"seconds", report.seconds},
          {"cache_directory", cache_directory},
          {"results", Json::array(report.results, kernel_json)}};
}

Json json_of(const std::vector<EntryReport>& entries, const Options& settings) {
  return {{"cache_directory", settings.cache_directory},
          {"layers", Json::array(settings.layers)},
          {"damaged", std::ranges::count(entries, true, &EntryReport::damaged)},
          {"entries", Json::array(entries, entry_json)}};
}

Json json_of(const VerifyReport& report, const Options& settings) {
  return {{"cache_directory", settings.cache_directory},
          {"layers", Json::array(settings.layers)},
          {"entries", report.entries},
          {"bytes", report.bytes},
          {"flaws", Json::array(report.flaws, flaw_json)}};
}

Json json_of(const PruneReport& report, const std::string& cache_directory, bool dry_run) {
  return {{"cache_directory", cache_directory},
          {"dry_run", dry_run},
          {"busy", report.busy},
          {"removed",
           {{"entries", report.entries},
            {"damaged", report.damaged},
            {"temporaries", report.temporaries},
            {"bytes", report.bytes}}},
          {"kept", {{"entries", report.kept}, {"bytes", report.kept_bytes}}},
          {"refused", report.refused}};
}

Json json_of(const ExportReport& report, const std::string& path) {
  return {{"pack", path},
          {"written", report.missing.empty()},  // a pack with gaps is not
          {"entries", report.entries},
          {"bytes", report.bytes},
          {"xxh128", report.digest},
          {"damaged", report.damaged},
          {"missing", Json::array(report.missing)}};
}

Json json_of(const ImportReport& report, const std::string& cache_directory) {
  return {{"cache_directory", cache_directory}, {"imported", report.imported},
          {"present", report.present},          {"refused", report.refused},
          {"unstored", report.unstored},        {"errors", Json::array(report.errors)}};
}

Json json_of(const std::vector<WhyReport>& kernels, const WhyReport& generic, const NormSpec& spec,
             const DeviceProfile& device, std::int64_t rows) {
  Json json = {{"spec", to_text(spec)}, {"device", json_of(device)}};
  if (rows > 0) json.add("rows", rows);
  return json.add("missing", std::ranges::count(kernels, std::string(), &WhyReport::tier))
      .add("kernels", Json::array(kernels, why_json))
      .add("generic", why_json(generic));
}

}  // namespace normjit
