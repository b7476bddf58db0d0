// SPDX-License-Identifier: Apache-2.0
// A shared library of kernels for the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "normjit/result.h"
#include "simt/kernel/runtime.h"

namespace normjit::simt {

class Module {
 public:
  // Opens the library at `path`. The destructor removes `temporary_folder`, unless that is empty.
  static Result<std::shared_ptr<const Module>> open(const std::string& path,
                                                    const std::string& temporary_folder, bool checked);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  using Entry = void (*)(void** arguments);
  Entry kernel(std::size_t index) const { return table_->kernels[index]; }
  // The begin of its code.
  const void* code() const { return reinterpret_cast<const void*>(base_); }
  // Whether its accesses are reported to the Runtime.
  bool checked() const { return checked_; }
  // Whether an address is inside the library's own data.
  bool holds(const void* address) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    return at >= begin_ && at < end_;
  }
  // The place of the call that returns to `pc`, from the debug information: "statistics.cuh:57 from
  // block_row.cu:23"; an offset if that cannot be read.
  std::string place_of(const void* pc) const;

 private:
  Module() = default;

  std::string path_, temporary_folder_;
  void* handle_ = nullptr;
  const ModuleTable* table_ = nullptr;
  std::uintptr_t base_ = 0, begin_ = 0, end_ = 0;
  bool checked_ = false;
};

}  // namespace normjit::simt
