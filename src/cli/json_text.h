// SPDX-License-Identifier: Apache-2.0
// What the reports that become JSON have in common.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace normjit::cli {

using Json = nlohmann::ordered_json;

// Paths and compiler logs may hold anything; bytes that are not UTF-8 become U+FFFD.
inline std::string json_text(const Json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

// JSON has no NaN and no infinity: null and "inf" stand for them.
inline Json json_number(double value) {
  if (std::isnan(value)) return nullptr;
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

}  // namespace normjit::cli
