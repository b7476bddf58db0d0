// SPDX-License-Identifier: Apache-2.0
// Compiles rendered kernels for the CPU with the C++ compiler of this machine.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/base/embedded_file.h"
#include "normjit/base/source.h"
#include "normjit/result.h"

namespace normjit::simt {

// An open shared library of kernels. Closed with its last owner. Immutable: any number of threads may launch
// its kernels at the same time.
class Module;

// One kernel of a module.
struct HostKernel {
  std::shared_ptr<const Module> module;
  std::size_t index = 0;
};

// How the kernels' accesses are checked.
enum class Checks {
  none,    // by guard pages only: several times faster
  memory,  // bounds, alignment, initialisation, missing waits, races and undefined behaviour, with file and
           // line. In a program that has ThreadSanitizer or AddressSanitizer linked, those instead.
};

// The sanitizer that this program is built with, which then checks its kernels: "thread", "address" or "".
std::string_view sanitizer() noexcept;

// A C++ compiler (g++ or clang++), found on this machine. A plain value; thread-safe.
class HostCompiler {
 public:
  // The named compiler, else NORMJIT_HOST_CXX, else the first of g++, clang++, c++ on PATH. NoCompiler, with
  // the names that were tried and what to install.
  static Result<HostCompiler> find(const std::string& named = {});

  // Compiles all kernels into one library: 25 together take about four times as long as one. The texts are
  // those for NVRTC, byte for byte, with the host half of hw:: instead of the device half. The library is
  // made in a temporary directory that is removed afterwards; `keep_directory` names one that stays, with the
  // sources, for a debugger. CompileFailed, with the compiler's messages.
  Result<std::vector<HostKernel>> compile(std::span<const Source> sources, Checks checks = Checks::memory,
                                          const std::string& keep_directory = {}) const;

  const std::string& path() const { return path_; }

 private:
  HostCompiler(std::string path, bool strict_bounds)
      : path_(std::move(path)), strict_bounds_(strict_bounds) {}
  std::string path_;
  bool strict_bounds_;  // whether the compiler has -fsanitize=bounds-strict
};

// The headers that precede a kernel text: kernel/, embedded at build time.
std::span<const EmbeddedFile> kernel_headers() noexcept;

}  // namespace normjit::simt
