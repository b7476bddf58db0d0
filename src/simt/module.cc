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
#include "simt/execution.h"
#include "simt/process.h"

namespace normjit::simt {
namespace {

Execution& running() { return *Execution::current(); }
std::uint64_t* word(unsigned long long* at) { return reinterpret_cast<std::uint64_t*>(at); }
const std::uint64_t* word(const unsigned long long* at) { return reinterpret_cast<const std::uint64_t*>(at); }

// The functions that kernels call, forwarded to the calling thread's Execution.
const Runtime& runtime_calls() {
  static const Runtime calls = {
      .self = [] { return running().self(); },
      .access = [](const void* at, unsigned long bytes, bool write, bool aligned,
                   const void* pc) { running().access(at, bytes, write, aligned, pc); },
      .misaligned = [](const void* at, unsigned long bytes,
                       const void* pc) { running().misaligned(at, bytes, pc); },
      .shared = [](const void* key, unsigned long bytes, unsigned long alignment,
                   Place place) { return running().shared(key, bytes, alignment, place); },
      .dynamic_shared = [](Place place) { return running().dynamic_shared(place); },
      .lane = [] { return running().lane(); },
      .shuffle = [](unsigned long long bits, unsigned from, unsigned members, Place place)
          -> unsigned long long { return running().shuffle(bits, from, members, place); },
      .warp_barrier = [](unsigned members, Place place) { running().warp_barrier(members, place); },
      .block_barrier = [](Place place) { running().block_barrier(place); },
      .add = [](unsigned long long* counter, unsigned long long n, bool ordered, const void* pc)
          -> unsigned long long { return running().add(word(counter), n, ordered, pc); },
      .raise = [](unsigned long long* number, unsigned long long value,
                  const void* pc) { running().raise(word(number), value, pc); },
      .wait_until = [](const unsigned long long* counter, unsigned long long value, Place place,
                       const void* pc) { running().wait_until(word(counter), value, place, pc); },
      .gather = [](const unsigned long long* slot, unsigned tag, Place place, const void* pc)
          -> unsigned long long { return running().gather(word(slot), tag, place, pc); },
      .copy_async =
          [](void* to, const void* from, int bytes, const void* pc) {
            running().copy_async(to, from, static_cast<std::size_t>(bytes), pc);
          },
      .copies_commit = [] { running().copies_commit(); },
      .copies_wait = [](int left) { running().copies_wait(static_cast<unsigned>(left)); },
      .barrier_init = [](unsigned long long* barrier, int arrivals,
                         const void* pc) { running().barrier_init(word(barrier), arrivals, pc); },
      .barriers_ready = [] { running().barriers_ready(); },
      .barrier_arrive = [](unsigned long long* barrier, int bytes,
                           Place place) { running().barrier_arrive(word(barrier), bytes, place); },
      .barrier_wait = [](unsigned long long* barrier, unsigned parity,
                         Place place) { running().barrier_wait(word(barrier), parity, place); },
      .bulk_load =
          [](void* to, const void* from, int bytes, unsigned long long* barrier, Place place,
             const void* pc) {
            running().bulk_load(to, from, static_cast<std::size_t>(bytes), word(barrier), place, pc);
          },
      .cluster_enter = [](Place place) { running().cluster_enter(place); },
      .cluster_entered = [](Place place) { running().cluster_entered(place); },
      .send =
          [](void* to, const void* value, int bytes, unsigned long long* barrier, int rank, Place place,
             const void* pc) {
            running().send(to, value, static_cast<std::size_t>(bytes), word(barrier), rank, place, pc);
          },
      .wait_for_previous_launch = [] { running().wait_for_previous_launch(); },
  };
  return calls;
}

}  // namespace

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
