// SPDX-License-Identifier: Apache-2.0
#include "normjit/driver/driver_table.h"

#include <string>

#include "normjit/base/dynamic_library.h"
#include "normjit/base/fork.h"

namespace normjit {
namespace {

using GetVersion = CUresult (*)(int*);
using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

std::string dotted(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Error too_old(const std::string& what) {
  return {Code::DriverTooOld, "The NVIDIA driver " + what + "; normjit needs a driver for CUDA " +
                                  dotted(kOldestDriver) + " or newer (R525). Update the driver."};
}

}  // namespace

Result<DriverTable> read_driver(const FindSymbol& find) {
  // Only these two are found by their exported names; cuGetProcAddress finds the rest.
  const auto get_version = reinterpret_cast<GetVersion>(find("cuDriverGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != CUDA_SUCCESS) {
    return Error{
        Code::NoDriver,
        "The libcuda.so.1 found does not report its version, so it is no working NVIDIA driver (perhaps the "
        "stub of a toolkit). Remove it from the loader's path and install driver R525 or newer."};
  }
  if (version < kOldestDriver) return too_old("is for CUDA " + dotted(version));
  const auto get = reinterpret_cast<GetProcAddress>(find("cuGetProcAddress_v2"));
  if (get == nullptr) return too_old("has no cuGetProcAddress_v2");

  // The version selects the signature, also in newer drivers.
  const auto function = [get](const char* name, int of_version) -> void* {
    void* address = nullptr;
    const CUresult result = get(name, &address, of_version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr);
    return result == CUDA_SUCCESS ? address : nullptr;
  };
  DriverTable table;
#define NORMJIT_FIND(name, of_version, ...)                                         \
  table.name = reinterpret_cast<decltype(table.name)>(function(#name, of_version)); \
  if (table.name == nullptr && of_version <= kOldestDriver) return too_old("has no " #name);
  NORMJIT_DRIVER_CALLS(NORMJIT_FIND)
#undef NORMJIT_FIND
  return table;
}

Result<DriverTable> open_driver() {
  const ForkGate gate;  // for the loader's locks, which a symbol lookup takes too
  std::string why;
  const DynamicLibrary library = DynamicLibrary::open("libcuda.so.1", &why);
  if (!library) {
    return Error{
        Code::NoDriver,
        "libcuda.so.1 cannot be opened (" + why +
            "). It comes with the NVIDIA driver: install driver R525 or newer, or start the container with "
            "its GPUs. Prebuilding kernels works without it."};
  }
  return read_driver([&library](const char* name) { return library.symbol(name); });
}

}  // namespace normjit
