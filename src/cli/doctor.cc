#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/table.h"
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

bool cache_works(const Environment& environment) {
  return !environment.cache_directory.empty() && environment.cache_error.empty();
}

// The path of what --device host compiles with.
Result<std::string> host_compiler() {
  const Result<simt::HostCompiler> found = simt::HostCompiler::find();
  if (!found) return found.error();
  return found->path();
}

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

std::string text_of(const Environment& environment, const Options& settings,
                    const Result<std::string>& host) {
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

  text += "generic    ";
  for (const Arch& arch : environment.embedded_archs) text += arch.name() + " ";
  text += environment.embedded_archs.empty() ? "none built in: the generic kernels are compiled, too\n"
                                             : "built in\n";
  if (!environment.embedded_error.empty()) text += indented(environment.embedded_error);

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

  if (host) {
    text += "host       " + *host + ", for run --device host\n";
  } else {
    text += "host       no C++ compiler for run --device host\n" + indented(host.error().message);
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
  }
  return text;
}

std::string json_text(const Environment& environment, const Options& settings,
                      const Result<std::string>& host) {
  return json_of(environment, settings)
      .add("host_compiler",
           JsonObject().add("path", host ? *host : "").add("error", host ? "" : host.error().message))
      .text();
}

}  // namespace

int doctor(const CommonOptions& options) {
  const Options settings = service_options(options);
  Options quiet = settings;
  quiet.warnings.clear();  // the report has them
  const Environment environment = Service(quiet).environment();
  const Result<std::string> host = host_compiler();
  print(options.json ? json_text(environment, settings, host) : text_of(environment, settings, host));
  if (environment.compiler_path.empty())
    return fail(kEnvironment, "prebuild cannot work here: there is no compiler");
  if (!cache_works(environment))
    return fail(kEnvironment, "prebuild cannot work here: there is no usable cache directory");
  return kDone;
}

}  // namespace normjit::cli
