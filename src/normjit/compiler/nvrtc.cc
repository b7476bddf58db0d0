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

namespace {

constexpr int kMajors[] = {13, 12};
constexpr const char* kUsualToolkit = "/usr/local/cuda";
#if defined(__aarch64__)
constexpr const char* kToolkitFolders[] = {"lib64", "lib", "targets/sbsa-linux/lib"};
#else
constexpr const char* kToolkitFolders[] = {"lib64", "lib", "targets/x86_64-linux/lib"};
#endif
// NVIDIA's wheels of CUDA 13 and 12 in Python's site-packages, relative to normjit/lib there.
constexpr const char* kWheelFolders[] = {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"};

std::string soname(int major) { return concat({"libnvrtc.so.", shortest(major)}); }

// The directory of the shared library or program that contains this code.
std::string own_directory() {
  const std::string file = file_of_address(reinterpret_cast<const void*>(&own_directory));
  return std::filesystem::path(file).parent_path();
}

Error explicit_failure(const std::string& path, const Error& why) {
  return {
      why.code,
      concat({"The compiler library ", path, " cannot be used: ", why.message,
              ".\nIt was named by NORMJIT_NVRTC_PATH or Options::compiler_path, so nothing else was "
              "tried. Name a libnvrtc.so of CUDA 12.0 or newer, or leave both empty to search for one."})};
}

}  // namespace

std::vector<NvrtcCandidate> nvrtc_candidates(const std::string& cuda_home, const std::string& own_directory,
                                             int newest_major) {
  std::vector<std::string> names;
  for (int major : kMajors) {
    if (newest_major == 0 || major <= newest_major) names.push_back(soname(major));
  }

  std::vector<std::filesystem::path> directories;
  if (!own_directory.empty()) {
    directories.emplace_back(own_directory);
    directories.push_back(std::filesystem::path(own_directory) / ".." / "lib");
    for (const char* folder : kWheelFolders)
      directories.push_back(std::filesystem::path(own_directory) / ".." / ".." / folder);
  }
  std::vector<std::filesystem::path> toolkits;
  if (!cuda_home.empty()) toolkits.emplace_back(cuda_home);
  if (cuda_home != kUsualToolkit) toolkits.emplace_back(kUsualToolkit);
  for (const auto& toolkit : toolkits) {
    for (const char* folder : kToolkitFolders) directories.push_back(toolkit / folder);
  }

  std::vector<NvrtcCandidate> candidates;
  for (const std::string& name : names) candidates.push_back({.name = name, .only_if_loaded = true});
  for (const std::string& name : names) candidates.push_back({.name = name});
  for (const auto& directory : directories) {
    for (const std::string& name : names) candidates.push_back({.name = directory / name});
  }
  return candidates;
}

Result<Nvrtc> find_nvrtc(const NvrtcSearch& search, const OpenNvrtc& open) {
  if (!search.explicit_path.empty()) {
    Result<Nvrtc> nvrtc = open(search.explicit_path, false);
    return nvrtc ? std::move(nvrtc) : explicit_failure(search.explicit_path, nvrtc.error());
  }
  const int driver = search.driver_cuda_version ? search.driver_cuda_version() : 0;
  const int newest_major = driver / 1000;
  std::string tried;
  for (const auto& [name, only_if_loaded] :
       nvrtc_candidates(search.cuda_home, own_directory(), newest_major)) {
    Result<Nvrtc> nvrtc = open(name, only_if_loaded);
    if (nvrtc) return nvrtc;
    tried += concat({"\n  ", name, ": ", nvrtc.error().message});
  }
  std::string limit;
  if (newest_major > 0) {
    limit = concat({"\nThis machine's driver is for CUDA ", shortest(newest_major),
                    " and loads no code of a newer NVRTC, so no newer one was searched for."});
  }
  return Error{
      Code::NoCompiler,
      concat(
          {"No NVRTC 12.0 or newer was found. Tried:", tried, limit,
           "\nInstall the CUDA toolkit, or set NORMJIT_NVRTC_PATH or Options::compiler_path to a libnvrtc.so "
           "(for instance that of a pip package)."})};
}

}  // namespace normjit
