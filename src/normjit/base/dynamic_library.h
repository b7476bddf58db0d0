// SPDX-License-Identifier: Apache-2.0
// A shared library opened at run time. normjit does not link to libnvrtc and libcuda, but opens them this
// way.
#pragma once

#include <string>

namespace normjit {

// An open library, or empty. A plain value. Thread-safe. The library is never closed, because a CUDA library
// must not be unloaded under its own threads and exit handlers. Opening passes the ForkGate: a fork waits for
// it, and an exiting process opens no library.
class DynamicLibrary {
 public:
  DynamicLibrary() = default;

  // Opens a file (a name with a slash) or a soname, with RTLD_LOCAL: its symbols do not hide the host's.
  // Empty on failure; *why is then the loader's reason.
  static DynamicLibrary open(const std::string& path_or_soname, std::string* why = nullptr);

  // The library if this process has loaded it already, else empty.
  static DynamicLibrary already_loaded(const std::string& soname);

  explicit operator bool() const { return handle_ != nullptr; }

  // The address of an exported function or object, or nullptr.
  void* symbol(const char* name) const;

  // The file that the loader opened. Empty for an empty library.
  std::string path() const;

 private:
  explicit DynamicLibrary(void* handle) : handle_(handle) {}

  void* handle_ = nullptr;
};

// The program or shared library that contains this address; empty if none does.
std::string file_of_address(const void* address);

}  // namespace normjit
