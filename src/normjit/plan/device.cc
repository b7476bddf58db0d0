// SPDX-License-Identifier: Apache-2.0
#include "normjit/device.h"

#include "normjit/base/text.h"

namespace normjit {
namespace {

constexpr int kKiB = 1024;
constexpr std::int64_t kMiB = 1024 * 1024;

// A row per architecture: the limits of its compute capability (CUDA programming guide and occupancy
// header), and SM count and L2 of the GPU named. At run time the device's own properties are used instead.
// arch      SMs  threads blocks  registers  shared: block, SM        L2
const DeviceProfile kProfiles[] = {
    {{75, 0}, 40, 1024, 16, 65536, 64 * kKiB, 64 * kKiB, 4 * kMiB},        // T4
    {{80, 0}, 108, 2048, 32, 65536, 163 * kKiB, 164 * kKiB, 40 * kMiB},    // A100
    {{86, 0}, 84, 1536, 16, 65536, 99 * kKiB, 100 * kKiB, 6 * kMiB},       // A40
    {{87, 0}, 16, 1536, 16, 65536, 163 * kKiB, 164 * kKiB, 4 * kMiB},      // Jetson AGX Orin
    {{88, 0}, 16, 1536, 16, 65536, 99 * kKiB, 100 * kKiB, 4 * kMiB},       // no product; the least of 8.x
    {{89, 0}, 58, 1536, 24, 65536, 99 * kKiB, 100 * kKiB, 48 * kMiB},      // L4
    {{90, 0}, 132, 2048, 32, 65536, 227 * kKiB, 228 * kKiB, 60 * kMiB},    // H200
    {{100, 0}, 148, 2048, 32, 65536, 227 * kKiB, 228 * kKiB, 126 * kMiB},  // B200
    {{103, 0}, 148, 2048, 32, 65536, 227 * kKiB, 228 * kKiB, 126 * kMiB},  // B300
    {{110, 0}, 20, 1536, 24, 65536, 227 * kKiB, 228 * kKiB, 32 * kMiB},    // Jetson Thor
    {{120, 0}, 170, 1536, 24, 65536, 99 * kKiB, 100 * kKiB, 96 * kMiB},    // RTX 5090
    {{121, 0}, 48, 1536, 24, 65536, 99 * kKiB, 100 * kKiB, 24 * kMiB},     // GB10
};

}  // namespace

std::span<const DeviceProfile> DeviceProfile::known() noexcept { return kProfiles; }

Result<DeviceProfile> DeviceProfile::of(Arch arch) {
  for (DeviceProfile profile : kProfiles)
    if (profile.arch.number == arch.number) {
      profile.arch = arch;
      return profile;
    }
  std::string names;
  for (const DeviceProfile& row : kProfiles) names += " " + row.arch.name();
  return Error{Code::UnknownArch, concat({"no profile for ", arch.name(), "; known are", names})};
}

std::string DeviceProfile::text() const {
  return concat({arch.name(), ", ", shortest(sm_count), " SMs, ", shortest(shared_per_block / kKiB),
                 " KiB shared memory a block, ", shortest(l2_bytes / kMiB), " MiB L2"});
}

}  // namespace normjit
