// NVRTC as a table of functions. Only its header is compiled in: the library is opened at run time.
#pragma once

#include <nvrtc.h>

#include <string>
#include <vector>

#include "normjit/arch.h"
#include "normjit/base/dynamic_library.h"
#include "normjit/result.h"

namespace normjit {

// Looks up functions in a library, and keeps the name of the first missing one.
class NvrtcSymbols {
 public:
  NvrtcSymbols() = default;
  explicit NvrtcSymbols(DynamicLibrary library) : library_(library) {}

  // Converts to a pointer to function of any type.
  struct Address {
    void* address;
    template <class Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
  };
  Address operator()(const char* name) {
    void* address = library_.symbol(name);
    if (address == nullptr && missing_ == nullptr) missing_ = name;
    return {address};
  }
  const char* missing() const { return missing_; }  // nullptr if all were found

 private:
  DynamicLibrary library_;
  const char* missing_ = nullptr;
};

// One line per function. Without a library all are null, for tests to fill in.
struct NvrtcTable {
  NvrtcSymbols find;
  decltype(&nvrtcVersion) version = find("nvrtcVersion");
  decltype(&nvrtcGetErrorString) error_string = find("nvrtcGetErrorString");
  decltype(&nvrtcGetNumSupportedArchs) arch_count = find("nvrtcGetNumSupportedArchs");
  decltype(&nvrtcGetSupportedArchs) archs = find("nvrtcGetSupportedArchs");
  decltype(&nvrtcCreateProgram) create_program = find("nvrtcCreateProgram");
  decltype(&nvrtcDestroyProgram) destroy_program = find("nvrtcDestroyProgram");
  decltype(&nvrtcCompileProgram) compile_program = find("nvrtcCompileProgram");
  decltype(&nvrtcGetProgramLogSize) log_size = find("nvrtcGetProgramLogSize");
  decltype(&nvrtcGetProgramLog) log = find("nvrtcGetProgramLog");
  decltype(&nvrtcGetCUBINSize) cubin_size = find("nvrtcGetCUBINSize");
  decltype(&nvrtcGetCUBIN) cubin = find("nvrtcGetCUBIN");
  decltype(&nvrtcGetPTXSize) ptx_size = find("nvrtcGetPTXSize");
  decltype(&nvrtcGetPTX) ptx = find("nvrtcGetPTX");
};

// An open NVRTC, ready to compile.
struct Nvrtc {
  NvrtcTable call;
  std::string path;
  int major = 0, minor = 0;
  std::vector<Arch> archs;  // ascending, without suffixes

  std::string version() const;  // "13.0"
};

// Opens a library by path or soname; with `only_if_loaded`, only if this process has loaded it. Errors:
// NoCompiler, whose message is the bare reason, and CompilerTooOld.
Result<Nvrtc> open_nvrtc(const std::string& name, bool only_if_loaded);

// The second half of open_nvrtc: asks a complete table for its version and architectures.
Result<Nvrtc> describe_nvrtc(const NvrtcTable& call, const std::string& path);

}  // namespace normjit
