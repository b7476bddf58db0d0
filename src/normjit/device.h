// The facts about a GPU on which plans and compilations depend.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "normjit/arch.h"

namespace normjit {

// Read from a device by the driver, or the named default of an architecture where there is no device.
struct DeviceProfile {
  Arch arch;
  int sm_count = 0;          // multiprocessors
  int threads_per_sm = 0;    // resident at most
  int blocks_per_sm = 0;     // resident at most
  int registers_per_sm = 0;  // 32-bit registers
  int shared_per_block = 0;  // bytes, with the opt-in
  int shared_per_sm = 0;     // bytes
  std::int64_t l2_bytes = 0;

  friend bool operator==(const DeviceProfile&, const DeviceProfile&) = default;

  // The default profile of an architecture: the limits of its compute capability and the size of its
  // best-known GPU. UnknownArch, with the list of known ones, for an architecture without a row.
  NORMJIT_API static Result<DeviceProfile> of(Arch arch);
  // Every known architecture, ascending.
  NORMJIT_API static std::span<const DeviceProfile> known() noexcept;
  // "sm_90, 132 SMs, 227 KiB shared memory a block, 60 MiB L2"
  NORMJIT_API std::string text() const;
};

}  // namespace normjit
