// SPDX-License-Identifier: Apache-2.0
#include "normjit/compiler/target.h"

#include <tuple>

#include "normjit/base/text.h"
#include "normjit/compiler/compiler.h"

namespace normjit {
namespace {

std::vector<std::string> semantic(std::string_view target) {
  return {"--std=c++17", concat({"--gpu-architecture=", target})};
}

// Options that do not change the code, each with the first version that knows it.
struct Quiet {
  int major, minor;
  std::string_view option;
};
constexpr Quiet kQuiet[] = {
    // Writes registers, spills and shared memory to the log.
    {12, 0, "--ptxas-options=-v"},
    // Omits the declarations of textures and of the run-time API, which no kernel uses: 26 ms, not 29.
    {12, 4, "--minimal"},
    // Turns off NVRTC's own cache, which opens libcuda and calls cuInit.
    {12, 9, "--no-cache"},
};

}  // namespace

std::string Target::name() const { return ptx ? concat({"compute_", shortest(arch.number)}) : arch.name(); }

std::optional<Target> choose_target(Arch wanted, const std::vector<Arch>& known) {
  Arch newest;  // of those not newer than `wanted`
  for (Arch arch : known) {
    if (arch.number <= wanted.number && arch.number > newest.number) newest = arch;
  }
  if (newest.number == 0) return std::nullopt;
  if (newest.number == wanted.number) return Target{.arch = wanted};
  return Target{.arch = {.number = newest.number}, .ptx = newest.major() != wanted.major()};
}

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
