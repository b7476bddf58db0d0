// SPDX-License-Identifier: Apache-2.0
// The properties of a GPU on which plans and compilations depend.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "normjit/arch.h"

namespace normjit {

// Read from a device by the driver; without a device, the default of an architecture (of()).
struct DeviceProfile {
  Arch arch;
  int sm_count = 0;          // multiprocessors
  int threads_per_sm = 0;    // that can be resident
  int blocks_per_sm = 0;     // that can be resident
  int registers_per_sm = 0;  // 32-bit registers
  int shared_per_block = 0;  // bytes, with the opt-in above 48 KiB
  int shared_per_sm = 0;     // bytes
  std::int64_t l2_bytes = 0;

  friend bool operator==(const DeviceProfile&, const DeviceProfile&) = default;

  // The default profile of an architecture: the limits of its compute capability, and the SM count and L2 of
  // its best-known GPU. UnknownArch, with the list of known ones, for any other architecture.
  NORMJIT_API static Result<DeviceProfile> of(Arch arch);
  // The default profiles of all known architectures, ascending.
  NORMJIT_API static std::span<const DeviceProfile> known() noexcept;
  // "sm_90, 132 SMs, 227 KiB shared memory a block, 60 MiB L2"
  NORMJIT_API std::string text() const;
};

}  // namespace normjit
