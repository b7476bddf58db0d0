#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/json_reports.h"
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

std::string text_of(const Environment& environment, const Result<std::string>& host) {
  std::string text = "normjit    " + environment.version + "\n";

  text += "cache      " + (environment.cache_directory.empty() ? "none" : environment.cache_directory) + "\n";
  if (environment.cache_directory.empty()) {
    text += indented("kernels live in memory only: set --cache-dir, NORMJIT_CACHE_DIR or HOME");
  } else if (!environment.cache_error.empty()) {
    text += indented(environment.cache_error) +
            indented("make the directory writable, or name another with --cache-dir or NORMJIT_CACHE_DIR");
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

}  // namespace

int doctor(const CommonOptions& options) {
  const Environment environment = Service(service_options(options)).environment();
  const Result<std::string> host = host_compiler();
  print(options.json ? json_of(environment, host) : text_of(environment, host));
  if (environment.compiler_path.empty())
    return fail(kEnvironment, "prebuild cannot work here: there is no compiler");
  if (!cache_works(environment))
    return fail(kEnvironment, "prebuild cannot work here: there is no usable cache directory");
  return kDone;
}

}  // namespace normjit::cli
