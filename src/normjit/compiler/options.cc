#include "normjit/compiler/options.h"

#include <tuple>

#include "normjit/base/text.h"
#include "normjit/compiler/compiler.h"

namespace normjit {
namespace {

std::vector<std::string> semantic(std::string_view target) {
  return {"--std=c++17", concat({"--gpu-architecture=", target})};
}

// Options that do not change the code, and the first version that has each.
struct Quiet {
  int major, minor;
  std::string_view option;
};
constexpr Quiet kQuiet[] = {
    // Registers, spills and shared memory in the log.
    {12, 0, "--ptxas-options=-v"},
    // Without the declarations of textures and of the run-time API, which no kernel uses: 26 ms instead
    // of 29.
    {12, 4, "--minimal"},
    // NVRTC's own cache opens libcuda and calls cuInit.
    {12, 9, "--no-cache"},
};

}  // namespace

std::string semantic_options(Arch arch) { return joined(semantic(arch.name())); }

std::vector<std::string> compile_options(std::string_view target, int major, int minor) {
  std::vector<std::string> options = semantic(target);
  for (const Quiet& quiet : kQuiet) {
    if (std::tie(major, minor) >= std::tie(quiet.major, quiet.minor)) options.emplace_back(quiet.option);
  }
  return options;
}

std::string joined(const std::vector<std::string>& options) {
  std::string line;
  for (const std::string& option : options) {
    if (!line.empty()) line += ' ';
    line += option;
  }
  return line;
}

}  // namespace normjit
