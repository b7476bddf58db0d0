// SPDX-License-Identifier: Apache-2.0
// Lists of architectures, as users write them.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "normjit/device.h"
#include "normjit/result.h"

namespace normjit {

// Returns the profile of device `ordinal` of this machine: Service::device, or a fake in tests.
using NativeDevice = std::function<Result<DeviceProfile>(int ordinal)>;

// The devices that a comma-separated list names, each once:
//   sm_90       the default profile of an architecture
//   native      every GPU of this machine
//   all-major   the first architecture of each known major
//   all         every known architecture
// Errors: BadArgument for an empty list or word, UnknownArch, and the error of `native` without a GPU.
Result<std::vector<DeviceProfile>> parse_arch_list(std::string_view list, const NativeDevice& native);

}  // namespace normjit
