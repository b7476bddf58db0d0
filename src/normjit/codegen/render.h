// SPDX-License-Identifier: Apache-2.0
// The text renderer: replaces each {{key}} by its value.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "normjit/result.h"

namespace normjit {

struct Placeholder {
  std::string_view key;  // [a-z0-9_]+
  std::string value;
};

// Strict: BadTemplate, with the key and the line, for a placeholder without a value, a value without a
// placeholder, a key given twice, and braces that do not close. `name` is the template's name for messages.
Result<std::string> render(std::string_view name, std::string_view text, std::span<const Placeholder> values);

}  // namespace normjit
