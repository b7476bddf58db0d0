// What the reports that become JSON have in common.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "normjit/service/report_json.h"

namespace normjit::cli {

using Json = nlohmann::ordered_json;

// Paths and compiler logs may hold anything; bytes that are not UTF-8 become U+FFFD.
inline std::string text_of(const Json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

inline Json device_json(const DeviceProfile& device) { return Json::parse(normjit::json_of(device).text()); }

}  // namespace normjit::cli
