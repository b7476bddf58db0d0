// A shared library opened at run time: how normjit reaches libnvrtc and libcuda without linking to them.
#pragma once

#include <string>

namespace normjit {

// An open library, or empty. A plain value. The library is never closed: a CUDA library must not be unloaded
// under its own threads and exit handlers, and opening the same file twice costs nothing. Thread-safe.
// Opening goes through the ForkGate: a fork waits for it, and an exiting process opens nothing more.
class DynamicLibrary {
 public:
  DynamicLibrary() = default;

  // Opens a file (a name with a slash) or what the loader finds under a soname. Its symbols stay out of the
  // way of the host's own. Empty on failure, and then *why is the loader's reason.
  static DynamicLibrary open(const std::string& path_or_soname, std::string* why = nullptr);

  // The library if this process has it already, else empty. Loads nothing.
  static DynamicLibrary already_loaded(const std::string& soname);

  explicit operator bool() const { return handle_ != nullptr; }

  // The address of an exported function or object, nullptr where there is none.
  void* symbol(const char* name) const;

  // The file, as the loader resolved it. Empty for an empty library.
  std::string path() const;

 private:
  explicit DynamicLibrary(void* handle) : handle_(handle) {}

  void* handle_ = nullptr;
};

// The program or shared library that holds the code or data at this address; empty if none does.
std::string file_of_address(const void* address);

}  // namespace normjit
