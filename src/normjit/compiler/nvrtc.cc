// SPDX-License-Identifier: Apache-2.0
#include "normjit/compiler/nvrtc.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "normjit/base/dynamic_library.h"
#include "normjit/base/text.h"

namespace normjit {
namespace {

constexpr int kOldestMajor = 12;

// libnvrtc opens libnvrtc-builtins by soname at its first compile. Builds of it without a run path fail then,
// or find the library of another installation. Opening the one beside libnvrtc first makes dlopen find it.
void open_builtins_beside(const Nvrtc& nvrtc) {
  const std::string name = concat({"libnvrtc-builtins.so.", nvrtc.version()});
  const std::filesystem::path path = nvrtc.path;
  std::error_code ignored;
  for (const auto& file : {path, std::filesystem::canonical(path, ignored)}) {
    if (file.has_parent_path() && DynamicLibrary::open(file.parent_path() / name)) return;
  }
}

}  // namespace

std::string Nvrtc::version() const { return concat({shortest(major), ".", shortest(minor)}); }

Result<Nvrtc> open_nvrtc(const std::string& name, bool only_if_loaded) {
  std::string why = "not loaded in this process";
  const DynamicLibrary library =
      only_if_loaded ? DynamicLibrary::already_loaded(name) : DynamicLibrary::open(name, &why);
  if (!library) {
    const std::string prefix = name + ": ";  // the loader's message may begin with it
    if (why.starts_with(prefix)) why.erase(0, prefix.size());
    return Error{Code::NoCompiler, why};
  }
  NvrtcTable call;
#define NORMJIT_FIND(name, function)                                            \
  call.name = reinterpret_cast<decltype(call.name)>(library.symbol(#function)); \
  if (call.name == nullptr)                                                     \
    return Error{Code::NoCompiler, "is not NVRTC 12.0 or newer: it has no " #function};
  NORMJIT_NVRTC_CALLS(NORMJIT_FIND)
#undef NORMJIT_FIND
  Result<Nvrtc> nvrtc = describe_nvrtc(call, library.path());
  if (nvrtc) open_builtins_beside(*nvrtc);
  return nvrtc;
}

Result<Nvrtc> describe_nvrtc(const NvrtcTable& call, const std::string& path) {
  Nvrtc nvrtc;
  nvrtc.call = call;
  nvrtc.path = path;
  if (call.version(&nvrtc.major, &nvrtc.minor) != NVRTC_SUCCESS) {
    return Error{Code::NoCompiler, "does not report its version"};
  }
  if (nvrtc.major < kOldestMajor) {
    return Error{Code::CompilerTooOld,
                 concat({"is NVRTC ", nvrtc.version(), "; normjit needs 12.0 or newer"})};
  }
  int count = 0;
  if (call.arch_count(&count) == NVRTC_SUCCESS && count > 0) {
    std::vector<int> numbers(static_cast<std::size_t>(count));
    if (call.archs(numbers.data()) == NVRTC_SUCCESS) {
      std::ranges::sort(numbers);
      for (int number : numbers) nvrtc.archs.push_back({.number = number});
    }
  }
  if (nvrtc.archs.empty()) return Error{Code::NoCompiler, "does not report its architectures"};
  return nvrtc;
}

}  // namespace normjit
