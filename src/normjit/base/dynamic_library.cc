// SPDX-License-Identifier: Apache-2.0
#include "normjit/base/dynamic_library.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <system_error>

#include "normjit/base/fork.h"

namespace normjit {

DynamicLibrary DynamicLibrary::open(const std::string& path_or_soname, std::string* why) {
  const auto failed = [why](const char* reason) {
    if (why != nullptr) *why = reason != nullptr ? reason : "the loader gives no reason";
    return DynamicLibrary();
  };
  if (path_or_soname.empty()) return failed("the name is empty");  // dlopen would open the program itself
  const ForkGate gate;
  if (!gate) return failed("the process is exiting");
  void* handle = dlopen(path_or_soname.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return failed(dlerror());
  ForkGate::close_at_exit();
  return DynamicLibrary(handle);
}

DynamicLibrary DynamicLibrary::already_loaded(const std::string& soname) {
  const ForkGate gate;
  if (soname.empty() || !gate) return {};
  void* handle = dlopen(soname.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle != nullptr) ForkGate::close_at_exit();
  return DynamicLibrary(handle);
}

void* DynamicLibrary::symbol(const char* name) const {
  return handle_ != nullptr ? dlsym(handle_, name) : nullptr;
}

std::string DynamicLibrary::path() const {
  link_map* map = nullptr;
  if (handle_ == nullptr || dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0) return {};
  return map->l_name;
}

std::string file_of_address(const void* address) {
  Dl_info symbol;
  link_map* map = nullptr;
  if (dladdr1(address, &symbol, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0) return {};
  if (map->l_name[0] != '\0') return map->l_name;
  // The loader's list has no name for the program, and argv[0] need not be a path.
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).string();
}

}  // namespace normjit
