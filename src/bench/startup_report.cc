// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "bench/startup.h"
#include "bench/suite.h"
#include "cli/table.h"
#include "normjit/base/json.h"

namespace normjit::bench {

using namespace cli;

namespace {

std::string met_text(std::optional<bool> met) { return !met ? "-" : *met ? "yes" : "NO"; }
Json met_json(std::optional<bool> met) { return met ? Json(*met) : Json(); }

void add_result(Table& table, const StartupReport& report, const StartupResult& result) {
  const auto add = [&](const std::string& what, double milliseconds, const std::string& target = "",
                       const std::string& met = "") {
    table.add({what, fixed(milliseconds, 3), target, met});
  };
  const auto part = [&](const std::string& what, double us) { add("    " + what, us / 1000); };
  table.add({std::to_string(result.rows) + " x " + to_text(result.spec)});
  add("  NVRTC's own load", result.nvrtc_load);
  add("  raw NVRTC compile", result.raw_compile);
  add("  cold first call", result.cold,
      fixed(result.cold_ratio(), 3) + " of both, <= " + fixed(kMostColdRatio, 1),
      met_text(report.cold_met(result)));
  add("  warm-disk first call", result.disk, "< " + fixed(kMostDiskMilliseconds, 0) + " ms",
      met_text(report.disk_met(result)));
  part("objects", result.parts.service);
  part("tuned plan", result.parts.tuned);
  part("choice of the plan", result.parts.choose);
  part("render and digest", result.parts.render);
  part("read and verify", result.parts.read);
  if (report.no_gpu.empty()) part("the driver's load", result.parts.load);
  add("  first call from a pack", result.pack);
  table.add({"  later call", fixed(result.later / 1000, 6)});
}

Json json_of(const StartupParts& parts, bool with_driver) {
  return {{"objects_us", parts.service}, {"tuned_us", parts.tuned},
          {"choose_us", parts.choose},   {"render_us", parts.render},
          {"read_us", parts.read},       {"load_us", with_driver ? Json(parts.load) : Json()}};
}

}  // namespace

std::optional<bool> StartupReport::cold_met(const StartupResult& result) const {
  if (!no_gpu.empty()) return {};
  return result.cold_ratio() <= kMostColdRatio;
}

std::optional<bool> StartupReport::disk_met(const StartupResult& result) const {
  if (!no_gpu.empty()) return {};
  return result.disk < kMostDiskMilliseconds;
}

std::string text_of(const StartupReport& report) {
  Table table({"what", ">ms", "target", "met"});
  if (report.no_gpu.empty()) table.add({"CUDA's own initialisation", fixed(report.cuda, 3)});
  for (const StartupResult& result : report.results) add_result(table, report, result);
  if (report.prebuild) {
    const PrebuildSpeed& speed = *report.prebuild;
    table.add({"prebuild of " + counted(speed.kernels, "kernel") + ", " +
               counted(speed.strategies, "strategy", "strategies")});
    table.add({"  one by one", fixed(speed.one_thread * 1000, 0)});
    table.add({"  on " + counted(speed.cores, "core"), fixed(speed.wall * 1000, 0),
               fixed(speed.efficiency(), 3) + " of the cores, >= " + fixed(kLeastEfficiency, 1),
               met_text(speed.met())});
    table.add({"  compiles under way", "", fixed(speed.busy(), 3) + " of the cores"});
    table.add({"  a compile beside others", "", fixed(speed.slowdown(), 3) + " of alone"});
  }
  std::string text = report.device + "; " + report.compiler + "; medians of " +
                     counted(report.repeat, "process", "processes") + "\n" + table.text();
  if (!report.no_gpu.empty())
    text += "Left out: CUDA's initialisation, the driver's load and the targets that count it. " +
            report.no_gpu + "\n";
  return text;
}

std::string json_of(const StartupReport& report) {
  const bool gpu = report.no_gpu.empty();
  const auto result_json = [&](const StartupResult& result) -> Json {
    return {{"spec", to_text(result.spec)},
            {"rows", result.rows},
            {"plan", result.plan},
            {"nvrtc_load_ms", result.nvrtc_load},
            {"raw_compile_ms", result.raw_compile},
            {"cold_ms", result.cold},
            {"cold_ratio", result.cold_ratio()},
            {"cold_met", met_json(report.cold_met(result))},
            {"disk_ms", result.disk},
            {"disk_met", met_json(report.disk_met(result))},
            {"disk_parts", json_of(result.parts, gpu)},
            {"pack_ms", result.pack},
            {"later_us", result.later}};
  };
  Json prebuild;
  if (const auto& speed = report.prebuild)
    prebuild = {{"kernels", speed->kernels},
                {"specs", speed->specs},
                {"strategies", speed->strategies},
                {"cores", speed->cores},
                {"one_thread_s", speed->one_thread},
                {"wall_s", speed->wall},
                {"efficiency", speed->efficiency()},
                {"met", speed->met()},
                {"busy", speed->busy()},
                {"slowdown", speed->slowdown()}};
  return Json({{"device", report.device},
               {"no_gpu", gpu ? Json() : Json(report.no_gpu)},
               {"compiler", report.compiler},
               {"repeat", report.repeat},
               {"cuda_ms", gpu ? Json(report.cuda) : Json()},
               {"results", Json::array(report.results, result_json)},
               {"prebuild", prebuild}})
      .text();
}

std::vector<NormSpec> startup_specs(const DeviceProfile& device, int kernels) {
  std::vector<SuiteCase> cases = random_cases(/*seed=*/1, kernels);
  const std::vector<SuiteCase> fixed = fixed_cases();
  cases.insert(cases.begin(), fixed.begin(), fixed.end());
  std::vector<NormSpec> specs;
  for (const SuiteCase& one : cases) {
    if (kernels <= 0) break;
    if (std::find(specs.begin(), specs.end(), one.spec) != specs.end()) continue;
    specs.push_back(one.spec);
    kernels -= static_cast<int>(plans(one.spec, device).size());
  }
  return specs;
}

}  // namespace normjit::bench
