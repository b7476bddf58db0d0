// What the reports that become JSON have in common.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "normjit/device.h"

namespace normjit::cli {

using Json = nlohmann::ordered_json;

// Paths and compiler logs may hold anything; bytes that are not UTF-8 become U+FFFD.
inline std::string text_of(const Json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

inline Json json_of(const DeviceProfile& device) {
  return {{"arch", device.arch.name()},
          {"sm_count", device.sm_count},
          {"threads_per_sm", device.threads_per_sm},
          {"blocks_per_sm", device.blocks_per_sm},
          {"registers_per_sm", device.registers_per_sm},
          {"shared_per_block", device.shared_per_block},
          {"shared_per_sm", device.shared_per_sm},
          {"l2_bytes", device.l2_bytes}};
}

}  // namespace normjit::cli
