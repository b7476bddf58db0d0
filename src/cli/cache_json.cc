#include "cli/cache_json.h"

#include "cli/json_text.h"
#include "cli/timestamp.h"

namespace normjit::cli {
namespace {

Json json_of(const EntryReport& entry) {
  Json json = {{"id", entry.id},
               {"tier", entry.tier},
               {"bytes", entry.bytes},
               {"modified", timestamp(entry.modified)},
               {"damaged", entry.damaged}};
  if (entry.damaged) {
    json["error"] = entry.error;
    return json;
  }
  json.update(Json{{"arch", entry.arch},
                   {"spec", entry.spec},
                   {"plan", entry.plan},
                   {"kernel", entry.kernel},
                   {"toolchain", entry.toolchain},
                   {"code", entry.code},
                   {"registers", entry.registers},
                   {"spill_bytes", entry.spill_bytes},
                   {"shared_bytes", entry.shared_bytes}});
  if (entry.code == "plan")
    json.update(Json{{"device", entry.device}, {"regime", entry.regime}, {"alignment", entry.alignment}});
  return json;
}

Json json_of(const WhyReport& kernel) {
  Json differences = Json::array();
  for (const WhyReport::Difference& difference : kernel.differences)
    differences.push_back(
        {{"field", difference.field}, {"asked", difference.asked}, {"stored", difference.stored}});
  return {{"arch", kernel.arch.name()},
          {"plan", to_text(kernel.plan)},
          {"uses", kernel.uses},
          {"id", kernel.id},
          {"identity", kernel.identity},
          {"tier", kernel.tier},
          {"reason", kernel.reason},
          {"nearest", kernel.nearest},
          {"differences", std::move(differences)}};
}

}  // namespace

std::string json_of(const PrebuildReport& report, const std::string& cache_directory) {
  Json results = Json::array();
  for (const KernelReport& kernel : report.results) {
    Json result = {{"spec", to_text(kernel.spec)},    {"arch", kernel.arch.name()},
                   {"plan", to_text(kernel.plan)},    {"id", kernel.id},
                   {"outcome", name(kernel.outcome)}, {"milliseconds", kernel.milliseconds}};
    if (kernel.unstored) result["unstored"] = true;
    if (!kernel.error.empty()) result["error"] = kernel.error;
    results.push_back(std::move(result));
  }
  return text_of({{"requested", report.requested},
                  {"cached", report.cached},
                  {"compiled", report.compiled},
                  {"failed", report.failed},
                  {"missing", report.missing},
                  {"unstored", report.unstored},
                  {"seconds", report.seconds},
                  {"cache_directory", cache_directory},
                  {"results", std::move(results)}});
}

std::string json_of(const std::vector<EntryReport>& entries, const Options& settings) {
  int damaged = 0;
  Json list = Json::array();
  for (const EntryReport& entry : entries) {
    damaged += entry.damaged;
    list.push_back(json_of(entry));
  }
  return text_of({{"cache_directory", settings.cache_directory},
                  {"layers", settings.layers},
                  {"damaged", damaged},
                  {"entries", std::move(list)}});
}

std::string json_of(const SpecWhyReport& report) {
  Json kernels = Json::array();
  for (const WhyReport& kernel : report.kernels) kernels.push_back(json_of(kernel));
  Json json = {{"spec", to_text(report.spec)}, {"device", json_of(report.device)}};
  if (report.rows > 0) json["rows"] = report.rows;
  json["missing"] = report.missing();
  json["kernels"] = std::move(kernels);
  json["generic"] = json_of(report.generic);
  return text_of(json);
}

std::string json_of(const VerifyReport& report, const Options& settings) {
  Json flaws = Json::array();
  for (const VerifyReport::Flaw& flaw : report.flaws)
    flaws.push_back({{"path", flaw.path}, {"reason", flaw.reason}, {"quarantined", flaw.quarantined}});
  return text_of({{"cache_directory", settings.cache_directory},
                  {"layers", settings.layers},
                  {"entries", report.entries},
                  {"bytes", report.bytes},
                  {"flaws", std::move(flaws)}});
}

std::string json_of(const PruneReport& report, const std::string& cache_directory, bool dry_run) {
  return text_of({{"cache_directory", cache_directory},
                  {"dry_run", dry_run},
                  {"busy", report.busy},
                  {"removed",
                   {{"entries", report.entries},
                    {"damaged", report.damaged},
                    {"temporaries", report.temporaries},
                    {"bytes", report.bytes}}},
                  {"kept", {{"entries", report.kept}, {"bytes", report.kept_bytes}}},
                  {"refused", report.refused}});
}

std::string json_of(const PackReport& report) {
  return text_of({{"pack", report.path},
                  {"written", report.written()},
                  {"entries", report.exported.entries},
                  {"bytes", report.exported.bytes},
                  {"xxh128", report.digest},
                  {"damaged", report.exported.damaged},
                  {"missing", report.exported.missing}});
}

std::string json_of(const ImportReport& report, const std::string& cache_directory) {
  return text_of({{"cache_directory", cache_directory},
                  {"imported", report.imported},
                  {"present", report.present},
                  {"refused", report.refused},
                  {"unstored", report.unstored},
                  {"errors", report.errors}});
}

}  // namespace normjit::cli
