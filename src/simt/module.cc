// SPDX-License-Identifier: Apache-2.0
#include "simt/module.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include "normjit/base/text.h"
#include "simt/process.h"
#include "simt/runtime_calls.h"

namespace normjit::simt {

Result<std::shared_ptr<const Module>> Module::open(const std::string& path,
                                                   const std::string& temporary_folder, bool checked) {
  const std::shared_ptr<Module> module(new Module);
  module->path_ = path;
  module->temporary_folder_ = temporary_folder;
  module->checked_ = checked;
  module->handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module->handle_ != nullptr)
    module->table_ = static_cast<const ModuleTable*>(dlsym(module->handle_, "normjit_simt_module"));
  if (module->table_ == nullptr)
    return Error{Code::CompileFailed, concat({"The compiled kernels cannot be opened: ", dlerror()})};
  *module->table_->runtime = runtime_calls();

  link_map* map = nullptr;
  dlinfo(module->handle_, RTLD_DI_LINKMAP, &map);
  module->base_ = map->l_addr;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        Module& self = *static_cast<Module*>(to);
        if (info->dlpi_addr != self.base_) return 0;
        self.begin_ = self.end_ = self.base_;
        for (int i = 0; i < info->dlpi_phnum; ++i)
          if (info->dlpi_phdr[i].p_type == PT_LOAD)
            self.end_ = std::max<std::uintptr_t>(
                self.end_, self.base_ + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz);
        return 1;
      },
      module.get());
  return std::shared_ptr<const Module>(module);
}

Module::~Module() {
  if (handle_ != nullptr) dlclose(handle_);
  std::error_code ignored;
  if (!temporary_folder_.empty()) std::filesystem::remove_all(temporary_folder_, ignored);
}

namespace {

// The base names of "/a/reduce.cuh:44 (discriminator 2)" lines, without the executor's own headers.
std::vector<std::string> places_in(const std::string& output) {
  std::vector<std::string> places;
  for (std::string_view line : split(output, '\n')) {
    line = line.substr(0, line.find(" ("));
    line.remove_prefix(std::min(line.size(), line.rfind('/') + 1));  // a folder may have a space
    const bool kernel_text = line.find(".cu") != line.npos;
    if (kernel_text && line.find(":?") == line.npos && !line.ends_with(":0")) places.emplace_back(line);
  }
  return places;
}

}  // namespace

std::string Module::place_of(const void* pc) const {
  char offset[32];
  // The call stands before the address that it returns to.
  std::snprintf(offset, sizeof offset, "0x%zx",
                static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(pc) - base_ - 1));
  bool can_read = false;
  for (const char* name : {"addr2line", "llvm-addr2line"}) {
    const std::string program = find_program(name);
    if (program.empty()) continue;
    can_read = true;
    const auto finished = run_program({program, "-i", "-e", path_, offset});
    if (!finished || finished->exit_code != 0) continue;
    const std::vector<std::string> places = places_in(finished->output);
    std::string text;
    for (const std::string& place : places) text += (text.empty() ? "" : " from ") + place;
    if (!text.empty()) return text;
  }
  return concat({"the kernel's code at ", offset, can_read ? "" : " (install binutils to see the line)"});
}

}  // namespace normjit::simt
