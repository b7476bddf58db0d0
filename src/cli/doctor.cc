// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "cli/command_line.h"
#include "cli/health.h"
#include "cli/table.h"
#include "normjit/plan/cost.h"
#include "normjit/service/report_json.h"
#include "simt/host_compiler.h"

namespace normjit::cli {
namespace {

// Every line of a text, set in under its heading.
std::string indented(const std::string& text) {
  std::string result = "           ";
  for (const char c : text) result += c == '\n' ? "\n           " : std::string(1, c);
  return result + "\n";
}

// The path of what --device host compiles with.
Result<std::string> host_compiler() {
  const Result<simt::HostCompiler> found = simt::HostCompiler::find();
  if (!found) return found.error();
  return found->path();
}

// Whether kernels can be made of the templates that NORMJIT_TEMPLATE_DIR names: renders every plan of a short
// and a long row, and of their gradients.
Result<void> try_templates(const Options& settings) {
  if (settings.template_directory.empty()) return {};
  const DeviceProfile device = DeviceProfile::of(Arch{90}).value();
  const Service service(settings);
  for (const bool backward : {false, true})
    for (const std::int64_t columns : {64, 1 << 20}) {
      const NormSpec spec{.backward = backward, .columns = columns};
      std::vector<Plan> all = plans(spec, device);
      all.push_back(generic_plan());
      for (const Plan& plan : all)
        if (auto rendered = service.render(spec, device, plan); !rendered) return rendered.error();
    }
  return {};
}

struct DoctorOptions : CommonOptions {
  bool serve = false;
};

// What doctor finds out beside the Environment.
struct Found {
  Result<void> templates;
  Result<std::string> host;
  // Whether these can work here.
  Result<void> prebuild, serve;
};

// "256M": the number that bytes_from reads.
std::string bytes_text(std::int64_t bytes) {
  std::size_t unit = 0;
  while (unit < 3 && bytes > 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + (unit > 0 ? std::string(1, "KMG"[unit - 1]) : "");
}

// How the cache is kept and what is believed, as the environment says it.
std::string rules_of(const Options& settings) {
  std::string text =
      settings.max_cache_bytes == 0 ? "of any size" : "at most " + bytes_text(settings.max_cache_bytes);
  text += settings.shared_cache ? "; shared: believes entries that others can write"
                                : "; believes only entries that belong to you or root";
  text += settings.exact_toolchain ? "; exact: only entries made by this version of NVRTC" : "; of any NVRTC";
  return text;
}

std::string text_of(const Environment& environment, const Options& settings, const Found& found) {
  std::string text = "normjit    " + environment.version + "\n";
  for (const std::string& warning : settings.warnings) text += "ignored    " + warning + "\n";

  text += "cache      " + (environment.cache_directory.empty() ? "none" : environment.cache_directory) + "\n";
  if (environment.cache_directory.empty()) {
    text += indented("kernels live in memory only: set --cache-dir, NORMJIT_CACHE_DIR or HOME");
  } else if (!environment.cache_error.empty()) {
    text += indented(environment.cache_error) +
            indented("make the directory writable, or name another with --cache-dir or NORMJIT_CACHE_DIR");
  }
  text += indented(rules_of(settings));
  for (const Environment::Layer& layer : environment.layers) {
    text += "layer      " + layer.path;
    text += layer.error.empty() ? ", " + counted(layer.entries, "entry", "entries") + "\n"
                                : "\n" + indented(layer.error) +
                                      indented(
                                          "nothing is taken from it: make it readable, or take it out of "
                                          "NORMJIT_LAYERS");
  }

  if (const auto& [url, path, error] = environment.remote_pack; !url.empty()) {
    text += "pack       " + url + "\n";
    text += indented(error.empty() ? "is " + path : error);
  }
  if (!environment.remote.url.empty()) text += remote_text(environment.remote);

  text += "generic    ";
  for (const Arch& arch : environment.embedded_archs) text += arch.name() + " ";
  text += environment.embedded_archs.empty() ? "none built in: the generic kernels are compiled, too\n"
                                             : "built in\n";
  if (!environment.embedded_error.empty()) text += indented(environment.embedded_error);

  if (!settings.template_directory.empty()) {
    text += "templates  " + settings.template_directory + "\n" +
            indented("NORMJIT_TEMPLATE_DIR is set: every kernel is made of these, not of the built-in ones");
    if (!found.templates)
      text +=
          indented(found.templates.error().message) + indented("correct them, or unset NORMJIT_TEMPLATE_DIR");
  }

  if (environment.compiler_path.empty()) {
    text += "compiler   none\n" + indented(environment.compiler_error) +
            indented(
                "install NVRTC 12 or newer (a CUDA toolkit, or pip install nvidia-cuda-nvrtc), or name the\n"
                "library with NORMJIT_NVRTC_PATH; kernels that are in the cache need none");
  } else {
    text += "compiler   NVRTC " + environment.compiler_version + ", " + environment.compiler_path + "\n";
    std::string archs = "makes";
    for (const Arch& arch : environment.compiler_archs) archs += " " + arch.name();
    text += indented(archs);
  }

  if (found.host) {
    text += "host       " + *found.host + ", for run --device host\n";
  } else {
    text += "host       no C++ compiler for run --device host\n" + indented(found.host.error().message);
  }

  if (environment.driver_version.empty()) {
    text += "driver     none\n" + indented(environment.driver_error);
  } else {
    text += "driver     CUDA " + environment.driver_version + "\n";
    if (!environment.driver_error.empty()) text += indented(environment.driver_error);
  }

  if (environment.devices.empty()) {
    text +=
        "GPU        none: prebuild, list, show and render work here, and run with --device host; bench needs "
        "a "
        "GPU\n";
  }
  for (const Environment::Device& device : environment.devices) {
    text += "GPU " + std::to_string(device.ordinal) + "      " + device.name + ", " + device.profile.text() +
            "\n";
    if (device.profile.arch != kMeasuredArch)
      text += indented("plans are chosen by what was measured on " + kMeasuredArch.name() +
                       " and by the limits of this architecture; `normjit tune` measures here");
  }
  return text;
}

std::string json_text(const Environment& environment, const Options& settings, const Found& found) {
  const auto& [templates, host, prebuild, serve] = found;
  return json_of(environment, settings)
      .add("measured_archs", Json::array(std::array{kMeasuredArch.name()}))
      .add("templates", {{"directory", settings.template_directory}, {"error", templates.error().message}})
      .add("host_compiler", {{"path", host ? *host : ""}, {"error", host ? "" : host.error().message}})
      .add("prebuild", {{"error", prebuild.error().message}})
      .add("serve", {{"error", serve.error().message}})
      .text();
}

int doctor(const DoctorOptions& options) {
  const Options settings = service_options(options);
  Options quiet = settings;
  quiet.warnings.clear();  // the report has them
  const Environment environment = Service(quiet).environment();
  const Result<void> templates = try_templates(quiet);
  const Found found{.templates = templates,
                    .host = host_compiler(),
                    .prebuild = templates ? can_prebuild(environment) : templates,
                    .serve = templates ? can_serve(environment, settings) : templates};
  print(options.json ? json_text(environment, settings, found) : text_of(environment, settings, found));
  const Result<void>& asked = options.serve ? found.serve : found.prebuild;
  if (asked) return kDone;
  const std::string why =
      (options.serve ? "kernels cannot be launched here: " : "prebuild cannot work here: ") +
      asked.error().message;
  return fail(asked.code() == Code::CacheIo ? kEnvironment : exit_code(asked.code()), why);
}

}  // namespace

void add_doctor(CommandLine& line) {
  auto [command, options] =
      line.add("doctor", "Say what normjit finds here and what to do about what is missing", doctor);
  add_json(command, options);
  command->add_flag(
      "--serve", options.serve,
      "Judge whether kernels can be launched here, with the variables of the environment, rather than "
      "whether prebuild can work: a health probe of a machine that serves");
  command->footer(
      std::string("Exit status 0 if prebuild can work here, with --serve if kernels can be launched.\n\n") +
      kExitCodes);
}

}  // namespace normjit::cli
